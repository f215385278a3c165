//! Set of built kernel modules: its key and its content.

pub mod build_record;
pub mod core_objects;
pub mod headers;
pub mod image;
pub mod index;
pub mod query;
pub mod root_image;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::kernel::modinfo::{self, ModInfoError};
use crate::module_signing::{self, SignedBy};
pub use build_record::{BuildRecord, CoreInput, InputPackage};
pub use headers::HeadersFrom;
use longshore_core::digest::is_sha256;
use longshore_core::flavour::Flavour;
use longshore_core::kernel_id::KernelId;
pub use query::SetQuery;

/// Name in [`ModuleKey::patches`] of the patches that the driver's own package carries in a series and leaves to
/// whoever compiles: the digest is of all of them.
pub const PACKAGING_PATCHES: &str = "packaging-patches";
/// Maximum length of a tag, by the distribution specification.
const LONGEST_TAG: usize = 128;

/// Key of a set: everything that determines its modules; two sets with the same key are
/// interchangeable.
///
/// Debian's ABI bumps change more than half of all symbol CRCs, so the kernel's release **and**
/// its version string (`uname -v`) are part of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleKey {
    /// Upstream driver version, for example `535.261.03`.
    pub driver_version: String,
    /// Flavour of the kernel modules.
    pub flavour: Flavour,
    /// sha256 (hex) of the package the kernel sources, or the finished modules, came from.
    pub driver_digest: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// `uname -v`; empty where the build of the kernel is not known, as of finished modules that were fetched
    /// for another kernel than the running one.
    pub kernel_version: String,
    /// `uname -m`, for example `x86_64`.
    pub arch: String,
    /// Header packages: `name_version_arch` -> sha256 (hex). Of finished modules, their package.
    pub headers: BTreeMap<String, String>,
    /// The compiler by its own version line, for example `gcc-12 (Debian 12.2.0-14) 12.2.0`.
    pub compiler: String,
    /// Arguments of make that change the result.
    pub options: Vec<String>,
    /// Compatibility patches that were applied to the sources: name -> sha256 (hex) of the diff. The patches of the
    /// driver's package are one of them, [`PACKAGING_PATCHES`].
    /// Left out if empty: such sets keep the key they had before there were patches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub patches: BTreeMap<String, String>,
    /// Signer of the modules for the kernel; left out if unsigned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<SignedBy>,
}

/// One module of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleEntry {
    /// The kernel's name for it (underscores), for example `nvidia_uvm`.
    pub name: String,
    /// File name, for example `nvidia-uvm.ko`.
    pub file: String,
    /// sha256 (hex) of the file.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// modinfo `vermagic`.
    pub vermagic: String,
    /// modinfo `version`, if the module has one.
    pub version: Option<String>,
    /// modinfo `srcversion`, if the module has one.
    pub srcversion: Option<String>,
    /// modinfo `depends`, in kernel names.
    pub depends: Vec<String>,
}

/// A set of modules: the config blob of its OCI manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleSet {
    /// Its key.
    pub key: ModuleKey,
    /// Origin of the headers in the key; left out for an archive.
    #[serde(default, skip_serializing_if = "HeadersFrom::are_signed")]
    pub headers_from: HeadersFrom,
    /// The modules, in load order.
    pub modules: Vec<ModuleEntry>,
}

impl ModuleKey {
    /// Returns `uname -v` of the kernel; None where its build is not known.
    pub fn kernel_build(&self) -> Option<&str> {
        Some(self.kernel_version.as_str()).filter(|version| !version.is_empty())
    }

    /// True if modules with this key are for the kernel, or may be where either build is not known.
    pub fn is_for(&self, kernel: &KernelId<'_>) -> bool {
        let is_same = |version| self.kernel_build().is_none_or(|own| own == version);
        self.kernel_release == kernel.release
            && kernel.version.is_none_or(is_same)
            && self.arch == kernel.arch
    }

    /// sha256 (hex) over everything in the key.
    pub fn digest(&self) -> String {
        // A struct of strings, lists and sorted maps always serializes, and always the same way.
        let json = serde_json::to_vec(self).unwrap_or_default();
        longshore_core::digest::hex(&Sha256::digest(&json))
    }

    /// The key of the same modules without a signature.
    #[must_use]
    pub fn unsigned(&self) -> Self {
        Self { signed_by: None, ..self.clone() }
    }

    /// A file name for the set: a readable part, then a part that makes it unique.
    pub fn file_stem(&self) -> String {
        let digest = self.digest();
        let name = format!("{}-{}-{}", self.driver_version, self.flavour, self.kernel_release);
        format!("{}-{}", legal(&name), &digest[..12])
    }

