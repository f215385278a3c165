//! What the calls are, and the child that makes them.

use std::ffi::{CString, OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module, init_module};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};
use sys_mount::{Mount, MountFlags};

use super::read_only;
use crate::host::verbs::{Image, Node, TMPFS_SOURCE};

/// The longest call: what a module's parameters and two paths may take.
pub(super) const LONGEST_CALL: u64 = 64 << 10;

/// A call.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) enum Call<'a> {
    /// init_module(2) or finit_module(2).
    Load { image: Image<'a>, parameters: &'a OsStr },
    /// delete_module(2); it does not wait for users.
    Unload { name: &'a OsStr },
    /// umount2(2).
    Unmount { target: &'a Path, flags: MntFlags },
    /// mount(2): `source` with all below it on `target`.
    Bind { source: &'a Path, target: &'a Path },
    /// The same, read-only in every copy of the mount.
    BindReadOnly { source: &'a Path, target: &'a Path },
    /// mount(2): a tmpfs from [`TMPFS_SOURCE`] with these options, which have no blank.
    Tmpfs { target: &'a Path, data: &'a str },
    /// mknod(2) of character devices, one after the other, each with chmod(2): the umask takes no bit of
    /// its mode. The first that fails is the last that is tried.
    MakeNodes { nodes: &'a [(PathBuf, Node)] },
}

impl Call<'_> {
    /// What the child reads.
    pub(super) fn line(&self) -> String {
        let (verb, words): (_, Vec<OsString>) = match self {
            Call::Load { image: Image::Bytes(image), parameters } => {
                ("init_module", vec![parameters.into(), image.len().to_string().into()])
            }
            Call::Load { image: Image::File(file), parameters } => {
                let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
                ("finit_module", vec![parameters.into(), path.into()])
            }
            Call::Unload { name } => ("delete_module", vec![name.into()]),
            Call::Unmount { target, flags } => {
                ("umount2", vec![target.into(), flags.bits().to_string().into()])
            }
            Call::Bind { source, target } => ("bind", vec![source.into(), target.into()]),
            Call::BindReadOnly { source, target } => {
                ("bind-ro", vec![source.into(), target.into()])
            }
            Call::Tmpfs { target, data } => ("tmpfs", vec![target.into(), data.into()]),
            Call::MakeNodes { nodes } => ("mknod", nodes.iter().flat_map(node_words).collect()),
        };
        let words: Vec<String> = words.iter().map(|word| encoded(word)).collect();
        format!("{verb} {}\n", words.join(" "))
    }

    pub(super) fn carry_out(&self) -> Result<(), Errno> {
        match self {
            Call::Load { image: Image::Bytes(image), parameters } => {
                init_module(image, &c_string(parameters)?)
            }
            Call::Load { image: Image::File(file), parameters } => {
                finit_module(file, &c_string(parameters)?, ModuleInitFlags::empty())
            }
            Call::Unload { name } => delete_module(&c_string(name)?, DeleteModuleFlags::O_NONBLOCK),
            // Not by sys-mount: its NOFOLLOW (3.1.1) is O_NOFOLLOW, which umount2 answers with
            // EINVAL.
            Call::Unmount { target, flags } => umount2(*target, *flags | MntFlags::UMOUNT_NOFOLLOW),
            Call::Bind { source, target } => {
                let flags = MountFlags::BIND | MountFlags::REC;
                mounted(Mount::builder().fstype("none").flags(flags).mount(source, target))
            }
            Call::BindReadOnly { source, target } => read_only::bind(source, target),
            Call::Tmpfs { target, data } => {
                let tmpfs = Mount::builder().fstype("tmpfs").flags(MountFlags::NOSUID).data(data);
                mounted(tmpfs.mount(TMPFS_SOURCE, target))
            }
            Call::MakeNodes { nodes } => nodes.iter().try_for_each(|(path, node)| {
                make_node(path, makedev(node.major.into(), node.minor.into()), node.mode)
            }),
        }
    }
}

impl Call<'_> {
    /// What is said of it before the name of what it is about.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Call::Load { image: Image::Bytes(_), .. } => "init_module",
            Call::Load { image: Image::File(_), .. } => "finit_module",
            Call::Unload { .. } => "delete_module",
            Call::Unmount { .. } => "umount2",
            Call::Bind { .. } | Call::BindReadOnly { .. } => "mount --rbind on",
            Call::Tmpfs { .. } => "mount -t tmpfs on",
            Call::MakeNodes { .. } => "mknod",
        }
    }
}

/// Dropping the handle leaves the mount: only UnmountDrop would take it off.
fn mounted(mount: io::Result<Mount>) -> Result<(), Errno> {
    mount.map(drop).map_err(|e| errno_of(&e))
}

