use super::*;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;

/// Answers one request with `head` and nothing else; returns the request's lines, in lower case.
fn answer(listener: &TcpListener, head: &str) -> Vec<String> {
    let (stream, _) = listener.accept().expect("accept");
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let asked: Vec<String> =
        lines.take_while(|line| !line.is_empty()).map(|line| line.to_ascii_lowercase()).collect();
    write!(&stream, "HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .expect("answers");
    asked
}

#[tokio::test]
async fn a_query_is_not_told_to_the_host_of_a_redirection() {
    let listen = || TcpListener::bind("127.0.0.1:0").expect("bind");
    let (first, second) = (listen(), listen());
    let address = |listener: &TcpListener| listener.local_addr().expect("address");
    let url = format!("http://{}/file?signature=secret", address(&first));
    let elsewhere = format!("302 Found\r\nLocation: http://{}/other", address(&second));
    let served = std::thread::spawn(move || {
        answer(&first, &elsewhere);
        answer(&second, "200 OK")
    });
    let fetcher = Fetcher::new(Policy::default(), Path::new("/")).expect("a fetcher");
    fetcher.bytes(&url, 10).await.expect("fetched");
    let asked = served.join().expect("ends");
    assert!(asked[0].starts_with("get /other"), "{asked:?}");
    assert!(!asked.iter().any(|line| line.contains("secret")), "{asked:?}");
}

#[tokio::test]
async fn a_login_is_sent_to_its_own_server_and_not_with_a_redirection() {
    let listen = || TcpListener::bind("127.0.0.1:0").expect("bind");
    let (first, second) = (listen(), listen());
    let address = |listener: &TcpListener| listener.local_addr().expect("address");
    let url = format!("http://{}/file", address(&first));
    let port = Some(address(&first).port());
    let elsewhere = format!("302 Found\r\nLocation: http://{}/other", address(&second));
    let served =
        std::thread::spawn(move || (answer(&first, &elsewhere), answer(&second, "200 OK")));
    let [scheme, host, path, user, password] =
        ["http", "127.0.0.1", "", "user", "password"].map(str::to_owned);
    let logins = Logins::new(vec![Login { scheme, host, port, path, user, password }]);
    let fetcher = Fetcher::new(Policy::default(), Path::new("/")).expect("a fetcher");
    fetcher.with_logins(logins).bytes(&url, 10).await.expect("fetched");
    let (asked, redirected) = served.join().expect("ends");
    let login = "authorization: basic dxnlcjpwyxnzd29yza==".to_owned();
    assert!(asked.contains(&login), "{asked:?}");
    assert!(!redirected.iter().any(|line| line.starts_with("authorization")), "{redirected:?}");
}

#[tokio::test]
async fn a_failure_shows_no_token_of_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://secret:@{}/file?t=secret", listener.local_addr().expect("address"));
    let served = std::thread::spawn(move || answer(&listener, "404 Not Found"));
    let fetcher = Fetcher::new(Policy::default(), Path::new("/")).expect("a fetcher");
    let failure = Failure::from(fetcher.bytes(&url, 10).await.expect_err("refused"));
    served.join().expect("ends");
    assert!(failure.report().contains("/file"), "{}", failure.report());
    assert!(!failure.report().contains("secret"), "{}", failure.report());
}

#[test]
fn the_hosts_certificates_are_found_behind_an_absolute_link() {
    let host = tempfile::tempdir().expect("dir");
    let (bundle, link) = ("etc/pki/ca-trust/extracted/pem", "etc/pki/tls/certs");
    for dir in [bundle, link] {
        std::fs::create_dir_all(host.path().join(dir)).expect("dir");
    }
    let pem = include_bytes!("../../testdata/certificate.pem");
    std::fs::write(host.path().join(bundle).join("tls-ca-bundle.pem"), pem).expect("write");
    let target = Path::new("/").join(bundle).join("tls-ca-bundle.pem");
    symlink(target, host.path().join(link).join("ca-bundle.crt")).expect("link");
    assert!(host_certificates(host.path()).is_some());
}
