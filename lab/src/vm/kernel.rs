//! A kernel of the archive, in the form that a VM needs: bzImage, the modules for the initramfs,
//! and all modules as a disk.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use longshore_debian::archive::Package;
use longshore_debian::deb;

use crate::cell::KernelWanted;
use crate::host::archives::Archives;
use crate::host::cache::{Cache, Held};
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};
use crate::vm::initramfs::Modules;

/// Kind of the cached kernels.
pub const KERNEL: &str = "kernel";

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
    _held: Arc<Held>,
}

/// The packages of a kernel.
#[derive(Debug, Clone)]
pub struct KernelPackages {
    /// `linux-image-RELEASE`: it has the bzImage; since 7.0 only maintainer scripts.
    pub image: Package,
    /// The packages that it is split into since 7.0: `linux-base-RELEASE`, `linux-binary-RELEASE` with the bzImage,
    /// `linux-modules-RELEASE`.
    pub parts: Vec<Package>,
}

impl KernelPackages {
    /// Returns all packages, the image's first.
    pub fn all(&self) -> Vec<Package> {
        std::iter::once(&self.image).chain(&self.parts).cloned().collect()
    }
}

/// Returns the packages of the kernel that a meta-package of the suite stands for.
///
/// # Errors
/// The suite has no such meta-package, or a package that it depends on is missing.
pub fn resolve(archives: &Archives, wanted: &KernelWanted) -> Result<KernelPackages, Error> {
    let KernelWanted { package, suite } = wanted;
    packages_of(package, &|name| archives.newest(name, suite))?
        .ok_or_else(|| Error::Unexpected(format!("{package} in {suite} points at no kernel")))
}

/// Returns the packages that the meta-package `meta` leads to, as `newest` has them; None where none is an image.
fn packages_of(
    meta: &str,
    newest: &dyn Fn(&str) -> Result<Package, Error>,
) -> Result<Option<KernelPackages>, Error> {
    let image = needed(&newest(meta)?).into_iter().find(|name| name.starts_with(IMAGE));
    let Some(image) = image.map(|name| newest(&name)).transpose()? else { return Ok(None) };
    let mut parts: Vec<Package> = Vec::new();
    let mut open = vec![image.clone()];
    while let Some(package) = open.pop() {
        for name in needed(&package) {
            if name != image.name && !parts.iter().any(|part| part.name == name) {
                let next = newest(&name)?;
                parts.push(next.clone());
                open.push(next);
            }
        }
    }
    Ok(Some(KernelPackages { image, parts }))
}

/// Beginning of the name of an image's package; that of its release follows.
const IMAGE: &str = "linux-image-";

/// Returns the names of the kernel's own packages that a package depends on. Those of a release have it in their
/// names; `linux-base-amd64` and its like, which the meta-packages depend on since 7.0, are meta-packages themselves.
fn needed(package: &Package) -> Vec<String> {
    const PARTS: &[&str] = &[IMAGE, "linux-binary-", "linux-modules-", "linux-base-"];
    let is_of_release = |name: &str| {
        let mut releases = PARTS.iter().filter_map(|part| name.strip_prefix(part));
        releases.any(|release| release.starts_with(|c: char| c.is_ascii_digit()))
    };
    let first = package.depends.iter().filter_map(|clause| clause.0.first());
    first.map(|r| r.name.clone()).filter(|name| is_of_release(name)).collect()
}

/// Returns the `uname -r` of the kernel in `linux-image-RELEASE`.
pub fn release_of(image: &Package) -> String {
    image.name.trim_start_matches(IMAGE).trim_end_matches("-unsigned").to_owned()
}

/// Unpacks the packages and makes the disk, or returns the cached result.
///
/// # Errors
/// A package cannot be fetched or unpacked; depmod or mke2fs failed.
pub fn make(
    cache: &Cache,
    archives: &Archives,
    packages: &KernelPackages,
) -> Result<Kernel, Error> {
    let packages = &packages.all();
    let digests: Vec<&str> = packages.iter().map(|p| p.sha256.as_str()).collect();
    let (dir, held) = cache.produce_held(KERNEL, &digests, |dir| fill(dir, archives, packages))?;
    let all = dir.join("modules");
    let release = only_name(&all)?;
    Ok(Kernel {
        vmlinuz: dir.join("vmlinuz"),
        modules: all.join(&release),
        disk: dir.join("modules.ext4"),
        release,
        _held: Arc::new(held),
    })
}

fn fill(dir: &Path, archives: &Archives, packages: &[Package]) -> Result<(), Error> {
    archives.fetch(packages)?;
    let tree = dir.join("tree");
    fs::create_dir(&tree).at("make", &tree)?;
    for package in packages {
        let blob = archives.store().blob_path(&package.sha256);
        let reader = File::open(&blob).at("open", &blob)?;
        deb::unpack(&package.name, reader, &tree, &mut place)?;
    }
    let all = tree.join("lib/modules");
    let release = only_name(&all)?;
    take_image(&tree, &release, &dir.join("vmlinuz"))?;
    run(Command::new("depmod").arg("-b").arg(&tree).arg(&release), LIMIT)?;
    disk::make(&all, &dir.join("modules.ext4"), 8)?;
    keep_for_initramfs(&all.join(&release), &dir.join("modules").join(&release))?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}

