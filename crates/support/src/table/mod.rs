//! The table: parsed, checked, and merged with another one.

use std::sync::LazyLock;

use serde::Deserialize;

use longshore_core::day::Day;
use longshore_core::failure::Failure;

use crate::check;
use crate::fault::wrong;
use crate::gpus::{self, Gpu, Gpus};
use crate::rows::{Branch, Bulletin, Document, Exclusion, Floor, Generation};

/// Rows of the built-in table.
const ROWS: &str = include_str!("../../data/support.toml");
/// GPUs of the built-in table.
const GPUS: &str = include_str!("../../data/gpus.tsv");

static BUILT_IN: LazyLock<Result<SupportTable, Failure>> = LazyLock::new(|| {
    let document = read(ROWS)?;
    SupportTable::checked(document, gpus::parse(GPUS)?)
});

/// Support table; its rows do not contradict each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportTable {
    issued: Day,
    open_recommended_branch: Option<u64>,
    pub(crate) generations: Vec<Generation>,
    pub(crate) gpus: Gpus,
    pub(crate) branches: Vec<Branch>,
    pub(crate) bulletins: Vec<Bulletin>,
    pub(crate) floors: Vec<Floor>,
    pub(crate) exclusions: Vec<Exclusion>,
}

/// Format of a file, whose other keys are not looked at.
#[derive(Deserialize)]
struct OnlyFormat {
    format: Option<i64>,
}

/// Parses a file, its format first: the keys of another one are unknown. Contradictions are not looked for yet.
fn read(text: &str) -> Result<Document, Failure> {
    let malformed = |error: toml::de::Error| wrong(error.to_string().trim_end());
    let OnlyFormat { format } = toml::from_str(text).map_err(malformed)?;
    format.map_or(Ok(()), check::format)?;
    let document = toml::from_str(text).map_err(malformed)?;
    check::sources(&document)?;
    Ok(document)
}

/// Head of a file: when it was issued, and whether it stands beside the built-in table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableHead {
    /// Day of its issue.
    pub issued: Day,
    /// True if its rows are added to the built-in table.
    pub extends: bool,
}

impl TableHead {
    /// Reads the head of a file, whose rows may contradict each other.
    ///
    /// # Errors
    /// Exit code 2: no TOML, an unknown key, or another format.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let Document { issued, extends, .. } = read(text)?;
        Ok(Self { issued, extends })
    }
}

