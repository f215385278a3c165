//! Messages between longshore and the process that downloads.
//!
//! Two kinds of sockets carry them. The control socket is the process's standard input: longshore sends the
//! [`Settings`] in a frame, the process answers with a [`Start`], and from then on each byte of longshore brings the
//! socket of one exchange. On that, longshore sends a [`Question`] and the request's body; the process sends an
//! [`HeadMessage`], and the response's body in pieces. Each piece begins with a byte: [`DATA`] with a frame of bytes,
//! [`END`], or [`FAILURE`] with a frame of a [`ClientError`].
//!
//! A frame has its length in bytes before it (32 bits, little-endian); messages are JSON.
//!
//! [`Settings`]: super::super::settings::Settings

use std::io::{self, ErrorKind, Read, Write};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Method, Request, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::client_error::ClientError;
use super::super::head::Head;

/// Maximum length of the settings: bundles of certificates make up most of it.
pub(super) const MOST_SETTINGS: usize = 64 << 20;
/// Maximum length of any other message. The client takes no longer headers than 400 KiB.
pub(super) const MOST_MESSAGE: usize = 4 << 20;
/// Maximum length of a piece of a body.
pub(super) const MOST_PIECE: usize = 1 << 20;
/// Maximum length of a request's body.
pub(super) const MOST_BODY: usize = 2 << 30;

pub(super) const DATA: u8 = b'd';
pub(super) const END: u8 = b'e';
pub(super) const FAILURE: u8 = b'f';

/// Answer to the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Start {
    Ready {
        /// It has kept root's user id.
        is_root: bool,
    },
    /// No client can be made with them, and why.
    Unusable(String),
    /// The process could not give up its rights, and why.
    Unconfined(String),
}

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    method: String,
    url: String,
    headers: Headers,
    /// Length of the body that follows, in bytes; None for a request without one.
    pub(super) body: Option<usize>,
    /// Knowledge of the server (`Reach::learn`).
    pub(super) resolves_to_loopback: Option<bool>,
}

/// Headers in their order; values may have any bytes.
type Headers = Vec<(String, Vec<u8>)>;

impl Question {
    /// Returns the question for a request with this length of its body.
    pub(super) fn new(
        request: &Request,
        body: Option<usize>,
        resolves_to_loopback: Option<bool>,
    ) -> Self {
        let (method, url) = (request.method().to_string(), request.url().to_string());
        let headers = written(request.headers());
        Self { method, url, headers, body, resolves_to_loopback }
    }

    /// Returns the request.
    ///
    /// # Errors
    /// The part that is none of a request.
    pub(super) fn into_request(self, body: Option<Vec<u8>>) -> Result<Request, String> {
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|e| e.to_string())?;
        let url = Url::parse(&self.url).map_err(|e| e.to_string())?;
        let mut request = Request::new(method, url);
        *request.headers_mut() = parsed(self.headers)?;
        *request.body_mut() = body.map(Body::from);
        Ok(request)
    }
}

/// Head of a response, or the error in its place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HeadMessage {
    head: Result<WrittenHead, ClientError>,
    /// Knowledge of the server (`Reach::learn`).
    pub(super) resolves_to_loopback: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
struct WrittenHead {
    status: u16,
    url: String,
    headers: Headers,
    length: Option<u64>,
}

impl HeadMessage {
    pub(super) fn new(
        head: Result<&Head, ClientError>,
        resolves_to_loopback: Option<bool>,
    ) -> Self {
        let head = head.map(|head| WrittenHead {
            status: head.status.as_u16(),
            url: head.url.to_string(),
            headers: written(&head.headers),
            length: head.length,
        });
        Self { head, resolves_to_loopback }
    }

    /// Returns the head, or the client's error.
    ///
    /// # Errors
    /// The part that is none of a response's head.
    pub(super) fn into_head(self) -> Result<Result<Head, ClientError>, String> {
        let written = match self.head {
            Ok(written) => written,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(Head {
            status: StatusCode::from_u16(written.status).map_err(|e| e.to_string())?,
            url: Url::parse(&written.url).map_err(|e| e.to_string())?,
            headers: parsed(written.headers)?,
            length: written.length,
        }))
    }
}

fn written(headers: &HeaderMap) -> Headers {
    let one = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    headers.iter().map(one).collect()
}

fn parsed(headers: Headers) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| e.to_string())?;
        let value = HeaderValue::from_bytes(&value).map_err(|e| e.to_string())?;
        map.try_append(name, value).map_err(|e| e.to_string())?;
    }
    Ok(map)
}

/// Returns a message in a frame.
pub(super) fn framed<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    let mut frame = length_of(&json)?.to_vec();
    frame.extend(json);
    Ok(frame)
}

/// Returns the beginning of the frame of these bytes.
pub(super) fn length_of(bytes: &[u8]) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes.len()).map_err(|_| invalid("a frame of more than 4 GiB"))?;
    Ok(length.to_le_bytes())
}

/// Reads the message of a frame, without waiting for other work.
pub(super) fn read_message<T: DeserializeOwned>(mut from: impl Read, most: usize) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut json = vec![0; checked_length(length, most)?];
    from.read_exact(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

/// Writes the message in a frame, without waiting for other work.
pub(super) fn write_message<T: Serialize>(mut to: impl Write, message: &T) -> io::Result<()> {
    to.write_all(&framed(message)?)
}

/// Receives the bytes of a frame; more than `most` are refused.
pub(super) async fn receive_bytes(
    from: &mut (impl AsyncRead + Unpin),
    most: usize,
) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let mut bytes = vec![0; checked_length(length, most)?];
    from.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Receives the message of a frame.
pub(super) async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    Ok(serde_json::from_slice(&receive_bytes(from, MOST_MESSAGE).await?)?)
}

/// Sends a message in a frame.
pub(super) async fn send<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    to.write_all(&framed(message)?).await
}

fn checked_length(length: [u8; 4], most: usize) -> io::Result<usize> {
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > most { Err(invalid("a frame that is too long")) } else { Ok(length) }
}

pub(super) fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
