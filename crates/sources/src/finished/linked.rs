//! Packages that proprietary modules are linked from, and the linker for them.

use std::collections::BTreeMap;

use super::stanza::{self, SIGNATURES};
use crate::headers;
use longshore_debian::archive::{Archive, Package, Requirement};

/// Package with the linker.
const LINKER: &str = "binutils";

/// Packages that modules are linked from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedFrom {
    /// Package with the objects, the link commands and the digests of the linked modules.
    pub objects: Package,
    /// Package with the detached signatures; None where the modules stay unsigned.
    pub signatures: Option<Package>,
    /// The linker's package, and everything that it needs.
    pub linker: Vec<Package>,
}

impl LinkedFrom {
    /// Returns the packages with objects and signatures.
    pub fn packages(&self) -> impl Iterator<Item = &Package> {
        std::iter::once(&self.objects).chain(&self.signatures)
    }

    /// Returns name and version of the linker's package.
    pub fn linker_version(&self) -> String {
        let version = self.linker.first().map_or("", |package| package.version.as_str());
        format!("{LINKER} {version}")
    }

    /// Returns objects and linker for a message.
    pub fn describe(&self) -> String {
        let objects = &self.objects;
        let linker = self.linker_version();
        format!("linked from {} {} with ld of {linker}", objects.name, objects.version)
    }
}

/// Resolver of these packages, which remembers the linkers: they are the same for all of a release's packages.
pub(super) struct Linkers<'a> {
    archive: &'a Archive,
    known: BTreeMap<(String, String), Result<Vec<Package>, String>>,
}

impl<'a> Linkers<'a> {
    pub(super) fn new(archive: &'a Archive) -> Self {
        Self { archive, known: BTreeMap::new() }
    }

    /// Returns the packages that the modules of `package` are linked from: those that it depends on, in its own
    /// version where that is allowed.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) fn resolve(
        &mut self,
        package: &Package,
        objects: &Requirement,
    ) -> Result<LinkedFrom, String> {
        let objects = self.find(package, objects)?;
        let mut needed = stanza::requirements(package);
        let signatures = needed.find(|one| one.name.starts_with(SIGNATURES));
        let signatures = signatures.map(|wanted| self.find(package, wanted)).transpose()?;
        let linker = self.linker(&objects)?;
        Ok(LinkedFrom { objects, signatures, linker })
    }

    fn find(&self, package: &Package, wanted: &Requirement) -> Result<Package, String> {
        let fits = |version: &str| {
            wanted.version.as_ref().is_none_or(|(operator, bound)| operator.holds(version, bound))
        };
        let mut found = self.archive.packages(&wanted.name);
        found.retain(|one| fits(&one.version));
        let own = found.iter().position(|one| one.version == package.version);
        match found.is_empty() {
            true => Err(format!("no archive has {wanted}")),
            false => Ok(found.swap_remove(own.unwrap_or(0))),
        }
    }

    /// Returns the linker that the objects depend on, of their release where that has it.
    fn linker(&mut self, objects: &Package) -> Result<Vec<Package>, String> {
        let stated = stanza::requirements(objects).find(|one| one.name == LINKER).cloned();
        let wanted = stated.unwrap_or_else(|| Requirement::any(LINKER));
        let key = (objects.origin.text.clone(), wanted.to_string());
        let resolve = || headers::linker(self.archive, &wanted, objects).map_err(|e| e.one_line());
        self.known.entry(key).or_insert_with(resolve).clone()
    }
}
