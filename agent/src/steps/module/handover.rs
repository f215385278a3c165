//! Loading of one module: finit_module(2) where its file is verified already, else init_module(2).

use nix::errno::Errno;

use super::super::{ModuleFile, Tools};
use super::LoadModule;
use longshore_core::failure::Failure;
use longshore_host::VerbError;
use longshore_host::verbs::Image;

/// A module that the kernel took.
pub(super) struct Taken {
    /// The file that the kernel read; None where it was given the bytes.
    pub(super) file: Option<ModuleFile>,
    /// Lines that the kernel logged meanwhile.
    pub(super) kernel_log: Vec<String>,
}

/// Reason that the kernel did not take a module.
pub(super) enum NotTaken {
    /// The module is missing, or its content is not the expected one.
    Absent(Failure),
    /// The kernel's error, or that it did not answer.
    Refused(VerbError),
}

/// Loads a module.
pub(super) fn hand_over(step: &LoadModule, tools: &Tools<'_>) -> Result<Taken, NotTaken> {
    let LoadModule { name, origin, .. } = step;
    let parameters = step.given();
    let mut refused = Vec::new();
    if let Some(file) = tools.images.file(name, origin).map_err(NotTaken::Absent)? {
        match tools.host.load_module(name, Image::File(file.file()), &parameters) {
            Ok(kernel_log) => return Ok(Taken { file: Some(file), kernel_log }),
            Err(e) if e.unanswered.is_none() && is_about_the_file(e.errno) => {
                tracing::info!("{e}: loading it from memory instead of its file");
                refused = e.kernel_log;
            }
            Err(e) => return Err(NotTaken::Refused(e)),
        }
    }
    let bytes = tools.images.image(name, origin).map_err(NotTaken::Absent)?;
    match tools.host.load_module(name, Image::Bytes(&bytes), &parameters) {
        Ok(kernel_log) => Ok(Taken { file: None, kernel_log }),
        Err(mut error) => {
            // A policy (LoadPin, IMA) logs its reason only for the file.
            error.kernel_log.splice(0..0, refused);
            Err(NotTaken::Refused(error))
        }
    }
}

/// True if a module that was refused as a file may be loaded from memory: SELinux denies the file's
/// label (EACCES), a process has it open for writing (ETXTBSY), a seccomp filter does not know
/// finit_module (EPERM, ENOSYS). EPERM can be about loading at all; then the kernel returns it once
/// more.
fn is_about_the_file(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM | Errno::ENOSYS | Errno::ETXTBSY)
}
