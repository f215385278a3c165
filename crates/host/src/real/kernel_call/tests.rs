use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use nix::mount::MntFlags;
use nix::sys::stat::Mode;
use rstest::rstest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::calls::{decoded, encoded, make_all};
use super::*;
use crate::real::RealHost;
use crate::values::{Node, Owner};
use crate::verbs::Host;
use longshore_core::testing::write_program;

const AMPLE: Duration = Duration::from_secs(60);

/// Calls made by a child that is this shell script.
fn scripted(script: &str, within: Duration) -> (tempfile::TempDir, KernelCalls) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("child");
    write_program(&program, &format!("#!/bin/sh\n{script}\n"));
    let program = Some(program);
    (dir, KernelCalls { program, load: within, unload: within, ..KernelCalls::direct() })
}

fn unload() -> Call<'static> {
    Call::Unload { name: "nvidia".as_ref() }
}

#[rstest]
#[case("read call; echo 0", CallOutcome::Came(Ok(())))]
#[case("read call; echo 11; exit 1", CallOutcome::Came(Err(Errno::EAGAIN)))]
#[case(
    "read call; test \"$* $call\" = '__kernel-call delete_module nvidia' && echo 0",
    CallOutcome::Came(Ok(()))
)]
#[case("kill -9 $$", CallOutcome::Lost)]
#[case("read call; kill -9 $$", CallOutcome::Lost)]
#[case("echo nonsense", CallOutcome::Lost)]
#[case("read call; printf 1; sleep 0.1; echo 1", CallOutcome::Came(Err(Errno::EAGAIN)))]
#[case("read call; printf 0", CallOutcome::Lost)]
#[case("read call; printf 11111111111111111; exec sleep 20", CallOutcome::Lost)]
fn the_answer_is_the_childs(#[case] script: &str, #[case] answer: CallOutcome) {
    let (_dir, calls) = scripted(script, AMPLE);
    assert_eq!(calls.make("nvidia", unload()), answer);
}

#[test]
fn one_child_makes_all_calls_until_it_is_to_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    // Opened for reading and writing: it neither waits for a writer nor ends with one.
    let mut fifo = fs::File::options().read(true).write(true).open(&path).unwrap();
    let script =
        format!("echo $$ >>{0}; while read call; do echo 0; done; echo end >>{0}", path.display());
    let (_script, calls) = scripted(&script, AMPLE);
    calls.prepare();
    for _ in 0..3 {
        assert_eq!(calls.make("nvidia", unload()), CallOutcome::Came(Ok(())));
    }
    let first = line(&mut fifo);
    calls.release_idle();
    assert_eq!(line(&mut fifo), "end");
    assert_eq!(calls.make("nvidia", unload()), CallOutcome::Came(Ok(())));
    assert_ne!(line(&mut fifo), first, "another child");
}

/// Reads a line from a FIFO, as soon as there is one.
fn line(fifo: &mut fs::File) -> String {
    let mut line = Vec::new();
    loop {
        await_event(fifo.as_fd(), PollFlags::IN);
        let mut byte = [0];
        fifo.read_exact(&mut byte).unwrap();
        match byte {
            [b'\n'] => return String::from_utf8(line).unwrap(),
            [byte] => line.push(byte),
        }
    }
}

/// Waits for an event of a descriptor.
fn await_event(of: BorrowedFd<'_>, event: PollFlags) {
    let mut all = [PollFd::from_borrowed_fd(of, event)];
    let timeout = Timespec::try_from(AMPLE).unwrap();
    assert_eq!(poll(&mut all, Some(&timeout)), Ok(1), "no event within {AMPLE:?}");
}

