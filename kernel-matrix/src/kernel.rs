//! A kernel of the archive, in the form that a VM needs: bzImage, the modules for the initramfs,
//! and all modules as a disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_debian::archive::Package;
use longshore_debian::deb;

use crate::bits::Bits;
use crate::cache::Cache;
use crate::disk;
use crate::error::{At, Error};
use crate::initramfs::Modules;
use crate::matrix::KernelWanted;
use crate::process::{LIMIT, run};

/// A kernel that is ready to boot.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// bzImage.
    pub vmlinuz: PathBuf,
    /// A `/lib/modules/RELEASE` with the initramfs's modules.
    pub modules: PathBuf,
    /// ext4 image for /usr/lib/modules.
    pub disk: PathBuf,
}

/// Returns the packages of a kernel, the one with the bzImage first.
///
/// # Errors
/// The suite has no such meta-package, or a package that it depends on is missing.
pub fn resolve(bits: &Bits, wanted: &KernelWanted) -> Result<Vec<Package>, Error> {
    let meta = bits.newest(&wanted.package, &wanted.suite)?;
    let mut found: Vec<Package> = Vec::new();
    let mut open = vec![meta];
    while let Some(package) = open.pop() {
        for name in needed(&package) {
            if !found.iter().any(|p| p.name == name) {
                let next = bits.newest(&name, &wanted.suite)?;
                found.push(next.clone());
                open.push(next);
            }
        }
    }
    if found.is_empty() {
        let what = format!("{} in {} points at no kernel", wanted.package, wanted.suite);
        return Err(Error::Unexpected(what));
    }
    Ok(found)
}

/// Returns the kernel's own packages that a package depends on: `linux-image-RELEASE`, and since
/// 7.0 also `linux-base-RELEASE`, `linux-binary-RELEASE`, `linux-modules-RELEASE`.
fn needed(package: &Package) -> Vec<String> {
    const PARTS: &[&str] = &["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
    let first = package.depends.iter().filter_map(|clause| clause.0.first());
    first.map(|r| r.name.clone()).filter(|n| PARTS.iter().any(|part| n.starts_with(part))).collect()
}

/// Returns the `uname -r` of the kernel in `linux-image-RELEASE`.
pub fn release_of(image: &Package) -> String {
    image.name.trim_start_matches("linux-image-").trim_end_matches("-unsigned").to_owned()
}

/// Unpacks the packages and makes the disk, or returns the cached result.
///
/// # Errors
/// A package cannot be fetched or unpacked; depmod or mke2fs failed.
pub fn make(cache: &Cache, bits: &Bits, packages: &[Package]) -> Result<Kernel, Error> {
    let digests: Vec<&str> = packages.iter().map(|p| p.sha256.as_str()).collect();
    let dir = cache.produce("kernel", &digests, |dir| fill(dir, bits, packages))?;
    let all = dir.join("modules");
    let release = only_name(&all)?;
    Ok(Kernel {
        vmlinuz: dir.join("vmlinuz"),
        modules: all.join(&release),
        disk: dir.join("modules.ext4"),
        release,
    })
}

fn fill(dir: &Path, bits: &Bits, packages: &[Package]) -> Result<(), Error> {
    bits.fetch(packages)?;
    let tree = dir.join("tree");
    fs::create_dir(&tree).at("make", &tree)?;
    for package in packages {
        let blob = bits.store().blob_path(&package.sha256);
        let reader = File::open(&blob).at("open", &blob)?;
        deb::unpack(&package.name, reader, &tree, &mut place)?;
    }
    let all = tree.join("lib/modules");
    let release = only_name(&all)?;
    let boot = tree.join(format!("boot/vmlinuz-{release}"));
    fs::rename(&boot, dir.join("vmlinuz")).at("take", &boot)?;
    run(Command::new("depmod").arg("-b").arg(&tree).arg(&release), LIMIT)?;
    disk::make(&all, &dir.join("modules.ext4"), 8)?;
    keep_for_initramfs(&all.join(&release), &dir.join("modules").join(&release))?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}

/// Maps a path to its place; only what is booted and loaded is unpacked. Since 7.0 modules lie
/// below usr/lib.
fn place(path: &Path) -> Option<PathBuf> {
    let path = path.strip_prefix("usr").unwrap_or(path);
    let wanted = path.starts_with("lib/modules")
        || path.parent() == Some(Path::new("boot"))
            && path.file_name()?.to_string_lossy().starts_with("vmlinuz-");
    wanted.then(|| path.to_path_buf())
}

fn keep_for_initramfs(from: &Path, to: &Path) -> Result<(), Error> {
    let mut kept = Modules::open(from)?.needed()?;
    kept.extend(["modules.dep", "modules.builtin"].map(str::to_owned));
    for file in kept {
        let target = to.join(&file);
        let parent = target.parent().unwrap_or(to);
        fs::create_dir_all(parent).at("make", parent)?;
        fs::copy(from.join(&file), &target).at("keep", &target)?;
    }
    Ok(())
}

fn only_name(dir: &Path) -> Result<String, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).at("read", dir)? {
        names.push(entry.at("read", dir)?.file_name().to_string_lossy().into_owned());
    }
    match names.as_slice() {
        [one] => Ok(one.clone()),
        _ => Err(Error::Unexpected(format!("{}: one kernel wanted, {names:?}", dir.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_image_and_modules_are_unpacked() {
        for (path, wanted) in [
            ("boot/vmlinuz-6.1.0-50-amd64", Some("boot/vmlinuz-6.1.0-50-amd64")),
            (
                "lib/modules/6.1.0-50-amd64/modules.order",
                Some("lib/modules/6.1.0-50-amd64/modules.order"),
            ),
            ("usr/lib/modules/7.2/a.ko.xz", Some("lib/modules/7.2/a.ko.xz")),
            ("boot/System.map-6.1.0-50-amd64", None),
            ("usr/share/doc/x", None),
        ] {
            assert_eq!(place(Path::new(path)), wanted.map(PathBuf::from), "{path}");
        }
    }
}
