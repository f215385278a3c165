//! The calls, and the child process that makes them.

use std::ffi::{CString, OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::kmod::{DeleteModuleFlags, ModuleInitFlags, delete_module, finit_module, init_module};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::{Mode, SFlag, fstat, major, makedev, minor, mknod, umask};
use nix::unistd::{Gid, Uid, fchownat};
use sys_mount::{Mount, MountFlags};

use super::{from_host, read_only, root};
use crate::values::{Node, Owner, TMPFS_SOURCE};
use crate::verbs::Image;

/// Maximum length of a call's line: room for a module's parameters and two paths.
pub(super) const LONGEST_CALL: u64 = 64 << 10;

/// A call into the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call<'a> {
    /// init_module(2) or finit_module(2).
    Load { image: Image<'a>, parameters: &'a OsStr },
    /// delete_module(2); it does not wait for users.
    Unload { name: &'a OsStr },
    /// umount2(2).
    Unmount { target: &'a Path, flags: MntFlags },
    /// mount(2): `source`, with all mounts below it, on `target`.
    Bind { source: &'a Path, target: &'a Path },
    /// The same, read-only in every copy of the mount.
    BindReadOnly { source: &'a Path, target: &'a Path },
    /// open_tree(2) and move_mount(2): a directory that is open in another mount namespace, on
    /// `target`; without one it is tried out in a namespace that ends with the call.
    FromHost { source: &'a Path, namespace: &'a Path, target: Option<&'a Path> },
    /// mount(2): a tmpfs from [`TMPFS_SOURCE`] with these options, which have no blank. It takes the
    /// driver's nodes, so it is not nodev; and other programs make nodes in it, so it is not
    /// read-only: the GPU operator's mig-manager those of new MIG instances (mig-parted, pull
    /// request 82).
    Tmpfs { target: &'a Path, data: &'a str },
    /// mount(2): the same with these empty directories, read-only in every copy.
    Root { target: &'a Path, data: &'a str, dirs: &'a [PathBuf] },
    /// mount(2): sysfs, from [`TMPFS_SOURCE`], read-only.
    Sysfs { target: &'a Path },
    /// mknod(2) of character devices, one after the other, each with chown(2) and chmod(2), so that
    /// the umask clears no bit of its mode. Stops at the first failure.
    MakeNodes { nodes: &'a [(PathBuf, Node)] },
    /// chown(2) and chmod(2) of a character device, if it is this device.
    SetNode { path: &'a Path, node: Node },
    /// open(2) and write(2): a value to an attribute of sysfs, in one write.
    WriteAttribute { path: &'a Path, value: &'a OsStr },
}

impl Call<'_> {
    /// The line that the child reads.
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
            Call::FromHost { source, namespace, target: Some(target) } => {
                ("from-host", vec![source.into(), namespace.into(), target.into()])
            }
            Call::FromHost { source, namespace, target: None } => {
                ("try-from-host", vec![source.into(), namespace.into()])
            }
            Call::Tmpfs { target, data } => ("tmpfs", vec![target.into(), data.into()]),
            Call::Root { target, data, dirs } => {
                let dirs = dirs.iter().map(Into::into);
                ("root", [target.into(), data.into()].into_iter().chain(dirs).collect())
            }
            Call::Sysfs { target } => ("sysfs", vec![target.into()]),
            Call::MakeNodes { nodes } => {
                ("mknod", nodes.iter().flat_map(|(path, node)| node_words(path, *node)).collect())
            }
            Call::SetNode { path, node } => ("chnod", node_words(path, *node).into()),
            Call::WriteAttribute { path, value } => ("write", vec![path.into(), value.into()]),
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
            // sys-mount is not used here: its NOFOLLOW (3.1.1) is O_NOFOLLOW, which umount2 answers
            // with EINVAL.
            Call::Unmount { target, flags } => umount2(*target, *flags | MntFlags::UMOUNT_NOFOLLOW),
            Call::Bind { source, target } => {
                let flags = MountFlags::BIND | MountFlags::REC;
                let at = read_only::MountPoint::open(target)?;
                mounted(Mount::builder().fstype("none").flags(flags).mount(source, at.path()))
            }
            Call::BindReadOnly { source, target } => read_only::bind(source, target),
            Call::FromHost { source, namespace, target: Some(target) } => {
                from_host::attach(source, namespace, target)
            }
            Call::FromHost { source, namespace, target: None } => {
                from_host::try_out(source, namespace)
            }
            Call::Tmpfs { target, data } => {
                let tmpfs = Mount::builder().fstype("tmpfs").flags(MountFlags::NOSUID).data(data);
                let at = read_only::MountPoint::open(target)?;
                mounted(tmpfs.mount(TMPFS_SOURCE, at.path()))
            }
            Call::Root { target, data, dirs } => root::mount_on(target, data, dirs),
            Call::Sysfs { target } => {
                let flags = MountFlags::RDONLY
                    | MountFlags::NOSUID
                    | MountFlags::NODEV
                    | MountFlags::NOEXEC;
                let sysfs = Mount::builder().fstype("sysfs").flags(flags);
                let at = read_only::MountPoint::open(target)?;
                mounted(sysfs.mount(TMPFS_SOURCE, at.path()))
            }
            Call::MakeNodes { nodes } => {
                nodes.iter().try_for_each(|(path, node)| make_node(path, *node))
            }
            Call::SetNode { path, node } => set_node(path, *node),
            Call::WriteAttribute { path, value } => write_attribute(path, value),
        }
    }

    /// The call's name in messages, before its subject.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Call::Load { image: Image::Bytes(_), .. } => "init_module",
            Call::Load { image: Image::File(_), .. } => "finit_module",
            Call::Unload { .. } => "delete_module",
            Call::Unmount { .. } => "umount2",
            Call::Bind { .. } | Call::BindReadOnly { .. } => "mount --rbind on",
            Call::FromHost { .. } => "open_tree and move_mount on",
            Call::Tmpfs { .. } | Call::Root { .. } => "mount -t tmpfs on",
            Call::Sysfs { .. } => "mount -t sysfs on",
            Call::MakeNodes { .. } => "mknod",
            Call::SetNode { .. } => "chown and chmod",
            Call::WriteAttribute { .. } => "write",
        }
    }
}

/// Dropping the handle keeps the mount: only UnmountDrop would unmount it.
fn mounted(mount: io::Result<Mount>) -> Result<(), Errno> {
    mount.map(drop).map_err(|e| errno_of(&e))
}

fn device_of(node: Node) -> u64 {
    makedev(node.major.into(), node.minor.into())
}

fn make_node(path: &Path, node: Node) -> Result<(), Errno> {
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(node.mode), device_of(node))?;
    set_node(path, node).inspect_err(|_| {
        // The node has an unwanted owner or mode. If it cannot be removed, either, the step's undo
        // reports it.
        let _ = fs::remove_file(path);
    })
}

/// Sets owner and mode of exactly this device: another file or link that takes the path meanwhile
/// is left as it is. The owner comes first, because chown(2) may clear bits of the mode.
fn set_node(path: &Path, node: Node) -> Result<(), Errno> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let there = open(path, flags, Mode::empty())?;
    let found = fstat(&there)?;
    let kind = found.st_mode & SFlag::S_IFMT.bits();
    if kind != SFlag::S_IFCHR.bits() || found.st_rdev != device_of(node) {
        return Err(Errno::ENXIO);
    }
    let Owner { uid, gid } = node.owner;
    // An owner that is already right needs no capability.
    if (found.st_uid, found.st_gid) != (uid, gid) {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        fchownat(&there, "", uid, gid, AtFlags::AT_EMPTY_PATH)?;
    }
    // fchmod(2) does not accept an O_PATH descriptor.
    let by_fd = format!("/proc/self/fd/{}", there.as_raw_fd());
    fs::set_permissions(by_fd, Permissions::from_mode(node.mode)).map_err(|e| errno_of(&e))
}