#[test]
fn a_child_that_was_killed_while_it_waited_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    // The first child ends after its first call.
    let script = format!(
        "read call; echo 0; mkdir {} 2>/dev/null && exit; while read call; do echo 0; done",
        first.display()
    );
    let (_script, calls) = scripted(&script, AMPLE);
    assert_eq!(calls.make("nvidia", unload()), CallOutcome::Came(Ok(())));
    // Until its end of the pipe is closed a call may still be written into it. poll(2) reports
    // POLLERR for the other end then, whatever events are asked for.
    if let Some(caller) = calls.waiting().as_mut() {
        await_event(caller.calls.as_fd(), PollFlags::empty());
    }
    assert_eq!(calls.make("nvidia", unload()), CallOutcome::Came(Ok(())));
}

#[test]
fn other_deadlines_leave_the_child_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let script =
        format!("echo >>{}; read call; echo 0; read call; exec sleep 20", started.display());
    let (_script, calls) = scripted(&script, AMPLE);
    assert_eq!(calls.make("nvidia", unload()), CallOutcome::Came(Ok(())));
    let within = Duration::from_millis(300);
    let hasty = calls.within(AMPLE, within);
    assert_eq!(hasty.make("nvidia", unload()), CallOutcome::NoneWithin(within));
    assert_eq!(fs::read_to_string(started).unwrap(), "\n");
}

#[test]
fn a_call_that_does_not_come_back_is_given_up_and_the_next_has_another_child() {
    let within = Duration::from_millis(500);
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let script = format!(
        "mkdir {} 2>/dev/null && exec cat <&2; read call; echo 0",
        dir.path().join("first").display()
    );
    let (_script, blocked) = scripted(&script, within);
    let lock = fs::File::from(std::os::fd::OwnedFd::from(reader));
    let blocked = KernelCalls { lock: Some(Arc::new(lock)), ..blocked };
    assert_eq!(blocked.make("nvidia", unload()), CallOutcome::NoneWithin(within));
    let ample = KernelCalls { unload: AMPLE, ..blocked };
    assert_eq!(ample.make("nvidia", unload()), CallOutcome::Came(Ok(())));
    // The abandoned child ends as soon as its input comes.
    drop(writer);
}

#[test]
fn a_child_that_does_not_read_keeps_nobody_waiting() {
    let within = Duration::from_millis(500);
    let (_script, calls) = scripted("exec sleep 20", within);
    let image = vec![7; 4 << 20];
    let call = Call::Load { image: Image::Bytes(&image), parameters: "".as_ref() };
    assert_eq!(calls.make("nvidia", call), CallOutcome::NoneWithin(within));
    assert!(calls.waiting().is_none(), "the child is not used again");
}

#[test]
fn the_child_gets_the_image_whole_and_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let image = vec![7; 1 << 20];
    let lock = dir.path().join("lock");
    let script = "read verb parameters size; test $verb/$parameters = init_module/a=%20b && \
                  test $(head -c $size | wc -c) = 1048576 && echo held >&2 && echo 0";
    let (_script, calls) = scripted(script, AMPLE);
    let calls = KernelCalls { lock: Some(Arc::new(fs::File::create(&lock).unwrap())), ..calls };
    let call = Call::Load { image: Image::Bytes(&image), parameters: "a= b".as_ref() };
    assert_eq!(calls.make("nvidia", call), CallOutcome::Came(Ok(())));
    assert_eq!(fs::read_to_string(lock).unwrap(), "held\n");
}

#[test]
fn the_child_gets_the_file_itself() {
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("module");
    fs::write(&module, "a module").unwrap();
    let script = format!(
        "read verb parameters file; test $verb/$parameters = finit_module/a=1 && \
         test $file -ef {} && echo 0",
        module.display()
    );
    let (_script, calls) = scripted(&script, AMPLE);
    let file = File::open(&module).unwrap();
    let call = Call::Load { image: Image::File(&file), parameters: "a=1".as_ref() };
    assert_eq!(calls.make("nvidia", call), CallOutcome::Came(Ok(())));
}

