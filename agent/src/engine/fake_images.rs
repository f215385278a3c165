//! Module images for tests over a fake host.

use std::path::Path;

use super::image::{Images, ModuleFile};
use crate::steps::ModuleOrigin;
use longshore_core::failure::Failure;

/// Images for a `FakeHost`: every module's image is its name.
#[derive(Debug, Clone, Copy, Default)]
pub struct FakeImages;

impl Images for FakeImages {
    fn image(&self, name: &str, _: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        Ok(name.as_bytes().to_vec())
    }

    fn file(&self, _: &str, _: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        Ok(None)
    }

    fn check_tree(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }
}
