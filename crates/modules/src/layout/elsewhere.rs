//! Set of modules that were compiled elsewhere: by a kernel's vendor, or with clang.
//!
//! The modules contain their driver, kernel and architecture, and their compiler. Their kernel's
//! version string (`uname -v`) has to be given; headers, options and patches are unknown. They are in a
//! directory that a person names, or were unpacked from a package of an archive.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::artifact::{HeadersFrom, ModuleEntry, ModuleKey, ModuleSet};
use crate::kernel::modinfo::{self, Provenance};
use crate::layout::MAX_MODULE;
use crate::module_signing::{Message, SignedBy, appended};
use crate::sets::SetStore;
use longshore_core::digest::hex;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::root::reopen;
use longshore_core::store::Store;

/// Limit of names in a directory of modules.
const MOST_NAMES: usize = 10_000;
/// Endings of compressed modules.
const COMPRESSED: [&str; 3] = [".ko.xz", ".ko.zst", ".ko.gz"];
/// Beginning of the key's option that names the linker of modules that were linked here.
pub const LINKED_WITH: &str = "linked-with=";
/// Placeholder in the key for unknown values.
const UNKNOWN: &str = "unknown";

/// A directory of finished modules, and the facts that they do not contain.
#[derive(Debug, Clone)]
pub struct CompiledElsewhere {
    /// The directory; files in it that are not called `*.ko` are ignored.
    pub dir: PathBuf,
    /// `uname -r` of the kernel they have to be for; if None, that of nvidia.ko.
    pub release: Option<String>,
    /// The package that they were unpacked from; None where a person names the directory.
    pub package: Option<OfPackage>,
}

/// A package with finished modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfPackage {
    /// Name, version and architecture, joined by `_`.
    pub id: String,
    /// sha256 (hex) of the package.
    pub sha256: String,
    /// Further packages that the modules were made of: their ids, and their sha256 (hex).
    pub beside: BTreeMap<String, String>,
    /// Linker that the modules were linked with here, with its version; None where they came whole.
    pub linker: Option<String>,
}

/// Modules that were examined and fit together; not stored yet.
#[derive(Debug)]
pub struct Examined {
    of: CompiledElsewhere,
    entries: Vec<ModuleEntry>,
    driver_version: String,
    flavour: Flavour,
    release: String,
    made_by: Provenance,
    signed_by: Option<SignedBy>,
}

impl CompiledElsewhere {
    /// Examines every module of the directory.
    ///
    /// # Errors
    /// Exit code 2 where the directory cannot be read; 13 where it holds no nvidia.ko, a file that
    /// is no module, or modules that are not of one driver and one kernel.
    pub fn examine(&self) -> Result<Examined, Failure> {
        let files = self.files()?;
        let images = || files.iter().map(|file| Ok((file, self.read(file)?)));
        let nvidia = images().find_map(|image| match image {
            Ok((file, image)) => match modinfo::read(&image) {
                Ok(info) if info.name.as_deref() == Some("nvidia") => Some(Ok((image, info))),
                Ok(_) => None,
                Err(why) => Some(Err(self.wrong(&format!("{file}: {why}")))),
            },
            Err(failure) => Some(Err(failure)),
        });
        let (image, info) = nvidia.unwrap_or_else(|| Err(self.wrong("it has no nvidia.ko")))?;
        let release = info.kernel_release().unwrap_or_default().to_owned();
        if let Some(wanted) = self.release.as_ref().filter(|wanted| **wanted != release) {
            let what = format!("nvidia.ko was built for the kernel {release:?}, not {wanted:?}");
            return Err(self.wrong(&what));
        }
        let driver_version = info.version.filter(|version| DriverVersion::parse(version).is_some());
        let driver_version = driver_version
            .ok_or_else(|| self.wrong("nvidia.ko does not state its driver version"))?;
        let flavour = flavour_of(info.license.as_deref().unwrap_or_default())
            .ok_or_else(|| self.wrong("the licence of nvidia.ko is of neither flavour"))?;
        let made_by =
            modinfo::provenance(&image).map_err(|why| self.wrong(&format!("nvidia.ko: {why}")))?;
        let signed_by = self.signer("nvidia.ko", &image)?;
        drop(image);
        let mut entries = Vec::new();
        for image in images() {
            let (file, image) = image?;
            let entry = ModuleEntry::describe(file, &image, &release)
                .map_err(|why| self.wrong(&why.to_string()))?;
            let vermagic = info.vermagic.as_deref().unwrap_or_default();
            self.fits(&entry, &driver_version, vermagic)?;
            let of =
                modinfo::provenance(&image).map_err(|e| self.wrong(&format!("{file}: {e}")))?;
            if of.arch != made_by.arch {
                let what = format!("{file} is for {}, nvidia.ko for {}", of.arch, made_by.arch);
                return Err(self.wrong(&what));
            }
            if self.signer(file, &image)? != signed_by {
                return Err(self.wrong(&format!("{file} is not signed as nvidia.ko is")));
            }
            entries.push(entry);
        }
        let entries = in_load_order(entries)
            .ok_or_else(|| self.wrong("its modules depend on each other in a cycle"))?;
        let of = self.clone();
        Ok(Examined { of, entries, driver_version, flavour, release, made_by, signed_by })
    }

