//! Statements about a compiled set: its provenance, and a bill of materials.

mod slsa;
mod spdx;

use longshore_core::value::Uri;

use crate::artifact::image::hex_of;
use crate::artifact::{BuildRecord, InputPackage, ModuleSet, PACKAGING_PATCHES};
use crate::signature::statement::PredicateType;

/// A compiled set, and its compile.
#[derive(Debug, Clone, Copy)]
pub struct Compiled<'a> {
    /// The set.
    pub set: &'a ModuleSet,
    /// Record of its compile.
    pub record: &'a BuildRecord,
    /// Identity of the host or service that compiled it, as its operator names it.
    pub builder: &'a Uri,
}

impl Compiled<'_> {
    /// Returns the predicates of its attestations, with their types. The same set and record always
    /// give the same bytes.
    pub fn predicates(&self) -> Vec<(PredicateType, serde_json::Value)> {
        vec![
            (PredicateType::named(PredicateType::PROVENANCE), slsa::predicate(self)),
            (PredicateType::named(PredicateType::SPDX), spdx::document(self)),
        ]
    }

    /// Returns everything that the modules were made of, and the tools.
    fn materials(&self) -> Vec<Material> {
        let (key, packages) = (&self.set.key, &self.record.packages);
        let driver = &self.record.driver;
        let mut materials =
            vec![Material::new(Role::Driver, driver, &key.driver_version, &key.driver_digest)];
        materials.extend(packages.iter().map(|package| self.of_package(package)));
        // Those that were compiled here are made of the packages above.
        let pulled = self.record.core.as_ref().and_then(|core| hex_of(core.pulled.as_deref()?));
        materials.extend(pulled.map(|sha256| {
            Material::new(Role::CoreObjects, "core-objects", &key.driver_version, sha256)
        }));
        // Headers that are no packages of the build root: directories, or a given root.
        let others = key
            .headers
            .iter()
            .filter(|(_, sha256)| !packages.iter().any(|package| package.sha256 == **sha256));
        let headers = |(name, sha256): (&String, &String)| {
            Material::new(Role::Headers, name, &key.kernel_release, sha256)
        };
        materials.extend(others.map(headers));
        materials.extend(key.patches.iter().map(|(name, sha256)| {
            let is_packaging = name == PACKAGING_PATCHES;
            let role = if is_packaging { Role::PackagingPatches } else { Role::Patch };
            Material::new(role, name, "", sha256)
        }));
        materials
    }

    fn of_package(&self, package: &InputPackage) -> Material {
        let role = match package {
            _ if self.set.key.headers.values().any(|sha256| *sha256 == package.sha256) => {
                Role::Headers
            }
            _ if package.name == self.record.compiler => Role::Compiler,
            _ => Role::Tool,
        };
        let uri = Some(package_url(package, self.vendor()));
        Material { uri, ..Material::new(role, &package.name, &package.version, &package.sha256) }
    }

    /// Returns the distribution that the packages are of: that of the kernel, which has its headers
    /// and its compiler in one archive.
    fn vendor(&self) -> &'static str {
        if self.set.key.kernel_version.contains("Ubuntu") { "ubuntu" } else { "debian" }
    }
}

/// Part that a material has in a compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "kebab-case")]
enum Role {
    Driver,
    CoreObjects,
    Headers,
    Compiler,
    Tool,
    Patch,
    PackagingPatches,
}

/// An input of a compile.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Material {
    role: Role,
    name: String,
    /// Empty where it has none.
    version: String,
    /// sha256 (hex); empty where it is not known.
    sha256: String,
    /// Package URL.
    uri: Option<String>,
}

impl Material {
    /// Returns one without a package URL.
    fn new(role: Role, name: &str, version: &str, sha256: &str) -> Self {
        let [name, version, sha256] = [name, version, sha256].map(str::to_owned);
        Self { role, name, version, sha256, uri: None }
    }
}

/// Returns the package URL (github.com/package-url/purl-spec).
fn package_url(package: &InputPackage, vendor: &str) -> String {
    let (name, version) = (escaped(&package.name), escaped(&package.version));
    format!("pkg:deb/{vendor}/{name}@{version}?arch={}", escaped(&package.arch))
}

/// Percent-encodes all but the characters that RFC 3986 never reserves.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests;