    /// A valid tag for OCI registries (at most 128 of `[A-Za-z0-9._-]`), for example
    /// `535.261.03-open-6.1.0-50-amd64-x86_64`. It only finds sets; the key determines what a set
    /// is for.
    pub fn tag(&self) -> String {
        tag(&self.driver_version, self.flavour, &self.kernel_release, &self.arch)
    }
}

/// The tag of sets of one driver for one kernel release.
pub fn tag(driver_version: &str, flavour: Flavour, kernel_release: &str, arch: &str) -> String {
    let whole = format!("{driver_version}-{flavour}-{kernel_release}-{arch}");
    let tag = legal(&whole);
    if tag.len() <= LONGEST_TAG {
        return tag;
    }
    let digest = longshore_core::digest::hex(&Sha256::digest(&whole));
    format!("{}-{}", &tag[..LONGEST_TAG - 13], &digest[..12])
}

/// Replaces the characters of `text` that tags cannot have.
pub fn legal(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect()
}

/// The reason why a set, or one of its modules, is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SetError {
    /// The set has no module.
    #[error("the set holds no module")]
    Empty,
    /// Two modules have the same name.
    #[error("the set holds the module {0} twice")]
    Twice(String),
    /// A module's file name is not a plain file name.
    #[error("{0:?} is not valid as a module's file name")]
    FileName(String),
    /// A digest that is not 64 lower-case hex digits.
    #[error("{0:?} is no sha256 digest")]
    Digest(String),
    /// The set names no build of its kernel, and is not of a package.
    #[error("the set does not say which build of {0:?} it is for")]
    NoBuild(String),
    /// A module was built for another kernel.
    #[error("{file} was built for the kernel {found:?}, the set is for {wanted:?}")]
    Kernel {
        /// The module's file.
        file: String,
        /// Release in its vermagic.
        found: String,
        /// Release of the set.
        wanted: String,
    },
    /// The set's entry for a module differs from the module.
    #[error("{file}: the set says {field} is {said:?}, the module says {found:?}")]
    Differs {
        /// The module's file.
        file: String,
        /// The field.
        field: &'static str,
        /// Its value in the set.
        said: String,
        /// Its value in the module.
        found: String,
    },
    /// A module that cannot be read.
    #[error("{file}: {cause}")]
    Unreadable {
        /// The module's file.
        file: String,
        /// Why.
        cause: ModInfoError,
    },
}

impl ModuleSet {
    /// True if it has every module of `names` (kernel names).
    pub fn has_all<'n>(&self, names: impl IntoIterator<Item = &'n (impl AsRef<str> + 'n)>) -> bool {
        names.into_iter().all(|name| self.modules.iter().any(|m| m.name == name.as_ref()))
    }

    /// Checks names, digests and release: everything that needs no module's bytes.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), SetError> {
        if self.modules.is_empty() {
            return Err(SetError::Empty);
        }
        // Such a set counts for every build of the release, until its symbols are compared.
        if self.key.kernel_build().is_none() && self.headers_origin() != HeadersFrom::Package {
            return Err(SetError::NoBuild(self.key.kernel_release.clone()));
        }
        let mut seen = BTreeSet::new();
        for module in &self.modules {
            let plain = module.file.ends_with(".ko")
                && !module.file.starts_with('.')
                && !module.file.contains(['/', '\0']);
            if !plain {
                return Err(SetError::FileName(module.file.clone()));
            }
            if !is_sha256(&module.sha256) {
                return Err(SetError::Digest(module.sha256.clone()));
            }
            if !seen.insert(&module.name) || !seen.insert(&module.file) {
                return Err(SetError::Twice(module.name.clone()));
            }
            check_release(&module.file, &module.vermagic, &self.key.kernel_release)?;
        }
        Ok(())
    }
}

impl ModuleEntry {
    /// Describes the module in `image`, built for `kernel_release` and called `file`.
    ///
    /// # Errors
    /// If it is no module, or one for another kernel.
    pub fn describe(file: &str, image: &[u8], kernel_release: &str) -> Result<Self, SetError> {
        let info = modinfo::read(image)
            .map_err(|cause| SetError::Unreadable { file: file.to_owned(), cause })?;
        let vermagic = info.vermagic.clone().unwrap_or_default();
        check_release(file, &vermagic, kernel_release)?;
        let from_file = || file.trim_end_matches(".ko").replace('-', "_");
        Ok(Self {
            name: info.name.clone().unwrap_or_else(from_file),
            file: file.to_owned(),
            sha256: longshore_core::digest::hex(&Sha256::digest(image)),
            size: image.len() as u64,
            vermagic,
            version: info.version,
            srcversion: info.srcversion,
            depends: info.depends,
        })
    }