    /// Returns the signer that a package's module states; a person's modules count as unsigned.
    fn signer(&self, file: &str, image: &[u8]) -> Result<Option<SignedBy>, Failure> {
        if self.package.is_none() {
            return Ok(None);
        }
        let bad = |why: String| self.wrong(&format!("the signature of {file}: {why}"));
        let (_, message) = appended::split(image).map_err(|e| bad(e.to_string()))?;
        let message = message.map(Message::parse).transpose().map_err(|e| bad(e.to_string()))?;
        Ok(message.as_ref().map(SignedBy::stated))
    }

    /// The names of the modules' files, sorted.
    fn files(&self) -> Result<Vec<String>, Failure> {
        let listed = || -> io::Result<Vec<String>> {
            let names = std::fs::read_dir(&self.dir)?.take(MOST_NAMES);
            names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        };
        let mut names = listed()
            .or_fail(FailureKind::Usage, || format!("reading {}", self.dir.display()))
            .map_err(|f| f.remedy("give --modules the directory with the driver's .ko files"))?;
        if let Some(name) = names.iter().find(|n| COMPRESSED.iter().any(|kind| n.ends_with(kind))) {
            return Err(self.wrong(&format!("{name} is compressed: decompress it first")));
        }
        names.retain(|name| name.ends_with(".ko"));
        names.sort();
        Ok(names)
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, Failure> {
        read_regular(&self.dir.join(file))
            .map_err(|why| self.wrong(&format!("{file} cannot be used: {why}")))
    }

    fn fits(&self, entry: &ModuleEntry, driver: &str, vermagic: &str) -> Result<(), Failure> {
        let file = &entry.file;
        if !entry.name.starts_with("nvidia") {
            return Err(self.wrong(&format!("{file} is no module of NVIDIA's driver")));
        }
        if entry.version.as_deref().is_some_and(|version| version != driver) {
            let version = entry.version.as_deref().unwrap_or_default();
            return Err(
                self.wrong(&format!("{file} is of driver {version}, nvidia.ko of {driver}"))
            );
        }
        if entry.vermagic != vermagic {
            return Err(self.wrong(&format!(
                "{file} was built for {:?}, nvidia.ko for {vermagic:?}",
                entry.vermagic
            )));
        }
        Ok(())
    }

    fn wrong(&self, what: &str) -> Failure {
        let cause = match &self.package {
            Some(package) => format!("the modules of the package {}: {what}", package.id),
            None => format!("the modules in {}: {what}", self.dir.display()),
        };
        Failure::new(FailureKind::Verification, cause).remedy(match self.package {
            Some(_) => {
                "report it to the archive, or use no such packages (module-packages = false)"
            }
            None => {
                "give --modules a directory with all modules of one driver, built for one kernel"
            }
        })
    }
}

impl Examined {
    /// `uname -r` of their kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Imports the modules and the set of them into the store.
    ///
    /// # Errors
    /// Exit code 13 where a module has changed meanwhile, 15 where the store cannot be written.
    pub fn import(self, kernel_version: &str, store: &Store) -> Result<ModuleSet, Failure> {
        let set = self.store_modules(kernel_version, store)?;
        store.put_set(&set)?;
        Ok(set)
    }

