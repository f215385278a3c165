//! The daemons that a record may name: their programs, sockets, settings and capabilities.
//!
//! Older agents may have started them with other arguments, so these are checked by their form:
//! nothing in them leads outside the driver root, the agents' private directories, the directories
//! of the sockets, where older agents kept the settings, and the subnet manager's settings.

use std::path::{Path, PathBuf};

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

/// True if this is a daemon of a driver with this root, and its files are in one of the directories
/// of `private`.
pub(super) fn is_of_table(daemon: &Daemon, root: &Path, private: &[PathBuf]) -> bool {
    let Some((name, socket, capabilities)) = ROWS.iter().find(|row| row.0 == daemon.name) else {
        return false;
    };
    let Some(socket_dir) = dir_of(socket) else { return false };
    let places = Places { root, socket_dir, private };
    let kept = daemon.capabilities.iter().all(|kept| capabilities.contains(&kept.as_str()));
    let may = |word: &str| places.is_harmless(word);
    kept && is(&daemon.program, &below(root, &Path::new("/usr/bin").join(name)))
        && is_plain(&daemon.libraries)
        && daemon.libraries.starts_with(root)
        && is_file_in(&daemon.socket, socket_dir)
        && daemon.arguments.len() <= MOST
        && daemon.arguments.iter().all(|argument| is_flag(argument) || may(argument))
        && daemon.settings.as_ref().is_none_or(|settings| places.are_settings(settings))
}

/// Directories that a daemon's arguments and settings may name.
struct Places<'a> {
    root: &'a Path,
    socket_dir: &'a Path,
    private: &'a [PathBuf],
}

impl Places<'_> {
    fn are_settings(&self, settings: &Settings) -> bool {
        let is_key = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_set = |(key, value): &(String, String)| {
            !key.is_empty() && key.bytes().all(is_key) && self.is_harmless(value)
        };
        is_plain(&settings.template)
            && settings.template.starts_with(self.root.join("usr/share/nvidia"))
            && self.is_own_file(&settings.file)
            && settings.set.len() <= MOST
            && settings.set.iter().all(is_set)
    }

    /// True for an empty word, a number, a GUID, the daemon's own output, or a path below the driver
    /// root or in a directory of the daemon's.
    fn is_harmless(&self, word: &str) -> bool {
        if word == "stdout" {
            return true;
        }
        let number = word.strip_prefix("0x").unwrap_or(word);
        if number.len() <= 32 && number.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return true;
        }
        let path = Path::new(word);
        let is_shown = || is_file_in(path, Path::new(SUBNET_SETTINGS));
        is_plain(path) && (path.starts_with(self.root) || self.is_own_file(path) || is_shown())
    }

    fn is_own_file(&self, path: &Path) -> bool {
        let mut dirs = self.private.iter().map(PathBuf::as_path).chain([self.socket_dir]);
        dirs.any(|dir| is_file_in(path, dir))
    }
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
