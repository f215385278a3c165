//! Rights of the process, and the end of one that asks for more.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use longshore_debian::compression::{Format, SUBCOMMAND};
use longshore_tests::packages;
use longshore_tests::processes::{assert_limits_of_zero, assert_without_rights};
use longshore_tests::scene::{Scene, longshore, names, send, start, until, wait};

use crate::packed::packed;
use crate::process::{Counted, decompressing};

/// Returns the program that decompresses.
fn command(words: &[&str]) -> Command {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root: run it as root");
    let mut command = Command::new(longshore());
    command.arg(SUBCOMMAND).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn the_process_has_no_rights_before_it_reads() {
    let _counted = Counted::begin();
    let mut child = command(&["gzip", "all"]).spawn().expect("started");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&packed(Format::Gzip, b"text")).expect("written");
    // It has read by now, and waits for more.
    let mut plain = [0; 4];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut plain).expect("read");
    assert_eq!(&plain, b"text");
    let dir = format!("/proc/{}", child.id());
    let fields = assert_without_rights(child.id(), "65534");
    assert_eq!(fields["Threads"], ["1"]);
    assert_eq!(names(Path::new(&format!("{dir}/fd"))), ["0", "1", "2"]);
    let none = ["Max open files", "Max processes", "Max file size", "Max core file size"];
    assert_limits_of_zero(child.id(), &none);
    let limits = fs::read_to_string(format!("{dir}/limits")).expect("its limits");
    assert!(limits.contains(&format!("Max address space         {}", 512 << 20)), "{limits}");
    drop(input);
    assert!(child.wait().expect("ended").success());
}

#[test]
fn a_process_that_asks_for_more_is_killed() {
    let _counted = Counted::begin();
    for call in ["open", "socket", "thread", "program", "kill"] {
        let ended = command(&["forbidden", call]).output().expect("ended");
        assert_eq!(ended.stdout, b"confined\n", "{call}");
        assert_eq!(ended.status.signal(), Some(Signal::SIGSYS as i32), "{call}: {}", ended.status);
    }
}

#[test]
fn other_words_are_refused() {
    let _counted = Counted::begin();
    for words in [&[][..], &["xz"], &["lzma", "all"], &["xz", "some"], &["xz", "all", "more"]] {
        let ended = command(words).output().expect("ended");
        assert_eq!(ended.status.code(), Some(2), "{words:?}");
        assert!(!ended.stderr.is_empty(), "{words:?}");
    }
}

/// A package with one file of so many zeros.
fn large(size: u64) -> Vec<u8> {
    large_at("usr/lib/zeros", size)
}

/// Likewise, with a path that may be none.
fn large_at(path: &str, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_mode(0o644);
    header.set_size(size);
    header.set_cksum();
    let data = std::io::repeat(0).take(size.next_multiple_of(512) + 1024);
    let mut packed = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    std::io::copy(&mut header.as_bytes().chain(data), &mut packed).expect("packed");
    let data = packed.finish().expect("packed");
    let mut deb = b"!<arch>\n".to_vec();
    for (name, bytes) in [("debian-binary", &b"2.0\n"[..]), ("data.tar.zst", &data)] {
        deb.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}", 0, 0, 0, 100644).bytes());
        deb.extend(format!("{:<10}`\n", bytes.len()).bytes());
        deb.extend(bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

/// Returns the bytes that a process has written; 0 for one that has ended.
fn written(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn a_killed_process_is_an_error_and_nothing_half_is_left() {
    let _counted = Counted::begin();
    let scene = Scene::with(packages::buildable(&[("gcc-12", large(1 << 30))]));
    let agent = start(&mut scene.agent(&["fetch", "--kernel", packages::KERNEL]));
    let mut found = None;
    until("a package is decompressed", || {
        found = decompressing(agent.id()).into_iter().find(|pid| written(*pid) > 1 << 20);
        found.is_some()
    });
    let pid = nix::unistd::Pid::from_raw(found.expect("a process").try_into().expect("an id"));
    nix::sys::signal::kill(pid, Signal::SIGKILL).expect("killed");
    let ended = wait(agent);
    ended.assert_failed(15, &["signal 9 ended the process".to_owned(), "more memory".to_owned()]);
    scene.assert_sound();
    assert_eq!(names(&scene.path("store/tmp")), [""; 0]);
    let roots = names(&scene.path("store/roots"));
    assert!(roots.iter().all(|name| name.ends_with(".lock")), "an unfinished root: {roots:?}");
}

#[test]
fn a_process_whose_package_is_refused_at_its_beginning_is_ended() {
    let _counted = Counted::begin();
    let scene = Scene::with(packages::buildable(&[("gcc-12", large_at("../zeros", 1 << 30))]));
    let agent = start(&mut scene.agent(&["fetch", "--kernel", packages::KERNEL]));
    let ended = wait(agent);
    ended.assert_failed(13, &["gcc-12".to_owned(), "../zeros".to_owned()]);
    scene.assert_sound();
}

#[test]
fn an_agent_that_is_killed_leaves_no_process() {
    let _counted = Counted::begin();
    let scene = Scene::with(packages::buildable(&[("gcc-12", large(1 << 30))]));
    let agent = start(&mut scene.agent(&["fetch", "--kernel", packages::KERNEL]));
    let id = agent.id();
    let mut found = None;
    until("a package is decompressed", || {
        found = decompressing(id).into_iter().find(|pid| written(*pid) > 1 << 20);
        found.is_some()
    });
    let process = format!("/proc/{}", found.expect("a process"));
    send(&agent, Signal::SIGKILL);
    wait(agent);
    until("its process is gone", || {
        fs::read_to_string(format!("{process}/stat")).map_or(true, |stat| stat.contains(") Z "))
    });
}