    /// Compares this entry, of a set with this key, with the module in `image`.
    ///
    /// # Errors
    /// The first field that differs.
    pub fn check_image(&self, image: &[u8], key: &ModuleKey) -> Result<(), SetError> {
        let found = Self::describe(&self.file, image, &key.kernel_release)?;
        let optional = |v: &Option<String>| v.clone().unwrap_or_default();
        let fields = [
            ("sha256", self.sha256.clone(), found.sha256.clone()),
            ("size", self.size.to_string(), found.size.to_string()),
            ("name", self.name.clone(), found.name.clone()),
            ("vermagic", self.vermagic.clone(), found.vermagic.clone()),
            ("version", optional(&self.version), optional(&found.version)),
            ("srcversion", optional(&self.srcversion), optional(&found.srcversion)),
            ("depends", self.depends.join(","), found.depends.join(",")),
        ];
        for (field, said, found) in fields {
            if said != found {
                return Err(SetError::Differs { file: self.file.clone(), field, said, found });
            }
        }
        // A plan for a kernel that requires signatures relies on the key's signer.
        if key.signed_by.is_some() && !module_signing::is_signed(image) {
            return Err(SetError::Differs {
                file: self.file.clone(),
                field: "signed_by",
                said: "a signer".into(),
                found: "no signature".into(),
            });
        }
        Ok(())
    }
}

fn check_release(file: &str, vermagic: &str, wanted: &str) -> Result<(), SetError> {
    let found = vermagic.split_ascii_whitespace().next().unwrap_or_default();
    if found == wanted {
        return Ok(());
    }
    Err(SetError::Kernel {
        file: file.to_owned(),
        found: found.to_owned(),
        wanted: wanted.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::set;
    use rstest::rstest;

    #[test]
    fn a_tag_is_one_that_registries_take() {
        assert_eq!(set().key.tag(), "535.261.03-open-6.12.117_deb13-amd64-x86_64");
        let mut long = set().key;
        long.kernel_release = "6".repeat(200);
        let (one, other) = (long.tag(), tag("1", Flavour::Open, &"6".repeat(201), "x86_64"));
        assert!(longshore_core::image_reference::is_tag(&one) && one.len() == 128, "{one}");
        assert_ne!(one[120..], other[120..]);
    }

    #[test]
    fn another_kernel_version_is_another_key() {
        let (one, mut other) = (set().key, set().key);
        other.kernel_version.push('x');
        assert_ne!(one.digest(), other.digest());
        assert_ne!(one.file_stem(), other.file_stem());
    }

    #[test]
    fn a_patch_is_part_of_the_key_and_none_is_as_it_was() {
        let (one, mut other) = (set().key, set().key);
        let json = serde_json::to_string(&one).expect("serializes");
        assert!(!json.contains("patches"), "{json}");
        assert_eq!(serde_json::from_str::<ModuleKey>(&json).expect("reads"), one);
        other.patches.insert("a".into(), "4".repeat(64));
        assert_ne!(one.digest(), other.digest());
        let json = serde_json::to_string(&other).expect("serializes");
        assert_eq!(serde_json::from_str::<ModuleKey>(&json).expect("reads"), other);
    }

    #[test]
    fn a_packages_modules_may_be_for_an_unknown_build() {
        let mut set = ModuleSet { headers_from: HeadersFrom::Package, ..set() };
        set.key.kernel_version.clear();
        set.check().expect("its symbols are compared before a load");
    }

    #[rstest]
    #[case::empty(|s: &mut ModuleSet| s.modules.clear(), "no module")]
    #[case::outside(|s: &mut ModuleSet| s.modules[0].file = "../x.ko".into(), "not valid")]
    #[case::no_ko(|s: &mut ModuleSet| s.modules[0].file = "x".into(), "not valid")]
    #[case::digest(|s: &mut ModuleSet| s.modules[0].sha256 = "../../etc".into(), "sha256")]
    #[case::twice(|s: &mut ModuleSet| s.modules.push(s.modules[0].clone()), "twice")]
    #[case::no_build(|s: &mut ModuleSet| s.key.kernel_version.clear(), "which build")]
    #[case::kernel(|s: &mut ModuleSet| s.modules[0].vermagic = "6.1.0 SMP ".into(), "6.1.0")]
    fn a_wrong_set_is_refused(#[case] change: fn(&mut ModuleSet), #[case] said: &str) {
        let mut set = set();
        set.check().expect("the set is right before the change");
        change(&mut set);
        let error = set.check().expect_err("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
}
