//! Mounts of a directory that is open in another mount namespace, such as the host's.
//!
//! mount(2) refuses a source of another namespace (fs/namespace.c, `check_mnt`), and so does
//! open_tree(2) with `OPEN_TREE_CLONE`. So a thread of its own enters that namespace, copies the mount
//! there, and hands the descriptor back; move_mount(2) then attaches the copy here. Both calls came
//! with Linux 5.2. The namespace of the other threads stays as it is.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::Mode;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use super::read_only::MountPoint;
use crate::facts::{Propagation, mounts};

/// Mount point of a trial. It exists wherever mounts can be read.
const STAGE: &str = "/proc";
const STACK: usize = 128 << 10;

/// Mounts the directory `source`, which is open in the mount namespace of the file `namespace`, on
/// `target`, without the mounts below it. The mount is private, and seen in this namespace alone.
pub(super) fn attach(source: &Path, namespace: &Path, target: &Path) -> Result<(), Errno> {
    let at = MountPoint::open(target)?;
    let tree = copied(source, namespace)?;
    stop_sending(target)?;
    place(&tree, &at)?;
    // The copy of a shared mount is in its peer group. Only now can that be changed: since 2025 the
    // kernel refuses it for a mount that is nowhere attached.
    set_propagation(&path_of(&tree), MsFlags::MS_PRIVATE).inspect_err(|_| {
        // If this fails as well, the mount stays, and whoever asks for it is told of the first error.
        let _ = umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    })
}

/// Does the same in a mount namespace that ends with the call, so that nothing is changed.
pub(super) fn try_out(source: &Path, namespace: &Path) -> Result<(), Errno> {
    let tree = copied(source, namespace)?;
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let stage = Path::new(STAGE);
        set_propagation(stage, MsFlags::MS_PRIVATE)?;
        place(&tree, &MountPoint::open(stage)?)
    })
}

/// Copies the mount of the directory `source`, with that directory as its root; the copy is attached
/// nowhere, and vanishes with its descriptor.
fn copied(source: &Path, namespace: &Path) -> Result<OwnedFd, Errno> {
    let source =
        open(source, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let namespace = open(namespace, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    let flags = OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    on_thread(|| {
        // A thread that shares its root directory with others cannot change its mount namespace.
        unshare(CloneFlags::CLONE_FS)?;
        setns(&namespace, CloneFlags::CLONE_NEWNS)?;
        open_tree(&source, "", flags).map_err(errno_of)
    })
}

fn place(tree: &OwnedFd, at: &MountPoint) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", at.fd(), "", flags).map_err(errno_of)
}

/// Keeps mounts on `target` from propagating: where the mount that holds it is shared, it is made a
/// slave, which still receives. A pod with a mount that is `Bidirectional` has a shared root.
fn stop_sending(target: &Path) -> Result<(), Errno> {
    let failed = |e: std::io::Error| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    let real = fs::canonicalize(target).map_err(failed)?;
    let mounts = mounts::parse(&fs::read("/proc/thread-self/mountinfo").map_err(failed)?);
    match mounts::containing(&mounts, &real) {
        Some(mount) if mount.propagation == Propagation::Shared => {
            set_propagation(&mount.target, MsFlags::MS_SLAVE)
        }
        _ => Ok(()),
    }
}

fn set_propagation(target: &Path, kind: MsFlags) -> Result<(), Errno> {
    mount(None::<&str>, target, None::<&str>, kind, None::<&str>)
}

fn path_of(tree: &OwnedFd) -> PathBuf {
    format!("/proc/thread-self/fd/{}", tree.as_raw_fd()).into()
}

/// Runs `work`, which changes the namespace of its thread, on a thread of its own.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Errno> + Send) -> Result<T, Errno> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("from-host".into()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, work);
        let failed = |e: std::io::Error| e.raw_os_error().map_or(Errno::EAGAIN, Errno::from_raw);
        thread.map_err(failed)?.join().unwrap_or(Err(Errno::EIO))
    })
}

fn errno_of(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}
