//! The user that a build's programs run as: handing directories over, and checks that no other
//! process has its id.
//!
//! Everything this user writes may become kernel code. So no other process may have its id, and
//! root neither writes to nor walks through a directory once it is the user's.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Gid, Uid, fchown, fchownat};

use super::sandbox::{self, Held};
use crate::BuildUser;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};

/// Maximum number of /proc entries that are read: more than any host has processes (PID_MAX_LIMIT).
const MOST_PROCESSES: usize = 4 << 20;
/// Maximum number of a process's ancestors that are checked; a compiler's are less than 20.
const MOST_ANCESTORS: usize = 256;
/// Maximum depth of handed-over directories: unpacking makes no deeper ones.
const DEEPEST: usize = 128;

/// Gives `dir` and everything below to `user`, after checking that no other process has its id.
/// Root has finished writing there before. `held` keeps the directory meanwhile.
///
/// # Errors
/// Exit code 15 where the id is in use, or the directory cannot be given away.
pub(crate) async fn hand_over(dir: PathBuf, user: BuildUser, held: Held) -> Result<(), Failure> {
    let what = format!("handing over {}", dir.display());
    let give = move || {
        let _held = held;
        check_unused(Path::new("/proc"), user)?;
        give(&dir, user)
    };
    tokio::task::spawn_blocking(give).await.or_fail(FailureKind::Bug, || what)?
}

/// Repeats the check of [`hand_over`]: a process that took the id meanwhile could have written to
/// the compile's output.
///
/// # Errors
/// Exit code 15 with the process.
pub(crate) async fn still_unused(user: BuildUser) -> Result<(), Failure> {
    let look = move || check_unused(Path::new("/proc"), user);
    let looked = tokio::task::spawn_blocking(look).await;
    looked.or_fail(FailureKind::Bug, || "looking at the processes after a compile".to_owned())?
}

/// Gives `dir` and everything below to `user`. No link is followed, and the directory itself comes
/// last: root walks through nothing that is the user's already.
///
/// # Errors
/// Exit code 15 where the kernel or the file system refuses, or where it is the user's already.
pub(crate) fn give(dir: &Path, user: BuildUser) -> Result<(), Failure> {
    let all = || -> nix::Result<()> {
        let opened = open(dir, OPEN_DIR, Mode::empty())?;
        if fstat(&opened)?.st_uid == user.id() {
            return Err(Errno::EEXIST);
        }
        give_below(&opened, user, DEEPEST)?;
        let (uid, gid) = ids(user);
        fchown(&opened, uid, gid)
    };
    all().map_err(|errno| refused(dir, user, errno))
}

const OPEN_DIR: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn ids(user: BuildUser) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(user.id())), Some(Gid::from_raw(user.id())))
}

fn give_below(dir: &OwnedFd, user: BuildUser, deepest: usize) -> nix::Result<()> {
    let (uid, gid) = ids(user);
    let mut list = Dir::openat(dir, ".", OPEN_DIR, Mode::empty())?;
    for entry in list.iter() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if let Some(Type::Directory) | None = entry.file_type() {
            match openat(dir, name, OPEN_DIR, Mode::empty()) {
                Ok(below) => {
                    let left = deepest.checked_sub(1).ok_or(Errno::ENAMETOOLONG)?;
                    give_below(&below, user, left)?;
                    fchown(&below, uid, gid)?;
                    continue;
                }
                // The entry's type was unknown: some file systems do not report it.
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(errno) => return Err(errno),
            }
        }
        fchownat(dir, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// The failure of giving a directory away. Running as root instead is no option: the programs of a
/// compile (headers, scripts, patches) are not trusted that far.
pub(super) fn refused(path: &Path, user: BuildUser, errno: Errno) -> Failure {
    let remedy = match errno {
        Errno::EPERM => {
            "give longshore CAP_CHOWN, and a store on a file system whose files root may give away (not \
             NFS with root_squash: --store); or use a prebuilt set"
                .to_owned()
        }
        Errno::EINVAL => format!(
            "this user namespace has no user {user}: set build-uid to one that it maps and that no \
             other program has, or use a prebuilt set"
        ),
        _ => return write_failure(path, errno.into()),
    };
    let cause = format!("giving {} to the user that compiles (uid {user})", path.display());
    Failure::new(FailureKind::Preflight, cause).with_source(io::Error::from(errno)).remedy(remedy)
}

/// Fails if a process outside of build sandboxes has the user id: it could write to the compile's
/// files. `proc` shows the processes that this one can see.
///
/// # Errors
/// Exit code 15 with the process.
pub(super) fn check_unused(proc: &Path, user: BuildUser) -> Result<(), Failure> {
    let entries = fs::read_dir(proc).or_fail(FailureKind::Preflight, || {
        format!("listing the processes in {}", proc.display())
    })?;
    let numbered = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
    });
    for entry in numbered.take(MOST_PROCESSES) {
        // A process that ended meanwhile has no owner.
        let has_it = entry.metadata().is_ok_and(|found| found.uid() == user.id());
        if has_it && let Some(status) = foreign(proc, &entry.path()) {
            let (pid, name) = (entry.file_name(), status.name);
            let cause = format!(
                "process {} ({name}) runs as uid {user}, which compiles run as: it could write to \
                 what becomes kernel code",
                pid.display()
            );
            return Err(Failure::new(FailureKind::Preflight, cause).remedy(
                "end it, or set build-uid (--build-uid, LONGSHORE_BUILD_UID) to a user id that no \
                 other program has",
            ));
        }
    }
    Ok(())
}

