//! The attacker is a process of another user, as any on the host may be.

use crate::failure::ExitCode;
use rstest::rstest;

use super::*;
use crate::testing::{Holder, for_all};

/// A lock file as releases before this one made it.
fn old_lock(dir: &Path) -> PathBuf {
    let path = dir.join("lock");
    fs::write(&path, "").expect("write");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("mode");
    path
}

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_lock_that_a_stranger_holds_ends_the_wait_at_its_deadline_and_names_the_stranger() {
    let dir = for_all();
    let path = old_lock(dir.path());
    let holder = Holder::start(&path);
    let since = Instant::now();
    let mut attempt = Attempt::begin(&path, LockKind::Shared, SHORT).expect("opens");
    assert!(attempt.within_limit_here().expect("tries").is_none());
    assert!((SHORT..10 * SHORT).contains(&since.elapsed()), "{:?}", since.elapsed());
    let failure = attempt.still_held();
    assert_eq!(failure.code(), ExitCode::Preflight);
    let said = failure.to_string();
    assert!(said.contains(&format!("{} is still held after 200ms", path.display())), "{said}");
    assert!(said.contains(&format!("held by pid {}, perl", holder.0.id())), "{said}");
    assert!(failure.remedy_text().is_some());
    drop(holder);
    assert!(attempt.within_limit_here().expect("tries").is_some());
}

#[tokio::test]
async fn a_task_that_waits_for_a_lock_hears_at_once_that_it_is_to_stop() {
    let dir = for_all();
    let path = old_lock(dir.path());
    let _holder = Holder::start(&path);
    let mut attempt = Attempt::begin(&path, LockKind::Exclusive, 600 * SHORT).expect("opens");
    let since = Instant::now();
    tokio::select! {
        held = attempt.within_limit() => panic!("{held:?}"),
        () = tokio::time::sleep(SHORT) => {}
    }
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
}

#[test]
fn an_older_lock_that_others_may_open_is_its_owners_alone_from_now_on() {
    let dir = for_all();
    let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
    let (old, new) = (old_lock(dir.path()), dir.path().join("new"));
    for path in [&old, &new] {
        let mut attempt = Attempt::begin(path, LockKind::Exclusive, Duration::ZERO).expect("opens");
        assert!(attempt.once().expect("tries").is_some());
        assert_eq!(mode(path), 0o600);
    }
}

#[test]
fn a_lock_file_that_was_removed_meanwhile_is_not_the_one_that_is_held() {
    let dir = for_all();
    let path = dir.path().join("lock");
    let mut attempt = Attempt::begin(&path, LockKind::Exclusive, Duration::ZERO).expect("opens");
    fs::remove_file(&path).expect("removed");
    let held = attempt.once().expect("tries").expect("another is made");
    assert!(is_at(&held, &path).expect("looks"));
}

#[rstest]
#[case::link(|path: &Path| std::os::unix::fs::symlink("/dev/null", path).expect("link"))]
#[case::pipe(|path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("pipe"))]
fn what_is_no_file_is_no_lock(#[case] put: fn(&Path)) {
    let dir = for_all();
    let path = dir.path().join("lock");
    put(&path);
    Attempt::begin(&path, LockKind::Shared, Duration::ZERO).expect_err("refused");
}

#[test]
fn what_is_removed_before_it_is_locked_is_made_again() {
    let dir = for_all();
    let made = std::cell::Cell::new(0);
    let make = || {
        made.set(made.get() + 1);
        let file = tempfile::NamedTempFile::new_in(dir.path())?;
        if made.get() < 3 {
            fs::remove_file(file.path())?;
        }
        Ok(file)
    };
    let (file, held) = made_locked(make).expect("made");
    assert_eq!(made.get(), 3);
    assert!(is_at(&held, file.path()).expect("looks"));
}

#[rstest]
#[case::held("1: FLOCK  ADVISORY  WRITE 1467 fe:01:1966 0 EOF\n", &[1467])]
#[case::two("1: FLOCK  ADVISORY  READ 7 fe:01:1966 0 EOF\n2: FLOCK  ADVISORY  READ 8 fe:01:1966 0 EOF\n", &[7, 8])]
#[case::waits("1: -> FLOCK  ADVISORY  WRITE 1467 fe:01:1966 0 EOF\n", &[])]
#[case::posix("1: POSIX  ADVISORY  WRITE 1467 fe:01:1966 0 EOF\n", &[])]
#[case::another_file("1: FLOCK  ADVISORY  WRITE 1467 fe:01:1967 0 EOF\n", &[])]
#[case::another_device("1: FLOCK  ADVISORY  WRITE 1467 fe:02:1966 0 EOF\n", &[])]
#[case::another_namespace("1: FLOCK  ADVISORY  WRITE 0 fe:01:1966 0 EOF\n", &[])]
#[case::damaged("1: FLOCK  ADVISORY\nfe:01:1966\n\n1: FLOCK A W 1 fe:01 0\n", &[])]
fn holders_are_told_by_device_and_inode(#[case] listed: &str, #[case] pids: &[u32]) {
    assert_eq!(holding(listed, (0xfe, 1, 1966)), pids);
}
