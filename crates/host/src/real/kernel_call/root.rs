//! Tmpfs of empty directories that is read-only in every copy: the outer mount of a driver root.
//!
//! It is staged as [`read_only`] stages a bind mount, and is complete before any other mount
//! namespace shows it.

use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, mkdirat};

use super::read_only::{self, MountPoint};
use crate::values::TMPFS_SOURCE;

const DIR_MODE: u32 = 0o755;

/// Mounts the tmpfs with these options and `dirs` (plain names) on `target`.
pub(super) fn mount_on(target: &Path, data: &str, dirs: &[PathBuf]) -> Result<(), Errno> {
    if !dirs.iter().all(|dir| is_plain_name(dir)) {
        return Err(Errno::EINVAL);
    }
    read_only::staged_or_here(
        target,
        |stage| {
            mount_tmpfs(stage, data)?;
            dirs.iter().try_for_each(|dir| make_dir(&stage.join(dir)))
        },
        || mount_here(target, data, dirs),
    )
}

/// Mounts it without a stage: its directories are made after it is attached.
fn mount_here(target: &Path, data: &str, dirs: &[PathBuf]) -> Result<(), Errno> {
    mount_tmpfs(&MountPoint::open(target)?.path(), data)?;
    // The descriptor of the tmpfs itself, and not of the directory that it covers.
    let root = MountPoint::open(target)?;
    for dir in dirs {
        mkdirat(root.as_fd(), dir, Mode::from_bits_truncate(DIR_MODE))?;
    }
    read_only::remount(&root.path(), &root.path())
}

fn mount_tmpfs(target: &Path, data: &str) -> Result<(), Errno> {
    mount(Some(TMPFS_SOURCE), target, Some("tmpfs"), MsFlags::MS_NOSUID, Some(data))
}

fn make_dir(path: &Path) -> Result<(), Errno> {
    let made = DirBuilder::new().mode(DIR_MODE).create(path);
    made.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
}

fn is_plain_name(dir: &Path) -> bool {
    let mut parts = dir.components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::real::kernel_call::calls::Call;
    use crate::real::kernel_call::read_only::tests::{in_scene, refusal};
    use nix::mount::umount;
    use rstest::rstest;

    const DATA: &str = "mode=0755,size=64k";

    fn dirs() -> Vec<PathBuf> {
        ["dev", "usr"].map(PathBuf::from).into()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[rstest]
    #[case::seen_by_others(MsFlags::MS_SHARED)]
    #[case::seen_by_none(MsFlags::MS_PRIVATE)]
    fn the_root_has_its_directories_and_no_other(#[case] propagation: MsFlags) {
        in_scene(propagation, |agents, hosts| {
            mount_on(&agents.join("driver"), DATA, &dirs()).unwrap();
            let copies =
                if propagation == MsFlags::MS_SHARED { vec![agents, hosts] } else { vec![agents] };
            for copy in copies {
                let root = copy.join("driver");
                assert_eq!(names(&root), ["dev", "usr"]);
                assert_eq!(refusal(root.join("planted")), Some(Errno::EROFS), "{}", copy.display());
                assert_eq!(refusal(root.join("usr/planted")), Some(Errno::EROFS));
            }
        });
    }

    /// A consumer keeps the root that it was started with, in a mount namespace of its own: what is
    /// mounted in the root later is seen there all the same, and what is unmounted is gone.
    #[test]
    fn who_has_the_root_mounted_sees_the_next_tree() {
        in_scene(MsFlags::MS_SHARED, |agents, hosts| {
            let root = agents.join("driver");
            mount_on(&root, DATA, &dirs()).unwrap();
            for version in ["535", "550"] {
                fs::create_dir_all(agents.join(version)).unwrap();
                fs::write(agents.join(version).join("version"), version).unwrap();
            }
            read_only::bind(&agents.join("535"), &root.join("usr")).unwrap();
            let consumer = hosts.join("tree");
            let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
            mount(Some(&hosts.join("driver")), &consumer, None::<&str>, bind, None::<&str>)
                .unwrap();
            let slave = MsFlags::MS_SLAVE | MsFlags::MS_REC;
            mount(None::<&str>, &consumer, None::<&str>, slave, None::<&str>).unwrap();
            let seen = || fs::read_to_string(consumer.join("usr/version")).ok();
            assert_eq!(seen().as_deref(), Some("535"));
            umount(&root.join("usr")).unwrap();
            assert_eq!(seen(), None);
            read_only::bind(&agents.join("550"), &root.join("usr")).unwrap();
            assert_eq!(seen().as_deref(), Some("550"));
        });
    }

    /// Another copy of the host's own sysfs would take that along when it is unmounted recursively.
    #[test]
    fn the_sysfs_is_read_only_and_no_copy_of_the_hosts() {
        in_scene(MsFlags::MS_SHARED, |agents, hosts| {
            let root = agents.join("driver");
            mount_on(&root, DATA, &[PathBuf::from("sys")]).unwrap();
            let target = root.join("sys");
            Call::Sysfs { target: &target }.carry_out().unwrap();
            assert!(hosts.join("driver/sys/bus").exists());
            let mounts =
                crate::facts::mounts::parse(&fs::read("/proc/thread-self/mountinfo").unwrap());
            let mount = mounts.iter().find(|mount| mount.target == target).unwrap();
            assert_eq!((mount.source.as_str(), mount.fstype.as_str()), (TMPFS_SOURCE, "sysfs"));
            assert_eq!(refusal(hosts.join("driver/sys/kernel/uevent_helper")), Some(Errno::EROFS));
            detach(&root).unwrap();
            assert!(Path::new("/sys/bus").exists());
        });
    }

    fn detach(root: &Path) -> Result<(), Errno> {
        nix::mount::umount2(root, nix::mount::MntFlags::MNT_DETACH)
    }

    #[rstest]
    #[case("..")]
    #[case("a/b")]
    #[case("/a")]
    #[case("")]
    fn a_directory_elsewhere_is_refused(#[case] dir: &str) {
        in_scene(MsFlags::MS_SHARED, |agents, _| {
            let refused = mount_on(&agents.join("driver"), DATA, &[PathBuf::from(dir)]);
            assert_eq!(refused, Err(Errno::EINVAL));
            assert!(names(&agents.join("driver")).is_empty());
        });
    }
}
