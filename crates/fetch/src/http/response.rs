//! Response of a server, by whichever process received it.

use std::sync::Arc;

use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

use super::client_error::ClientError;
use super::head::Head;
use super::process::ReceivedBody;
use super::settings::Settings;

/// A response, of which the body has still to arrive.
pub struct Response {
    head: Head,
    body: Source,
}

enum Source {
    Own(reqwest::Response, Arc<Settings>),
    Process(ReceivedBody),
}

impl Response {
    pub(super) fn own(response: reqwest::Response, settings: Arc<Settings>) -> Self {
        Self { head: Head::from_response(&response), body: Source::Own(response, settings) }
    }

    pub(super) fn by_process(head: Head, body: ReceivedBody) -> Self {
        Self { head, body: Source::Process(body) }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Returns the URL of the answering server, after all redirections.
    pub fn url(&self) -> &Url {
        &self.head.url
    }

    /// Returns the length of the body in bytes, where the server names it.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.head.length
    }

    /// Returns the next bytes of the body; None at its end.
    ///
    /// # Errors
    /// The client's error.
    pub(super) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        match &mut self.body {
            Source::Own(response, settings) => {
                let chunk = response.chunk().await.map_err(|e| settings.error(&e))?;
                Ok(chunk.map(Vec::from))
            }
            Source::Process(body) => body.chunk().await,
        }
    }
}
