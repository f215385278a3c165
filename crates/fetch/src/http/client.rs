//! The HTTP client: this process, or another one.

use std::sync::Arc;

use reqwest::{Request, Response as OwnResponse, Url};

use super::client_error::{ClientError, root_cause};
use super::process::{self, DownloadProcesses};
use super::response::Response;
use super::settings::Settings;

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
            Some(processes) => processes.process_for(url).begin().await,
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
            Some(processes) => {
                let (head, body) = processes.process_for(request.url()).send(request).await?;
                Ok(Response::by_process(head, body))
            }
            None => {
                let response: OwnResponse = self.own.execute(request).await.map_err(error)?;
                Ok(Response::own(response, self.settings.clone()))
            }
        }
    }
}
