//! The HTTP client: its settings, and whether this process or another one is it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy as Redirects;
use reqwest::{Request, Response as OwnResponse, Url};
use serde::{Deserialize, Serialize};

use super::Redirections;
use super::client_error::{ClientError, root_cause};
use super::process::{self, DownloadProcesses};
use super::proxy::Proxies;
use super::reach::Reach;
use super::response::Response;

/// Maximum number of redirections that are followed.
const MOST_REDIRECTIONS: usize = 10;

/// Settings of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Settings {
    /// Timeout of a connection.
    pub(super) connect: Duration,
    /// Timeout of the next bytes.
    pub(super) stall: Duration,
    pub(super) proxies: Proxies,
    /// Certificates in PEM that are trusted beside those of this file system's bundle.
    pub(super) certificates: Vec<String>,
    pub(super) limit: Limit,
}

/// Servers that redirections lead to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Limit {
    Any,
    /// Any that is asked over https.
    OverHttps,
    Within(Reach, Redirections),
}

impl Settings {
    /// Makes the client.
    ///
    /// # Errors
    /// The cause, where none can be made with these settings.
    pub(super) fn client(&self) -> Result<reqwest::Client, String> {
        // The first installed provider wins; there is only one here.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let proxies = self.proxies.clone();
            let client = reqwest::Client::builder()
                // The variables are read by longshore, not by the client, which goes direct for a value that it
                // cannot read.
                .no_proxy()
                .proxy(reqwest::Proxy::custom(move |url| proxies.for_url(url)))
                .connect_timeout(self.connect)
                .read_timeout(self.stall)
                // A URL's query may contain a token, which a redirection's target must not see.
                .referer(false)
                .user_agent(concat!("longshore/", env!("CARGO_PKG_VERSION")));
            self.limited(client)
        };
        let bundles = self.certificates.iter().map(String::as_bytes);
        let certificates =
            bundles.filter_map(|pem| reqwest::Certificate::from_pem_bundle(pem).ok());
        builder()
            .tls_certs_merge(certificates.flatten())
            .build()
            // An image without any certificate can still fetch over http: files are verified by
            // signature and digest anyway.
            .or_else(|_| builder().tls_certs_only([]).build())
            .map_err(|e| root_cause(&e))
    }

    fn limited(&self, client: reqwest::ClientBuilder) -> reqwest::ClientBuilder {
        let any = || Redirects::limited(MOST_REDIRECTIONS);
        let (reach, redirections) = match &self.limit {
            Limit::Any => return client.redirect(any()),
            Limit::OverHttps => return client.redirect(any()).https_only(true),
            Limit::Within(reach, redirections) => (reach, redirections),
        };
        let client = client.dns_resolver(reach.resolver(self.proxies.hosts()));
        match redirections {
            Redirections::Followed => client.redirect(reach.redirections()),
            Redirections::FollowedOverHttps => {
                client.redirect(reach.redirections()).https_only(true)
            }
            Redirections::Returned => client.redirect(Redirects::none()),
        }
    }

    /// Returns the limit of hosts, where there is one.
    pub(super) fn reach(&self) -> Option<&Reach> {
        match &self.limit {
            Limit::Within(reach, _) => Some(reach),
            Limit::Any | Limit::OverHttps => None,
        }
    }

    /// Returns what a client with these settings reported.
    pub(super) fn error(&self, error: &reqwest::Error) -> ClientError {
        ClientError::of(self.connect, self.stall, error)
    }
}

/// A client. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Client {
    settings: Arc<Settings>,
    /// Client of this process; where another process downloads, it only writes requests.
    own: reqwest::Client,
    processes: Option<Arc<DownloadProcesses>>,
}

impl Client {
    /// # Errors
    /// The cause, where no client can be made with these settings.
    pub(super) fn new(settings: Settings) -> Result<Self, String> {
        let settings = Arc::new(settings);
        let Some(program) = process::program() else {
            return Ok(Self { own: settings.client()?, settings, processes: None });
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let writer = reqwest::Client::builder().no_proxy().tls_certs_only([]).build();
        let own = writer.map_err(|e| root_cause(&e))?;
        let processes = Some(Arc::new(DownloadProcesses::new(program, settings.clone())));
        Ok(Self { settings, own, processes })
    }

    /// Returns the client that writes requests.
    pub(super) fn writer(&self) -> &reqwest::Client {
        &self.own
    }

    /// Starts the process that downloads from a URL's server, if another process does and none runs.
    ///
    /// # Errors
    /// One of the host, or one that may be over soon.
    pub(super) async fn begin(&self, url: &Url) -> Result<(), ClientError> {
        match &self.processes {
            Some(processes) => processes.of(url).begin().await,
            None => Ok(()),
        }
    }

    /// Sends a request; returns the response when its headers are there.
    ///
    /// # Errors
    /// The client's error.
    pub(super) async fn send(
        &self,
        request: Result<Request, reqwest::Error>,
    ) -> Result<Response, ClientError> {
        let error = |e: reqwest::Error| self.settings.error(&e);
        let request = request.map_err(error)?;
        match &self.processes {
            Some(processes) => processes.of(request.url()).send(request).await,
            None => {
                let response: OwnResponse = self.own.execute(request).await.map_err(error)?;
                Ok(Response::own(response, self.settings.clone()))
            }
        }
    }
}
