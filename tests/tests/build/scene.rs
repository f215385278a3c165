//! Scene of the sandbox's tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_build::sandbox::{self, Bind, Bound, Outcome, Spec};
use longshore_core::failure::Failure;

pub(super) const HELPER: &str = env!("CARGO_BIN_EXE_sandbox-stages");
pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// A root file system made of this machine's /usr.
pub(super) struct Scene {
    pub(super) dir: tempfile::TempDir,
}

impl Scene {
    pub(super) fn new() -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("temporary directory") };
        for dir in ["root/proc", "root/dev", "root/usr", "root/build", "work"] {
            fs::create_dir_all(scene.path(dir)).expect("directory");
        }
        for link in ["bin", "sbin", "lib", "lib64"] {
            symlink(Path::new("usr").join(link), scene.path("root").join(link)).expect("link");
        }
        std::os::unix::fs::chown(scene.path("work"), Some(65534), Some(65534)).expect("chown");
        scene
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub(super) fn spec(&self, script: &str) -> Spec {
        Spec {
            root: self.path("root"),
            binds: vec![Bind::new("/usr", "/usr"), Bind::new(self.path("work"), "/build")],
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            environment: vec![("PATH".into(), "/usr/bin".into()), ("LC_ALL".into(), "C".into())],
            handed_on: Vec::new(),
            directory: "/build".into(),
            user: Some(65534),
            // /usr of this machine counts, too, because it is bound writable: read-only binds are not executable.
            bound: Bound { bytes: 1 << 50, entries: 1 << 40 },
            outcome: self.path("outcome"),
            held: None,
        }
    }

    pub(super) async fn run(&self, script: &str) -> (Result<Outcome, Failure>, Vec<String>) {
        self.run_for(script, MINUTE).await
    }

    pub(super) async fn run_for(
        &self,
        script: &str,
        limit: Duration,
    ) -> (Result<Outcome, Failure>, Vec<String>) {
        self.run_as(&self.spec(script), limit).await
    }

    pub(super) async fn run_as(
        &self,
        spec: &Spec,
        limit: Duration,
    ) -> (Result<Outcome, Failure>, Vec<String>) {
        let mut lines = Vec::new();
        let mut note = |line: &str| lines.push(line.to_owned());
        let outcome = sandbox::run(Path::new(HELPER), spec, limit, &mut note).await;
        (outcome, lines)
    }

    /// Counts the processes of this machine that have the scene's path in an argument.
    pub(super) fn processes(&self) -> usize {
        let mark = self.dir.path().to_str().expect("a name in UTF-8");
        fs::read_dir("/proc")
            .expect("/proc")
            .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
            .filter(|cmdline| String::from_utf8_lossy(cmdline).contains(mark))
            .count()
    }

    /// Returns a script that starts a process in the background, prints `started`, and runs for
    /// long.
    pub(super) fn endless(&self) -> String {
        let mark = self.dir.path().display();
        format!("tail -f /dev/null {mark}/a 2>&1 & echo started; exec tail -f /dev/null {mark}/b")
    }

    pub(super) fn is_mounted(&self) -> bool {
        let mark = self.dir.path().to_str().expect("a name in UTF-8");
        fs::read_to_string("/proc/self/mountinfo").expect("mountinfo").contains(mark)
    }
}
