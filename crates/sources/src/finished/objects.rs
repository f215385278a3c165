//! Objects of proprietary modules, unpacked for the linker.
//!
//! From memory, not tried with Canonical's packages: the directory `kernel/nvidia-BRANCH[srv]/bits` has the objects,
//! a script `BUILD` with the link commands, and `SHA256SUMS` of the linked modules; of the signatures' package
//! `bits/NAME.ko.sig` is to be appended to a module.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use super::recipe::{self, LinkCommand, is_module};
use super::{FinishedModules, LinkedFrom};
use longshore_core::durable::{read_failure, write_failure};
use longshore_core::failure::Failure;
use longshore_core::store::Store;
use longshore_debian::archive::Package;
use longshore_debian::bounds::Bounded;
use longshore_debian::deb;
use longshore_debian::faults;
use longshore_modules::module_signing::{Message, appended};

/// Maximum size of the objects together: Canonical's have some 200 MiB.
const MOST: u64 = 1 << 30;
/// Maximum number of objects.
const MOST_FILES: usize = 10_000;
/// Maximum size of a signature: Canonical's have 790 bytes.
const MOST_SIGNATURE: u64 = 1 << 20;
/// Directory with the objects, and the files in it that say what to do with them.
const BITS: &str = "bits";
const SCRIPT: &str = "BUILD";
const SUMS: &str = "SHA256SUMS";
/// Maintainer script that is read where there is no [`SCRIPT`].
const MAINTAINER_SCRIPT: &str = "postinst";

/// Objects that were unpacked, and the commands, digests and signatures for them.
#[derive(Debug)]
pub struct Objects {
    /// Link commands, in their order.
    pub commands: Vec<LinkCommand>,
    /// SHA-256 (hex) of the linked modules by file name.
    pub digests: BTreeMap<String, String>,
    /// Detached signatures by the module's file name.
    signatures: BTreeMap<String, Vec<u8>>,
}

impl Objects {
    /// Returns a linked module with its signature, or as it is where there is none for it.
    ///
    /// # Errors
    /// The reason why its signature is none that a kernel takes.
    pub fn signed(&self, name: &str, module: Vec<u8>) -> Result<Vec<u8>, String> {
        let Some(signature) = self.signatures.get(name) else { return Ok(module) };
        let bad = |why: String| format!("the signature of {name}: {why}");
        let length = module.len();
        let whole = [&module, &signature[..]].concat();
        match appended::split(&whole) {
            Ok((found, Some(_))) if found.len() == length => Ok(whole),
            Ok((_, Some(_))) => Err(bad("it states another length than it has".to_owned())),
            // A bare PKCS#7 message, as sign-file -d leaves it.
            Ok((_, None)) => {
                Message::parse(signature).map_err(|e| bad(e.to_string()))?;
                Ok(appended::append(&module, signature))
            }
            Err(why) => Err(bad(why.to_string())),
        }
    }
}

/// Unpacks the objects of packages that are in the store below the directory `into`, which is empty.
///
/// # Errors
/// Exit code 13 for a package that is damaged, has anything but files there, or lacks commands or digests, or has
/// others than the linker may get; 15 where `into` cannot be written.
pub fn unpack(
    finished: &FinishedModules,
    from: &LinkedFrom,
    store: &Store,
    into: &Path,
) -> Result<Objects, Failure> {
    let (objects, release) = (&from.objects, &finished.kernel.release);
    let (mut place, mut files) = (None::<PathBuf>, 0);
    let wanted = |path: &Path| below_bits(path, release).is_some();
    let reader = store.open_blob(&objects.sha256)?;
    deb::each_file(&objects.name, reader, MOST, &wanted, &mut |path, file| {
        let Some((of, name)) = below_bits(path, release) else { return Ok(()) };
        if place.get_or_insert_with(|| of.clone()) != &of {
            return Err(faults::bad(&objects.name, "it has objects in two directories"));
        }
        files += 1;
        if files > MOST_FILES {
            return Err(faults::bad(&objects.name, "it has too many objects"));
        }
        write(&objects.name, file, &into.join(name))
    })?;
    let place = place.ok_or_else(|| faults::bad(&objects.name, "it has no objects"))?;
    let bad = |why: String| faults::bad(&objects.name, &why);
    let sums = read_small(&into.join(SUMS))?.ok_or_else(|| bad(format!("it has no {SUMS}")))?;
    let digests = recipe::digests(&sums).map_err(bad)?;
    if digests.is_empty() {
        return Err(bad(format!("its {SUMS} has no module of the driver")));
    }
    let commands = match read_small(&into.join(SCRIPT))? {
        Some(script) => recipe::commands(&script).map_err(bad)?,
        None => of_maintainer_scripts([&finished.package, objects], store)?,
    };
    let signatures = match &from.signatures {
        Some(package) => signatures(package, &place, release, store)?,
        None => BTreeMap::new(),
    };
    Ok(Objects { commands, digests, signatures })
}

