//! System calls inside, tried by a program.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use longshore_build::sandbox::Outcome;
use nix::libc::{ENOSYS, SIGSYS};

use super::scene::{MINUTE, Scene};

/// Calls that are allowed.
const OPEN: [&str; 3] = ["socket-unix", "thread", "fork"];

impl Scene {
    /// Compiles the attacker into the work directory.
    fn attacker(self) -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/build/attack.c");
        let compiler = Command::new("gcc")
            .args(["-O1", "-Wall", "-pthread", "-o"])
            .arg(self.path("work/attack"))
            .arg(source)
            .output()
            .expect("gcc starts");
        assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
        self
    }
}

#[tokio::test]
async fn calls_that_no_compile_makes_do_not_exist_inside() {
    for user in [Some(65534), None] {
        let scene = Scene::new().attacker();
        let mut spec = scene.spec("exec /build/attack");
        spec.user = user;
        let (outcome, lines) = scene.run_as(&spec, MINUTE).await;
        assert_eq!(outcome.expect("it runs"), Outcome::Exited(0), "{lines:?}");
        let reported: BTreeMap<&str, i32> = lines
            .iter()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, errno)| (name, errno.parse().expect("a number")))
            .collect();
        assert!(reported.len() > 30, "{lines:?}");
        for (name, errno) in reported {
            let wanted = match name {
                "int80" => -SIGSYS,
                _ if OPEN.contains(&name) => 0,
                _ => ENOSYS,
            };
            assert_eq!(errno, wanted, "{name} of user {user:?}");
        }
    }
}

#[tokio::test]
async fn the_filter_is_on_every_program_inside() {
    let scene = Scene::new();
    let (outcome, lines) = scene.run("grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status").await;
    assert_eq!(outcome.expect("it runs"), Outcome::Exited(0));
    // SECCOMP_MODE_FILTER.
    assert_eq!(lines, ["NoNewPrivs:\t1", "Seccomp:\t2"]);
    let own = fs::read_to_string("/proc/self/status").expect("read");
    assert!(own.contains("Seccomp:\t"), "this kernel has filters");
}
