use super::*;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use super::super::Policy;
use super::super::request::DownloadRequest;
use longshore_core::failure::FailureKind;
use rstest::rstest;
use tokio::net::TcpSocket;

const MOMENT: Duration = Duration::from_millis(100);

fn policy() -> Policy {
    Policy { attempts: 3, backoff: Duration::ZERO, busy: Duration::ZERO, ..Policy::default() }
}

fn short_connect() -> Policy {
    Policy { connect: MOMENT, ..policy() }
}

fn short_stall() -> Policy {
    Policy { stall: 10 * MOMENT, ..policy() }
}

/// A server of a test.
enum Server {
    /// A port without a listener.
    Absent,
    /// Accepts connections, and sends nothing.
    Silent,
    /// Sends this text and ends, on each connection.
    Sends(&'static str),
}

impl Server {
    /// Starts it; returns its host and port, and the bound socket of one that is absent: while that
    /// is open, no test beside it gets the port.
    fn start(self) -> (String, Option<TcpSocket>) {
        match self {
            Self::Absent => {
                let socket = TcpSocket::new_v4().expect("a socket");
                socket.bind(([127, 0, 0, 1], 0).into()).expect("bind");
                (socket.local_addr().expect("address").to_string(), Some(socket))
            }
            Self::Silent => (serve(None), None),
            Self::Sends(text) => (serve(Some(text)), None),
        }
    }
}

/// Serves connections with `text`, or with nothing; returns host and port.
fn serve(text: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let read = stream.read(&mut [0; 4096]).is_ok();
            match text {
                Some(text) if read => drop(stream.write_all(text.as_bytes())),
                // Until the client ends the connection.
                _ => while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {},
            }
        }
    });
    address
}

/// Requests `url` once, and reads at most 5 bytes.
async fn attempt(fetcher: &Fetcher, url: &str) -> Result<Vec<u8>, AttemptError> {
    let request = DownloadRequest::new(url, None, 5, true).expect("a URL");
    let response = fetcher.send(&request, fetcher.client().get(url)).await?;
    fetcher.body(&request, response, request.limit).bytes().await
}

/// The variant's name, with the failure.
fn named(error: AttemptError) -> (&'static str, Failure) {
    match error {
        AttemptError::Fatal(error) => ("fatal", error.into()),
        AttemptError::Retry(failure) => ("retry", failure),
        AttemptError::Silent(failure) => ("silent", failure),
        AttemptError::Busy(failure, _) => ("busy", failure),
    }
}

const CUT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc";
const LONG: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef";
const IN_A_CIRCLE: &str = "HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\
                           Connection: close\r\n\r\n";

#[rstest]
#[case::nobody_listens(Server::Absent, "http", policy(), "retry", "Connection refused")]
#[case::no_answer(Server::Silent, "http", short_stall(), "silent", "no data for 1s")]
#[case::no_handshake(
    Server::Silent,
    "https",
    short_connect(),
    "silent",
    "no connection within 100ms"
)]
#[case::another_protocol(
    Server::Sends("SSH-2.0\r\n\r\n"),
    "http",
    policy(),
    "retry",
    "invalid HTTP"
)]
#[case::cut_off(Server::Sends(CUT), "http", policy(), "retry", "end of file before message length")]
#[case::circle(Server::Sends(IN_A_CIRCLE), "http", policy(), "fatal", "too many redirects")]
#[tokio::test]
async fn an_error_of_the_client_has_one_class(
    #[case] server: Server,
    #[case] scheme: &str,
    #[case] policy: Policy,
    #[case] class: &str,
    #[case] cause: &str,
) {
    let (address, _socket) = server.start();
    let url = format!("{scheme}://{address}/file");
    let fetcher = Fetcher::new(policy, Path::new("/")).expect("a fetcher");
    let (found, failure) = named(attempt(&fetcher, &url).await.expect_err("fails"));
    assert_eq!(failure.to_string(), format!("fetching {url} failed"));
    let causes = causes(&failure);
    assert!(causes.contains(cause), "{causes}");
    assert_eq!(found, class, "{causes}");
    assert_eq!(failure.kind(), FailureKind::Download);
    assert!(failure.remedy_or_default().starts_with("check the URL, the network and "));
}

#[tokio::test]
async fn a_request_that_the_client_refuses_is_not_retried() {
    let fetcher = Fetcher::new(policy(), Path::new("/")).expect("a fetcher");
    let fetcher = fetcher.over_https_only().expect("a fetcher");
    let attempted = attempt(&fetcher, "http://archive.example.com/file").await;
    assert_eq!(named(attempted.expect_err("refused")).0, "fatal");
}

