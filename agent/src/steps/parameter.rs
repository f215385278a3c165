//! Writing of values to files below /sys or /proc.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bounds::given;
use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_host::Host;

/// Write a value to a file below /sys or /proc; undone by restoring the previous value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("write {value:?} to {}", path.display())]
pub struct WriteParameter {
    /// Absolute path, for example `/sys/module/firmware_class/parameters/path`.
    pub path: PathBuf,
    /// The value, without a newline.
    pub value: String,
}

/// Value that the file held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Without its trailing newline.
    pub value: String,
}

impl StepKind for WriteParameter {
    type Before = Value;
    const WAS: &'static str = "value";

    fn subject(&self) -> String {
        self.path.display().to_string()
    }

    fn planned(&self) -> String {
        format!("write {} to {}", self.value, self.path.display())
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: None,
            recheck: Recheck::Always,
            carries_daemons: false,
            // The next value is written over it, so that the kernel always has a usable one.
            next: Next::Overwritten(&self.path),
            content: None,
            watch: Watch::File(&self.path),
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Value>, Failure> {
        match host.parameter(&self.path).map_err(exposing)? {
            Some(there) if there == self.value => Ok(None),
            Some(value) => Ok(Some(Value { value })),
            None => Err(Failure::new(
                FailureKind::Expose,
                format!("{}: this kernel has no such file", self.path.display()),
            )
            .remedy("check that the host's /sys is mounted in the container")),
        }
    }

    fn apply(&self, _: &Value, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let Self { path, value } = self;
        tools.host.write_parameter(path, value).map_err(exposing)?;
        let there = tools.host.parameter(path).map_err(exposing)?;
        if there.as_deref() == Some(value.as_str()) {
            return Ok(intent.done());
        }
        Err(Failure::new(
            FailureKind::Expose,
            format!("{}: wrote {value:?}, and it now reads {there:?}", path.display()),
        ))
    }

    fn undo(&self, before: &Value, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        let now = tools.host.parameter(&self.path)?;
        if now.as_ref() == Some(&self.value) {
            tools.host.write_parameter(&self.path, &before.value)?;
        } else if now.as_ref() != Some(&before.value) {
            return Ok(EntryState::Kept("another program changed it after us".to_owned()));
        }
        Ok(EntryState::Undone)
    }

    fn seen(&self, now: &Value) -> Deviation {
        let (path, value) = (self.path.display(), &self.value);
        Deviation::gone(format!("{path} is {:?} instead of {value:?}", now.value))
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        bounds.firmware_path(&self.path, &self.value)
    }

    /// Accepts any value that the host had if an agent is proved to have read it; else none, an
    /// agent's own, or a directory that the kernel searches by itself.
    fn check_before(&self, before: &Value, bounds: &Bounds) -> Result<(), String> {
        let value = before.value.as_str();
        // A path on the kernel's command line may end in a slash.
        let path = value.strip_suffix('/').unwrap_or(value);
        let is_known =
            || value.is_empty() || bounds.is_own_firmware(value) || KERNELS.contains(&path);
        given(is_text(value) && (bounds.unproved.is_none() || is_known()), Path::new(value))
    }
}

/// Longest firmware path that the kernel takes (drivers/base/firmware_loader/main.c,
/// `fw_path_para`).
const FIRMWARE_VALUE: usize = 255;
/// Directories that the kernel searches without a firmware path (the same file, `fw_path`), also by
/// their names on hosts whose /lib is a link to /usr/lib.
const KERNELS: [&str; 4] =
    ["/lib/firmware", "/lib/firmware/updates", "/usr/lib/firmware", "/usr/lib/firmware/updates"];

fn is_text(value: &str) -> bool {
    value.len() <= FIRMWARE_VALUE && !value.chars().any(char::is_control)
}