fn make_node(path: &Path, device: u64, mode: u32) -> Result<(), Errno> {
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), device)?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(|e| {
        // One with another mode would be taken for whole by the next look. Where it cannot be taken away,
        // either, the step's undo says so.
        let _ = fs::remove_file(path);
        errno_of(&e)
    })
}

/// A node as words of a call's line: path, device and mode.
fn node_words((path, node): &(PathBuf, Node)) -> [OsString; 3] {
    let device = makedev(node.major.into(), node.minor.into());
    [path.into(), device.to_string().into(), node.mode.to_string().into()]
}

/// EIO where the error is none of the kernel's.
fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn c_string(text: &OsStr) -> Result<CString, Errno> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// A word of a call's line.
pub(super) fn encoded(word: &OsStr) -> String {
    let mut text = String::new();
    for byte in word.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"_-./=,:+".contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

pub(super) fn decoded(word: &[u8]) -> Option<OsString> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' {
            let hex = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    Some(OsString::from_vec(bytes))
}

/// What the child does: makes the calls that its standard input names, until that ends. Returns its
/// exit code.
pub fn kernel_call_main() -> u8 {
    // Whoever kills it between a node and its mode leaves the node with that mode all the same.
    umask(Mode::empty());
    // Standard error is the lock, which names its holder.
    std::panic::set_hook(Box::new(|_| {}));
    u8::from(make_all(&mut io::stdin().lock(), &mut io::stdout()).is_err())
}

pub(super) fn make_all(calls: &mut impl BufRead, answers: &mut impl Write) -> io::Result<()> {
    loop {
        let mut line = Vec::new();
        if calls.take(LONGEST_CALL).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let words = line.strip_suffix(b"\n").and_then(words);
        let answer = words.as_ref().map_or(Err(Errno::EINVAL), |words| carry_out(words, calls));
        writeln!(answers, "{}", answer.err().map_or(0, |errno| errno as i32))?;
        answers.flush()?;
        // Half of one, where whoever asks has died: what comes after it is no call either.
        if words.is_none() {
            return Ok(());
        }
    }
}

fn words(line: &[u8]) -> Option<Vec<OsString>> {
    line.split(|byte| *byte == b' ').map(decoded).collect()
}

fn carry_out(words: &[OsString], rest: &mut impl Read) -> Result<(), Errno> {
    let number = |text: &OsString| text.to_str().and_then(|t| t.parse().ok()).ok_or(Errno::EINVAL);
    match words {
        [verb, parameters, size] if verb == "init_module" => {
            let size: i32 = number(size)?;
            let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
            let mut image = Vec::with_capacity(size);
            rest.take(size as u64).read_to_end(&mut image).map_err(|_| Errno::EIO)?;
            if image.len() != size {
                return Err(Errno::ENODATA);
            }
            Call::Load { image: Image::Bytes(&image), parameters }.carry_out()
        }
        [verb, parameters, file] if verb == "finit_module" => {
            // Whoever may not have the file by this name hands over its bytes.
            let file = File::open(file).map_err(|_| Errno::EACCES)?;
            Call::Load { image: Image::File(&file), parameters }.carry_out()
        }
        [verb, name] if verb == "delete_module" => Call::Unload { name }.carry_out(),
        [verb, target, flags] if verb == "umount2" => {
            let flags = MntFlags::from_bits(number(flags)?).ok_or(Errno::EINVAL)?;
            Call::Unmount { target: Path::new(target), flags }.carry_out()
        }
        [verb, source, target] if verb == "bind" => {
            Call::Bind { source: Path::new(source), target: Path::new(target) }.carry_out()
        }
        [verb, source, target] if verb == "bind-ro" => {
            let (source, target) = (Path::new(source), Path::new(target));
            Call::BindReadOnly { source, target }.carry_out()
        }
        [verb, target, data] if verb == "tmpfs" => {
            let data = data.to_str().ok_or(Errno::EINVAL)?;
            Call::Tmpfs { target: Path::new(target), data }.carry_out()
        }
        [verb, nodes @ ..] if verb == "mknod" => {
            let (nodes, []) = nodes.as_chunks() else { return Err(Errno::EINVAL) };
            nodes.iter().try_for_each(|[path, device, mode]| {
                let device = device.to_str().and_then(|t| t.parse().ok()).ok_or(Errno::EINVAL)?;
                let mode = mode.to_str().and_then(|t| t.parse().ok()).ok_or(Errno::EINVAL)?;
                make_node(Path::new(path), device, mode)
            })
        }
        _ => Err(Errno::EINVAL),
    }
}
