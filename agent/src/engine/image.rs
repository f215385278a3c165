//! Module images in the form that the kernel loads, from the store or from the host's /lib/modules.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::steps::ModuleOrigin;
pub use crate::steps::{Images, ModuleFile};
use longshore_core::disk::Disk;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::module_dir::module_dir;
use longshore_core::paths::Paths;
use longshore_core::root::{Root, is_absent};
use longshore_core::store::Store;
use longshore_debian::compression::{Extent, Format, decompressed_as, host_failure};
use longshore_modules::kernel::index::KernelIndex;
use longshore_modules::sets::SetStore;
use longshore_sources::userspace::{self, Depth};

/// Size limit of an unpacked module, against decompression bombs. An unstripped nvidia.ko has 185
/// MB.
const LARGEST: u64 = 1 << 30;

/// First bytes of every unpacked module.
const ELF_MAGIC: &[u8; 4] = b"\x7fELF";

/// Images from the store and from the host's /lib/modules of the running kernel.
#[derive(Debug, Clone)]
pub struct ModuleImages {
    store: Store,
    paths: Paths,
    /// True if a module of the store is hashed at every read.
    always_hashed: bool,
}

impl ModuleImages {
    /// Images from `store` and from below `paths.host_root`. Modules of the store are hashed once
    /// per boot.
    pub fn new(store: Store, paths: &Paths) -> Self {
        Self { store, paths: paths.clone(), always_hashed: false }
    }

    /// If `always`, also hashes modules that were hashed earlier in this boot: a signature that was
    /// verified then covers exactly the bytes that the kernel gets, even if others can write to the
    /// store and its records.
    #[must_use]
    pub fn always_hashed(self, always: bool) -> Self {
        Self { always_hashed: always, ..self }
    }

    /// Opens the host's root; returns it with the directory of the running kernel's modules in it.
    fn modules_dir(&self) -> Result<(Root, PathBuf), Failure> {
        let path = self.paths.root.join("proc/sys/kernel/osrelease");
        let release = fs::read_to_string(&path)
            .or_fail(FailureKind::HostUnsupported, || format!("reading {}", path.display()))?;
        let host = Root::open(&self.paths.host_root).or_fail(FailureKind::KernelRefused, || {
            format!("opening {}", self.paths.host_root.display())
        })?;
        let dir = module_dir(&host, release.trim());
        Ok((host, dir))
    }

    /// Opens a module of the kernel's own at the planned path; None if it is compressed or gone.
    fn kernel_file(&self, file: &Path) -> Result<Option<File>, Failure> {
        let (host, dir) = self.modules_dir()?;
        let path = dir.join(file);
        match host.file(&path) {
            Ok(file) if is_plain(&file) => Ok(Some(file)),
            Ok(_) => Ok(None),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => {
                let what = format!("opening the kernel's {}", path.display());
                Err(Failure::new(FailureKind::KernelRefused, what).with_source(e))
            }
        }
    }

    /// Reads a module of the kernel's own; returns its path and bytes. Links are the host's own, as
    /// they were when the plan was made.
    fn kernel_module(&self, name: &str, file: &Path) -> Result<(PathBuf, Vec<u8>), Failure> {
        let (host, dir) = self.modules_dir()?;
        let planned = host.display(dir.join(file));
        match host.read(dir.join(file)) {
            Ok(bytes) => return Ok((planned, bytes)),
            Err(e) if is_absent(&e) => {}
            Err(e) => {
                let what = format!("reading {}", planned.display());
                return Err(Failure::new(FailureKind::KernelRefused, what).with_source(e));
            }
        }
        // Recompressed or moved since the plan was made: libkmod knows the current path.
        let found = moved(&host, &dir, name)?.ok_or_else(|| {
            let of = host.display(&dir);
            Failure::new(
                FailureKind::KernelRefused,
                format!("{} is gone, and {} has no other {name}", planned.display(), of.display()),
            )
            .remedy("install the running kernel's modules again, or reboot into the newer kernel")
        })?;
        let bytes = host
            .read(&found)
            .or_fail(FailureKind::KernelRefused, || format!("reading the kernel's {name}"))?;
        Ok((host.display(found), bytes))
    }
}

/// Returns the path inside `host` of the kernel's module `name`, by the index in `dir`. libkmod gets the directory
/// by its descriptor: links above it, as of a merged /usr, lead to the host's own files and not to this container's.
fn moved(host: &Root, dir: &Path, name: &str) -> Result<Option<PathBuf>, Failure> {
    let Ok(opened) = host.dir(dir) else { return Ok(None) };
    let at = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let found = KernelIndex::open(&at)?.file(name)?;
    Ok(found.map(|path| path.strip_prefix(&at).map_or(path.clone(), |below| dir.join(below))))
}