/// Moves the bzImage out of an unpacked kernel: since 7.0 it lies beside the modules, from where a maintainer script
/// copies it to /boot.
fn take_image(tree: &Path, release: &str, to: &Path) -> Result<(), Error> {
    let boot = tree.join(format!("boot/vmlinuz-{release}"));
    let beside = tree.join(format!("lib/modules/{release}/vmlinuz"));
    let image = if boot.exists() { boot } else { beside };
    fs::rename(&image, to).at("take", &image)
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
            ("usr/lib/modules/7.2/vmlinuz", Some("lib/modules/7.2/vmlinuz")),
            ("boot/System.map-6.1.0-50-amd64", None),
            ("usr/share/doc/x", None),
        ] {
            assert_eq!(place(Path::new(path)), wanted.map(PathBuf::from), "{path}");
        }
    }

    /// Makes a package that depends on `depends`.
    fn package(name: &str, depends: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: "1".to_owned(),
            arch: "amd64".to_owned(),
            source: None,
            component: "main".to_owned(),
            filename: String::new(),
            size: 1,
            sha256: name.to_owned(),
            depends: longshore_debian::relation::parse_clauses(depends).unwrap(),
            provides: Vec::new(),
            base_url: "file:///archive".into(),
            origin: longshore_core::package_origin::PackageOrigin::named("suite"),
        }
    }

    /// The dependencies of Debian's packages in bookworm-security, trixie-backports and experimental.
    const OLD: &[(&str, &str)] = &[
        ("linux-image-amd64", "linux-image-6.1.0-56-amd64 (= 6.1.192-2)"),
        (
            "linux-image-6.1.0-56-amd64",
            "kmod, linux-base (>= 4.3~), initramfs-tools | linux-initramfs-tool",
        ),
    ];
    const NEW: &[(&str, &str)] = &[
        (
            "linux-image-amd64",
            "linux-base-amd64, linux-image-7.3.4+deb13-amd64, linux-modules-amd64",
        ),
        ("linux-base-amd64", "linux-base-7.3.4+deb13-amd64"),
        ("linux-modules-amd64", "linux-base-amd64, linux-modules-7.3.4+deb13-amd64"),
        (
            "linux-image-7.3.4+deb13-amd64",
            "dracut | linux-initramfs-tool, linux-base-7.3.4+deb13-amd64, \
             linux-binary-7.3.4+deb13-amd64, linux-modules-7.3.4+deb13-amd64",
        ),
        ("linux-base-7.3.4+deb13-amd64", ""),
        ("linux-binary-7.3.4+deb13-amd64", "linux-base-7.3.4+deb13-amd64"),
        ("linux-modules-7.3.4+deb13-amd64", "kmod, linux-base-7.3.4+deb13-amd64"),
    ];
    const LINE: &[(&str, &str)] = &[
        ("linux-image-6.12-cloud-amd64", "linux-image-6.12.117+deb12-cloud-amd64"),
        ("linux-image-6.12.117+deb12-cloud-amd64", "kmod"),
    ];
    const NONE: &[(&str, &str)] = &[("linux-image-amd64", "linux-base-amd64, kmod")];

    #[test]
    fn a_meta_package_leads_to_the_packages_of_its_kernel() {
        type Expected = Option<(&'static str, &'static [&'static str])>;
        type Case = (&'static str, &'static [(&'static str, &'static str)], Expected);
        let parts: &[&str] = &["base", "binary", "modules"];
        let cloud = "6.12.117+deb12-cloud-amd64";
        let cases: [Case; 4] = [
            ("linux-image-amd64", OLD, Some(("6.1.0-56-amd64", &[]))),
            ("linux-image-amd64", NEW, Some(("7.3.4+deb13-amd64", parts))),
            ("linux-image-6.12-cloud-amd64", LINE, Some((cloud, &[]))),
            ("linux-image-amd64", NONE, None),
        ];
        for (meta, archive, expected) in cases {
            let newest = |name: &str| {
                let found = archive.iter().find(|(known, _)| *known == name);
                let (name, depends) = found.expect("a package of the kernel");
                Ok(package(name, depends))
            };
            let found = packages_of(meta, &newest).unwrap();
            let named = found.map(|found| {
                let mut names: Vec<String> = found.parts.into_iter().map(|p| p.name).collect();
                names.sort();
                (release_of(&found.image), names)
            });
            let expected = expected.map(|(release, parts)| {
                let names = parts.iter().map(|part| format!("linux-{part}-{release}"));
                (release.to_owned(), names.collect::<Vec<_>>())
            });
            assert_eq!(named, expected, "{meta}");
        }
    }

    #[test]
    fn the_image_is_taken_out_of_either_layout() {
        for image in ["boot/vmlinuz-R", "lib/modules/R/vmlinuz"] {
            let dir = tempfile::tempdir().unwrap();
            let (image, other) = (dir.path().join(image), dir.path().join("lib/modules/R/a.ko"));
            for path in [&image, &other] {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "content").unwrap();
            }
            take_image(dir.path(), "R", &dir.path().join("vmlinuz")).unwrap();
            assert!(dir.path().join("vmlinuz").exists() && other.exists());
            assert!(!image.exists(), "the modules' disk has it once more");
        }
    }

    #[test]
    fn a_kernel_without_an_image_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = take_image(dir.path(), "R", &dir.path().join("vmlinuz")).unwrap_err();
        assert!(error.to_string().contains("lib/modules/R/vmlinuz"), "{error}");
    }
}
