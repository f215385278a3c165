//! Bounds of processes, files and disk: of any program inside, and of a makefile.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_build::BuildUser;
use longshore_build::compile::Compile;
use longshore_build::sandbox::{Bound, Outcome, Spec};
use longshore_core::failure::ExitCode;
use longshore_core::flavour::Flavour;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_modules::artifact::HeadersFrom;
use longshore_tests::scene::disk;

use super::scene::{HELPER, MINUTE, Scene};

/// Starts processes without end; each waits.
const FORKS: &str = "while :; do tail -f /dev/null & done";

#[tokio::test]
async fn limits_are_those_of_a_compile() {
    let (outcome, lines) = Scene::new().run("cat /proc/self/limits").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0), "{lines:?}");
    // Soft and hard limit.
    let limits = |name: &str| -> Vec<u64> {
        let line = lines.iter().find_map(|line| line.strip_prefix(name)).expect("a limit");
        line.split_whitespace().take(2).map(|word| word.parse().expect("a number")).collect()
    };
    assert_eq!(limits("Max core file size"), [0, 0]);
    assert_eq!(limits("Max file size"), [4 << 30; 2]);
    assert!(limits("Max processes").iter().all(|most| (8 << 10..1 << 20).contains(most)));
    assert!(limits("Max address space").iter().all(|most| (16 << 30..1 << 40).contains(most)));
}

#[tokio::test]
async fn a_file_has_a_bound() {
    let scene = Scene::new();
    let (outcome, lines) = scene.run("truncate -s 4G a && exec truncate -s 5G b").await;
    let ended = outcome.expect("it runs");
    assert!(!matches!(ended, Outcome::Exited(0) | Outcome::Exited(127)), "{ended:?}, {lines:?}");
    let size =
        |name: &str| fs::metadata(scene.path("work").join(name)).map_or(0, |found| found.len());
    assert_eq!((size("a"), size("b")), (4 << 30, 0));
}

/// Returns a scene with nothing writable but the directory of the work, and a spec that runs a script of the shell and
/// truncate in it.
fn small(script: &str) -> (Scene, Spec) {
    let scene = Scene::new();
    let root = scene.path("root");
    for dir in ["usr/bin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(root.join(dir)).expect("directory");
    }
    for program in ["sh", "truncate"] {
        copy_program(&root, &format!("/usr/bin/{program}"));
    }
    let mut spec = scene.spec(script);
    spec.binds.retain(|bind| bind.target != Path::new("/usr"));
    spec.bound = Bound { bytes: 1 << 30, entries: 100 };
    (scene, spec)
}

#[tokio::test]
async fn what_is_written_in_all_has_a_bound() {
    let (scene, spec) = small("i=0; while :; do i=$(((i+1)%50)); truncate -s 100M file$i; done");
    let (outcome, lines) = scene.run_as(&spec, MINUTE).await;
    assert_eq!(outcome.expect("it runs"), Outcome::Outgrown, "{lines:?}");
    assert_eq!(scene.processes(), 0);
}

#[tokio::test]
async fn the_number_of_files_has_a_bound() {
    let (scene, spec) = small("i=0; while :; do i=$((i+1)); : > file$i; done");
    let (outcome, _) = scene.run_as(&spec, MINUTE).await;
    assert_eq!(outcome.expect("it runs"), Outcome::Outgrown);
}

#[tokio::test]
async fn processes_have_a_bound_and_none_is_left() {
    let scene = Scene::new();
    let mark = scene.dir.path().display();
    let script = FORKS.replace("/dev/null", &format!("/dev/null {mark}/a 2>/dev/null"));
    let (outcome, lines) = scene.run(&script).await;
    let ended = outcome.expect("it runs");
    let bounds = 4096..1 << 20;
    assert!(
        matches!(ended, Outcome::TooManyProcesses(most) if bounds.contains(&most)),
        "{ended:?}, {lines:?}"
    );
    assert_eq!(scene.processes(), 0);
    assert!(!scene.is_mounted());
}

/// A store, a build root of make and a shell, and a driver with this makefile.
struct Driver {
    scene: Scene,
    store: Store,
}

impl Driver {
    fn new(makefile: &str) -> Self {
        let scene = Scene::new();
        let store = Store::open(&scene.path("store"), disk()).expect("a store");
        let (root, driver) = (scene.path("made"), scene.path("sources/driver"));
        for dir in ["proc", "dev", "tmp", "build", "usr/bin", "usr/lib", "usr/lib64"] {
            fs::create_dir_all(root.join(dir)).expect("directory");
        }
        for link in ["bin", "lib", "lib64"] {
            std::os::unix::fs::symlink(Path::new("usr").join(link), root.join(link)).expect("link");
        }
        for program in ["make", "sh", "tail", "truncate"] {
            copy_program(&root, &format!("/usr/bin/{program}"));
        }
        fs::create_dir_all(scene.path("sources/tmp")).expect("directory");
        fs::create_dir(&driver).expect("directory");
        fs::write(driver.join("Makefile"), makefile).expect("write");
        fs::write(driver.join("conftest.sh"), "").expect("write");
        Self { scene, store }
    }

    /// Compiles; returns exit code, message and class.
    async fn compile(&self) -> (ExitCode, String, String) {
        let (root, work) = (self.scene.path("made"), self.scene.path("sources"));
        let kernel_dirs = (PathBuf::from("/usr/src/a"), PathBuf::from("/usr/src/a"));
        let compile = Compile {
            store: &self.store,
            helper: Path::new(HELPER),
            root: &root,
            kernel_dirs: &kernel_dirs,
            has_many_kernels: false,
            work: &work,
            held: None,
            user: BuildUser::default(),
            headers_from: HeadersFrom::Host,
            driver: "535.261.03",
            flavour: Flavour::Open,
            release: "6.1.0-50-amd64",
            compiler: None,
            modules: &["nvidia"],
            options: &[],
            jobs: 1,
            limit: MINUTE,
            log: &self.store.dir("logs").join("log"),
        };
        let failed = compile.run(&Silent).await.expect_err("it fails");
        let class = failed.failure.compile_class().expect("a class").class.clone();
        (failed.failure.code(), failed.failure.to_string(), class)
    }
}

/// Copies a program of this machine with its libraries.
fn copy_program(root: &Path, program: &str) {
    let libraries = Command::new("ldd").arg(program).output().expect("ldd starts");
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    let words = libraries.split_ascii_whitespace().filter(|word| word.starts_with('/'));
    for path in words.chain([program]) {
        let to = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a parent")).expect("directory");
        fs::copy(path, &to).expect("copies");
    }
}

#[tokio::test]
async fn a_makefile_that_writes_without_end_fails_with_14() {
    let makefile = "modules:\n\ti=0; while :; do i=$$((i+1)); truncate -s 1G nvidia$$i.o; done\n";
    let driver = Driver::new(makefile);
    let (code, said, class) = driver.compile().await;
    assert_eq!((code, class.as_str()), (ExitCode::Compile, "out-of-bounds"), "{said}");
    assert!(said.contains("writes more than any driver's compile"), "{said}");
    assert_eq!(driver.scene.processes(), 0);
}

#[tokio::test]
async fn a_makefile_that_forks_without_end_fails_with_14() {
    let forks = FORKS.replace("/dev/null", "/dev/null 2>/dev/null");
    let driver = Driver::new(&format!("modules:\n\t{forks}\n"));
    let (code, said, class) = driver.compile().await;
    assert_eq!((code, class.as_str()), (ExitCode::Compile, "out-of-processes"), "{said}");
    assert!(said.contains("more than"), "{said}");
    assert_eq!(driver.scene.processes(), 0);
}