/// Returns the process, parsed from /proc/PID/status, if it is outside of build sandboxes: none of
/// its ancestors is a sandbox's process 1, run by root. None if it is inside one, or has ended.
fn foreign(proc: &Path, path: &Path) -> Option<Status> {
    let status = Status::read(path)?;
    let mut at = status.parent;
    for _ in 0..MOST_ANCESTORS {
        if at == 0 {
            break;
        }
        let Some(parent) = Status::read(&proc.join(at.to_string())) else {
            // The parent has ended: reads again, for the new parent or the process's own end.
            let again = Status::read(path)?;
            if again.parent == at {
                break;
            }
            at = again.parent;
            continue;
        };
        if parent.is_root && parent.name == sandbox::INIT_NAME {
            return None;
        }
        at = parent.parent;
    }
    Some(status)
}

/// The relevant fields of /proc/PID/status.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Status {
    name: String,
    parent: u32,
    /// True if all of its user ids are root's.
    is_root: bool,
}

impl Status {
    fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path.join("status")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let of =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        Some(Self {
            name: of("Name")?.to_owned(),
            parent: of("PPid")?.parse().ok()?,
            is_root: of("Uid")?.split('\t').all(|id| id == "0"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    fn owner(path: &Path) -> (u32, u32) {
        let found = path.symlink_metadata().expect("there");
        (found.uid(), found.gid())
    }

    #[test]
    fn everything_below_is_handed_over_and_nothing_that_links_lead_to() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (work, outside) = (dir.path().join("work"), dir.path().join("outside"));
        fs::create_dir_all(work.join("a/b")).expect("directories");
        fs::create_dir(&outside).expect("directory");
        fs::write(outside.join("file"), "").expect("write");
        fs::write(work.join("a/b/file"), "").expect("write");
        symlink(&outside, work.join("link")).expect("link");
        symlink(outside.join("file"), work.join("a/link")).expect("link");
        let user = BuildUser::default();
        give(&work, user).expect("given");
        for path in ["", "a", "a/b", "a/b/file", "link", "a/link"] {
            assert_eq!(owner(&work.join(path)), (user.id(), user.id()), "{path}");
        }
        assert_eq!([owner(&outside), owner(&outside.join("file"))], [(0, 0); 2]);
    }

    #[test]
    fn a_directory_is_handed_over_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let work = dir.path().join("work");
        fs::create_dir(&work).expect("directory");
        give(&work, BuildUser::default()).expect("given");
        fs::write(work.join("late"), "").expect("write");
        give(&work, BuildUser::default()).expect_err("it is the user's already");
        assert_eq!(owner(&work.join("late")), (0, 0));
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).expect("directory");
        symlink(&outside, dir.path().join("work")).expect("link");
        give(&dir.path().join("work"), BuildUser::default()).expect_err("a link");
        assert_eq!(owner(&outside), (0, 0));
    }

    #[rstest]
    #[case::no_capability(Errno::EPERM, "CAP_CHOWN")]
    #[case::not_mapped(Errno::EINVAL, "user namespace")]
    #[case::read_only(Errno::EROFS, "--store")]
    fn what_cannot_be_given_away_is_refused_with_a_remedy(
        #[case] errno: Errno,
        #[case] said: &str,
    ) {
        let failure = refused(Path::new("/store/tmp/work"), BuildUser::default(), errno);
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.remedy_text().expect("a remedy").contains(said), "{failure}");
    }

    /// Starts a process of that user that ends when its standard input closes.
    fn process_of(user: BuildUser) -> std::process::Child {
        let mut command = Command::new("/bin/cat");
        command.uid(user.id()).gid(user.id()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("cat starts")
    }

    #[test]
    fn nothing_is_compiled_while_another_process_has_the_user_id() {
        let user: BuildUser = "2104104199".parse().expect("a user id");
        check_unused(Path::new("/proc"), user).expect("no process has it");
        let mut child = process_of(user);
        let failure = check_unused(Path::new("/proc"), user).expect_err("cat has it");
        assert_eq!(failure.code(), ExitCode::Preflight);
        let said = format!("process {} (cat) runs as uid {user}", child.id());
        assert!(failure.to_string().contains(&said), "{failure}");
        drop(child.stdin.take());
        child.wait().expect("cat ends");
        check_unused(Path::new("/proc"), user).expect("it has ended");
    }

    const UID: &str = "Uid:\t0\t0\t0\t0";

    /// A /proc tree with process 9 of the build user and these ancestors: PID, parent, name, user
    /// ids.
    fn captured(ancestors: &[(u32, u32, &str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        let all = ancestors.iter().copied().chain([(9, 8, "cc1", "Uid:\t1\t1\t1\t1")]);
        for (pid, parent, name, uid) in all {
            let path = dir.path().join(pid.to_string());
            fs::create_dir(&path).expect("directory");
            let text = format!("Name:\t{name}\nPPid:\t{parent}\n{uid}\n");
            fs::write(path.join("status"), text).expect("write");
        }
        dir
    }

    #[rstest]
    #[case::in_a_sandbox(&[(1, 0, "init", UID), (7, 1, sandbox::INIT_NAME, UID), (8, 7, "make", UID)], false)]
    #[case::of_nobody(&[(1, 0, "init", UID), (8, 1, "sh", UID)], true)]
    #[case::of_one_with_that_name(
        &[(1, 0, "init", UID), (8, 1, sandbox::INIT_NAME, "Uid:\t1\t0\t0\t0")],
        true
    )]
    #[case::of_one_that_has_ended(&[], true)]
    fn processes_of_other_builds_are_not_foreign(
        #[case] ancestors: &[(u32, u32, &str, &str)],
        #[case] wanted: bool,
    ) {
        let proc = captured(ancestors);
        assert_eq!(foreign(proc.path(), &proc.path().join("9")).is_some(), wanted);
    }
}
