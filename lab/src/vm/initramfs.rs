//! The first root file system of a VM: busybox, the modules for the disks, and the payload of the
//! cell. It only mounts the real root and switches to it, as a container runtime cannot pivot_root
//! on an initramfs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::host::error::{At, Error};
use crate::vm::cpio;

/// Modules for the first stage: disks, the file system on them, the results port. Those built into
/// a kernel are left out.
const WANTED: &[&str] = &["virtio_pci", "virtio_blk", "virtio_console", "ext4"];
/// Modules that are loaded before them where a kernel has them: ext4 asked the crypto API for crc32c by name until it
/// used the kernel's library, and 7.3 has no such module.
const WHERE_KNOWN: &[&str] = &["crc32c_generic"];

/// A file for the guest: path below `/matrix`, permission bits, content.
pub(crate) type Payload<'a> = (&'a str, u32, &'a [u8]);

/// Modules of one kernel, with their load order.
#[derive(Debug)]
pub(crate) struct Modules {
    dir: PathBuf,
    dep: String,
    builtin: String,
}

impl Modules {
    /// Reads modules.dep and modules.builtin of `dir` (a `/lib/modules/RELEASE`).
    ///
    /// # Errors
    /// The files cannot be read.
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).at("read", &path)
        };
        Ok(Self {
            dep: read("modules.dep")?,
            builtin: read("modules.builtin")?,
            dir: dir.to_path_buf(),
        })
    }

    fn order(&self, wanted: &[&str]) -> Result<Vec<String>, Error> {
        order(&self.dep, &self.builtin, wanted)
            .map_err(|name| Error::Unexpected(format!("{}: no module {name}", self.dir.display())))
    }

    /// Returns the files of the modules that the first stage loads, in order.
    ///
    /// # Errors
    /// A module is neither in modules.dep nor built in.
    pub(crate) fn needed(&self) -> Result<Vec<String>, Error> {
        let known = WHERE_KNOWN.iter().filter(|name| is_known(&self.dep, &self.builtin, name));
        self.order(&known.chain(WANTED).copied().collect::<Vec<_>>())
    }

    /// Returns a module's bytes, decompressed.
    fn read(&self, file: &str) -> Result<Vec<u8>, Error> {
        let path = self.dir.join(file);
        let packed = fs::read(&path).at("read", &path)?;
        if !file.ends_with(".xz") {
            return Ok(packed);
        }
        let mut bytes = Vec::new();
        liblzma::read::XzDecoder::new(packed.as_slice())
            .read_to_end(&mut bytes)
            .at("unpack", &path)?;
        Ok(bytes)
    }
}

/// Returns the kernel name of a module file: `kernel/fs/ext4/ext4.ko.xz` -> `ext4`.
fn kernel_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

/// True if a kernel has a module, as a file or built in.
fn is_known(dep: &str, builtin: &str, name: &str) -> bool {
    let files = dep.lines().filter_map(|line| line.split_once(':')).map(|(file, _)| file);
    files.chain(builtin.lines()).any(|file| kernel_name(file) == name)
}

/// Returns the load order by modules.dep, whose lines list all dependencies, the first to load
/// last.
fn order(dep: &str, builtin: &str, wanted: &[&str]) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        let line =
            dep.lines().filter_map(|l| l.split_once(':')).find(|l| kernel_name(l.0) == *name);
        let Some((file, needs)) = line else {
            if builtin.lines().any(|l| kernel_name(l) == *name) {
                continue;
            }
            return Err((*name).to_owned());
        };
        for file in needs.split_whitespace().rev().chain([file]) {
            if seen.insert(file) {
                files.push(file.to_owned());
            }
        }
    }
    Ok(files)
}

/// Returns the part that is the same for every cell of a kernel: busybox, init, modules.
///
/// # Errors
/// A file cannot be read or a module is missing.
pub(crate) fn base(busybox: &Path, init: &str, modules: &Modules) -> Result<Vec<u8>, Error> {
    let mut archive = cpio::Archive::default();
    for dir in ["bin", "dev", "proc", "sys", "root", "modules", "matrix"] {
        archive.dir(dir);
    }
    archive.file("bin/busybox", 0o755, &fs::read(busybox).at("read", busybox)?);
    archive.link("bin/sh", "busybox");
    archive.file("init", 0o755, init.as_bytes());
    for (index, file) in modules.needed()?.iter().enumerate() {
        // The number in front keeps the order for init's plain loop over a sorted pattern.
        let name = format!("modules/{index:02}-{}.ko", kernel_name(file));
        archive.file(&name, 0o644, &modules.read(file)?);
    }
    Ok(archive.finish())
}

/// Returns the cell's own part.
pub(crate) fn payload(files: &[Payload<'_>]) -> Vec<u8> {
    let mut archive = cpio::Archive::default();
    let dirs: BTreeSet<&str> =
        files.iter().filter_map(|(path, ..)| path.split_once('/')).map(|(dir, _)| dir).collect();
    for dir in dirs {
        archive.dir(&format!("matrix/{dir}"));
    }
    for (path, mode, content) in files {
        archive.file(&format!("matrix/{path}"), *mode, content);
    }
    archive.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2/jbd2.ko\n\
                       kernel/fs/jbd2/jbd2.ko:\n\
                       kernel/drivers/block/virtio_blk.ko.xz: kernel/v/virtio_ring.ko kernel/v/virtio.ko\n\
                       kernel/drivers/virtio/virtio-pci.ko: kernel/v/virtio_ring.ko kernel/v/virtio.ko\n";

    #[test]
    fn dependencies_come_first_and_once() {
        let order = order(DEP, "", &["virtio_pci", "virtio_blk", "ext4"]).unwrap();
        assert_eq!(
            order,
            [
                "kernel/v/virtio.ko",
                "kernel/v/virtio_ring.ko",
                "kernel/drivers/virtio/virtio-pci.ko",
                "kernel/drivers/block/virtio_blk.ko.xz",
                "kernel/fs/jbd2/jbd2.ko",
                "kernel/lib/crc16.ko",
                "kernel/fs/ext4/ext4.ko",
            ]
        );
    }

    #[test]
    fn a_module_that_newer_kernels_lack_is_loaded_where_it_is() {
        const FILE: &str = "kernel/crypto/crc32c_generic.ko";
        const OTHER: &str = "kernel/crypto/crc32c-cryptoapi.ko.xz";
        for (file, built_in, first) in [(FILE, "", 1), ("", FILE, 0), (OTHER, "", 0)] {
            let dep = format!("{file}:\nd/virtio_pci.ko:\nd/virtio_blk.ko:\n");
            let builtin = format!("{built_in}\nd/virtio_console.ko\nfs/ext4.ko\n");
            let modules = Modules { dir: PathBuf::new(), dep, builtin };
            let names: Vec<String> =
                modules.needed().unwrap().iter().map(|file| kernel_name(file)).collect();
            let expected = ["crc32c_generic", "virtio_pci", "virtio_blk"];
            assert_eq!(names, expected[1 - first..], "{file} {built_in}");
        }
    }

    #[test]
    fn built_in_is_left_out_and_missing_is_an_error() {
        assert!(order("", "kernel/fs/ext4/ext4.ko\n", &["ext4"]).unwrap().is_empty());
        assert_eq!(order("", "", &["ext4"]), Err("ext4".into()));
    }
}
