//! Reads [`HostFacts`] from a root directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::facts::{HostFacts, Known};
use super::root::Root;
use super::{kernel, modules, mounts, pci, process, security};
use crate::failure::{ExitCode, Failure, OrFail};

impl HostFacts {
    /// Reads the facts: /proc and /sys below `root`, /etc and /lib/modules below `host_root`.
    ///
    /// # Errors
    /// Exit code 10 where a root cannot be opened, or not even the kernel's release can be read.
    /// Anything else that cannot be read is [`Known::Unknown`] or named in
    /// [`unread`](HostFacts::unread).
    pub fn read(root: &Path, host_root: &Path) -> Result<Self, Failure> {
        let open = |path: &Path, option: &str| {
            Root::open(path)
                .or_fail(ExitCode::HostUnsupported, || format!("opening {}", path.display()))
                .map_err(|f| f.remedy(format!("give the right directory with {option}")))
        };
        let (root, host) = (open(root, "--root")?, open(host_root, "--host-root")?);
        let kernel = kernel::read(&root)?;
        let process = process::read(&root);
        let mut unread = Unread::default();
        let release = kernel.release.as_str();
        Ok(Self {
            os: unread.keep("os-release", kernel::read_os_release(&root, &host)),
            devices: unread.keep("pci", pci::read(&root)),
            loaded: unread.keep("loaded", modules::read_loaded(&root)),
            builtin: unread.keep("builtin", modules::read_builtin(&host, release)),
            available: unread.keep("available", modules::read_available(&host, release)),
            soft_depends: unread.keep("soft-depends", modules::read_soft_depends(&host, release)),
            security: security::read(&root, &host),
            mounts: unread.keep("mounts", mounts::read(&root)),
            capabilities: process.capabilities,
            euid: process.euid,
            initial_user_namespace: process.initial_user_namespace,
            host_peer_groups: match mounts::read_host_peer_groups(&root) {
                Ok(groups) => Known::Yes(groups),
                Err(e) => Known::Unknown(e.to_string()),
            },
            unread: unread.0,
            kernel,
        })
    }
}

/// What could not be read, and why.
#[derive(Default)]
struct Unread(BTreeMap<String, String>);

impl Unread {
    fn keep<T: Default>(&mut self, what: &str, read: io::Result<T>) -> T {
        read.unwrap_or_else(|e| {
            self.0.insert(what.to_owned(), e.to_string());
            T::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let facts = HostFacts::read(Path::new("/"), Path::new("/")).unwrap();
        assert!(!facts.kernel.release.is_empty());
        assert!(facts.mounts.iter().any(|m| m.target == Path::new("/")));
        assert!(matches!(facts.euid, Known::Yes(_)));
    }

    #[test]
    fn no_proc_is_a_failure_that_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let failure = HostFacts::read(dir.path(), dir.path()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::HostUnsupported);
        assert!(failure.report().contains("proc/sys/kernel/osrelease"), "{}", failure.report());
    }
}
