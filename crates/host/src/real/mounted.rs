//! Mounts on a target: counted, made, removed.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::MntFlags;

use super::RealHost;
use crate::facts::{self, mounts};
use crate::real::kernel_call::Call;
use crate::verbs::VerbError;
use longshore_core::root::if_there;

/// Returns the mount options with that of an SELinux label, as container runtimes mount a container's
/// own file systems (mount(8), `context`).
pub(super) fn labelled(options: &str, label: Option<&str>) -> String {
    let label = label.map(|label| format!(",context={label}"));
    format!("{options}{}", label.unwrap_or_default())
}

impl RealHost {
    /// The path below the root with its links resolved, as mountinfo has it; None where there is
    /// nothing.
    pub(super) fn real_path(&self, path: &Path) -> Result<Option<PathBuf>, VerbError> {
        let real = if_there(self.at(path).canonicalize());
        real.map_err(|e| VerbError::on_path("realpath", path, &e))
    }

    /// The mounts on exactly `target`, the topmost last.
    pub(super) fn mounted_on(&self, target: &Path) -> Result<Vec<facts::Mount>, VerbError> {
        let Some(real) = self.real_path(target)? else { return Ok(Vec::new()) };
        let file = Path::new("/proc/self/mountinfo");
        let text = fs::read(file).map_err(|e| VerbError::on_path("read", file, &e))?;
        let mut mounts = mounts::parse(&text);
        mounts.retain(|mount| mount.target == real);
        Ok(mounts)
    }

    pub(super) fn take_off(&self, target: &Path, flags: MntFlags) -> Result<(), VerbError> {
        let real = self.real_path(target)?.unwrap_or_else(|| self.at(target));
        let count = self.mounted_on(target)?.len();
        let done = || Ok(self.mounted_on(target)?.len() < count);
        let call = Call::Unmount { target: &real, flags };
        self.call("umount2", &target.display().to_string(), call, done)
    }

    pub(super) fn mount(
        &self,
        verb: &'static str,
        target: &Path,
        call: Call<'_>,
    ) -> Result<(), VerbError> {
        let count = self.mounted_on(target)?.len();
        let done = || Ok(self.mounted_on(target)?.len() > count);
        self.call(verb, &target.display().to_string(), call, done)
    }
}
