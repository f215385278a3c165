//! A module goes to the kernel: as a file where its bytes need no look any more, else from memory.

use nix::errno::Errno;

use super::Engine;
use crate::engine::image::ModuleFile;
use crate::failure::Failure;
use crate::host::VerbError;
use crate::host::verbs::Image;
use crate::step::ModuleOrigin;

/// How the kernel took a module.
pub(super) struct Taken {
    /// The file it read; None where it was given the bytes.
    pub(super) file: Option<ModuleFile>,
    /// What it logged meanwhile.
    pub(super) said: Vec<String>,
}

/// Why the kernel does not have a module.
pub(super) enum NotTaken {
    /// It was not there to be handed over, or is not what it should be.
    Absent(Failure),
    /// The kernel's answer, or that none came.
    Refused(VerbError),
}

impl Engine<'_> {
    /// Loads a module.
    pub(super) fn hand_over(
        &self,
        name: &str,
        origin: &ModuleOrigin,
        parameters: &str,
    ) -> Result<Taken, NotTaken> {
        let mut refused = Vec::new();
        if let Some(file) = self.images.file(name, origin).map_err(NotTaken::Absent)? {
            match self.host.load_module(name, Image::File(file.file()), parameters) {
                Ok(said) => return Ok(Taken { file: Some(file), said }),
                Err(e) if e.unanswered.is_none() && is_about_the_file(e.errno) => {
                    tracing::info!("{e}: handing over its bytes in place of its file");
                    refused = e.said;
                }
                Err(e) => return Err(NotTaken::Refused(e)),
            }
        }
        let bytes = self.images.image(name, origin).map_err(NotTaken::Absent)?;
        match self.host.load_module(name, Image::Bytes(&bytes), parameters) {
            Ok(said) => Ok(Taken { file: None, said }),
            Err(mut error) => {
                // Why a policy refuses is told of the file (LoadPin, IMA).
                error.said.splice(0..0, refused);
                Err(NotTaken::Refused(error))
            }
        }
    }
}

/// Whether a module that was refused as a file may be taken from memory: SELinux does not like the
/// file's label (EACCES), somebody has it open for writing (ETXTBSY), a filter of system calls does
/// not know finit_module (EPERM, ENOSYS). EPERM can be about loading at all; then the kernel says
/// it once more.
fn is_about_the_file(errno: Errno) -> bool {
    matches!(errno, Errno::EACCES | Errno::EPERM | Errno::ENOSYS | Errno::ETXTBSY)
}

#[cfg(test)]
mod tests;
