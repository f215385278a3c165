//! matrix.toml: the declared cells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use crate::cell::Cell;
use crate::cell::guests::{Engine, Guest, Guests};
use crate::cell::supply::Supply;
use crate::gpu;
use crate::host::error::{At, Error};
use crate::scenarios::scenario::Scenario;
use crate::scenarios::{self, SCENARIOS};

/// The whole matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// Root file system of the guests of cells that name none.
    pub guest: Guest,
    /// Further root file systems, by name.
    #[serde(default)]
    pub guests: BTreeMap<String, Guest>,
    /// The cells, in order.
    #[serde(rename = "cell")]
    pub cells: Vec<Cell>,
}

impl Matrix {
    /// Reads and checks matrix.toml.
    ///
    /// # Errors
    /// It cannot be read, is malformed, or a name occurs twice or is not kebab-case.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).at("read", path)?;
        Self::parse(&text).map_err(|e| Error::Matrix(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let matrix: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        let mut names = BTreeSet::new();
        for cell in &matrix.cells {
            if !is_kebab_case(&cell.name) {
                return Err(format!("cell name `{}` is not kebab-case", cell.name));
            }
            if !names.insert(&cell.name) {
                return Err(format!("two cells are named `{}`", cell.name));
            }
            if !cell.guest.is_empty() && !matrix.guests.contains_key(&cell.guest) {
                return Err(format!("{}: no guest `{}`", cell.name, cell.guest));
            }
            let Some(scenario) = scenarios::named(&cell.scenario) else {
                return Err(unknown(cell));
            };
            if let Some(rule) = broken(cell, scenario) {
                return Err(format!("{}: {rule}", cell.name));
            }
            gpu::check(&cell.gpus).map_err(|why| format!("{}: {why}", cell.name))?;
        }
        Ok(matrix)
    }

    /// Returns all guests.
    pub fn guests(&self) -> Guests {
        Guests { default: self.guest.clone(), named: self.guests.clone() }
    }

    /// Returns the cells of the core set, in the order of the matrix.
    pub fn core(&self) -> Vec<&Cell> {
        self.cells.iter().filter(|cell| cell.core).collect()
    }

    /// Returns the cells with these names, in the order of the matrix; all where no name is given.
    ///
    /// # Errors
    /// A name that no cell has.
    pub fn select(&self, names: &[String]) -> Result<Vec<&Cell>, Error> {
        if let Some(name) = names.iter().find(|n| !self.cells.iter().any(|c| c.name == **n)) {
            let known: Vec<&str> = self.cells.iter().map(|c| c.name.as_str()).collect();
            let known = known.join(", ");
            return Err(Error::Matrix(format!("no cell `{name}`; there are: {known}")));
        }
        Ok(self.cells.iter().filter(|c| names.is_empty() || names.contains(&c.name)).collect())
    }
}

/// Returns the first rule that a cell of this scenario breaks.
fn broken(cell: &Cell, scenario: &dyn Scenario) -> Option<&'static str> {
    let needs = scenario.needs();
    let of_archive = cell.from == Supply::Archive;
    let (two_drivers, two_kernels) = (cell.next_driver.is_some(), cell.next_kernel.is_some());
    let by_kubelet = cell.engine == Engine::Kubelet;
    let has_peermem = cell.extra_modules.iter().any(|name| name == "nvidia-peermem");
    let is_of_mofed = needs.stand_in.is_some_and(|of| of.header.is_some());
    let without_registry = cell.by_digest && !cell.from.has_registry();
    let rules = [
        (scenario.script().is_none() && !of_archive, "a build has no guest to supply"),
        (without_registry, "an image by digest comes from a registry"),
        (needs.next_driver != two_drivers, "an upgrade has a next-driver, no other cell"),
        (needs.cluster != by_kubelet, "kubelet runs the agent in a cluster only"),
        (needs.cluster && !of_archive, "a node reaches nothing but its cluster"),
        (two_drivers && !of_archive, "two drivers come from the archive only"),
        (needs.next_kernel != two_kernels, "next-kernel has a next-kernel, no other cell"),
        (two_kernels && cell.from != Supply::Compile, "a next kernel is compiled for in the guest"),
        (is_of_mofed && !(has_peermem && of_archive), "peermem has nvidia-peermem of the archive"),
    ];
    rules.into_iter().find_map(|(is_broken, rule)| is_broken.then_some(rule))
}

/// Returns the message for a cell whose scenario is none.
fn unknown(cell: &Cell) -> String {
    let known: Vec<String> = SCENARIOS.iter().map(|scenario| scenario.name()).collect();
    format!("{}: no scenario `{}`; there are: {}", cell.name, cell.scenario, known.join(", "))
}

fn is_kebab_case(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && !name.starts_with('-') && name.chars().all(good)
}

#[cfg(test)]
mod tests;
