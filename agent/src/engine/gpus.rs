//! Refusal of a driver that did not take every GPU that it is to drive.

use super::Engine;
use crate::steps::{LoadModule, Step, exposing};
use longshore_core::failure::Failure;
use longshore_core::finding;
use longshore_host::VerbError;
use longshore_host::facts::gpus::{self, Gpu};

impl Engine<'_> {
    /// Fails if a GPU is missing and `refuses_missing_gpus` is set.
    pub(super) fn check_gpus(&self, steps: &[Step]) -> Result<(), Failure> {
        if !self.refuses_missing_gpus {
            return Ok(());
        }
        let gpus = self.gpus(steps).map_err(exposing)?;
        finding::refusal(&gpus::missing(&gpus, true)).map_or(Ok(()), Err)
    }

    /// Returns the GPUs that the driver which `steps` load may drive; none where it is not loaded.
    pub(super) fn gpus(&self, steps: &[Step]) -> Result<Vec<Gpu>, VerbError> {
        if self.host.module("nvidia")?.is_none() {
            return Ok(Vec::new());
        }
        let given =
            steps.iter().filter_map(LoadModule::from_step).find(|module| module.name == "nvidia");
        Ok(gpus::assigned(self.host.gpus()?, given.map_or("", |module| module.parameters.as_str())))
    }
}
