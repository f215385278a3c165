//! Lock file: the packages that kernels and drivers of the rules resolved to on one day.
//!
//! It is sorted and has neither addresses nor times, so that two of them differ in what has changed in
//! the archives alone.

use std::path::Path;

use longshore_core::digest::digest_of;
use serde::{Deserialize, Serialize};

use crate::results::Part;
use crate::rules::Cell;
use longshore_lab::host::error::{At, Error};

/// Version of the file's format.
const FORMAT: u32 = 1;

/// A lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lock {
    format: u32,
    /// Suites, by name.
    #[serde(rename = "suite", default)]
    pub suites: Vec<LockedSuite>,
    /// Kernels, by identifier.
    #[serde(rename = "kernel", default)]
    pub kernels: Vec<LockedKernel>,
    /// Drivers, by identifier.
    #[serde(rename = "driver", default)]
    pub drivers: Vec<LockedDriver>,
}

/// A suite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedSuite {
    /// Name, for example `bookworm-security`.
    pub suite: String,
    /// True if its lists are taken past their expiry.
    pub frozen: bool,
    /// Reason for which it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// A kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedKernel {
    /// Its identifier in the rules.
    pub id: String,
    /// `uname -r`; empty where no image is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// The package that is missing, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<Missing>,
    /// Its build root, where it is by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_root: Option<String>,
    /// Package of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<LockedPackage>,
    /// Packages of the headers and of the tools that compile with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<LockedPackage>,
}

/// A driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedDriver {
    /// Its identifier in the rules.
    pub id: String,
    /// The part that is missing, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<Missing>,
    /// Packages of its kernel sources, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revisions: Vec<LockedPackage>,
}

/// A package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LockedPackage {
    /// Name.
    pub package: String,
    /// Debian version.
    pub version: String,
    /// Suite.
    pub suite: String,
    /// sha256 (hex).
    pub sha256: String,
}

/// A part of a cell that the archives do not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Missing {
    /// The part.
    pub part: Part,
    /// Reason.
    pub why: String,
}

impl Lock {
    /// Makes a lock of these, sorted.
    pub fn new(
        mut suites: Vec<LockedSuite>,
        mut kernels: Vec<LockedKernel>,
        mut drivers: Vec<LockedDriver>,
    ) -> Self {
        suites.sort_by(|a, b| a.suite.cmp(&b.suite));
        kernels.sort_by(|a, b| a.id.cmp(&b.id));
        drivers.sort_by(|a, b| a.id.cmp(&b.id));
        Self { format: FORMAT, suites, kernels, drivers }
    }

    /// Reads a lock file.
    ///
    /// # Errors
    /// It cannot be read, is malformed, or of another format.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).at("read", path)?;
        Self::parse(&text).map_err(|e| Error::Matrix(format!("{}: {e}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lock: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        match lock.format {
            FORMAT => Ok(lock),
            other => Err(format!("format {other} is not known: run `kernel-matrix resolve` again")),
        }
    }

    /// Writes the file: all of it or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        std::fs::write(&unfinished, self.text()?).at("write", &unfinished)?;
        std::fs::rename(&unfinished, path).at("finish", path)
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// A value has no form in TOML.
    pub fn text(&self) -> Result<String, Error> {
        let text = toml::to_string(self);
        text.map_err(|e| Error::Unexpected(format!("the lock has no form in TOML: {e}")))
    }

    /// Returns the sha256 (hex) of the file.
    ///
    /// # Errors
    /// As [`Lock::text`].
    pub fn digest(&self) -> Result<String, Error> {
        digest_of(self.text()?.as_bytes()).at("digest", Path::new("the lock"))
    }

    /// Returns the kernel of this identifier.
    pub fn kernel(&self, id: &str) -> Option<&LockedKernel> {
        self.kernels.iter().find(|kernel| kernel.id == id)
    }

    /// Returns the driver of this identifier.
    pub fn driver(&self, id: &str) -> Option<&LockedDriver> {
        self.drivers.iter().find(|driver| driver.id == id)
    }

    /// Checks that it has the kernel and the driver of each cell.
    ///
    /// # Errors
    /// It is of other rules.
    pub fn covers(&self, cells: &[&Cell]) -> Result<(), Error> {
        let unknown = cells.iter().find_map(|cell| {
            let (kernel, driver) = (&cell.kernel.id, &cell.driver.id);
            let kernel = self.kernel(kernel).is_none().then_some(kernel);
            kernel.or_else(|| self.driver(driver).is_none().then_some(driver))
        });
        unknown.map_or(Ok(()), |id| {
            let why = "it is of other rules: run `kernel-matrix resolve`";
            Err(Error::Matrix(format!("the lock has no {id}, not even as unavailable; {why}")))
        })
    }

    /// True if the lists of one of these suites are taken past their expiry.
    pub fn is_frozen(&self, suites: &[String]) -> bool {
        self.suites.iter().any(|locked| locked.frozen && suites.contains(&locked.suite))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> Lock {
        let package = |name: &str| LockedPackage {
            package: name.into(),
            version: "1".into(),
            suite: "sid".into(),
            sha256: "00".into(),
        };
        let kernel = |id: &str| LockedKernel {
            id: id.into(),
            release: "6.1.0-1-amd64".into(),
            unavailable: None,
            build_root: None,
            image: Some(package("linux-image-6.1.0-1-amd64")),
            headers: vec![package("linux-headers-6.1.0-1-amd64")],
        };
        let why = Missing { part: Part::Driver, why: "no package".into() };
        let driver =
            LockedDriver { id: "555-open".into(), unavailable: Some(why), revisions: Vec::new() };
        let suite = LockedSuite { suite: "sid".into(), frozen: true, unavailable: None };
        Lock::new(vec![suite], vec![kernel("sid-rt"), kernel("sid")], vec![driver])
    }

    #[test]
    fn a_lock_is_sorted_and_read_as_it_was_written() {
        let text = lock().text().unwrap();
        assert!(text.find("id = \"sid\"").unwrap() < text.find("id = \"sid-rt\"").unwrap());
        assert_eq!(Lock::parse(&text).unwrap(), lock());
        assert!(lock().is_frozen(&["sid".into()]) && !lock().is_frozen(&["bookworm".into()]));
        assert!(lock().kernel("sid").is_some() && lock().driver("550-open").is_none());
    }

    #[test]
    fn locks_of_another_form_are_refused() {
        let text = lock().text().unwrap();
        for (text, expected) in [
            (text.replace("format = 1", "format = 9"), "format 9"),
            (text.replace("part = \"driver\"", "part = \"luck\""), "luck"),
            (format!("{text}\nmore = 1\n"), "more"),
            (text[..text.len() / 2].to_owned(), ""),
        ] {
            let error = Lock::parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