impl Images for ModuleImages {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        match origin {
            ModuleOrigin::Driver { sha256 } => {
                let bytes = match self.always_hashed {
                    true => self.store.read_blob(sha256)?,
                    false => self.store.read_module(sha256)?,
                };
                unpack(&self.store.blob_path(sha256), bytes)
            }
            ModuleOrigin::Kernel { file } => {
                let (path, bytes) = self.kernel_module(name, file)?;
                unpack(&path, bytes)
            }
        }
    }

    fn file(&self, _: &str, origin: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        match origin {
            ModuleOrigin::Driver { .. } if self.always_hashed => Ok(None),
            ModuleOrigin::Driver { sha256 } => {
                let known = self.store.verified_module(sha256)?;
                Ok(known.filter(|known| is_plain(known.file())).map(ModuleFile::Driver))
            }
            ModuleOrigin::Kernel { file } => Ok(self.kernel_file(file)?.map(ModuleFile::Kernel)),
        }
    }

    fn check_tree(&self, tree: &Path) -> Result<(), Failure> {
        userspace::examine(tree, Depth::Changed, self.store.disk())
    }

    fn on(&self, disk: Disk) -> Option<Arc<dyn Images>> {
        Some(Arc::new(Self { store: self.store.clone().on(disk), ..self.clone() }))
    }
}

/// True if it is a regular file that begins with the ELF magic.
fn is_plain(file: &File) -> bool {
    let mut magic = [0; ELF_MAGIC.len()];
    file.metadata().is_ok_and(|found| found.is_file())
        && file.read_exact_at(&mut magic, 0).is_ok()
        && magic == *ELF_MAGIC
}

/// Unpacks xz, zstd or gzip, recognized by its first bytes; an ELF file is returned as it is.
///
/// # Errors
/// 13 where it is none of these, or does not unpack to an ELF file within the size limit.
pub fn unpack(path: &Path, bytes: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let what = |why: &str| format!("{} {why}", path.display());
    let unpacked = match Format::from_magic(&bytes) {
        Some(format) => decompressed_as(format, Extent::All, bytes.as_slice())
            .and_then(bounded)
            .map_err(|error| {
                host_failure(&error).unwrap_or_else(|| {
                    Failure::new(FailureKind::Verification, what("cannot be unpacked"))
                        .with_source(error)
                })
            })?,
        None => bytes,
    };
    if unpacked.starts_with(ELF_MAGIC) {
        return Ok(unpacked);
    }
    Err(Failure::new(FailureKind::Verification, what("is no kernel module: it is no ELF file"))
        .remedy("the file is damaged: reinstall it from its package"))
}

