//! TLS of the metrics' address: a certificate and its key, read again where their files change.
//!
//! The files are those of a Secret's volume, or of an ACME client: they are renewed in place while the agent runs.
//! They are looked at as a client connects, so that an idle agent sleeps.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;
use longshore_core::bounded_call;

/// Threads that read the files at a time.
pub(super) const MOST_THREADS: usize = 1;
/// Validity of what was read.
const FRESH: Duration = Duration::from_secs(10);
/// Time limit for reading the files.
const READ: Duration = Duration::from_secs(3);
/// Size limit of each file; a chain of certificates has some KiB.
const MOST_BYTES: u64 = 1 << 20;

/// Bytes of both files: the certificate's and the key's.
type Pair = (Vec<u8>, Vec<u8>);

/// TLS with the certificate and key in two files.
#[derive(Debug)]
pub(super) struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
    /// Permit to read the files. A read that hangs keeps it.
    reading: Arc<Semaphore>,
}

#[derive(Default)]
struct Current {
    looked: Option<Instant>,
    read: Option<Pair>,
    config: Option<Arc<ServerConfig>>,
    /// Reason that was logged why the files cannot be used.
    warned: Option<String>,
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("looked", &self.looked).finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(files: TlsFiles) -> Self {
        Self { files, current: Mutex::default(), reading: Arc::new(Semaphore::new(MOST_THREADS)) }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the acceptor with the present certificate. Files that cannot be used are a warning where an
    /// earlier certificate is there: it stays in use.
    ///
    /// # Errors
    /// No certificate can be used, and there was none before.
    pub(super) async fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let is_fresh = self.current().looked.is_some_and(|at| at.elapsed() < FRESH);
        if !is_fresh && let Ok(permit) = Arc::clone(&self.reading).try_acquire_owned() {
            let files = self.files.clone();
            let read = move || {
                let _until_it_is_back = permit;
                read(&files)
            };
            let pair = match bounded_call::off_runtime(READ, read).await {
                Ok(read) => read,
                Err(no) => Err(bad(&self.files.certificate, &no)),
            };
            self.current().follow(&self.files, pair)?;
        }
        let config = self.current().config.clone();
        config.map(TlsAcceptor::from).ok_or_else(|| io::Error::other("there is no certificate"))
    }

    /// Completes a handshake within `limit`.
    ///
    /// # Errors
    /// The client speaks no TLS, or not in time.
    pub(super) async fn accepted<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        limit: Duration,
    ) -> io::Result<TlsStream<S>> {
        let handshake = async { self.acceptor().await?.accept(stream).await };
        let accepted = tokio::time::timeout(limit, handshake).await;
        accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Current {
    /// Follows the files.
    fn follow(&mut self, files: &TlsFiles, pair: io::Result<Pair>) -> io::Result<()> {
        let found = pair.and_then(|pair| match self.read.as_ref() == Some(&pair) {
            true => Ok(None),
            false => configured(files, &pair).map(|config| Some((pair, config))),
        });
        let found = match found {
            Err(error) if self.config.is_none() => return Err(error),
            found => found,
        };
        self.looked = Some(Instant::now());
        let why = found.as_ref().err().map(ToString::to_string);
        if let Some(why) = &why
            && self.warned.as_ref() != Some(why)
        {
            tracing::warn!("keeping the certificate of the metrics' address: {why}");
        }
        self.warned = why;
        if let Ok(Some((pair, config))) = found {
            if self.config.is_some() {
                tracing::info!("took a new certificate: {}", files.certificate.display());
            }
            (self.read, self.config) = (Some(pair), Some(config));
        }
        Ok(())
    }
}

fn bad(path: &Path, why: &dyn fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

fn read(files: &TlsFiles) -> io::Result<Pair> {
    let bytes = |path: &Path| {
        let mut bytes = Vec::new();
        let read =
            File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) if bytes.len() as u64 <= MOST_BYTES => Ok(bytes),
            Ok(_) => Err(bad(path, &"it is far too large")),
            Err(error) => Err(bad(path, &error)),
        }
    };
    Ok((bytes(&files.certificate)?, bytes(&files.key)?))
}

/// Returns TLS 1.2 and 1.3 with the certificate and key, for HTTP/1.1.
fn configured(files: &TlsFiles, (certificate, key): &Pair) -> io::Result<Arc<ServerConfig>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|e| bad(&files.certificate, &e))?;
    if chain.is_empty() {
        return Err(bad(&files.certificate, &"no certificate in PEM is in it"));
    }
    // The error of a key has none of its bytes.
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| bad(&files.key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        // Refuses a key that is not the certificate's.
        .with_single_cert(chain, key)
        .map_err(|e| bad(&files.certificate, &e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::tests::network::certificate;

    /// Files that are renewed, and files that cannot be used: while one is written, or for good.
    #[test]
    fn a_renewed_certificate_is_taken_and_an_unusable_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let files = certificate(dir.path(), "first");
        let first = read(&files).unwrap();
        certificate(dir.path(), "second");
        let second = read(&files).unwrap();
        let mut current = Current::default();
        let unusable = |why: &str| Err(bad(&files.key, &why));
        current.follow(&files, unusable("it is missing")).unwrap_err();
        assert!(current.looked.is_none(), "the next one looks at once");

        current.follow(&files, Ok(first.clone())).unwrap();
        let config = |current: &Current| current.config.clone().unwrap();
        let taken = config(&current);
        current.follow(&files, Ok(first.clone())).unwrap();
        assert!(Arc::ptr_eq(&taken, &config(&current)), "nothing changed");
        for pair in [
            unusable("it is missing"),
            Ok((second.0.clone(), first.1.clone())),
            Ok((b"no certificate".to_vec(), second.1.clone())),
            Ok((second.0.clone(), second.0.clone())),
            Ok((Vec::new(), Vec::new())),
        ] {
            current.follow(&files, pair).unwrap();
            assert!(Arc::ptr_eq(&taken, &config(&current)) && current.warned.is_some());
        }
        current.follow(&files, Ok(second)).unwrap();
        assert!(!Arc::ptr_eq(&taken, &config(&current)) && current.warned.is_none());
    }

    /// As they are written by a mistake: nothing reads the last bytes of a disk into memory.
    #[test]
    fn files_are_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let files = certificate(dir.path(), "first");
        std::fs::write(&files.key, vec![b'a'; 1 + MOST_BYTES as usize]).unwrap();
        assert!(read(&files).unwrap_err().to_string().ends_with("it is far too large"));
    }
}
