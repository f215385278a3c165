//! Bounded reads of files that a user names.
//!
//! The path may be a pipe (`--config <(...)`) without a writer, or an endless device. So a read is
//! bounded in bytes and in time.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bounded_call::in_time;
use crate::root::read_up_to;

/// Time limit for reading a file.
const LIMIT: Duration = Duration::from_secs(10);

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// The kernel's error; invalid data where the file is larger, a timeout where reading does not
/// finish within ten seconds.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_within(path, most, LIMIT)
}

/// Reads a text of at most `most` bytes.
///
/// # Errors
/// As [`read`]; invalid data where it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|e| io::Error::new(ErrorKind::InvalidData, format!("no UTF-8 text: {e}")))
}

fn read_within(path: &Path, most: u64, limit: Duration) -> io::Result<Vec<u8>> {
    let path = path.to_path_buf();
    in_time("input", limit, move || read_bounded(path, most)).unwrap_or_else(|| {
        let why = format!("it does not come to its end within {limit:?}: is it a pipe?");
        Err(io::Error::new(ErrorKind::TimedOut, why))
    })
}

fn read_bounded(path: PathBuf, most: u64) -> io::Result<Vec<u8>> {
    read_up_to(File::open(path)?, most)?
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("larger than {most} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_deadlines_has_their_span() {
        crate::testing::assert_in_page("A file that a person names", LIMIT);
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = read_within(&pipe, 10, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_pipe_that_somebody_writes_to_is_read_as_a_file_is() {
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"text").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert_eq!(read_text(Path::new(&path), 4).unwrap(), "text");
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let error = read(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(read(Path::new("/dev/null"), 0).unwrap(), b"");
    }

    #[test]
    fn a_text_is_utf_8_of_at_most_so_many_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_text(&file, 4).unwrap(), "text");
        assert!(read_text(&file, 3).unwrap_err().to_string().contains("larger than 3 bytes"));
        std::fs::write(&file, b"\xff").unwrap();
        assert!(read_text(&file, 4).unwrap_err().to_string().contains("UTF-8"));
        assert_eq!(read_text(dir.path(), 4).unwrap_err().kind(), ErrorKind::IsADirectory);
    }
}