fn bounded(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!("more than {LARGEST} bytes when unpacked")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;

    const ELF: &[u8] = b"\x7fELF and so on, and so on, and so on";

    fn xz() -> Vec<u8> {
        let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
        writer.write_all(ELF).unwrap();
        writer.finish().unwrap()
    }

    fn zst() -> Vec<u8> {
        zstd::encode_all(ELF, 1).unwrap()
    }

    fn gz() -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(ELF).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn every_compression_of_a_kernel_is_unpacked() {
        for bytes in [ELF.to_vec(), xz(), zst(), gz()] {
            assert_eq!(unpack(Path::new("/m.ko"), bytes).unwrap(), ELF);
        }
    }

    #[test]
    fn what_is_no_module_is_refused_and_named() {
        let cut = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.len() - 9);
            bytes
        };
        for bytes in [Vec::new(), b"#!/bin/sh".to_vec(), cut(xz()), cut(zst()), cut(gz())] {
            let failure = unpack(Path::new("/m.ko"), bytes).unwrap_err();
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.to_string().starts_with("/m.ko "), "{failure}");
        }
    }

    #[test]
    fn an_xz_that_asks_for_gigabytes_is_refused() {
        // The dictionary's size is one byte of the block's header: 40 is 4 GiB.
        let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
        writer.write_all(ELF).unwrap();
        let mut bytes = writer.finish().unwrap();
        let header = 12..12 + (usize::from(bytes[12]) + 1) * 4;
        let at = header.start + 4;
        assert_eq!(bytes[at - 2..at], [0x21, 1], "LZMA2 with one byte of properties");
        bytes[at] = 40;
        let sum = header.end - 4;
        let mut crc = flate2::Crc::new();
        crc.update(&bytes[header.start..sum]);
        bytes[sum..header.end].copy_from_slice(&crc.sum().to_le_bytes());
        let failure = unpack(Path::new("/m.ko"), bytes).unwrap_err();
        assert!(failure.report().contains("emory"), "{}", failure.report());
    }

    struct Scene {
        dir: tempfile::TempDir,
        images: ModuleImages,
    }

    fn scene() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_path_buf();
        fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
        fs::write(root.join("proc/sys/kernel/osrelease"), "6.1.0-1-amd64\n").unwrap();
        fs::create_dir_all(root.join("lib/modules/6.1.0-1-amd64/kernel")).unwrap();
        let paths = Paths::below(&root);
        let store = Store::open(&paths.store, Disk::default()).unwrap();
        Scene { images: ModuleImages::new(store, &paths), dir }
    }

    #[test]
    fn a_kernel_module_is_read_from_the_host_and_a_driver_module_from_the_store() {
        let Scene { dir, images } = scene();
        let file = PathBuf::from("kernel/a.ko.xz");
        let at = dir.path().join("lib/modules/6.1.0-1-amd64").join(&file);
        fs::write(at, xz()).unwrap();
        assert_eq!(images.image("a", &ModuleOrigin::Kernel { file }).unwrap(), ELF);
        let sha256 = images.store.put(ELF).unwrap();
        let origin = ModuleOrigin::Driver { sha256: sha256.clone() };
        assert_eq!(images.image("nvidia", &origin).unwrap(), ELF);
        fs::write(images.store.blob_path(&sha256), b"\x7fELF changed").unwrap();
        let failure = images.image("nvidia", &origin).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    #[test]
    fn a_kernel_module_is_handed_over_as_a_file_unless_it_is_compressed() {
        let Scene { dir, images } = scene();
        let at = dir.path().join("lib/modules/6.1.0-1-amd64/kernel");
        fs::write(at.join("a.ko"), ELF).unwrap();
        fs::write(at.join("a.ko.xz"), xz()).unwrap();
        fs::write(at.join("a.short"), "EL").unwrap();
        let file = |name: &str| {
            let file = Path::new("kernel").join(name);
            images.file("a", &ModuleOrigin::Kernel { file }).unwrap()
        };
        assert_eq!(file("a.ko").unwrap().file().metadata().unwrap().len(), ELF.len() as u64);
        for name in ["a.ko.xz", "a.short", "gone.ko", ""] {
            assert!(file(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_driver_module_is_handed_over_as_a_file_once_it_was_verified() {
        let Scene { dir: _dir, images } = scene();
        let sha256 = images.store.put(ELF).unwrap();
        let packed = images.store.put(&xz()).unwrap();
        let origin = |sha256: &String| ModuleOrigin::Driver { sha256: sha256.clone() };
        assert!(images.file("a", &origin(&sha256)).unwrap().is_none(), "not hashed yet");
        // A file written a moment ago cannot be recorded as verified yet.
        while images.store.verified_module(&packed).unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(100));
            images.image("a", &origin(&packed)).unwrap();
            images.image("a", &origin(&sha256)).unwrap();
        }
        assert!(images.file("a", &origin(&sha256)).unwrap().is_some());
        assert!(images.file("a", &origin(&packed)).unwrap().is_none(), "compressed");
        let wary = images.clone().always_hashed(true);
        assert!(wary.file("a", &origin(&sha256)).unwrap().is_none());
        fs::write(images.store.blob_path(&sha256), b"\x7fELF changed").unwrap();
        assert!(images.file("a", &origin(&sha256)).unwrap().is_none());
        fs::remove_file(images.store.blob_path(&sha256)).unwrap();
        let failure = images.file("a", &origin(&sha256)).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Download);
    }

    #[test]
    fn a_hosts_absolute_link_leads_where_it_leads_on_the_host() {
        let Scene { dir, images } = scene();
        let usr = dir.path().join("usr");
        fs::create_dir(&usr).unwrap();
        fs::rename(dir.path().join("lib"), usr.join("lib")).unwrap();
        std::os::unix::fs::symlink("/usr/lib", dir.path().join("lib")).unwrap();
        let modules = usr.join("lib/modules/6.1.0-1-amd64");
        fs::write(modules.join("kernel/a.ko"), ELF).unwrap();
        let image = |file: &str| images.image("a", &ModuleOrigin::Kernel { file: file.into() });
        assert_eq!(image("kernel/a.ko").unwrap(), ELF);
        longshore_modules::testing::index::write_index(&modules, "kernel/a.ko:\n");
        assert_eq!(image("kernel/moved.ko").unwrap(), ELF, "by libkmod");
    }

    #[test]
    fn a_kernel_module_that_moved_is_found_by_libkmod_or_named_as_gone() {
        let Scene { dir, images } = scene();
        let modules = dir.path().join("lib/modules/6.1.0-1-amd64");
        let file = PathBuf::from("kernel/some_mod.ko");
        let origin = ModuleOrigin::Kernel { file };
        let failure = images.image("some_mod", &origin).unwrap_err();
        assert_eq!(failure.code(), ExitCode::KernelRefused);
        assert!(failure.to_string().contains("some_mod.ko is gone"), "{failure}");
        fs::write(modules.join("kernel/some-mod.ko.zst"), zst()).unwrap();
        longshore_modules::testing::index::write_index(&modules, "kernel/some-mod.ko.zst:\n");
        assert_eq!(images.image("some_mod", &origin).unwrap(), ELF);
    }
}