fn write_attribute(path: &Path, value: &OsStr) -> Result<(), Errno> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
        .open(path)
        .map_err(|e| errno_of(&e))?;
    file.write_all(value.as_bytes()).map_err(|e| errno_of(&e))
}

/// Encodes a node as words of a call's line: path, device, mode, user and group.
fn node_words(path: &Path, node: Node) -> [OsString; 5] {
    let Owner { uid, gid } = node.owner;
    let number = |number: u64| OsString::from(number.to_string());
    let [mode, uid, gid] = [node.mode, uid, gid].map(|n| number(n.into()));
    [path.into(), number(device_of(node)), mode, uid, gid]
}

/// Decodes a node from such words.
fn node_of([path, device, mode, uid, gid]: &[OsString; 5]) -> Result<(&Path, Node), Errno> {
    let text = |word: &OsString| word.to_str().map(str::to_owned).ok_or(Errno::EINVAL);
    let number = |word| text(word)?.parse::<u32>().map_err(|_| Errno::EINVAL);
    let device: u64 = text(device)?.parse().map_err(|_| Errno::EINVAL)?;
    let part = |part: u64| u32::try_from(part).map_err(|_| Errno::EINVAL);
    let owner = Owner { uid: number(uid)?, gid: number(gid)? };
    let (major, minor) = (part(major(device))?, part(minor(device))?);
    Ok((Path::new(path), Node { major, minor, mode: number(mode)?, owner }))
}