impl SupportTable {
    /// Returns the table that is part of the program.
    ///
    /// # Errors
    /// Exit code 2 where it contradicts itself, which a test excludes.
    pub fn built_in() -> Result<&'static Self, Failure> {
        BUILT_IN.as_ref().map_err(Clone::clone)
    }

    /// Parses a table that stands alone: its GPUs are its `[[gpu]]` rows.
    ///
    /// # Errors
    /// Exit code 2, naming the line or row: no TOML, an unknown key, another format, or a contradiction.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut document = read(text)?;
        let gpus = gpus::of_rows(std::mem::take(&mut document.gpus))?;
        Self::checked(document, gpus)
    }

    /// Returns this table with the rows of a file. A file with `extends = true` adds its rows, and a row with the key of
    /// one that is there takes its place. The rows of any other file replace all generations, branches, bulletins,
    /// floors and exclusions; the GPUs stay, and its `[[gpu]]` rows are added. Such a file that is older than this table
    /// gives way to it.
    ///
    /// # Errors
    /// As of [`SupportTable::parse`]; the contradictions of the result count. A replacing file needs branches, and the
    /// generation of each GPU.
    pub fn merged(&self, text: &str) -> Result<Self, Failure> {
        let mut document = read(text)?;
        let added = gpus::of_rows(std::mem::take(&mut document.gpus))?;
        // Contradictions within the file, before one of two rows with the same key takes the other's place.
        check::unique_keys(&document)?;
        if document.extends {
            let base = self.clone();
            document.issued = document.issued.max(base.issued);
            document.generations = over(document.generations, base.generations, |row| &row.name);
            document.branches = over(document.branches, base.branches, |row| &row.number);
            document.bulletins = over(document.bulletins, base.bulletins, |row| &row.id);
            document.floors = over(document.floors, base.floors, |row| &row.id);
            document.exclusions = over(document.exclusions, base.exclusions, |row| &row.id);
        }
        document.open_recommended_branch =
            document.open_recommended_branch.or(self.open_recommended_branch);
        let gives_way = !document.extends && document.issued < self.issued;
        let mut gpus = self.gpus.clone();
        gpus.retain(|id, _| !added.contains_key(id));
        if gives_way {
            // It may lack the generations of newer GPUs; its own contradictions count.
            gpus.retain(|_, gpu| document.generations.iter().any(|g| g.name == gpu.generation));
        } else if !document.extends {
            check::replacement(&document, &gpus)?;
        }
        gpus.extend(added);
        let table = Self::checked(document, gpus)?;
        Ok(if gives_way { self.clone() } else { table })
    }

    fn checked(document: Document, gpus: Gpus) -> Result<Self, Failure> {
        check::table(&document, &gpus)?;
        Ok(Self {
            issued: document.issued,
            open_recommended_branch: document.open_recommended_branch,
            generations: document.generations,
            gpus,
            branches: document.branches,
            bulletins: document.bulletins,
            floors: document.floors,
            exclusions: document.exclusions,
        })
    }

    /// Returns the day of its issue; of an extended one, the later of both.
    pub fn issued(&self) -> Day {
        self.issued
    }

    /// Returns the first branch for which NVIDIA recommends the open modules; None where no table says so.
    pub fn open_recommended_branch(&self) -> Option<u64> {
        self.open_recommended_branch
    }

    /// Returns the GPU of a PCI device id.
    pub fn gpu(&self, device: u16) -> Option<&Gpu> {
        self.gpus.get(&device)
    }

    /// Returns the generation of a GPU by its PCI device id; None where the table does not have it.
    pub fn generation(&self, device: u16) -> Option<&Generation> {
        self.generation_named(&self.gpu(device)?.generation)
    }

    /// Returns the generation of this name.
    pub fn generation_named(&self, name: &str) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.name == name)
    }

    /// Returns the names of all GPUs, by their PCI device ids.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.gpus.values().map(|gpu| gpu.name.as_str())
    }

    /// Returns all generations, oldest first.
    pub fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.generations.iter()
    }

    /// Returns the names of all generations, oldest first.
    pub fn generation_names(&self) -> impl Iterator<Item = &str> {
        self.generations().map(|generation| generation.name.as_str())
    }

    /// Returns the branch of this number.
    pub fn branch(&self, number: u64) -> Option<&Branch> {
        self.branches.iter().find(|branch| branch.number == number)
    }

    /// Returns all branches, in the order of the table.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// Returns all security bulletins, in the order of the table.
    pub fn bulletins(&self) -> &[Bulletin] {
        &self.bulletins
    }
}

#[cfg(any(test, feature = "testing"))]
impl SupportTable {
    /// Returns the table without branches, bulletins, floors and exclusions: it has nothing against any driver.
    #[must_use]
    pub fn without_judgements(&self) -> Self {
        let (branches, bulletins) = (Vec::new(), Vec::new());
        let (floors, exclusions) = (Vec::new(), Vec::new());
        Self { branches, bulletins, floors, exclusions, ..self.clone() }
    }
}

/// Returns `new` rows, then those of `old` whose key no new one has.
fn over<T, K: PartialEq>(new: Vec<T>, old: Vec<T>, key: impl Fn(&T) -> &K) -> Vec<T> {
    let is_replaced = |row: &T| new.iter().any(|other| key(other) == key(row));
    let kept: Vec<T> = old.into_iter().filter(|row| !is_replaced(row)).collect();
    new.into_iter().chain(kept).collect()
}

#[cfg(test)]
mod tests;
