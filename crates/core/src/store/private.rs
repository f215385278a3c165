//! Closes the store's root to other users, whichever program made it.
//!
//! Files below it are linked into kernel modules, and a process that can open a file can lock it. A
//! runtime or a kubelet makes a host's directory with mode 0755 before the agent starts. Files
//! below it stay accessible through mounts elsewhere.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::durable::write_failure;
use crate::failure::{Failure, FailureKind};

/// Mode bits of group and others.
const OF_OTHERS: u32 = 0o077;

/// Makes `dir`, if it does not exist, and removes all permissions of group and others.
///
/// # Errors
/// Exit code 15 where it cannot be made, is another user's, or cannot be closed to others.
pub(super) fn make(dir: &Path) -> Result<(), Failure> {
    let (made, found) = make_and_check(dir)?;
    if is_private(&found) {
        return Ok(());
    }
    let closed = made.set_permissions(Permissions::from_mode(0o700));
    closed
        .and_then(|()| made.metadata())
        .map_err(|e| e.to_string())
        .and_then(|now| match is_private(&now) {
            true => {
                let was = found.mode() & 0o7777;
                tracing::info!(
                    "{} had the mode {was:o}, and is now closed to other users",
                    dir.display()
                );
                Ok(())
            }
            false => Err("its file system keeps no modes".to_owned()),
        })
        .map_err(|why| {
            let cause =
                format!("{} is open to others, and that cannot be changed: {why}", dir.display());
            refusal(cause, dir)
        })
}

/// Refuses a directory that is neither root's nor this user's, or that has files which others could have written; makes
/// nothing. One that does not exist, or that this user may not read, is none to refuse.
///
/// # Errors
/// Exit code 15.
pub(super) fn check(dir: &Path) -> Result<(), Failure> {
    let Ok(found) = fs::metadata(dir) else { return Ok(()) };
    if !found.is_dir() {
        return Err(write_failure(dir, nix::errno::Errno::ENOTDIR.into()));
    }
    let own = geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(of_another_user(dir, found.uid(), own));
    }
    refuse_filled(dir, &found)
}

/// Makes `dir`, if it does not exist; refuses another user's, and one that others could have written to.
fn make_and_check(dir: &Path) -> Result<(File, Metadata), Failure> {
    let made = make_dir(dir).map_err(|e| write_failure(dir, e))?;
    let found = made.metadata().map_err(|e| write_failure(dir, e))?;
    let own = geteuid().as_raw();
    if found.uid() != own {
        return Err(of_another_user(dir, found.uid(), own));
    }
    refuse_filled(dir, &found)?;
    Ok((made, found))
}

fn of_another_user(dir: &Path, uid: u32, own: u32) -> Failure {
    let dir_name = dir.display();
    let cause = format!(
        "{dir_name} is the directory of uid {uid}, and not of uid {own}, which longshore runs as"
    );
    refusal(cause, dir)
}

/// Refuses files in a directory that others could write to: they may be forged, modules and compiler.
fn refuse_filled(dir: &Path, found: &Metadata) -> Result<(), Failure> {
    let is_filled = || fs::read_dir(dir).map(|mut entries| entries.next().is_some());
    if found.mode() & 0o022 == 0 || !is_filled().map_err(|e| write_failure(dir, e))? {
        return Ok(());
    }
    let mode = found.mode() & 0o7777;
    let cause =
        format!("others could write to {} (mode {mode:o}), and it is not empty", dir.display());
    Err(refusal(cause, dir))
}

fn is_private(found: &Metadata) -> bool {
    found.mode() & OF_OTHERS == 0
}

fn refusal(cause: String, dir: &Path) -> Failure {
    let dir = dir.display();
    Failure::new(FailureKind::Preflight, cause).remedy(format!(
        "make it root's alone (chown root:root {dir}; chmod 0700 {dir}) and remove what another could \
         have put there, or set --store to another directory, on a file system that can be written and \
         keeps modes"
    ))
}

fn make_dir(dir: &Path) -> io::Result<File> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        // A file in the way, or the directory itself: opening it shows which.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let flags = OFlag::O_DIRECTORY.bits();
    File::options().read(true).custom_flags(flags).open(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use crate::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::chown;

    use crate::store::Store;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o777
    }

    #[rstest]
    #[case::new(None)]
    #[case::of_mkdir(Some(0o755))]
    #[case::of_all(Some(0o1777))]
    #[case::of_a_group(Some(0o750))]
    fn a_store_is_its_owners_alone_whoever_made_it(#[case] before: Option<u32>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = dir.path().join("a/store");
        if let Some(before) = before {
            fs::create_dir_all(&store).expect("directory");
            fs::set_permissions(&store, Permissions::from_mode(before)).expect("permissions");
        }
        Store::open(&store, Disk::default()).expect("opens");
        assert_eq!(mode(&store), 0o700);
    }

    #[rstest]
    #[case::none(None)]
    #[case::closed(Some(0o700))]
    #[case::of_mkdir(Some(0o755))]
    #[case::of_all(Some(0o1777))]
    fn a_store_that_is_only_read_is_neither_made_nor_closed(#[case] before: Option<u32>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (store, scratch) = (dir.path().join("a/store"), dir.path().join("scratch"));
        if let Some(before) = before {
            fs::create_dir_all(&store).expect("directory");
            fs::set_permissions(&store, Permissions::from_mode(before)).expect("permissions");
        }
        Store::open_read_only(&store, &scratch, Disk::default()).expect("opens");
        let now = store.exists().then(|| fs::metadata(&store).expect("metadata").mode() & 0o7777);
        assert_eq!(now, before);
        assert!(before.is_none() || fs::read_dir(&store).expect("listed").next().is_none());
    }

    #[rstest]
    #[case::of_all(0o1777)]
    #[case::of_a_group(0o775)]
    fn a_store_that_others_could_fill_is_refused(#[case] mode: u32) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = dir.path().join("store");
        fs::create_dir_all(store.join("sets")).expect("directory");
        fs::set_permissions(&store, Permissions::from_mode(mode)).expect("permissions");
        let scratch = dir.path().join("scratch");
        let read = Store::open_read_only(&store, &scratch, Disk::default()).map(drop);
        for opened in [Store::open(&store, Disk::default()).map(drop), read] {
            let failure = opened.expect_err("refused");
            assert_eq!(failure.code(), ExitCode::Preflight);
            assert!(failure.to_string().contains("others could write"), "{failure}");
        }
    }

    #[test]
    fn a_store_of_another_user_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = dir.path().join("store");
        fs::create_dir(&store).expect("directory");
        chown(&store, Some(1000), None).expect("chown");
        let failure = Store::open(&store, Disk::default()).expect_err("another's");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains("uid 1000"), "{failure}");
        assert!(failure.remedy_text().expect("a remedy").contains("chmod 0700"));
        assert_eq!(fs::read_dir(&store).expect("listed").count(), 0);
    }
}
