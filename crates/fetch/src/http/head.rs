//! Head of a response.

use reqwest::header::HeaderMap;
use reqwest::{StatusCode, Url};

/// Head of a response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// URL of the answering server, after all redirections.
    pub(super) url: Url,
    /// Length of the body in bytes, where the server names it.
    pub(super) length: Option<u64>,
}

impl Head {
    pub(super) fn from_response(response: &reqwest::Response) -> Self {
        Self {
            status: response.status(),
            headers: response.headers().clone(),
            url: response.url().clone(),
            length: response.content_length(),
        }
    }
}
