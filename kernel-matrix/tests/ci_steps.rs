//! Steps of the matrix in a CI (ci/matrix), without the programs.

use std::fs;
use std::path::Path;
use std::process::Command;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn checkout() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    for file in ["ci/matrix", "scripts/environment", "Cargo.toml"] {
        let to = dir.path().join(file);
        fs::create_dir_all(to.parent().expect("a parent")).expect("made");
        fs::copy(Path::new(TOP).join(file), to).expect("copied");
    }
    dir
}

fn commit(dir: &Path) {
    let by = ["-c", "user.name=n", "-c", "user.email=n@example.com"];
    for arguments in
        [&["init", "--quiet"][..], &["commit", "--quiet", "--allow-empty", "--message=m"]]
    {
        let ended = Command::new("git").arg("-C").arg(dir).args(by).args(arguments).status();
        assert!(ended.expect("git runs").success(), "{arguments:?}");
    }
}

/// Returns the last line of a shard's errors.
fn shard(dir: &Path, registry: &str) -> String {
    let mut step = Command::new("bash");
    step.arg(dir.join("ci/matrix")).args(["shard", "1/1"]).env("MATRIX_REGISTRY", registry);
    for name in ["MATRIX_DIR", "MATRIX_SEAL_KEY", "MATRIX_CHANGED_ONLY", "GIT_DIR", "GIT_WORK_TREE"]
    {
        step.env_remove(name);
    }
    let output = step.env("GIT_CEILING_DIRECTORIES", dir).output().expect("it runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_shard_that_is_pushed_needs_a_commit_before_it_compiles() {
    const NO_COMMIT: &str = "git names no commit of this checkout";
    const NEXT: &str = "out/matrix/bin/longshore: No such file";
    let registry = "registry.example.com/nvidia/modules";
    for (has_commit, registry, expected) in
        [(false, registry, NO_COMMIT), (true, registry, NEXT), (false, "", NEXT)]
    {
        let dir = checkout();
        if has_commit {
            commit(dir.path());
        }
        let said = shard(dir.path(), registry);
        assert!(said.contains(expected), "commit {has_commit}, registry `{registry}`: {said}");
    }
}
