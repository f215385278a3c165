use super::*;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use longshore_fetch::http::Policy;
use rstest::rstest;

const URL: &str = "http://registry.example.com/v2/modules/manifests/latest";

fn call(url: &str) -> Call {
    Call::new(Method::GET, Url::parse(url).expect("a URL"))
}

fn answer(status: StatusCode, body: &str) -> RegistryResponse {
    let url = Url::parse(URL).expect("a URL");
    RegistryResponse { url, status, headers: HeaderMap::new(), body: body.as_bytes().to_vec() }
}

#[test]
fn a_call_names_itself_in_its_failures_without_secrets() {
    let call = call(&format!("{URL}?state=secret"));
    let failure = call.failure("no data for 30s");
    assert_eq!(failure.one_line(), format!("GET {URL}?*** failed: no data for 30s"));
    assert_eq!(failure.kind(), FailureKind::Download);
    assert!(failure.remedy_or_default().starts_with("check the registry, the network and "));
    let failure = call.too_long();
    let expected = format!("GET {URL}?***: the answer has more than 4194304 bytes");
    assert_eq!((failure.one_line(), failure.kind()), (expected, FailureKind::Verification));
    assert_eq!(call.overdue(Duration::from_secs(72)), "no answer within 72s");
}

#[rstest]
#[case::none("", "")]
#[case::no_json("<html>", "")]
#[case::another_form(r#"{"error":"x"}"#, "")]
#[case::code_alone(r#"{"errors":[{"code":"DENIED"}]}"#, " (DENIED)")]
#[case::both(r#"{"errors":[{"code":"DENIED","message":"not you"}]}"#, " (DENIED not you)")]
#[case::control_characters(r#"{"errors":[{"message":"a\u001bb\n"}]}"#, " (ab)")]
fn the_registrys_error_text_is_shown(#[case] body: &str, #[case] expected: &str) {
    let failure = unexpected(&call(URL), &answer(StatusCode::FORBIDDEN, body));
    let expected = format!("GET {URL}: the registry says 403 Forbidden{expected}");
    assert_eq!(failure.one_line(), expected);
}

#[rstest]
#[case::immutable_tag(Method::PUT, 400, true)]
#[case::too_large(Method::PUT, 413, true)]
#[case::chunk_too_large(Method::PATCH, 413, true)]
#[case::quota(Method::POST, 412, true)]
#[case::read(Method::GET, 400, false)]
#[case::looked_for(Method::HEAD, 400, false)]
#[case::login(Method::PUT, 401, false)]
#[case::rights(Method::PUT, 403, false)]
#[case::no_repository(Method::POST, 404, false)]
#[case::read_only(Method::POST, 405, false)]
#[case::proxy(Method::PUT, 407, false)]
#[case::slow(Method::PUT, 408, false)]
#[case::many(Method::POST, 429, false)]
#[case::away(Method::PUT, 502, false)]
#[case::redirected(Method::PUT, 307, false)]
fn a_refusal_of_what_was_sent_is_told_from_a_registry_that_cannot_be_used(
    #[case] method: Method,
    #[case] status: u16,
    #[case] expected: bool,
) {
    let call = Call::new(method, Url::parse(URL).expect("a URL"));
    let status = StatusCode::from_u16(status).expect("a status");
    let failure = unexpected(&call, &answer(status, ""));
    assert_eq!(is_of_content(&failure), expected, "{}", failure.one_line());
    assert_eq!(failure.kind(), FailureKind::Download);
    assert_eq!(failure.one_line().ends_with(": it refuses what was sent"), expected);
}

#[test]
fn a_long_error_text_is_cut() {
    let body = format!(r#"{{"errors":[{{"message":"{}"}}]}}"#, "x".repeat(1000));
    let text = answer(StatusCode::FORBIDDEN, &body).error_text();
    assert_eq!(text.len(), " ()".len() + MAX_ERROR_TEXT);
}

#[tokio::test]
async fn a_busy_registry_is_named_with_its_error_text() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let url = format!("http://{}/v2/", listener.local_addr().expect("address"));
    let body = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"later"}]}"#;
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let read = stream.read(&mut [0; 4096]).expect("a request");
        assert!(read > 0, "no request");
        let head = format!("HTTP/1.1 429 Too Many Requests\r\nContent-Length: {}", body.len());
        write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}").expect("answers");
    });
    let policy = Policy { busy: Duration::ZERO, ..Policy::default() };
    let fetcher = Fetcher::new(policy, Path::new("/")).expect("a fetcher");
    let failure = send(&fetcher, &call(&url), None).await.err().expect("refused");
    served.join().expect("ends");
    let cause = "the registry says 429 Too Many Requests (TOOMANYREQUESTS later)";
    assert_eq!(failure.one_line(), format!("GET {url}: {cause}"));
}