    /// Imports the modules into the store, and returns the set of them, which is not recorded yet.
    ///
    /// # Errors
    /// As [`Examined::import`].
    pub fn store_modules(self, kernel_version: &str, store: &Store) -> Result<ModuleSet, Failure> {
        let of = self.of.clone();
        let set = self.into_set(kernel_version);
        set.check().map_err(|why| of.wrong(&why.to_string()))?;
        for entry in &set.modules {
            let image = of.read(&entry.file)?;
            if hex(&Sha256::digest(&image)) != entry.sha256 {
                return Err(of.wrong(&format!("{} has changed meanwhile", entry.file)));
            }
            store.put(&image)?;
        }
        Ok(set)
    }

    fn into_set(self, kernel_version: &str) -> ModuleSet {
        let (headers_from, headers, driver_digest) = match &self.of.package {
            Some(OfPackage { id, sha256, beside, .. }) => {
                let mut named = beside.clone();
                named.insert(id.clone(), sha256.clone());
                (HeadersFrom::Package, named, sha256.clone())
            }
            None => (HeadersFrom::Unknown, BTreeMap::new(), self.digest()),
        };
        let linker = self.of.package.as_ref().and_then(|package| package.linker.as_ref());
        let key = ModuleKey {
            driver_version: self.driver_version,
            flavour: self.flavour,
            driver_digest,
            kernel_release: self.release,
            kernel_version: kernel_version.to_owned(),
            arch: self.made_by.arch.to_owned(),
            headers,
            compiler: self.made_by.compiler.unwrap_or_else(|| UNKNOWN.to_owned()),
            options: linker.map(|linker| format!("{LINKED_WITH}{linker}")).into_iter().collect(),
            patches: BTreeMap::new(),
            signed_by: self.signed_by,
        };
        ModuleSet { key, headers_from, modules: self.entries }
    }

    /// The digest of all modules: two sets with the same key are interchangeable, and here only
    /// identical ones are.
    fn digest(&self) -> String {
        let mut all = Sha256::new();
        self.entries.iter().for_each(|entry| all.update(&entry.sha256));
        hex(&all.finalize())
    }
}

/// Reads a regular file; follows no link, and does not open a pipe.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_PATH;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if found.is_symlink() {
        return Err(io::Error::other("it is a link; name the directory that has the file"));
    }
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > MAX_MODULE {
        return Err(io::Error::other("it is larger than any module"));
    }
    let mut image = Vec::new();
    reopen(&file)?.take(MAX_MODULE).read_to_end(&mut image)?;
    Ok(image)
}

/// Sorts modules so that each comes after those of the set that it needs; None for a cycle.
fn in_load_order(mut left: Vec<ModuleEntry>) -> Option<Vec<ModuleEntry>> {
    let mut order: Vec<ModuleEntry> = Vec::new();
    while !left.is_empty() {
        let is_left = |name: &String| left.iter().any(|entry| entry.name == *name);
        let next = left.iter().position(|entry| !entry.depends.iter().any(is_left))?;
        order.push(left.remove(next));
    }
    Some(order)
}

/// The flavour by the licence in modinfo (nvidia/nv.c and kernel-open/nvidia/nv.c).
fn flavour_of(license: &str) -> Option<Flavour> {
    match license {
        "Dual MIT/GPL" => Some(Flavour::Open),
        "NVIDIA" | "Proprietary" => Some(Flavour::Proprietary),
        _ => None,
    }
}
