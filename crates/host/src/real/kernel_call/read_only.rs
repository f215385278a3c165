//! Mounts that are read-only in every copy.
//!
//! A remount changes one mount and not the copies that propagation has made of it, so a mount that
//! is to be read-only on the host has to be so before it is attached. The mount is staged in a
//! mount namespace of its own, from which nothing propagates, and from there bound to its target: a
//! copy has the flags of the mount that is copied (fs/namespace.c, `clone_mnt`). mount_setattr(2)
//! would need no staging, but it came with Linux 5.12, and 5.10 is supported. The namespace ends
//! with the thread that made it, so a crash in between leaves nothing behind.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::facts::{Propagation, mounts};

/// Mount point of the staged mount. It exists wherever mounts can be read.
pub(super) const STAGE: &str = "/proc";
const STACK: usize = 128 << 10;

/// Mounts `source`, with all mounts below it, on `target`, so that it cannot be written to there.
pub(super) fn bind(source: &Path, target: &Path) -> Result<(), Errno> {
    let here = || bind_here(source, target);
    if source.starts_with(STAGE) {
        return here();
    }
    staged_or_here(target, |stage| attach(source, stage, MsFlags::MS_BIND | MsFlags::MS_REC), here)
}

/// Mounts on `target`, read-only in every copy, what `fill` mounts on the stage.
///
/// If the agent may not create a mount namespace, or no other one shows the mount, `here` mounts it
/// and then remounts it: the copies of it in other namespaces can then be written to.
pub(super) fn staged_or_here(
    target: &Path,
    fill: impl Fn(&Path) -> Result<(), Errno> + Send + Sync,
    here: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !is_shared(target) || target.starts_with(STAGE) {
        return here();
    }
    let staged = thread::scope(|scope| {
        let builder = thread::Builder::new().name("bind".into()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, || mount_staged(target, fill));
        thread.map_err(|e| errno_of(&e))?.join().unwrap_or(Err(Errno::EIO))
    });
    match staged {
        // These errors do not come from the last call: nothing is attached yet.
        Err(Errno::EPERM | Errno::ENOSYS | Errno::EAGAIN) => here(),
        staged => staged,
    }
}

/// A mount point, held open as a directory: a mount on its [`MountPoint::path`] follows no link
/// that another program puts in its place. A program that may write to the driver root's parent can
/// remove the mount point, which unmounts what is mounted there, and replace it by a link.
pub(super) struct MountPoint(OwnedFd);

impl MountPoint {
    /// Opens the directory, which must not be a link, nor its parent: a program that may write to the
    /// parent of the driver root could lead the mounts in it elsewhere. It belongs to the mount
    /// namespace of the calling thread.
    pub(super) fn open(target: &Path) -> Result<Self, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Errno::EINVAL);
        };
        let parent = open(parent, flags, Mode::empty())?;
        openat(&parent, name, flags, Mode::empty()).map(Self)
    }

    /// The directory's descriptor.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// The directory's path through its descriptor.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/thread-self/fd/{}", self.0.as_raw_fd()).into()
    }
}

impl AsFd for MountPoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// True if the mount that holds `target` propagates to other mounts.
fn is_shared(target: &Path) -> bool {
    let Ok(real) = fs::canonicalize(target) else { return false };
    let Ok(text) = fs::read("/proc/thread-self/mountinfo") else { return false };
    let mounts = mounts::parse(&text);
    mounts::containing(&mounts, &real).is_some_and(|m| m.propagation == Propagation::Shared)
}

fn bind_here(source: &Path, target: &Path) -> Result<(), Errno> {
    attach(source, &MountPoint::open(target)?.path(), MsFlags::MS_BIND | MsFlags::MS_REC)?;
    remount(source, target)
}

fn mount_staged(target: &Path, fill: impl Fn(&Path) -> Result<(), Errno>) -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let at = MountPoint::open(target)?;
    let stage = Path::new(STAGE);
    attach(stage, stage, MsFlags::MS_PRIVATE)?;
    fill(stage)?;
    // The copy of a shared mount is shared as well, so changes to it would propagate.
    attach(stage, stage, MsFlags::MS_PRIVATE | MsFlags::MS_REC)?;
    remount(stage, stage)?;
    // Mounts on the current directory: the stage covers /proc, so a path through /proc does not
    // work.
    nix::unistd::fchdir(&at.0)?;
    attach(stage, Path::new("."), MsFlags::MS_BIND | MsFlags::MS_REC)
}

/// Makes a mount read-only and keeps its other restrictions.
pub(super) fn remount(source: &Path, target: &Path) -> Result<(), Errno> {
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    let found = statvfs(source)?.flags();
    for (kept, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if found.contains(kept) {
            flags |= flag;
        }
    }
    attach(source, target, flags)
}

