//! Values of the variables, each with what curl 7.88.1 did when it asked a server of this machine by a
//! listener in the proxy's place.

use super::*;
use rstest::rstest;

fn shown(url: &Url) -> String {
    let text = |part: &str| String::from_utf8(unescaped(part)).expect("UTF-8");
    let login = match (url.username(), url.password()) {
        ("", None) => String::new(),
        (user, password) => format!(" {}:{}", text(user), text(password.unwrap_or_default())),
    };
    let port = url.port_or_known_default().expect("a port");
    format!("{}://{}:{port}{login}", url.scheme(), url.host_str().expect("a host"))
}

#[rstest]
#[case("http://127.0.0.1:18181", Ok("http://127.0.0.1:18181"))]
#[case("127.0.0.1:18181", Ok("http://127.0.0.1:18181"))]
#[case("http://127.0.0.1:18181/", Ok("http://127.0.0.1:18181"))]
#[case("http://127.0.0.1:18181/path", Ok("http://127.0.0.1:18181"))]
#[case("HTTP://127.0.0.1:18181", Ok("http://127.0.0.1:18181"))]
#[case("http:/127.0.0.1:18181", Ok("http://127.0.0.1:18181"))]
#[case("http:///127.0.0.1:18181", Ok("http://127.0.0.1:18181"))]
#[case("http:127.0.0.1:18181", Err("port"))]
#[case("http://127.0.0.1", Ok("http://127.0.0.1:1080"))]
#[case("127.0.0.1", Ok("http://127.0.0.1:1080"))]
#[case("http://127.0.0.1:", Ok("http://127.0.0.1:1080"))]
#[case("http://user:pw@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:pw"))]
#[case("user:pw@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:pw"))]
#[case("http://user:p%40ss@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:p@ss"))]
#[case("http://user:p@ss@127.0.0.1:18181", Err("not escaped"))]
#[case("http://user:p@ss#1@127.0.0.1:18181", Err("not escaped"))]
#[case("http://user:p#ss@127.0.0.1:18181", Err("not escaped"))]
#[case("http://user:p/ss@127.0.0.1:18181", Err("not escaped"))]
#[case("http://user:p?ss@127.0.0.1:18181", Err("not escaped"))]
#[case("\"http://127.0.0.1:18181\"", Err("character that no name has"))]
#[case("'http://127.0.0.1:18181'", Err("character that no name has"))]
#[case(" http://127.0.0.1:18181", Err("blank"))]
#[case("http://127.0.0.1:18181 ", Err("blank"))]
#[case("http://127.0.0.1:18181\n", Err("blank"))]
#[case("htp://127.0.0.1:18181", Err("scheme htp"))]
#[case("ftp://127.0.0.1:18181", Err("scheme ftp"))]
#[case("http//127.0.0.1:18181", Err("behind its scheme is missing"))]
#[case("//127.0.0.1:18181", Err("no server"))]
#[case("http://", Err("no server"))]
#[case("http://127.0.0.1:1:2", Err("port"))]
#[case("http://127.0.0.1:0", Err("port"))]
#[case("http://127.0.0.1:99999", Err("port"))]
#[case("http://127.0.0.1:18181x", Err("port"))]
#[case("http://{127.0.0.1:18181}", Err("character that no name has"))]
#[case("http://DOM\\user:pw@127.0.0.1:18181", Ok("http://127.0.0.1:18181 DOM\\user:pw"))]
#[case("http://user@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:"))]
#[case("http://:pw@127.0.0.1:18181", Ok("http://127.0.0.1:18181 :pw"))]
#[case("http://user:@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:"))]
#[case("http://us%zzer:p%@127.0.0.1:18181", Ok("http://127.0.0.1:18181 us%zzer:p%"))]
#[case("http://user:p:w@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user:p:w"))]
#[case("http://user;x:pw@127.0.0.1:18181", Ok("http://127.0.0.1:18181 user;x:pw"))]
#[case("http://\u{e4}:\u{f6}@127.0.0.1:18181", Ok("http://127.0.0.1:18181 \u{e4}:\u{f6}"))]
#[case("http://user:p%00w@127.0.0.1:18181", Err("zero byte"))]
#[case("http://[::1]:1", Ok("http://[::1]:1"))]
#[case("http://localhost:18181", Ok("http://localhost:18181"))]
#[case("https://proxy.example.com", Ok("https://proxy.example.com:443"))]
// curl has SOCKS.
#[case("socks5://127.0.0.1:18181", Err("SOCKS"))]
fn values_of_a_variable(#[case] value: &str, #[case] wanted: Result<&str, &str>) {
    let env = |name: &str| (name == "http_proxy").then(|| value.to_owned());
    let found = Proxies::from_env(&env);
    match (wanted, found) {
        (Ok(wanted), Ok(found)) => {
            let url = Url::parse("http://archive.example.com/x").expect("a URL");
            assert_eq!(shown(&found.for_url(&url).expect("a proxy")), wanted);
        }
        (Err(why), Err(failure)) => {
            assert_eq!(failure.code().number(), 2);
            let text = format!("{failure} {:?}", failure.remedy_text());
            assert!(text.contains("http_proxy") && text.contains(why), "{text}");
            assert!(text.contains("@ as %40"), "{text}");
            assert!(
                !text.contains("p@ss") && !text.contains("ss#1") && !text.contains("p%00w"),
                "{text}"
            );
        }
        (wanted, found) => panic!("{wanted:?} {found:?}"),
    }
}

const P: &str = "127.0.0.1:1";
const Q: &str = "127.0.0.1:2";

