//! Test that no other user reaches a file of a store, not even an unfinished one.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rstest::rstest;

use super::reuse::make_objects;
use crate::BuildUser;
use longshore_core::disk::Disk;
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_modules::artifact::HeadersFrom;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o777
}

/// Every path below `dir`.
fn all(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        found.push(path.clone());
        if path.is_dir() && !path.is_symlink() {
            all(&path, found);
        }
    }
}

/// Returns those of `paths` that a process of user nobody can reach.
fn reached(paths: &[PathBuf]) -> Vec<String> {
    let script = "for path; do [ -e \"$path\" ] && echo \"$path\"; done; true";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).args(paths).uid(65534).gid(65534).current_dir("/");
    let output = command.output().expect("sh runs");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Makes every kind of unfinished file and directory of a store, as a killed process leaves
/// them.
fn fill(store: &Store) {
    let purposes = [
        "build",
        "compiler",
        "driver",
        "extract",
        "gc",
        "headers",
        "import",
        "root",
        "sign",
        "userspace",
    ];
    let claimed = purposes.map(|purpose| claim(store, purpose).expect("claim"));
    for dir in &claimed {
        assert_eq!(mode(dir.path()), 0o700, "{}", dir.path().display());
        fs::create_dir_all(dir.path().join("build/tmp")).expect("directories");
        fs::write(dir.path().join("build/file"), "").expect("write");
    }
    claimed.into_iter().for_each(ScratchDir::moved);
    store.put(b"bytes").expect("put");
    store.write_file(Path::new("history.json"), b"{}").expect("write");
    for from in [HeadersFrom::Archive, HeadersFrom::Host] {
        let objects = make_objects(store, BuildUser::default(), from).expect("objects");
        fs::write(objects.join("object"), "").expect("write");
    }
}

/// Runs `work` with an umask of its own.
fn with_umask(umask: u32, work: impl FnOnce() + Send + 'static) {
    let on_thread = move || {
        // From here on the thread has its own umask.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).expect("unshare");
        nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(umask));
        work();
    };
    std::thread::spawn(on_thread).join().expect("it ends well");
}

#[rstest]
fn no_other_user_reaches_anything_in_a_store(
    #[values(0o022, 0)] umask: u32,
    #[values(None, Some(0o755))] before: Option<u32>,
) {
    let dir = tempfile::tempdir().expect("temporary directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
    let root = dir.path().join("store");
    if let Some(before) = before {
        fs::create_dir(&root).expect("directory");
        fs::set_permissions(&root, Permissions::from_mode(before)).expect("permissions");
    }
    let path = root.clone();
    with_umask(umask, move || fill(&Store::open(&path, Disk::default()).expect("store opens")));
    let mut paths = Vec::new();
    all(&root, &mut paths);
    assert!(paths.len() > 50, "{paths:?}");
    assert_eq!(reached(&paths), Vec::<String>::new());
    // Unfinished files are unreachable even if the root is open.
    fs::set_permissions(&root, Permissions::from_mode(0o755)).expect("permissions");
    let making = ["tmp", "objects"].map(|name| root.join(name));
    paths.retain(|path| {
        let parent = path.parent().unwrap_or(path);
        making.iter().any(|dir| path.starts_with(dir) && parent != dir && path != dir)
    });
    assert_eq!(reached(&paths), Vec::<String>::new());
}