#[test]
fn where_no_child_can_be_started_the_call_is_made_all_the_same() {
    let calls = KernelCalls { program: Some("/nonexistent".into()), ..KernelCalls::direct() };
    let call = Call::Unmount { target: Path::new("/nonexistent"), flags: MntFlags::empty() };
    let answer = calls.make("nvidia", call);
    assert!(matches!(answer, CallOutcome::Came(Err(Errno::ENOENT | Errno::EPERM))), "{answer:?}");
}

#[rstest]
#[case::attached(Some("/none/target"))]
#[case::tried_out(None)]
fn a_directory_of_another_namespace_is_named_to_the_child(#[case] target: Option<&str>) {
    let (source, namespace) = (Path::new("/none/a b"), Path::new("/none/ns"));
    let call = Call::FromHost { source, namespace, target: target.map(Path::new) };
    assert!(call.line().contains("from-host /none/a%20b /none/ns"), "{}", call.line());
    assert_eq!(answers(call.line().as_bytes()), [Errno::ENOENT as i32]);
}

/// Returns the answers of a child to `input`.
fn answers(input: &[u8]) -> Vec<i32> {
    let mut output = Vec::new();
    make_all(&mut &input[..], &mut output).unwrap();
    let output = String::from_utf8(output).unwrap();
    output.lines().map(|line| line.parse().unwrap()).collect()
}

#[rstest]
#[case(b"", &[])]
#[case(b"reboot\n", &[Errno::EINVAL])]
#[case(b"\n\n", &[Errno::EINVAL, Errno::EINVAL])]
#[case(b"umount2 /x -\n", &[Errno::EINVAL])]
#[case(b"umount2 %zz 0\n", &[Errno::EINVAL])]
#[case(b"init_module  -1\n", &[Errno::EINVAL])]
#[case(b"bind /x\n", &[Errno::EINVAL])]
#[case(b"tmpfs /x %ff\n", &[Errno::EINVAL])]
#[case(b"root /nonexistent/x size=1m dev\n", &[Errno::ENOENT])]
#[case(b"root /nonexistent/x size=1m a/b\n", &[Errno::EINVAL])]
#[case(b"sysfs /x /y\n", &[Errno::EINVAL])]
#[case(b"sysfs /nonexistent/x\n", &[Errno::ENOENT])]
#[case(b"mknod /x -1 0\n", &[Errno::EINVAL])]
#[case(b"mknod /nonexistent/x 259 438 0 0\n", &[Errno::ENOENT])]
#[case(b"chnod /nonexistent/x 259 438 0 0\n", &[Errno::ENOENT])]
#[case(b"chnod /nonexistent/x 259 438 0\n", &[Errno::EINVAL])]
#[case(b"mknod /nonexistent/x 259 438 0 -1\n", &[Errno::EINVAL])]
#[case(b"mknod /nonexistent/x 259 438 0 0 /nonexistent/y 260\n", &[Errno::EINVAL])]
#[case::cut_off_line(b"delete_module nvidia", &[Errno::EINVAL])]
#[case::nothing_after_what_is_no_line(b"umount2 %zz 0\nreboot\n", &[Errno::EINVAL])]
#[case::cut_off_image(b"init_module  5\nfour", &[Errno::ENODATA])]
#[case::no_such_file(b"finit_module  /nonexistent\n", &[Errno::EACCES])]
fn what_is_no_call_or_half_of_one_calls_nothing(#[case] input: &[u8], #[case] wanted: &[Errno]) {
    let wanted: Vec<i32> = wanted.iter().map(|errno| *errno as i32).collect();
    assert_eq!(answers(input), wanted);
}

#[test]
fn a_call_that_is_too_long_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let asked = dir.path().join("asked");
    let (_script, calls) = scripted(&format!("cat >>{}; echo 0", asked.display()), AMPLE);
    let parameters = "x".repeat(64 << 10);
    let call = Call::Load { image: Image::Bytes(b"image"), parameters: parameters.as_ref() };
    assert_eq!(calls.make("nvidia", call), CallOutcome::Came(Err(Errno::E2BIG)));
    assert!(!asked.exists());
}

