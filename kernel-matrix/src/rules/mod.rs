//! rules.toml: kernels and drivers by rules instead of cell by cell.
//!
//! [`axes`] multiplies what is declared to kernels and drivers, [`expand`] gives each rule's cells,
//! [`exclude`] takes cells out and puts others in, [`support`] takes out those whose driver does not support
//! their devices, and [`check`] refuses rules without effect.

mod archives;
mod axes;
mod check;
mod exclude;
mod expand;
pub mod filter;
mod gpu_set;
mod headers;
pub mod lock;
mod missing;
pub(crate) mod pattern;
pub mod resolve;
mod scenario;
mod support;

use std::collections::BTreeMap;
use std::path::Path;

use longshore_debian::settings::ArchiveSource;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use longshore_lab::host::error::{At, Error};

pub use axes::{Driver, Kernel, KernelFlavour, KernelPlace, NamedKernel, Selector};
pub use gpu_set::GpuSet;
pub use scenario::RuleScenario;

/// Version of the file's format.
const FORMAT: u32 = 1;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    #[serde(default)]
    frozen: Vec<Spanned<String>>,
    #[serde(default)]
    archive: Vec<Spanned<archives::NamedArchive>>,
    #[serde(default)]
    kernels: Vec<Spanned<axes::KernelAxis>>,
    #[serde(default)]
    drivers: Vec<Spanned<axes::DriverAxis>>,
    #[serde(default)]
    rule: Vec<Spanned<Rule>>,
    #[serde(default)]
    exclude: Vec<Spanned<Exclude>>,
    #[serde(default)]
    include: Vec<Spanned<Include>>,
}

/// `[[rule]]`: the combinations that it gives cells for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rule {
    name: String,
    /// End of its cells' names.
    #[serde(default)]
    suffix: String,
    /// Combinations; all without it.
    #[serde(default)]
    only: Vec<Spanned<Selector>>,
    /// Scenarios; each gives a cell.
    #[serde(default = "compile_alone")]
    scenarios: Vec<RuleScenario>,
    /// Sets of simulated devices; each gives a cell of every scenario that boots.
    #[serde(default)]
    gpus: Vec<Spanned<GpuSet>>,
    /// Time limit of its guests.
    #[serde(default = "default_deadline")]
    deadline_seconds: u64,
}

fn compile_alone() -> Vec<RuleScenario> {
    vec![RuleScenario::Compile]
}

fn default_deadline() -> u64 {
    900
}

/// `[[exclude]]`: cells that no rule gives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Exclude {
    #[serde(rename = "match")]
    of: Selector,
    /// The rule whose cells it takes out; of all rules without it.
    rule: Option<String>,
    reason: String,
}

/// `[[include]]`: cells of a rule that its `only` leaves out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Include {
    #[serde(rename = "match")]
    of: Selector,
    rule: String,
    reason: String,
}

/// A cell of the matrix of kernels and drivers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cell {
    /// `KERNEL-DRIVER[-SUFFIX]`, with `-SCENARIO-GPUS` where it boots; unique.
    pub name: String,
    /// Name of its rule.
    pub rule: String,
    /// Its kernel.
    pub kernel: Kernel,
    /// Its driver.
    pub driver: Driver,
    /// Its scenario.
    pub scenario: RuleScenario,
    /// Simulated devices; none where it does not boot.
    pub gpus: GpuSet,
    /// Time limit of its guest.
    pub deadline_seconds: u64,
    /// Reason of the include that it is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub included: Option<String>,
}

/// Cells that an exclude took out, or whose driver does not support their devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Excluded {
    /// Keys and patterns of its match.
    #[serde(rename = "match")]
    pub of: BTreeMap<String, String>,
    /// Its reason.
    pub reason: String,
    /// Names of the cells.
    pub cells: Vec<String>,
}

/// The whole matrix of kernels and drivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Kernels, in the order of the file.
    pub kernels: Vec<Kernel>,
    /// Drivers, in the order of the file.
    pub drivers: Vec<Driver>,
    /// Cells: by rule, then kernel, then driver.
    pub cells: Vec<Cell>,
    /// Cells that are left out, with the reason.
    pub excluded: Vec<Excluded>,
    /// Suites whose lists are taken past their expiry.
    pub frozen: Vec<String>,
    /// Archives that have suites which this machine's apt sources have not.
    pub archives: Vec<ArchiveSource>,
}

impl Rules {
    /// Reads and expands a file of rules.
    ///
    /// # Errors
    /// It cannot be read, is malformed, or one of its parts has no effect or contradicts another.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).at("read", path)?;
        let file = path.canonicalize().at("find", path)?;
        Self::parse_in(&text, file.parent().unwrap_or(&file))
            .map_err(|e| Error::Matrix(format!("{}: {e}", path.display())))
    }

    /// Expands the text of a file of rules.
    ///
    /// # Errors
    /// As [`Rules::read`].
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_in(text, Path::new("/"))
    }

    /// Expands the text of a file of rules in `dir`, an absolute path.
    fn parse_in(text: &str, dir: &Path) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
        if file.format != FORMAT {
            return Err(format!("format {} is not known; this is format {FORMAT}", file.format));
        }
        let text = Text(text);
        check::reasons(&file, &text)?;
        check::scenarios(&file, &text)?;
        let kernels = axes::kernels(&file.kernels, &text)?;
        let drivers = axes::drivers(&file.drivers, &text)?;
        let mut cells = expand::cells(&file.rule, &kernels, &drivers, &text)?;
        exclude::include(&file, &kernels, &drivers, &mut cells, &text)?;
        check::names(&cells)?;
        check::bootable(&cells)?;
        let mut excluded = exclude::exclude(&file, &mut cells, &text)?;
        excluded.append(&mut support::exclude(&mut cells)?);
        check::devices(&file, &cells, &text)?;
        check::effects(&file, &kernels, &drivers, &cells, &text)?;
        check::archives(&file, &cells, &text)?;
        let frozen = file.frozen.into_iter().map(Spanned::into_inner).collect();
        let archives = archives::sources(&file.archive, dir, &text)?;
        Ok(Self { kernels, drivers, cells, excluded, frozen, archives })
    }

    /// Returns the cells that are compiled alone, without a guest.
    pub fn compiled(&self) -> Vec<Cell> {
        self.cells.iter().filter(|cell| !cell.scenario.boots()).cloned().collect()
    }

    /// Returns every suite of the kernels and drivers, sorted.
    pub fn suites(&self) -> Vec<String> {
        let of_kernels = self.kernels.iter().flat_map(Kernel::suites);
        let of_drivers = self.drivers.iter().flat_map(|driver| &driver.suites);
        let mut suites: Vec<String> = of_kernels.chain(of_drivers).cloned().collect();
        suites.sort();
        suites.dedup();
        suites
    }
}

/// Text of a file, for line numbers.
struct Text<'a>(&'a str);

impl Text<'_> {
    /// Returns the line that a value begins in.
    fn line<T>(&self, of: &Spanned<T>) -> usize {
        let before = self.0.get(..of.span().start).unwrap_or_default();
        before.bytes().filter(|byte| *byte == b'\n').count() + 1
    }
}

#[cfg(test)]
mod tests;
