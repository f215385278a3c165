//! Copies from file URLs.

use std::io::Read;
use std::path::Path;

use super::FetchError;
use super::request::{DownloadProgress, DownloadRequest};
use super::transport::Request;
use crate::sink::Sink;

/// Opens a regular file: opening a pipe without a writer would block for ever, and ignore SIGTERM.
fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    if !std::fs::metadata(path)?.is_file() {
        let what = "it is no regular file";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
    }
    std::fs::File::open(path)
}

/// Copies from a file URL.
pub(super) async fn copy(
    request: &DownloadRequest,
    sink: &mut Sink,
    progress: &mut DownloadProgress<'_>,
) -> Result<(), FetchError> {
    sink.restart()?;
    let path =
        request.url.to_file_path().map_err(|()| request.failure("it names no local path"))?;
    let mut file = match open_regular(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(FetchError::Missing(request.failure(&e.to_string())));
        }
        Err(e) => return Err(request.failure(&e.to_string()).into()),
    };
    let mut buffer = vec![0; 1 << 18];
    loop {
        // Reads of a local file are short; the slow part (write and hash) has its own thread.
        let n = file.read(&mut buffer).map_err(|e| request.failure(&e.to_string()))?;
        if n == 0 {
            break;
        }
        let new = request.wanted(&buffer[..n], sink.size());
        if sink.size() + new.len() as u64 > request.limit {
            return Err(request.too_long().into());
        }
        sink.put(new).await?;
        progress.reached(sink.size());
        if request.has_enough(sink.size()) {
            break;
        }
    }
    if request.promised_beyond(sink.size()).is_some() {
        let what = format!("it has only {} bytes", sink.size());
        return Err(request.not_as_promised(&what).into());
    }
    Ok(())
}
