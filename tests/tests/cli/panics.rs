//! A panic in longshore is reported like every other failure, regardless of the resources it still
//! has.

use std::fs;
use std::process::Command;

use longshore_tests::scene::{Scene, finish, fixture};

/// Makes thread creation fail from the n-th thread on: the runtime panics when it starts its
/// workers.
const NO_THREADS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
static atomic_int count;
typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
    if (atomic_fetch_add(&count, 1) >= atoi(getenv("THREADS"))) return EAGAIN;
    return ((create *)dlsym(RTLD_NEXT, "pthread_create"))(t, a, f, x);
}
"#;

#[test]
fn a_panic_is_a_failure_with_a_message() {
    let scene = Scene::new();
    let (source, library) = (scene.path("threads.c"), scene.path("threads.so"));
    fs::write(&source, NO_THREADS).expect("write");
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success());
    let (message, tree) = (scene.path("termination-log"), fixture("bookworm-no-gpu"));
    let mut panics = 0;
    for threads in 0..10 {
        let _ = fs::remove_file(&message);
        let mut command = scene.agent(&["run", "--root", &tree]);
        command.arg("--termination-message").arg(&message);
        command.env("LD_PRELOAD", &library).env("THREADS", threads.to_string());
        let ended = finish(&mut command);
        let code = ended.code.unwrap_or_else(|| panic!("it was killed: {ended}"));
        let text = fs::read_to_string(&message).expect("a message");
        assert!(text.starts_with(&format!("exit code {code}: ")), "{threads}: {text}\n{ended}");
        assert_eq!(ended.failure().expect("a failure")["exit_code"], code, "{ended}");
        if code == 70 {
            panics += 1;
            assert!(text.contains("a fault in longshore: panicked at "), "{text}");
            assert!(text.contains("; remedy: please report it with the log"), "{text}");
        }
    }
    assert!(panics > 0, "the runtime had all its threads each time, or went on without");
}

#[test]
fn what_a_runtime_says_of_a_kernel_call_is_not_written_over_the_lock() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("lock");
    fs::write(&path, "the holder's name").expect("write");
    let lock = fs::File::options().append(true).open(&path).expect("opens");
    let mut child = Command::new(env!("CARGO_BIN_EXE_longshore-under-test"))
        .arg("__kernel-call")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(lock)
        .spawn()
        .expect("starts");
    let mut calls = child.stdin.take().expect("a pipe");
    writeln!(calls, "delete_module longshore-there-is-none").expect("it reads");
    let mut answer = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut answer).expect("an answer");
    let opened = |fd: &str| fs::read_link(format!("/proc/{}/fd/{fd}", child.id())).expect("a file");
    assert_eq!(opened("2"), std::path::Path::new("/dev/null"));
    let all = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("listed");
    let held = all.flatten().filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path));
    assert_eq!(held.count(), 1, "it holds the lock");
    drop(calls);
    assert!(child.wait().expect("it ends").success());
}
