//! The specs of a host as `longshore cdi list --json` prints them.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Contents, SpecFile, Use, by_name};

/// All files of the directories.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Files, in the order of the directories and then of names.
    files: Vec<ListedFile>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ListedFile {
    path: PathBuf,
    state: State,
    /// Reason for which its devices are not known.
    reason: Option<String>,
    devices: Vec<ListedDevice>,
}

/// State of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// Its devices are listed.
    Read,
    /// It is in YAML, which longshore does not read.
    NotRead,
    /// Runtimes refuse it.
    Refused,
    Unreadable,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ListedDevice {
    name: String,
    r#use: DeviceUse,
    /// File that also has the device, where this one does not decide.
    other: Option<PathBuf>,
}

/// Use of a device that runtimes make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum DeviceUse {
    /// This file decides.
    Taken,
    /// Two files of one directory have it, so no runtime has it.
    Unresolvable,
    /// A file of a later directory decides.
    Replaced,
}

/// Makes the JSON's form of the files.
pub fn rows(files: &[SpecFile]) -> Listed {
    let by_name = by_name(files);
    let device = |file: &SpecFile, name: &String| {
        let others = by_name.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        let (r#use, other) = match file.use_beside(others) {
            Use::Taken => (DeviceUse::Taken, None),
            Use::Conflict(other) => (DeviceUse::Unresolvable, Some(other)),
            Use::Replaced(other) => (DeviceUse::Replaced, Some(other)),
        };
        ListedDevice { name: name.clone(), r#use, other: other.map(Path::to_path_buf) }
    };
    let file = |file: &SpecFile| {
        let (state, reason) = match &*file.contents {
            Contents::Devices(_) => (State::Read, None),
            Contents::Yaml(_) => (State::NotRead, None),
            Contents::Refused(why) => (State::Refused, Some(why.clone())),
            Contents::Unreadable(why) => (State::Unreadable, Some(why.clone())),
        };
        let devices = file.devices().iter().map(|name| device(file, name)).collect();
        ListedFile { path: file.path.clone(), state, reason, devices }
    };
    Listed { files: files.iter().map(file).collect() }
}

impl Listed {
    /// True if every file is read, and no device is unresolvable.
    pub fn is_usable(&self) -> bool {
        self.files.iter().all(|file| {
            file.state == State::Read
                && file.devices.iter().all(|device| device.r#use != DeviceUse::Unresolvable)
        })
    }
}