/// The errno of an error; EIO if it has none.
fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn c_string(text: &OsStr) -> Result<CString, Errno> {
    CString::new(text.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// Encodes a word of a call's line.
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

/// Main function of the child: makes the calls named on its standard input, until that ends.
/// Returns its exit code.
pub fn kernel_call_main() -> u8 {
    // With an empty umask the node has its mode even if the child is killed before chmod(2).
    umask(Mode::empty());
    std::panic::set_hook(Box::new(|_| {}));
    // Standard error is the lock file, which names its holder. The lock is held under another
    // descriptor number from here on, so that messages of the runtime, as when memory runs out, do
    // not overwrite that name. If that fails, it stays where it is, and is held all the same.
    let _lock = hold_standard_error();
    u8::from(make_all(&mut io::stdin().lock(), &mut io::stdout()).is_err())
}

/// Moves standard error to another descriptor number, with /dev/null in its place.
fn hold_standard_error() -> io::Result<OwnedFd> {
    let held = io::stderr().as_fd().try_clone_to_owned()?;
    let nothing = File::options().write(true).open("/dev/null")?;
    nix::unistd::dup2_stderr(&nothing)?;
    Ok(held)
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
        // An incomplete call, because the parent has died: no call follows it, either.
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
            // If the file cannot be opened by this name, the parent sends its bytes instead.
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
        [verb, source, namespace, target] if verb == "from-host" => {
            let (source, namespace) = (Path::new(source), Path::new(namespace));
            Call::FromHost { source, namespace, target: Some(Path::new(target)) }.carry_out()
        }
        [verb, source, namespace] if verb == "try-from-host" => {
            let (source, namespace) = (Path::new(source), Path::new(namespace));
            Call::FromHost { source, namespace, target: None }.carry_out()
        }
        [verb, target, data] if verb == "tmpfs" => {
            let data = data.to_str().ok_or(Errno::EINVAL)?;
            Call::Tmpfs { target: Path::new(target), data }.carry_out()
        }
        [verb, target, data, dirs @ ..] if verb == "root" => {
            let dirs: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
            let data = data.to_str().ok_or(Errno::EINVAL)?;
            Call::Root { target: Path::new(target), data, dirs: &dirs }.carry_out()
        }
        [verb, target] if verb == "sysfs" => Call::Sysfs { target: Path::new(target) }.carry_out(),
        [verb, nodes @ ..] if verb == "mknod" => {
            let (nodes, []) = nodes.as_chunks() else { return Err(Errno::EINVAL) };
            nodes.iter().try_for_each(|words| {
                let (path, node) = node_of(words)?;
                make_node(path, node)
            })
        }
        [verb, node @ ..] if verb == "chnod" => {
            let (path, node) = node_of(node.try_into().map_err(|_| Errno::EINVAL)?)?;
            Call::SetNode { path, node }.carry_out()
        }
        [verb, path, value] if verb == "write" => {
            Call::WriteAttribute { path: Path::new(path), value }.carry_out()
        }
        _ => Err(Errno::EINVAL),
    }
}
