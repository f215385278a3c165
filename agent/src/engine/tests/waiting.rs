//! Log lines about the driver's users while they are waited for, and again when they change.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{engine, gpu_host, install};
use crate::engine::*;
use longshore_host::fake::FakeHost;
use longshore_host::values::DriverUser;

/// A log that calls a function at each of its lines.
struct Log<F>(Arc<Mutex<F>>);

impl<F: FnMut(&str)> io::Write for Log<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.0.lock().unwrap())(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn user(pid: u32) -> DriverUser {
    let devices = vec!["/dev/nvidiactl".to_owned()];
    DriverUser {
        pid,
        namespace_pid: None,
        comm: "train".into(),
        container: None,
        pod: None,
        devices,
    }
}

/// Undoes while the driver's users change as `then` says, at each line that names them. Returns the
/// lines, and the result.
fn lines_of_wait(
    deadline: Duration,
    then: impl Fn(&FakeHost, usize) + Send + 'static,
) -> (Vec<String>, Result<(), NotUndone>) {
    let host = gpu_host();
    let mut journal = Journal::in_memory();
    engine(&host).apply(&install(), &mut journal, &CancelFlag::default()).unwrap();
    host.change(|state| state.references.insert("nvidia".to_owned(), 1));
    host.used_by(vec![user(11)]);
    let (lines, theirs) = (Arc::new(Mutex::new(Vec::new())), host.share());
    let seen = Arc::clone(&lines);
    let receive = Arc::new(Mutex::new(move |line: &str| {
        if line.contains("waiting up to") {
            let mut seen = seen.lock().unwrap();
            seen.push(line.to_owned());
            then(&theirs, seen.len());
        }
    }));
    let log = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(move || Log(Arc::clone(&receive)))
        .finish();
    let in_use_wait = InUseWait { deadline, interval: Duration::ZERO };
    let undone = tracing::subscriber::with_default(log, || {
        Engine { in_use_wait, ..engine(&host) }.undo(&mut journal)
    });
    let lines = lines.lock().unwrap().clone();
    (lines, undone)
}

#[test]
fn the_page_about_deadlines_has_the_moment() {
    longshore_core::testing::assert_in_page(
        "in use at the moment it is removed",
        crate::engine::unload::MOMENT,
    );
}

#[test]
fn users_are_told_of_and_again_when_they_change() {
    let (lines, undone) = lines_of_wait(Duration::from_secs(60), |host, times| match times {
        1 => {
            host.used_by(vec![user(12), user(13)]);
            host.change(|state| state.references.insert("nvidia".to_owned(), 2));
        }
        _ => drop(host.change(|state| state.references.remove("nvidia"))),
    });
    undone.unwrap();
    let expected = [
        "waiting up to 60 s for the driver's users: nvidia is held by 1 references of open devices; \
         pid 11 (train) holds /dev/nvidiactl",
        "nvidia is held by 2 references of open devices; pid 12 (train) holds /dev/nvidiactl; \
         pid 13 (train) holds /dev/nvidiactl",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn the_wait_is_bounded_and_those_who_stay_are_named_at_its_end() {
    let (lines, undone) = lines_of_wait(Duration::from_millis(300), |_, _| {});
    assert_eq!(lines.len(), 1, "nothing changed: {lines:?}");
    let text = undone.unwrap_err().into_failure().to_string();
    assert!(text.contains("pid 11 (train) holds /dev/nvidiactl"), "{text}");
}
