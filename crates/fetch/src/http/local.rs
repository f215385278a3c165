//! Copies from file URLs.

use std::io::Read;
use std::path::Path;

use super::FetchError;
use super::goal::{Ended, Goal, Mark};
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
pub(super) async fn copy(goal: &Goal, sink: &mut Sink, mark: &mut Mark<'_>) -> Result<(), Ended> {
    sink.restart()?;
    let path = goal.url.to_file_path().map_err(|()| goal.failure("it names no local path"))?;
    let mut file = match open_regular(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Ended::For(FetchError::Missing(goal.failure(&e.to_string()))));
        }
        Err(e) => return Err(goal.failure(&e.to_string()).into()),
    };
    let mut buffer = vec![0; 1 << 18];
    loop {
        // Reads of a local file are short; the slow part (write and hash) has its own thread.
        let n = file.read(&mut buffer).map_err(|e| goal.failure(&e.to_string()))?;
        if n == 0 {
            break;
        }
        let new = goal.wanted(&buffer[..n], sink.size());
        if sink.size() + new.len() as u64 > goal.limit {
            return Err(goal.too_long().into());
        }
        sink.put(new).await?;
        mark.reached(sink.size());
        if goal.has_enough(sink.size()) {
            break;
        }
    }
    match goal.check_whole(sink.size()) {
        Err(Ended::Again(_)) => {
            let what = format!("it has only {} bytes", sink.size());
            Err(goal.not_as_promised(&what).into())
        }
        whole => whole,
    }
}