fn attach(source: &Path, target: &Path, flags: MsFlags) -> Result<(), Errno> {
    mount(Some(source), target, None::<&str>, flags, None::<&str>)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw)
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Runs `test` in its own mount namespace: a tmpfs with a tree and a mount point for it, and a
    /// second path to it, which stands for the host's and other containers' view.
    pub(in crate::real::kernel_call) fn in_scene(
        propagation: MsFlags,
        test: impl FnOnce(&Path, &Path) + Send,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (agents, hosts) = (dir.path().join("agents"), dir.path().join("hosts"));
        thread::scope(|scope| {
            let made = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let root = Path::new("/");
                attach(root, root, MsFlags::MS_PRIVATE | MsFlags::MS_REC).unwrap();
                for dir in [&agents, &hosts] {
                    fs::create_dir(dir).unwrap();
                }
                mount(Some("test"), &agents, Some("tmpfs"), MsFlags::empty(), None::<&str>)
                    .unwrap();
                attach(&agents, &agents, propagation).unwrap();
                attach(&agents, &hosts, MsFlags::MS_BIND).unwrap();
                fs::create_dir_all(agents.join("tree")).unwrap();
                fs::create_dir_all(agents.join("driver")).unwrap();
                fs::write(agents.join("tree/file"), "text").unwrap();
                test(&agents, &hosts);
            });
            made.join().unwrap();
        });
    }

    pub(in crate::real::kernel_call) fn refusal(path: PathBuf) -> Option<Errno> {
        fs::write(path, "planted").err().and_then(|e| e.raw_os_error()).map(Errno::from_raw)
    }

    #[test]
    fn every_copy_of_the_mount_is_read_only_and_the_tree_itself_is_not() {
        in_scene(MsFlags::MS_SHARED, |agents, hosts| {
            bind(&agents.join("tree"), &agents.join("driver")).unwrap();
            for copy in [agents, hosts] {
                let file = copy.join("driver/file");
                assert_eq!(fs::read_to_string(&file).unwrap(), "text", "the mount is visible");
                assert_eq!(refusal(file), Some(Errno::EROFS), "{}", copy.display());
                assert_eq!(refusal(copy.join("driver/libc.so.6")), Some(Errno::EROFS));
            }
            assert_eq!(refusal(agents.join("tree/file")), None);
            nix::mount::umount(&agents.join("driver")).unwrap();
            assert!(!hosts.join("driver/file").exists(), "the unmount propagates");
        });
    }

    #[test]
    fn what_is_mounted_on_it_can_be_written_to_and_is_seen_everywhere() {
        in_scene(MsFlags::MS_SHARED, |agents, hosts| {
            fs::create_dir(agents.join("tree/dev")).unwrap();
            bind(&agents.join("tree"), &agents.join("driver")).unwrap();
            let dev = agents.join("driver/dev");
            mount(Some("test"), &dev, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            fs::write(dev.join("nvidia0"), "").unwrap();
            assert!(hosts.join("driver/dev/nvidia0").exists());
        });
    }

    /// The operator's mig-manager runs nvidia-smi in the driver root, which makes the nodes of new MIG
    /// instances, and these have to open: docs/supply-chain/security.md, "Not defended".
    #[test]
    fn other_programs_make_nodes_in_the_tmpfs_of_nodes_and_open_them() {
        use nix::sys::stat::{SFlag, makedev, mknod};
        in_scene(MsFlags::MS_SHARED, |agents, hosts| {
            fs::create_dir(agents.join("tree/dev")).unwrap();
            bind(&agents.join("tree"), &agents.join("driver")).unwrap();
            let target = &agents.join("driver/dev");
            crate::real::kernel_call::calls::Call::Tmpfs { target, data: "mode=0755" }
                .carry_out()
                .unwrap();
            let dir = hosts.join("driver/dev/nvidia-caps");
            fs::create_dir(&dir).unwrap();
            let node = dir.join("nvidia-cap3");
            // The null device stands for the driver's: it is there on every host.
            mknod(&node, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(1, 3)).unwrap();
            fs::write(target.join("nvidia-caps/nvidia-cap3"), "text").unwrap();
            let flags = statvfs(&dir).unwrap().flags();
            assert!(flags.contains(FsFlags::ST_NOSUID), "{flags:?}");
        });
    }

    #[test]
    fn a_mount_that_nobody_else_sees_is_read_only_as_well() {
        in_scene(MsFlags::MS_PRIVATE, |agents, hosts| {
            bind(&agents.join("tree"), &agents.join("driver")).unwrap();
            assert_eq!(refusal(agents.join("driver/file")), Some(Errno::EROFS));
            assert!(!hosts.join("driver/file").exists());
        });
    }

    #[rstest::rstest]
    #[case(MsFlags::MS_SHARED)]
    #[case(MsFlags::MS_PRIVATE)]
    fn a_link_in_the_place_of_the_mount_point_is_not_followed(#[case] propagation: MsFlags) {
        in_scene(propagation, |agents, _| {
            fs::create_dir_all(agents.join("victim/below")).unwrap();
            std::os::unix::fs::symlink(agents.join("victim"), agents.join("link")).unwrap();
            for link in ["link", "link/below"] {
                let refused = bind(&agents.join("tree"), &agents.join(link));
                assert_eq!(refused, Err(Errno::ENOTDIR), "{link}");
            }
            assert!(fs::read_dir(agents.join("victim/below")).unwrap().next().is_none());
        });
    }

    #[test]
    fn a_tree_that_is_not_there_leaves_nothing() {
        in_scene(MsFlags::MS_SHARED, |agents, _| {
            let refused = bind(&agents.join("none"), &agents.join("driver"));
            assert_eq!(refused, Err(Errno::ENOENT));
            assert_eq!(refusal(agents.join("driver/file")), None);
        });
    }
}
