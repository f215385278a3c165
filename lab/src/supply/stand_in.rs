//! Modules of the guests' own, compiled for their kernels: stand-ins for those that cannot work in a guest (nouveau
//! does not bind to the simulated GPU, which has no VBIOS, and MOFED's ib_core, which no archive has, is for adapters
//! that no guest has), and one that provokes a warning of the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cell::needs::StandIn;
use crate::host::apt::Root;
use crate::host::archives::Archives;
use crate::host::cache::Cache;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

/// Directory of a module's sources in the root in which it is compiled.
const MODULE: &str = "module";
const SYMBOLS: &str = "Module.symvers";

/// Returns the Kbuild file of a module.
fn kbuild(of: &StandIn) -> String {
    format!("obj-m := {}.o\nccflags-y := -I$(src)/include\n", of.module)
}

/// A stand-in that was compiled for a kernel.
#[derive(Debug)]
pub struct Made {
    dir: PathBuf,
    release: String,
    of: &'static StandIn,
}

impl Made {
    /// True if it has MOFED's headers.
    pub fn has_header(&self) -> bool {
        self.of.header.is_some()
    }

    /// Returns the files that the guest gets, by their names in it.
    pub fn files(&self) -> Vec<(String, PathBuf)> {
        let module = format!("{}.ko", self.of.module);
        let mut files = vec![(module.clone(), self.dir.join(module))];
        if let Some((header, _)) = self.of.header {
            let mofed = mofed(&self.root(), &self.release);
            files.push((header.to_owned(), mofed.join("include/rdma").join(header)));
            files.push((SYMBOLS.to_owned(), mofed.join(SYMBOLS)));
        }
        files
    }

    /// Returns the root of a file system that has MOFED's headers, and nothing else.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }
}

/// Returns the directory of MOFED's headers for a kernel.
fn mofed(root: &Path, release: &str) -> PathBuf {
    root.join("usr/src/ofa_kernel").join(std::env::consts::ARCH).join(release)
}

/// Compiles a module for the kernel `release` of a suite, in a root of that suite with the kernel's headers and their
/// compiler, or returns the cached one.
///
/// # Errors
/// The suite has no headers for the kernel, no apt source serves it, or the compile fails.
pub(crate) fn make(
    cache: &Cache,
    archives: &Archives,
    (suite, release): (&str, &str),
    of: &'static StandIn,
) -> Result<Made, Error> {
    let headers = archives.newest(&format!("linux-headers-{release}"), suite)?;
    let (kbuild, header) = (kbuild(of), of.header.map(|(_, text)| text));
    let inputs: Vec<&str> =
        [headers.sha256.as_str(), of.source, &kbuild].into_iter().chain(header).collect();
    let dir =
        cache.produce("stand-in", &inputs, |dir| fill(dir, suite, &headers.name, release, of))?;
    Ok(Made { dir, release: release.to_owned(), of })
}

fn fill(dir: &Path, suite: &str, headers: &str, release: &str, of: &StandIn) -> Result<(), Error> {
    let tree = dir.join("tree");
    let root = Root {
        suite,
        frozen: false,
        variant: "minbase",
        packages: &format!("binutils,make,{headers}"),
        // The tree is deleted once the module is compiled: it need not be synced to the disk.
        options: vec!["--dpkgopt=force-unsafe-io".to_owned()],
    };
    root.make(&tree)?;
    let module = tree.join(MODULE);
    let exported = module.join("include/rdma");
    fs::create_dir_all(&exported).at("make", &exported)?;
    let name = of.module;
    let kbuild = kbuild(of);
    let files =
        [(module.join(format!("{name}.c")), of.source), (module.join("Kbuild"), kbuild.as_str())];
    let header = of.header.map(|(file, text)| (exported.join(file), text));
    for (path, text) in files.into_iter().chain(header) {
        fs::write(&path, text).at("write", &path)?;
    }
    let source = format!("M=/{MODULE}");
    let build = format!("/usr/src/linux-headers-{release}");
    run(
        // objtool reads /proc.
        Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child"])
            .arg(format!("--mount-proc={}", tree.join("proc").display()))
            .arg("chroot")
            .arg(&tree)
            .args(["make", "-C", &build, &source, "modules"]),
        LIMIT,
    )?;
    let mut taken = vec![(module.join(format!("{name}.ko")), dir.join(format!("{name}.ko")))];
    if of.header.is_some() {
        let mofed = mofed(&dir.join("root"), release);
        fs::create_dir_all(&mofed).at("make", &mofed)?;
        taken.extend(["include", SYMBOLS].map(|part| (module.join(part), mofed.join(part))));
    }
    for (made, to) in taken {
        fs::rename(&made, to).at("take", &made)?;
    }
    fs::remove_dir_all(&tree).at("remove", &tree)
}
