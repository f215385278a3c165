//! Mounts, from /proc/PID/mountinfo (proc_pid_mountinfo(5)).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::facts::{Mount, Propagation};
use longshore_core::root::Root;

/// Reads the mounts of this process' mount namespace.
///
/// # Errors
/// If mountinfo cannot be read.
pub(super) fn read(root: &Root) -> io::Result<Vec<Mount>> {
    root.read("proc/self/mountinfo").map(|text| parse(&text))
}

/// Reads the peer groups of process 1's mounts.
///
/// # Errors
/// If its mountinfo cannot be read.
pub(super) fn read_host_peer_groups(root: &Root) -> io::Result<BTreeSet<u32>> {
    let mounts = root.read("proc/1/mountinfo").map(|text| parse(&text))?;
    Ok(mounts.iter().filter_map(|mount| mount.peer_group).collect())
}

/// True for an overlay, as every container runtime makes it for a container's root.
pub fn is_overlay(mount: &Mount) -> bool {
    matches!(mount.fstype.as_str(), "overlay" | "fuse.fuse-overlayfs")
}

/// Parses mountinfo; malformed lines are left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().skip(6).position(|f| *f == b"-")? + 6;
    let (head, tail) = (fields.get(..dash)?, fields.get(dash + 1..)?);
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let optional: Vec<String> = head.get(6..)?.iter().map(|field| text(field)).collect();
    Some(Mount {
        device: device(&text(head.get(2)?))?,
        root: path(head.get(3)?),
        target: path(head.get(4)?),
        options: text(head.get(5)?),
        fstype: text(tail.first()?),
        source: text(&unescape(tail.get(1)?)),
        propagation: propagation_of(&optional),
        peer_group: optional.iter().find_map(|o| o.strip_prefix("shared:")?.parse().ok()),
    })
}

fn device(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Propagation of a mount. A slave mount can also be in a peer group: Shared then, because sending
/// is what counts here.
fn propagation_of(optional: &[String]) -> Propagation {
    let has = |prefix: &str| optional.iter().any(|o| o.starts_with(prefix));
    if has("shared:") {
        Propagation::Shared
    } else if has("master:") {
        Propagation::Slave
    } else if has("unbindable") {
        Propagation::Unbindable
    } else {
        Propagation::Private
    }
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

/// Undoes the kernel's octal escapes of blank, tab, newline and backslash (fs/seq_file.c,
/// `mangle_path`).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| octal(after)).flatten();
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    let three = std::str::from_utf8(digits.get(..3)?).ok()?;
    if three.starts_with('+') { None } else { u8::from_str_radix(three, 8).ok() }
}

/// The mount that holds `path`: the last one mounted among those with the longest target.
pub fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.target))
        .max_by_key(|mount| mount.target.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("21 1 8:1 / / rw - ext4 /dev/sda1 rw", Propagation::Private, None)]
    #[case("21 1 8:1 / / rw shared:7 - ext4 /dev/sda1 rw", Propagation::Shared, Some(7))]
    #[case("21 1 8:1 / / rw master:3 - ext4 /dev/sda1 rw", Propagation::Slave, None)]
    #[case("21 1 8:1 / / rw shared:7 master:3 - ext4 d rw", Propagation::Shared, Some(7))]
    #[case("21 1 8:1 / / rw unbindable - ext4 d rw", Propagation::Unbindable, None)]
    fn propagations(
        #[case] line: &str,
        #[case] propagation: Propagation,
        #[case] group: Option<u32>,
    ) {
        let mounts = parse(line.as_bytes());
        assert_eq!(mounts.len(), 1);
        assert_eq!((mounts[0].propagation, mounts[0].peer_group), (propagation, group));
    }

    #[rstest]
    #[case("a\\040b", "a b")]
    #[case("a\\134040b", "a\\040b")]
    #[case("tab\\011nl\\012", "tab\tnl\n")]
    #[case("\\9", "\\9")]
    #[case("\\04", "\\04")]
    #[case("\\+40", "\\+40")]
    #[case("\\777", "\\777")]
    fn escapes(#[case] field: &str, #[case] wanted: &str) {
        assert_eq!(unescape(field.as_bytes()), wanted.as_bytes());
    }

    #[rstest]
    #[case("")]
    #[case("21 1 8:1 / / rw")]
    #[case("21 1 8:1 / / rw -")]
    #[case("a - b c")]
    fn a_broken_line_is_left_out(#[case] line: &str) {
        assert!(parse(line.as_bytes()).is_empty());
    }

    #[test]
    fn the_containing_mount_is_the_deepest_and_the_last() {
        let mounts = parse(
            b"1 0 0:1 / / rw - a s0 rw\n2 1 0:2 / /run rw - a s1 rw\n3 1 0:2 / /run rw - a s2 rw\n4 1 0:2 / /run/nvidia2 rw - a s3 rw",
        );
        let source = |path: &str| containing(&mounts, Path::new(path)).unwrap().source.clone();
        assert_eq!(source("/run/nvidia/driver"), "s2");
        assert_eq!(source("/var"), "s0");
        assert!(containing(&[], Path::new("/")).is_none());
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
            let _ = unescape(&text);
        }

        #[test]
        fn what_the_kernel_escapes_comes_back(name in "[a-z \t\n\\\\]{1,20}") {
            let escaped: String = name.chars().map(|c| match c {
                ' ' | '\t' | '\n' | '\\' => format!("\\{:03o}", c as u32),
                c => c.to_string(),
            }).collect();
            let line = format!("1 0 0:1 / /{escaped} rw - a {escaped} rw");
            let mounts = parse(line.as_bytes());
            prop_assert_eq!(mounts.len(), 1);
            prop_assert_eq!(&mounts[0].target, &PathBuf::from(format!("/{name}")));
        }
    }
}
