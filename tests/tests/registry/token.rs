//! A registry that requires tokens: first an anonymous one, then one for the login.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

/// Serves tags to clients with the token `wanted`, and issues the tokens `anybody` and, for a
/// login, `user`. Logs each request's path and credentials.
fn serve(listener: &TcpListener, wanted: &'static str, log: &Mutex<Vec<String>>) {
    for stream in listener.incoming() {
        // A client that disconnects is no fault of the server's.
        let Ok(stream) = stream else { return };
        let (path, asker) = match request(&stream) {
            Some(request) => request,
            None => return,
        };
        log.lock().expect("log").push(format!("{path} {asker}"));
        let address = listener.local_addr().expect("address");
        let (status, header, body) = match (path.as_str(), asker.as_str()) {
            ("/token", "") => (200, String::new(), r#"{"token":"anybody"}"#),
            ("/token", "Basic dXNlcjpnZWhlaW0=") => {
                (200, String::new(), r#"{"access_token":"user"}"#)
            }
            (_, asker) if asker == format!("Bearer {wanted}") => {
                (200, String::new(), r#"{"name":"a","tags":["latest"]}"#)
            }
            _ => {
                let challenge = format!(
                    "Www-Authenticate: Bearer realm=\"http://{address}/token\",service=\"s\"\r\n"
                );
                (401, challenge, "{}")
            }
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {length}\r\n");
        let _ = (&stream).write_all(format!("{head}{header}\r\n{body}").as_bytes());
    }
}

/// Returns path without query, and credentials; None for a request that ends the server.
fn request(stream: &TcpStream) -> Option<(String, String)> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let path = first.split(' ').nth(1)?.split('?').next()?.to_owned();
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let asker = headers.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    Some((path, asker.unwrap_or_default()))
}

async fn ask(wanted: &'static str, docker: bool) -> (Result<usize, Failure>, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let log = Arc::new(Mutex::new(Vec::new()));
    let shared = log.clone();
    let server = std::thread::spawn(move || serve(&listener, wanted, &shared));
    let dir = tempfile::tempdir().expect("dir");
    let json = format!(r#"{{"auths":{{"{address}":{{"auth":"dXNlcjpnZWhlaW0="}}}}}}"#);
    std::fs::write(dir.path().join("config.json"), json).expect("writes");
    let place = dir.path().to_str().expect("a path").to_owned();
    let env = |name: &str| (docker && name == "DOCKER_CONFIG").then(|| place.clone());
    let source = format!("http://{address}/a").parse().expect("a registry");
    let insecure = vec![address.to_string().parse().expect("a host")];
    let registry = Registry::open_with(hasty(), &source, Path::new("/"), &env)
        .expect("opens")
        .with_login_rules(&LoginRules { insecure, realms: Vec::new() });
    let requested = SetRequest { driver: None, flavour: None, kernel_release: "x", arch: "x86_64" };
    let found = find(&registry, requested).await.map(|found| found.len());
    // An empty request ends the server.
    drop(TcpStream::connect(address));
    server.join().expect("the server ends");
    let log = log.lock().expect("log").clone();
    (found, log)
}

#[tokio::test]
async fn what_anybody_may_read_is_read_without_the_login() {
    let (found, log) = ask("anybody", true).await;
    assert_eq!(found.expect("reads"), 0);
    assert_eq!(log, ["/v2/a/tags/list ", "/token ", "/v2/a/tags/list Bearer anybody"]);
}

#[tokio::test]
async fn where_anybodys_token_does_not_do_the_login_is_sent_to_the_realm_alone() {
    let (found, log) = ask("user", true).await;
    assert_eq!(found.expect("reads"), 0);
    let wanted = [
        "/v2/a/tags/list ",
        "/token ",
        "/v2/a/tags/list Bearer anybody",
        "/token Basic dXNlcjpnZWhlaW0=",
        "/v2/a/tags/list Bearer user",
    ];
    assert_eq!(log, wanted);
}

#[tokio::test]
async fn without_a_login_it_ends_there() {
    let (found, log) = ask("user", false).await;
    let failure = found.expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Download);
    assert!(failure.report().contains("DOCKER_CONFIG"), "{}", failure.report());
    assert_eq!(log.len(), 3);
}

#[tokio::test]
async fn a_login_that_does_not_do_is_sent_once() {
    let (found, log) = ask("admin", true).await;
    assert!(found.expect_err("refused").report().contains("check the login"));
    assert_eq!(log.len(), 5);
}