#[tokio::test]
async fn an_answer_is_no_longer_than_its_limit() {
    let url = format!("http://{}/file", serve(Some(LONG)));
    let fetcher = Fetcher::new(policy(), Path::new("/")).expect("a fetcher");
    let (class, failure) = named(attempt(&fetcher, &url).await.expect_err("refused"));
    assert_eq!((class, failure.kind()), ("fatal", FailureKind::Verification));
    let expected = format!("{url} is not what was promised: it has more than 5 bytes");
    assert_eq!(failure.to_string(), expected);
}

/// Result of a scripted attempt.
#[derive(Clone, Copy)]
enum Step {
    Answers,
    Fails,
    /// Fails after another MiB arrived.
    FailsLate,
    /// Sends nothing for ever.
    Hangs,
    IsBusy,
    Refuses,
}

/// An exchange without a server.
struct Scripted {
    request: DownloadRequest,
    steps: VecDeque<Step>,
    attempts: usize,
    received: u64,
    is_answered: bool,
}

impl Scripted {
    fn new(steps: &[Step], is_answered: bool) -> Self {
        let request = DownloadRequest::new("http://archive.example.com/file", Some(0), 0, true);
        let (request, steps) = (request.expect("a URL"), steps.iter().copied().collect());
        Self { request, steps, attempts: 0, received: 0, is_answered }
    }
}

impl Exchange for Scripted {
    type Request = DownloadRequest;
    type Response = ();

    fn request(&self) -> &DownloadRequest {
        &self.request
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn is_answered(&self) -> bool {
        self.is_answered
    }

    async fn attempt(&mut self) -> Result<(), AttemptError> {
        self.attempts += 1;
        let failure = self.request.failure("a cause");
        match self.steps.pop_front().expect("a step") {
            Step::Answers => return Ok(()),
            Step::Fails => {}
            Step::FailsLate => self.received += WORTHWHILE,
            Step::Hangs => std::future::pending().await,
            Step::IsBusy => return Err(AttemptError::Busy(failure, Some(MOMENT))),
            Step::Refuses => return Err(failure.into()),
        }
        Err(AttemptError::Retry(failure))
    }
}

use Step::{Answers, Fails, FailsLate, Hangs, IsBusy, Refuses};

#[rstest]
#[case::at_once(&[Answers], false, 1, Ok(()), false)]
#[case::after_a_retry(&[Fails, Answers], false, 2, Ok(()), false)]
#[case::no_more_attempts(&[Fails; 3], false, 3, Err("a cause"), true)]
#[case::of_a_server_that_answered(&[Fails; 3], true, 3, Err("a cause"), false)]
#[case::progress(&[Fails, Fails, FailsLate, Fails, Fails], true, 5, Err("a cause"), false)]
#[case::refused(&[Refuses], false, 1, Err("a cause"), false)]
#[case::busy_for_too_long(&[IsBusy], true, 1, Err("a cause"), false)]
#[case::over_its_time(&[Hangs, Answers], false, 1, Err("it takes too long"), true)]
#[tokio::test]
async fn an_exchange_ends_with_an_answer_or_the_last_failure(
    #[case] steps: &[Step],
    #[case] is_answered: bool,
    #[case] attempts: usize,
    #[case] expected: Result<(), &str>,
    #[case] is_remembered: bool,
) {
    let (connect, silence) = (MOMENT, MOMENT / 2);
    let policy = Policy { connect, silence, stall: Duration::ZERO, ..policy() };
    let fetcher = Fetcher::new(policy, Path::new("/")).expect("a fetcher");
    let mut exchange = Scripted::new(steps, is_answered);
    let ended = fetcher.exchange(&mut exchange).await;
    let ended = ended.map_err(|error| causes(&Failure::from(error)));
    assert_eq!(ended, expected.map_err(ToOwned::to_owned));
    assert_eq!(exchange.attempts, attempts);
    let next = fetcher.exchange(&mut Scripted::new(&[Answers], false)).await;
    let next = next.map_err(|error| causes(&Failure::from(error)));
    assert_eq!(next.is_err(), is_remembered, "{next:?}");
    if let (Err(next), Err(expected)) = (next, expected) {
        assert!(next.starts_with("not asked again, because it did not answer"), "{next}");
        assert!(next.ends_with(expected), "{next}");
    }
}