#[rstest]
#[case(&[("HTTP_PROXY", P)], None, None)]
#[case(&[("HTTP_PROXY", "htp://x")], None, None)]
#[case(&[("http_proxy", P)], Some(1), None)]
#[case(&[("https_proxy", P)], None, Some(1))]
#[case(&[("HTTPS_PROXY", P)], None, Some(1))]
#[case(&[("https_proxy", P), ("HTTPS_PROXY", Q)], None, Some(1))]
#[case(&[("all_proxy", P)], Some(1), Some(1))]
#[case(&[("ALL_PROXY", P)], Some(1), Some(1))]
#[case(&[("all_proxy", P), ("ALL_PROXY", Q)], Some(1), Some(1))]
#[case(&[("http_proxy", ""), ("ALL_PROXY", P)], Some(1), Some(1))]
#[case(&[("http_proxy", P), ("all_proxy", Q)], Some(1), Some(2))]
#[case(&[("all_proxy", P), ("no_proxy", "example.com")], None, None)]
#[case(&[("all_proxy", P), ("NO_PROXY", "example.com")], None, None)]
#[case(&[("all_proxy", P), ("no_proxy", "other"), ("NO_PROXY", "example.com")], Some(1), Some(1))]
fn variables(#[case] set: &[(&str, &str)], #[case] http: Option<u16>, #[case] https: Option<u16>) {
    let env = |name: &str| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let found = Proxies::from_env(&env).expect("usable");
    for (scheme, port) in [("http", http), ("https", https)] {
        let url = Url::parse(&format!("{scheme}://archive.example.com/")).expect("a URL");
        assert_eq!(found.for_url(&url).and_then(|proxy| proxy.port()), port, "{scheme}");
    }
}

#[rstest]
#[case("origin.test", "origin.test", true)]
#[case("*", "origin.test", true)]
#[case("ORIGIN.TEST", "origin.test", true)]
#[case(".origin.test", "origin.test", true)]
#[case("test", "origin.test", true)]
#[case(".test", "origin.test", true)]
#[case("gin.test", "origin.test", false)]
#[case("origin.test:18182", "origin.test", false)]
#[case("origin.test.", "origin.test", true)]
#[case("a,origin.test", "origin.test", true)]
#[case("a origin.test", "origin.test", true)]
#[case("a, origin.test", "origin.test", true)]
#[case("a;origin.test", "origin.test", false)]
#[case("*.test", "origin.test", false)]
#[case("*,a", "origin.test", false)]
#[case("a,*", "origin.test", false)]
#[case("origin.test/24", "origin.test", false)]
#[case("", "origin.test", false)]
#[case(",", "origin.test", false)]
#[case("origin.test", "www.origin.test", true)]
#[case(".origin.test", "www.origin.test", true)]
#[case("www.origin", "www.origin.test", false)]
#[case("rigin.test", "www.origin.test", false)]
#[case("127.0.0.1", "127.0.0.1", true)]
#[case("127.0.0.0/8", "127.0.0.1", true)]
#[case("127.0.0.1/32", "127.0.0.1", true)]
#[case("127.0.0.0/33", "127.0.0.1", false)]
#[case("127.0.0.0/0", "127.0.0.1", false)]
#[case("127.0.0.2/31", "127.0.0.1", false)]
#[case("127.0.0.1/x", "127.0.0.1", true)]
#[case("127.", "127.0.0.1", false)]
#[case("127.0.0.1:18182", "127.0.0.1", false)]
#[case("127.*", "127.0.0.1", false)]
#[case("128.0.0.0/8", "127.0.0.1", false)]
#[case("127.0.0.1/8/8", "127.0.0.1", true)]
#[case("127.0.0.1/", "127.0.0.1", true)]
#[case("127.0.0.0", "127.0.0.1", false)]
#[case("::1", "[::1]", true)]
#[case("[::1]", "[::1]", false)]
// Networks of IPv6 as curl 8 and its manual have them; 7.88 compares their text alone.
#[case("fd00::/8", "[fd12::1]", true)]
#[case("::/0", "[::1]", false)]
fn no_proxy(#[case] list: &str, #[case] host: &str, #[case] wanted: bool) {
    assert_eq!(is_direct(list, host), wanted);
}

#[test]
fn a_rule_comes_before_the_variables_and_no_proxy_before_all() {
    let env = |name: &str| match name {
        "http_proxy" => Some(P.to_owned()),
        "no_proxy" => Some("near.example.com".to_owned()),
        _ => None,
    };
    let rule = |host: &str, proxy: Option<&str>| ProxyRule {
        scheme: "http".to_owned(),
        host: host.to_owned(),
        proxy: proxy.map(|proxy| Proxy::parse(proxy, 80).expect("usable")),
    };
    let rules = vec![
        rule("archive.example.com", Some("apt.example.com")),
        rule("direct.example.com", None),
        rule("near.example.com", Some(Q)),
    ];
    let found = Proxies { rules, ..Proxies::from_env(&env).expect("usable") };
    for (host, wanted) in [
        ("archive.example.com", Some("http://apt.example.com:80")),
        ("ARCHIVE.example.com", Some("http://apt.example.com:80")),
        ("direct.example.com", None),
        ("near.example.com", None),
        ("other.example.com", Some("http://127.0.0.1:1")),
    ] {
        let url = Url::parse(&format!("http://{host}/")).expect("a URL");
        assert_eq!(found.for_url(&url).as_ref().map(shown).as_deref(), wanted, "{host}");
    }
}
