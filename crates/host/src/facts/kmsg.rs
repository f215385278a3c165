//! Kernel log messages that are written during an operation: /dev/kmsg from a position on.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Maximum number of lines kept.
const LINES: usize = 1000;
/// Maximum number of reads, each of one record: the largest log buffer of a kernel has fewer.
const RECORDS: usize = 1 << 18;

/// The kernel log from the moment this was created. Empty if the log may not be read.
#[derive(Debug)]
pub struct KernelLog(Option<File>);

impl KernelLog {
    /// Starts at the log's end. `device` is /dev/kmsg.
    pub(crate) fn from_here(device: &Path) -> Self {
        let at_end = |mut file: File| file.seek(SeekFrom::End(0)).is_ok().then_some(file);
        Self(Self::whole(device).0.and_then(at_end))
    }

    /// The kernel log from the oldest record still in its buffer.
    pub fn whole(device: &Path) -> Self {
        let flags = OFlag::O_NONBLOCK.bits();
        Self(OpenOptions::new().read(true).custom_flags(flags).open(device).ok())
    }

    /// Calls `see` with each message of the kernel's own, oldest first. Records that programs write
    /// into the log have another facility.
    pub(crate) fn each_of_kernel(self, mut see: impl FnMut(&str)) {
        let records = self.records().filter(|record| is_of_kernel(record));
        records.filter_map(|record| text_of(&record)).for_each(|text| see(&text));
    }

    /// The messages logged since, without their prefixes; one may have several lines.
    pub fn lines(self) -> Vec<String> {
        self.records().filter_map(|record| text_of(&record)).take(LINES).collect()
    }

    /// Reads the records until the log's end, at most [`RECORDS`].
    fn records(self) -> impl Iterator<Item = Vec<u8>> {
        let (mut file, mut record, mut reads) = (self.0, vec![0; 8192], 0..RECORDS);
        std::iter::from_fn(move || {
            while reads.next().is_some() {
                // One read returns one record (Documentation/ABI/testing/dev-kmsg).
                match file.as_mut()?.read(&mut record) {
                    Ok(0) => return None,
                    Ok(n) => return Some(record[..n].to_vec()),
                    // Records were overwritten before they were read: continue with the oldest.
                    Err(e) if e.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return None,
                }
            }
            None
        })
    }
}

/// Joins the lines of a message, with NVRM's prefix on the first only.
pub(crate) fn unwrapped(message: &str) -> String {
    message.lines().map(str::trim).collect::<Vec<_>>().join(" ").replace(" NVRM:", "")
}

/// True if a record has the kernel's facility, 0: the first number is the level in its low three
/// bits, and the facility above them.
fn is_of_kernel(record: &[u8]) -> bool {
    let text = String::from_utf8_lossy(record);
    let number = text.split_once(',').and_then(|(number, _)| number.parse::<u32>().ok());
    number.is_some_and(|number| number >> 3 == 0)
}

/// The message of `6,1234,56789,-;message\n KEY=value`. Line breaks in a message are escaped as
/// `\x0a`, like every byte that is not printable (Documentation/ABI/testing/dev-kmsg).
fn text_of(record: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(record);
    let (_, message) = text.split_once(';')?;
    Some(unescape(message.lines().next()?).trim_end().to_owned())
}

fn unescape(message: &str) -> String {
    let mut parts = message.split("\\x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[2..]);
            }
            None => {
                plain.push_str("\\x");
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_its_message() {
        let cases: [(&[u8], Option<&str>); 7] = [
            (
                b"6,339,5140900,-;NET: Registered protocol family 10\n",
                Some("NET: Registered protocol family 10"),
            ),
            (b"4,1,2,-;NVRM: a; b\n SUBSYSTEM=pci\n DEVICE=+pci:0\n", Some("NVRM: a; b")),
            (b"4,1,2,-;\n", Some("")),
            (b"4,1,2,-;NVRM: a\\x0aNVRM: b\\x09c\\x0a\n", Some("NVRM: a\nNVRM: b\tc")),
            (b"4,1,2,-;a\\xff\\xb\\\n", Some("a\\xff\\xb\\")),
            (b"no prefix", None),
            (b"4,1,2,-;\xff\n", Some("\u{fffd}")),
        ];
        for (record, message) in cases {
            assert_eq!(text_of(record).as_deref(), message);
        }
    }

    #[test]
    fn only_what_the_kernel_says_itself_counts_as_its_words() {
        for (record, kernels) in
            [("4,1,2,-;NVRM: x\n", true), ("12,1,2,-;NVRM: forged\n", false), ("x,1;y", false)]
        {
            assert_eq!(is_of_kernel(record.as_bytes()), kernels, "{record}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_read_says_nothing() {
        assert!(KernelLog::from_here(Path::new("/nonexistent/kmsg")).lines().is_empty());
    }
}
