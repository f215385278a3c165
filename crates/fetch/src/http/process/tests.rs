use super::parent::{BEGIN, DownloadProcesses, ReceivedBody};
use super::wire::{HeadMessage, Question, framed, read_message, receive_bytes};

use std::io::{Cursor, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use rstest::rstest;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::super::client_error::{Class, ClientError};
use super::super::head::Head;
use super::super::proxy::Proxies;
use super::super::reach::Reach;
use super::super::request::DownloadRequest;
use super::super::settings::{Limit, Settings};
use super::super::transport::AttemptError;
use super::super::{Redirections, Request as _};
use super::*;
use longshore_core::failure::{ExitCode, Failure};
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, Request, StatusCode, Url};

fn settings(limit: Limit) -> Settings {
    let [connect, stall] = [1, 2].map(Duration::from_secs);
    let (proxies, certificates) = (Proxies::default(), Vec::new());
    Settings { connect, stall, proxies, certificates, limit }
}

fn url() -> Url {
    Url::parse("https://archive.example.com/file?a=b").expect("a URL")
}

#[test]
fn a_request_arrives_as_it_was_sent() {
    let mut request = Request::new(Method::PUT, url());
    for value in [&b"first"[..], b"\xff second"] {
        request.headers_mut().append("x-two", HeaderValue::from_bytes(value).expect("a value"));
    }
    let frame = framed(&Question::new(&request, Some(4), Some(true))).expect("a frame");
    let question: Question = read_message(&frame[..], 1 << 10).expect("a question");
    assert_eq!((question.body, question.resolves_to_loopback), (Some(4), Some(true)));
    let arrived = question.into_request(Some(b"body".to_vec())).expect("a request");
    assert_eq!((arrived.method(), arrived.url()), (request.method(), request.url()));
    assert_eq!(arrived.headers(), request.headers());
    assert_eq!(arrived.body().and_then(reqwest::Body::as_bytes), Some(&b"body"[..]));
}

#[test]
fn a_head_arrives_as_it_was_sent() {
    let mut headers = HeaderMap::new();
    headers.append("etag", HeaderValue::from_static("\"1\""));
    headers.append("x-two", HeaderValue::from_bytes(b"\xff").expect("a value"));
    let (status, length) = (StatusCode::PARTIAL_CONTENT, Some(7));
    let head = Head { status, headers, url: url(), length };
    let frame = framed(&HeadMessage::new(Ok(&head), None)).expect("a frame");
    let answer: HeadMessage = read_message(&frame[..], 1 << 10).expect("an answer");
    let arrived = answer.into_head().expect("a head").expect("no error");
    assert_eq!((arrived.status, arrived.length, arrived.url), (head.status, head.length, head.url));
    assert_eq!(arrived.headers, head.headers);
}