#[test]
fn words_arrive_as_they_were() {
    let words = ["", "a=1 b=\"two words\"", "/run/nvidia/driver", "100%\n"];
    for word in words.map(OsString::from).into_iter().chain([OsString::from_vec(vec![0xff, b' '])])
    {
        let text = encoded(&word);
        assert!(!text.contains([' ', '\n']), "{text}");
        assert_eq!(decoded(text.as_bytes()), Some(word));
    }
    let call = Call::Unmount { target: Path::new("/x y"), flags: MntFlags::MNT_DETACH };
    assert_eq!(call.line(), "umount2 /x%20y 2\n");
    let lines = [
        (Call::Bind { source: Path::new("/a b"), target: Path::new("/c") }, "bind /a%20b /c\n"),
        (
            Call::Tmpfs { target: Path::new("/c"), data: "mode=0755,size=1m" },
            "tmpfs /c mode=0755,size=1m\n",
        ),
        (
            Call::Root {
                target: Path::new("/c"),
                data: "size=1m,context=u:r:t:s0",
                dirs: &["dev".into(), "a b".into()],
            },
            "root /c size=1m,context=u:r:t:s0 dev a%20b\n",
        ),
        (Call::Sysfs { target: Path::new("/c") }, "sysfs /c\n"),
        (
            Call::MakeNodes {
                nodes: &[
                    (
                        "/dev/x".into(),
                        Node { major: 1, minor: 3, mode: 0o666, owner: Owner::default() },
                    ),
                    (
                        "/dev/a b".into(),
                        Node {
                            major: 195,
                            minor: 255,
                            mode: 0o444,
                            owner: Owner { uid: 0, gid: 44 },
                        },
                    ),
                ],
            },
            "mknod /dev/x 259 438 0 0 /dev/a%20b 50175 292 0 44\n",
        ),
    ];
    for (call, line) in lines {
        assert_eq!(call.line(), line);
    }
}

#[test]
fn a_mount_that_does_not_come_back_is_given_up() {
    let within = Duration::from_millis(300);
    let (_script, calls) = scripted("read call; exec sleep 20", within);
    let (source, target) = (Path::new("/a"), Path::new("/b"));
    assert_eq!(calls.make("x", Call::Bind { source, target }), CallOutcome::NoneWithin(within));
}

#[test]
fn a_call_whose_child_was_killed_is_made_once_more() {
    let dir = tempfile::tempdir().unwrap();
    let host = |script: &str| {
        let (kept, calls) = scripted(script, AMPLE);
        (kept, RealHost::new(dir.path()).calling(calls, AMPLE))
    };
    let node = Node { major: 1, minor: 3, mode: 0o666, owner: Owner::default() };
    let make = |host: &RealHost| host.make_node(Path::new("/dev/x"), node);
    let make_two =
        |host: &RealHost| host.make_nodes(&["/dev/x", "/dev/y"].map(|p| (p.into(), node)));
    let (first, calls) = (dir.path().join("first"), dir.path().join("calls"));
    let once = format!(
        "while read call; do echo \"$call\" >>{}; mkdir {} && kill -9 $$; echo 0; done",
        calls.display(),
        first.display()
    );
    let (_kept, once) = host(&once);
    make(&once).unwrap();
    std::fs::remove_dir(&first).unwrap();
    std::fs::remove_file(&calls).unwrap();
    make_two(&once).unwrap();
    let calls = std::fs::read_to_string(&calls).unwrap();
    let named = |call: &str| [call.contains("/dev/x"), call.contains("/dev/y")];
    let called: Vec<_> = calls.lines().map(named).collect();
    assert_eq!(called, [[true, true], [true, false], [false, true]], "{calls}");
    let (_kept, always) = host("read call; kill -9 $$");
    assert_eq!(make(&always).unwrap_err().errno, Errno::EINTR);
    assert_eq!(make_two(&always).unwrap_err().errno, Errno::EINTR);
}
