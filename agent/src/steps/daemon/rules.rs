//! The daemons that a record may name: their programs, sockets, settings and capabilities.
//!
//! Older agents may have started them with other arguments, so these are checked by their form:
//! nothing in them leads outside the driver root and the directories of the sockets.

use std::path::Path;

use super::super::bounds::{below, is, is_hex, is_plain};
use longshore_host::daemon::SUBNET_SETTINGS;
use longshore_host::daemon::{Daemon, FABRICMANAGER_SOCKET, PERSISTENCED_SOCKET, Settings};

/// A daemon's name, the directory of its socket, and the capabilities that its processes may keep
/// at most.
type Row = (&'static str, &'static str, &'static [&'static str]);

const ROWS: [Row; 3] = [
    ("nvidia-persistenced", PERSISTENCED_SOCKET, &[]),
    ("nvlsm", FABRICMANAGER_SOCKET, &[]),
    ("nv-fabricmanager", FABRICMANAGER_SOCKET, &["CAP_SYS_ADMIN"]),
];

/// Upper limit of arguments, and of settings; no daemon has as many.
const MOST: usize = 64;

/// Returns the directories of the driver root that are exposed at their own paths, too: those of
/// the daemons' sockets, and one with settings that refer to files by it.
pub(in crate::steps) fn shown_dirs() -> impl Iterator<Item = &'static Path> {
    let sockets = [PERSISTENCED_SOCKET, FABRICMANAGER_SOCKET].into_iter().filter_map(dir_of);
    sockets.chain([Path::new(SUBNET_SETTINGS)])
}

fn dir_of(socket: &'static str) -> Option<&'static Path> {
    Path::new(socket).parent()
}

/// True if this is a daemon of a driver with this root.
pub(super) fn is_of_table(daemon: &Daemon, root: &Path) -> bool {
    let Some((name, socket, capabilities)) = ROWS.iter().find(|row| row.0 == daemon.name) else {
        return false;
    };
    let Some(dir) = dir_of(socket) else { return false };
    let kept = daemon.capabilities.iter().all(|kept| capabilities.contains(&kept.as_str()));
    let may = |word: &str| is_harmless(word, root, dir);
    kept && is(&daemon.program, &below(root, &Path::new("/usr/bin").join(name)))
        && is_plain(&daemon.libraries)
        && daemon.libraries.starts_with(root)
        && is_file_in(&daemon.socket, dir)
        && daemon.arguments.len() <= MOST
        && daemon.arguments.iter().all(|argument| is_flag(argument) || may(argument))
        && daemon.settings.as_ref().is_none_or(|settings| are_settings(settings, root, dir))
}

fn are_settings(settings: &Settings, root: &Path, dir: &Path) -> bool {
    let is_key = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    let is_set = |(key, value): &(String, String)| {
        !key.is_empty() && key.bytes().all(is_key) && is_harmless(value, root, dir)
    };
    is_plain(&settings.template)
        && settings.template.starts_with(root.join("usr/share/nvidia"))
        && is_file_in(&settings.file, dir)
        && settings.set.len() <= MOST
        && settings.set.iter().all(is_set)
}

/// True for an empty word, a number, a GUID, the daemon's own output, or a path below the driver
/// root or in the socket's directory.
fn is_harmless(word: &str, root: &Path, dir: &Path) -> bool {
    if word == "stdout" {
        return true;
    }
    let number = word.strip_prefix("0x").unwrap_or(word);
    if number.len() <= 32 && number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return true;
    }
    let path = Path::new(word);
    is_plain(path) && (path.starts_with(root) || is_file_in(path, dir))
}

fn is_file_in(path: &Path, dir: &Path) -> bool {
    is_plain(path) && path.parent() == Some(dir)
}

/// True for `-c`, `--pid_file`.
fn is_flag(word: &str) -> bool {
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    word.len() > 1 && word.len() <= 32 && word.starts_with('-') && word.bytes().all(is_byte)
}

/// Checks the word that identifies a daemon's processes: one of another form could be in the
/// environment of processes that are no daemon's.
pub(super) fn mark(mark: &str) -> Result<(), String> {
    if is_hex(mark, 32) { Ok(()) } else { Err("no daemon has such a mark".to_owned()) }
}