#[rstest]
#[case::status(r#"{"Ok":{"status":7,"url":"http://a/","headers":[],"length":null}}"#)]
#[case::url(r#"{"Ok":{"status":200,"url":"nonsense","headers":[],"length":null}}"#)]
#[case::name(r#"{"Ok":{"status":200,"url":"http://a/","headers":[["a b",[]]],"length":null}}"#)]
#[case::value(r#"{"Ok":{"status":200,"url":"http://a/","headers":[["a",[10]]],"length":null}}"#)]
fn a_head_that_is_none_is_refused(#[case] head: &str) {
    let answer = format!(r#"{{"head":{head},"resolves_to_loopback":null}}"#);
    let answer: HeadMessage = serde_json::from_str(&answer).expect("an answer");
    assert!(answer.into_head().is_err());
}

#[tokio::test]
async fn a_frame_that_is_longer_than_its_limit_is_refused_before_it_is_read() {
    let frame = [&8u32.to_le_bytes()[..], b"12345678"].concat();
    assert_eq!(receive_bytes(&mut Cursor::new(&frame), 8).await.expect("read"), b"12345678");
    let endless = u32::MAX.to_le_bytes();
    for (frame, most) in [(&frame[..], 7), (&endless, 1 << 20)] {
        let refused = receive_bytes(&mut Cursor::new(frame), most).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let refused = read_message::<u32>(frame, most).expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
    }
}

#[test]
fn the_settings_arrive_as_they_were_sent() {
    let reach = Reach::from_host("Registry.example.com.");
    let sent = settings(Limit::Within(reach, Redirections::FollowedOverHttps));
    let json = serde_json::to_string(&sent).expect("JSON");
    let arrived: Settings = serde_json::from_str(&json).expect("settings");
    assert_eq!(format!("{arrived:?}"), format!("{sent:?}"));
}

#[test]
fn a_process_learns_where_a_server_is_once() {
    let reach = Reach::from_host("registry.example.com");
    let local = Url::parse("http://127.0.0.1/token").expect("a URL");
    reach.learn(None);
    assert!(reach.check(&local).is_err());
    reach.learn(Some(true));
    reach.learn(Some(false));
    assert_eq!(reach.resolves_to_loopback(), Some(true));
    assert!(reach.check(&local).is_ok());
}

/// Bytes of a failure whose cause is `cause`.
fn failing(cause: &str) -> Vec<u8> {
    let error = ClientError::new(Class::Silent, cause);
    [b"f".to_vec(), framed(&error).expect("a frame")].concat()
}

#[rstest]
#[case::end(b"d\x02\0\0\0abe".to_vec(), Ok("ab"))]
#[case::closed_before_its_end(b"d\x02\0\0\0ab".to_vec(), Err("the process that downloads has ended"))]
#[case::closed_in_a_piece(b"d\x02\0\0\0a".to_vec(), Err("the process that downloads has ended"))]
#[case::unknown(b"x".to_vec(), Err("does not answer as it should: a piece of no known kind"))]
#[case::too_long(b"d\0\0\0\x01".to_vec(), Err("does not answer as it should: a frame that is too long"))]
#[case::failure(failing("no data for 2s"), Err("no data for 2s"))]
#[case::escapes(failing("\u{1b}[2J"), Err("\\u{1b}[2J"))]
#[case::no_error(b"f\x02\0\0\0{}".to_vec(), Err("does not answer as it should"))]
#[tokio::test]
async fn what_a_process_sends_as_a_body_is_checked(
    #[case] sent: Vec<u8>,
    #[case] expected: Result<&str, &str>,
) {
    let (ours, mut theirs) = UnixStream::pair().expect("a socket");
    theirs.write_all(&sent).await.expect("sent");
    drop(theirs);
    let mut body = ReceivedBody::new(ours, Duration::from_secs(5));
    let mut bytes = Vec::new();
    let ended = loop {
        match body.chunk().await {
            Ok(Some(chunk)) => bytes.extend(chunk),
            Ok(None) => break Ok(String::from_utf8(bytes).expect("text")),
            Err(error) => break Err(error.cause),
        }
    };
    match (ended, expected) {
        (Ok(ended), Ok(expected)) => assert_eq!(ended, expected),
        (Err(ended), Err(expected)) => assert!(ended.contains(expected), "{ended}"),
        (ended, expected) => panic!("{ended:?}, not {expected:?}"),
    }
}

#[rstest]
#[case::absent("/nonexistent", "No such file or directory")]
#[case::no_program("/etc/passwd", "Permission denied")]
#[tokio::test]
async fn a_program_that_does_not_download_is_a_failure_of_the_host(
    #[case] program: &str,
    #[case] cause: &str,
) {
    let processes = DownloadProcesses::new(Path::new(program), Arc::new(settings(Limit::Any)));
    let process = processes.process_for(&url());
    let error = process.send(Request::new(Method::GET, url())).await.err().expect("an error");
    assert_eq!(error.class, Class::Host);
    assert!(error.cause.contains(cause), "{error:?}");
    let request = DownloadRequest::new(url().as_str(), None, 5, true).expect("a URL");
    let AttemptError::Fatal(failure) = error.into_attempt(&request) else { panic!("retried") };
    let failure = Failure::from(failure);
    assert_eq!(failure.code(), ExitCode::HostUnsupported);
    assert!(failure.remedy_or_default().contains("seccomp"), "{}", failure.report());
    assert_eq!(request.url(), &url());
}

#[test]
fn the_page_about_deadlines_has_the_wait() {
    longshore_core::testing::assert_in_page("[process that downloads]", BEGIN);
}

#[tokio::test]
async fn a_process_that_ends_at_its_start_may_be_started_again() {
    let settings = Arc::new(settings(Limit::Any));
    let processes = DownloadProcesses::new(Path::new("/bin/true"), settings);
    let error = processes.process_for(&url()).begin().await.expect_err("it ends");
    assert_eq!(error.class, Class::Broken, "{error:?}");
}

#[tokio::test]
async fn a_body_that_stands_still_is_given_up() {
    let (ours, _theirs) = UnixStream::pair().expect("a socket");
    let mut body = ReceivedBody::new(ours, Duration::from_millis(50));
    assert_eq!(body.chunk().await.expect_err("silence").class, Class::Silent);
}

#[test]
fn each_server_has_a_process_of_its_own_and_the_last_ones_are_kept() {
    let settings = Arc::new(settings(Limit::Any));
    let processes = DownloadProcesses::new(Path::new("/nonexistent"), settings);
    let of = |url: &str| processes.process_for(&Url::parse(url).expect("a URL"));
    let first = of("https://a.example.com/x");
    assert!(Arc::ptr_eq(&first, &of("https://user@a.example.com:443/y")));
    for other in
        ["http://a.example.com/x", "https://a.example.com:8443/x", "https://b.example.com/x"]
    {
        assert!(!Arc::ptr_eq(&first, &of(other)), "{other}");
    }
    for number in 0..12 {
        of(&format!("https://{number}.example.com/"));
        of("https://a.example.com/");
    }
    assert!(Arc::ptr_eq(&first, &of("https://a.example.com/x")), "asked in between");
    for number in 0..16 {
        of(&format!("https://{number}.example.org/"));
    }
    assert!(!Arc::ptr_eq(&first, &of("https://a.example.com/x")), "asked long ago");
}

#[test]
fn other_words_are_refused() {
    let words = ["__fetch", "more"].map(std::ffi::OsString::from);
    assert_eq!(fetch_main(words), 2);
}
