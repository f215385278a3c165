//! Settings of the HTTP client, as each process that downloads gets them.

use std::time::Duration;

use reqwest::redirect::Policy as Redirects;
use serde::{Deserialize, Serialize};

use super::Redirections;
use super::client_error::{ClientError, root_cause};
use super::proxy::Proxies;
use super::reach::{MOST_REDIRECTIONS, Reach};

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
        ClientError::from_error(self.connect, self.stall, error)
    }
}
