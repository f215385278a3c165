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

/// A checkout with published results, and a run of one shard that has the same.
fn published() -> tempfile::TempDir {
    let dir = checkout();
    let measured = dir.path().join("kernel-matrix/measured");
    let out = dir.path().join("out/matrix");
    for place in [&measured, &dir.path().join("docs/reference"), &out.join("bin")] {
        fs::create_dir_all(place).expect("made");
    }
    let from = Path::new(TOP).join("kernel-matrix/measured");
    for file in ["compiled.json", "compiled.lock", "source-trees.json", "booted.jsonl"] {
        fs::copy(from.join(file), measured.join(file)).expect("copied");
    }
    fs::create_dir_all(out.join("shards/1")).expect("made");
    fs::copy(from.join("compiled.json"), out.join("shards/1/results.json")).expect("copied");
    fs::copy(from.join("compiled.lock"), out.join("matrix.lock")).expect("copied");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kernel-matrix"), out.join("bin/kernel-matrix"))
        .expect("linked");
    fs::write(out.join("bin/longshore"), "").expect("written");
    dir
}

/// Runs the step `page`; returns whether it passed, its errors, and the contents of `changed` and `body.md`.
fn page(dir: &Path) -> (bool, String, String, String) {
    let mut step = Command::new("bash");
    step.arg(dir.join("ci/matrix"))
        .arg("page")
        .env_remove("MATRIX_DIR")
        .env_remove("MATRIX_SEAL_KEY");
    let output = step.output().expect("it runs");
    let read =
        |name: &str| fs::read_to_string(dir.join("out/matrix/page").join(name)).unwrap_or_default();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said, read("changed"), read("body.md"))
}

#[test]
fn a_page_is_proposed_where_its_verdicts_differ() {
    let dir = published();
    let (passed, said, changed, _) = page(dir.path());
    assert!(passed && changed == "true\n", "no verdicts.txt before: {said}");
    let (passed, said, changed, body) = page(dir.path());
    assert!(
        passed && changed == "false\n" && body.contains("every cell as before"),
        "{said}{body}"
    );
    let shard = dir.path().join("out/matrix/shards/1/results.json");
    let newer = fs::read_to_string(&shard)
        .expect("results")
        .replace("7.2.13+deb14-amd64", "7.2.14+deb14-amd64");
    fs::write(&shard, newer).expect("written");
    let (passed, said, changed, body) = page(dir.path());
    assert!(passed && changed == "true\n", "{said}");
    let lines: Vec<&str> =
        body.lines().filter(|line| line.starts_with("+sid-535-open\t7.2.14")).collect();
    assert_eq!(lines.len(), 1, "{body}");
    for file in ["kernel-matrix/measured/compiled.json", "docs/reference/combinations.html"] {
        let made =
            fs::read_to_string(dir.path().join("out/matrix/page/files").join(file)).expect(file);
        assert!(made.contains("7.2.14+deb14-amd64") && !made.contains("\"seal\""), "{file}");
    }
}

#[test]
fn a_run_with_a_cell_without_an_answer_is_not_proposed() {
    let dir = published();
    let shard = dir.path().join("out/matrix/shards/1/results.json");
    let text = fs::read_to_string(&shard).expect("results");
    let mut results: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    results["cells"][0]["verdict"] = serde_json::json!({"kind": "not-run", "why": "no network"});
    fs::write(&shard, results.to_string()).expect("written");
    let (passed, said, changed, _) = page(dir.path());
    assert!(!passed && changed.is_empty(), "{said}");
    assert!(said.contains("cells without an answer, and is not published"), "{said}");
}
