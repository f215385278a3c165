//! Bounded reading of specs: containers with a mount of a directory of specs can put anything there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::sys::statfs::{self, FsType, fstatfs};

use super::{Contents, parsed, unlisted};
use longshore_core::failure::Failure;
use longshore_core::root::{Root, reopen};

/// Size limit of a spec, and of all.
const LARGEST: u64 = 4 << 20;
const MOST_BYTES: u64 = 16 << 20;

/// File systems without specs, where reading takes something away (/proc/kmsg), acts on a device
/// (resources below /sys/bus/pci) or has no end.
const OF_THE_KERNEL: [FsType; 8] = [
    statfs::PROC_SUPER_MAGIC,
    statfs::SYSFS_MAGIC,
    statfs::DEBUGFS_MAGIC,
    statfs::TRACEFS_MAGIC,
    statfs::SECURITYFS_MAGIC,
    statfs::SELINUX_MAGIC,
    statfs::CGROUP_SUPER_MAGIC,
    statfs::CGROUP2_SUPER_MAGIC,
];

/// Reading of the specs of all directories.
pub(super) struct Reading<'a> {
    root: &'a Root,
    /// Bytes that may still be read.
    left: u64,
    /// Files that were looked at, by device, inode and ending: a file may have many names.
    known: BTreeMap<(u64, u64, bool), Looked>,
}

/// A file that was looked at.
#[derive(Clone)]
struct Looked {
    /// Number of bytes that were read, as far as one file may have them.
    size: u64,
    contents: Arc<Contents>,
}

impl<'a> Reading<'a> {
    pub(super) fn below(root: &'a Root) -> Self {
        Self { root, left: MOST_BYTES, known: BTreeMap::new() }
    }

    /// Reads one file; None for one that readers leave alone: another ending, or a directory.
    pub(super) fn contents(&mut self, path: &Path) -> Result<Option<Arc<Contents>>, Failure> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if !["json", "yaml"].contains(&ending) {
            return Ok(None);
        }
        let opened = self.root.found(path).and_then(|file| Ok((file.metadata()?, file)));
        let (found, file) = match opened {
            Err(e) => return Ok(Some(Arc::new(Contents::Unreadable(e.to_string())))),
            Ok((found, _)) if found.is_dir() => return Ok(None),
            Ok(opened) => opened,
        };
        let is_yaml = ending == "yaml";
        let most = self.left.min(LARGEST);
        let looked = self
            .known
            .entry((found.dev(), found.ino(), is_yaml))
            .or_insert_with(|| look(&file, most, is_yaml))
            .clone();
        self.spend(looked.size, path)?;
        Ok(Some(looked.contents))
    }

    /// Counts the bytes of a file, of each of its names: the devices of each are compared.
    fn spend(&mut self, size: u64, path: &Path) -> Result<(), Failure> {
        self.left = self.left.checked_sub(size).ok_or_else(|| {
            let why = format!("the specs have more than {} MiB in all", MOST_BYTES >> 20);
            unlisted(&path.display().to_string(), io::Error::other(why))
        })?;
        Ok(())
    }
}

/// Reads a file that is open with `O_PATH`, and a byte more than `most` where it is larger.
fn look(found: &File, most: u64, is_yaml: bool) -> Looked {
    let mut text = Vec::new();
    let read = opened(found).and_then(|file| file.take(most + 1).read_to_end(&mut text));
    looked(&text, read, is_yaml)
}

fn looked(text: &[u8], read: io::Result<usize>, is_yaml: bool) -> Looked {
    let size = text.len() as u64;
    let contents = match read {
        Err(e) => Contents::Unreadable(e.to_string()),
        Ok(_) if size > LARGEST => Contents::Unreadable(unfit()),
        Ok(_) => parsed(text, is_yaml),
    };
    Looked { size: size.min(LARGEST), contents: Arc::new(contents) }
}

fn opened(found: &File) -> io::Result<File> {
    let file_system = fstatfs(found)?.filesystem_type();
    if !found.metadata()?.is_file() || OF_THE_KERNEL.contains(&file_system) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, unfit()));
    }
    reopen(found)
}

fn unfit() -> String {
    format!("no regular file of at most {} MiB", LARGEST >> 20)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use longshore_core::testing::Waiting;
    use nix::sys::stat::Mode;

    use super::*;

    fn host() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::open(dir.path()).expect("opened");
        (dir, root)
    }

    fn why(looked: &Contents) -> &str {
        match looked {
            Contents::Unreadable(why) | Contents::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refused_file_is_read_once_and_counted_for_each_of_its_names() {
        let (dir, root) = host();
        let mut reading = Reading::below(&root);
        for (name, size, times) in [("refused", 1 << 20, 4), ("large", LARGEST + 1, 3)] {
            let first = dir.path().join(format!("{name}.json"));
            File::create(&first).expect("made").set_len(size).expect("sparse");
            let linked = dir.path().join(format!("{name}-too.json"));
            fs::hard_link(&first, &linked).expect("linked");
            let one = reading.contents(Path::new(first.file_name().expect("name")));
            let one = one.expect("room").expect("taken");
            why(&one);
            for _ in 1..times {
                let two = reading.contents(Path::new(linked.file_name().expect("name")));
                assert!(Arc::ptr_eq(&one, &two.expect("room").expect("taken")));
            }
        }
        assert_eq!(reading.left, 0);
        fs::write(dir.path().join("more.json"), "{").expect("written");
        let failure = reading.contents(Path::new("more.json")).expect_err("no room");
        assert!(failure.one_line().contains("more than 16 MiB"), "{}", failure.one_line());
    }

    /// A file of the kernel, or one that grows, has more than its size says; a read may fail half-way.
    #[test]
    fn bytes_that_were_read_count() {
        let looked = looked(b"{\"half", Err(io::ErrorKind::TimedOut.into()), false);
        assert_eq!((looked.size, why(&looked.contents)), (6, "timed out"));
        let (dir, root) = host();
        fs::write(dir.path().join("grows.json"), "{").expect("written");
        let found = root.found("grows.json").expect("found");
        fs::write(dir.path().join("grows.json"), [b'x'; 100]).expect("written");
        assert_eq!(look(&found, LARGEST, false).size, 100);
        assert_eq!(look(&found, 50, false).size, 51);
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (dir, root) = host();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).expect("a pipe");
        symlink("/pipe", dir.path().join("a.json")).expect("linked");
        let writer = Waiting::at(&pipe);
        let mut reading = Reading::below(&root);
        let found = reading.contents(Path::new("a.json")).expect("room").expect("taken");
        assert_eq!(why(&found), unfit());
        assert!(writer.is_waiting());
    }

    #[test]
    fn files_of_the_kernel_are_not_opened() {
        let root = Root::open(Path::new("/")).expect("opened");
        for path in ["/proc/self/status", "/sys/kernel/uevent_seqnum"] {
            let looked = look(&root.found(path).expect("found"), LARGEST, false);
            assert_eq!((looked.size, why(&looked.contents)), (0, unfit().as_str()));
        }
    }
}
