//! Helpers of the tests of several crates.

pub mod pages;
pub mod seccomp;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// A user id that nothing of these tests runs as.
pub const STRANGER: u32 = 65_533;

/// A thread that opens a pipe for writing, which ends once anybody opens it for reading.
pub struct Waiting {
    pipe: File,
    opened: Receiver<()>,
}

impl Waiting {
    /// Starts it.
    ///
    /// # Panics
    /// If there is no pipe at `path`.
    pub fn at(path: &Path) -> Self {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let pipe = File::from(nix::fcntl::open(path, flags, Mode::empty()).expect("a pipe"));
        let (sender, opened) = channel();
        let path = path.to_owned();
        thread::spawn(move || {
            File::options().write(true).open(path).expect("opened");
            // The test may be at its end.
            let _ = sender.send(());
        });
        Self { pipe, opened }
    }

    /// True if nobody has opened the pipe, also shortly after this call.
    pub fn is_waiting(&self) -> bool {
        self.opened.recv_timeout(Duration::from_millis(200)).is_err()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Ends the thread.
        let path = format!("/proc/self/fd/{}", self.pipe.as_raw_fd());
        let _ = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    }
}

/// A process of a stranger that holds a lock on `path` until it is dropped.
pub struct Holder(
    /// The process.
    pub Child,
);

impl Holder {
    /// Starts it, and returns once it holds the lock.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(path: &Path) -> Self {
        let script = "use Fcntl ':flock'; open(F, '<', $ARGV[0]) or die \"open: $!\"; \
                      flock(F, LOCK_EX) or die; $| = 1; print \"held\\n\"; sleep 600;";
        let mut child = Command::new("/usr/bin/perl")
            .args(["-e", script])
            .arg(path)
            .uid(STRANGER)
            .gid(STRANGER)
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let mut said = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut said).expect("a line");
        assert_eq!(said, "held\n");
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory that everybody may enter, as a store is that something else made.
///
/// # Panics
/// If it cannot be made.
pub fn for_all() -> tempfile::TempDir {
    let everybody = Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(everybody).tempdir().expect("temporary directory")
}

/// Writes a program. Another process has the file open for writing: while this one has, a child that a parallel
/// test starts can have it too until its execve(2), and the program's own start fails with ETXTBSY.
///
/// # Panics
/// If it cannot be written.
pub fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = writer.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    assert!(writer.wait().expect("an end").success(), "{}", path.display());
}

/// Lets everybody open `dir`, and `root` above it: as if something loosened a store after it was opened.
///
/// # Panics
/// If that fails.
pub fn loosen(root: &Path, dir: &Path) {
    for path in [root, dir] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("mode");
    }
}

/// Formats a span as docs/reference/deadlines.md does.
pub fn written(span: Duration) -> String {
    let (minutes, seconds) = (span.as_secs() / 60, span.as_secs() % 60);
    match (minutes, seconds, span.subsec_millis()) {
        (0, 0, ms) => format!("{ms} ms"),
        (0, s, 0) => format!("{s} s"),
        (1, 0, 0) => "a minute".to_owned(),
        (m, 0, 0) => format!("{m} minutes"),
        (m, s, _) => format!("{m} min {s} s"),
    }
}

/// Checks that docs/reference/deadlines.md has lines with these words, and that each names this span.
///
/// # Panics
/// If it does not.
pub fn assert_in_page(words: &str, span: Duration) {
    let page = include_str!("../../../../docs/reference/deadlines.md");
    let of_it: Vec<&str> = page.lines().filter(|line| line.contains(words)).collect();
    assert!(!of_it.is_empty(), "docs/reference/deadlines.md says nothing of {words}");
    let (text, setting) = (written(span), span_setting(span));
    let says = |line: &&&str| line.contains(&text) || line.contains(&setting);
    let wrong: Vec<_> = of_it.iter().filter(|line| !says(line)).collect();
    assert!(
        wrong.is_empty(),
        "docs/reference/deadlines.md does not say {text} or {setting}: {wrong:?}"
    );
}

/// Formats a span as a setting: `1m`, `20s`.
fn span_setting(span: Duration) -> String {
    match (span.as_secs() / 60, span.as_secs() % 60) {
        (60, 0) => "`1h`".to_owned(),
        (0, s) => format!("`{s}s`"),
        (m, 0) => format!("`{m}m`"),
        (m, s) => format!("`{m}m{s}s`"),
    }
}

/// Returns the beginning of a kernel's x86 image, with this text at 0x800 from the first sector's end and its setup
/// header naming `place` for it.
pub fn kernel_image(text: &str, place: u16) -> Vec<u8> {
    let mut image = vec![0; 0x1200];
    let mut put = |at: usize, bytes: &[u8]| {
        for (byte, new) in image.iter_mut().skip(at).zip(bytes) {
            *byte = *new;
        }
    };
    put(0x202, b"HdrS");
    put(0x20e, &place.to_le_bytes());
    put(0xa00, text.as_bytes());
    image
}