/// Returns the directory of a driver and the path below its `bits`, for a path of objects for the kernel `release`.
fn below_bits(path: &Path, release: &str) -> Option<(PathBuf, PathBuf)> {
    let merged = path.strip_prefix("usr").unwrap_or(path);
    let below = merged.strip_prefix("lib/modules").ok()?.strip_prefix(release).ok()?;
    let mut parts = below.components();
    let place = parts.by_ref().take_while(|part| *part != Component::Normal(BITS.as_ref()));
    let place: PathBuf = place.collect();
    let name = parts.as_path();
    (!name.as_os_str().is_empty()).then(|| (place, name.to_path_buf()))
}

/// Reads the link commands of the first maintainer script that has some.
fn of_maintainer_scripts(
    packages: [&Package; 2],
    store: &Store,
) -> Result<Vec<LinkCommand>, Failure> {
    let mut why = format!("it has no {SCRIPT}");
    for package in packages {
        let reader = store.open_blob(&package.sha256)?;
        let script = deb::control_file(&package.name, reader, MAINTAINER_SCRIPT)?;
        let Some(script) = script else { continue };
        match recipe::commands(&script) {
            Ok(commands) => return Ok(commands),
            Err(of_script) => {
                why = format!(
                    "it has no {SCRIPT}; {MAINTAINER_SCRIPT} of {}: {of_script}",
                    package.name
                );
            }
        }
    }
    Err(faults::bad(&packages[1].name, &why))
}

/// Reads the signatures for the modules of the driver in `place`; the package has those of all drivers.
fn signatures(
    package: &Package,
    place: &Path,
    release: &str,
    store: &Store,
) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let module_of = |path: &Path| {
        let (of, name) = below_bits(path, release)?;
        let module = name.to_str()?.strip_suffix(".sig")?;
        (of == place && is_module(module)).then(|| module.to_owned())
    };
    let mut found = BTreeMap::new();
    let reader = store.open_blob(&package.sha256)?;
    let wanted = |path: &Path| module_of(path).is_some();
    deb::each_file(&package.name, reader, MOST, &wanted, &mut |path, file| {
        let Some(module) = module_of(path) else { return Ok(()) };
        let damaged = |e| faults::damaged(&package.name, e);
        let mut bytes = Vec::new();
        Bounded::new(file, MOST_SIGNATURE).read_to_end(&mut bytes).map_err(damaged)?;
        match found.insert(module.clone(), bytes) {
            None => Ok(()),
            Some(_) => {
                Err(faults::bad(&package.name, &format!("it has two signatures of {module}")))
            }
        }
    })?;
    Ok(found)
}

fn write(package: &str, file: &mut dyn Read, to: &Path) -> Result<(), Failure> {
    let in_the_way = |e: &io::Error| {
        matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory)
    };
    let failed = |e: io::Error| match in_the_way(&e) {
        true => {
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            faults::bad(package, &format!("it holds {name} twice"))
        }
        false => write_failure(to, e),
    };
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
    // create_new: no second file takes the place of the first.
    let mut target = OpenOptions::new().write(true).create_new(true).open(to).map_err(failed)?;
    let mut chunk = vec![0; 256 << 10];
    loop {
        let n = file.read(&mut chunk).map_err(|e| faults::damaged(package, e))?;
        if n == 0 {
            return Ok(());
        }
        target.write_all(&chunk[..n]).map_err(|e| write_failure(to, e))?;
    }
}

/// Reads a file that was unpacked, up to a size that is refused as a script; None where there is none.
fn read_small(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    if !path.is_file() {
        return Ok(None);
    }
    let file = fs::File::open(path).map_err(|e| read_failure(path, e))?;
    let mut bytes = Vec::new();
    let mut file = file.take(recipe::MOST_SCRIPT as u64 + 1);
    file.read_to_end(&mut bytes).map_err(|e| read_failure(path, e))?;
    Ok(Some(bytes))
}
