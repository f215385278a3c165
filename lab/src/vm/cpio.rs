//! Writes the "newc" archives that the kernel unpacks as its first root file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst). Archives may be concatenated.

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// An archive under construction.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// Adds a directory (mode 0755). Parents must have been added before.
    pub(crate) fn dir(&mut self, path: &str) -> &mut Self {
        self.entry(path, S_IFDIR | 0o755, &[])
    }

    /// Adds a file with permission bits `mode`.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        self.entry(path, S_IFREG | mode, content)
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) -> &mut Self {
        self.entry(path, S_IFLNK | 0o777, target.as_bytes())
    }

    /// Returns the finished archive, with its trailer, padded to 512 bytes so that another may
    /// follow.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, &[]);
        self.pad(512);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        self.inode += 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(content.len()).unwrap_or(u32::MAX),
            0,
            0,
            0,
            0,
            u32::try_from(path.len() + 1).unwrap_or(u32::MAX),
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad(4);
        self.bytes.extend(content);
        self.pad(4);
        self
    }

    fn pad(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_reads_what_was_written() {
        let mut archive = Archive::default();
        archive.dir("a").file("a/odd-length", 0o755, b"12345").link("a/l", "odd-length");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 512, 0);

        let dir = tempfile::tempdir().unwrap();
        let mut cpio = Command::new("cpio")
            .args(["-i", "--quiet"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        assert!(cpio.wait().unwrap().success());
        assert_eq!(std::fs::read(dir.path().join("a/l")).unwrap(), b"12345");
    }

    #[test]
    fn every_header_is_110_bytes_and_names_are_terminated() {
        let mut archive = Archive::default();
        archive.file("f", 0o644, b"x");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..112], b"f\0");
        assert_eq!(bytes[112], b'x');
    }
}
