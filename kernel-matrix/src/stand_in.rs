//! Modules of the guests' own, compiled for their kernels: stand-ins for those that cannot work in a guest (nouveau
//! does not bind to the simulated GPU, which has no VBIOS, and MOFED's ib_core, which no archive has, is for adapters
//! that no guest has), and one that provokes a warning of the kernel.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_debian::archive::Package;
use longshore_debian::deb;

use crate::bits::Bits;
use crate::cache::Cache;
use crate::error::{At, Error};
use crate::process::{LIMIT, run};

/// Stand-in for nouveau.
pub const NOUVEAU: StandIn =
    StandIn { module: "nouveau", source: include_str!("../guest/nouveau.c"), header: None };
/// Stand-in for the part of MOFED's ib_core that nvidia_peermem registers with.
pub const PEER_MEMORY: StandIn = StandIn {
    module: "peer_memory",
    source: include_str!("../guest/peer_memory.c"),
    header: Some(("peer_mem.h", include_str!("../guest/peer_mem.h"))),
};
/// Module that provokes a warning of the kernel.
pub const WARNS: StandIn =
    StandIn { module: "warns", source: include_str!("../guest/warns.c"), header: None };
/// Packages of a kernel's headers.
const HEADERS: [&str; 2] = ["linux-headers-", "linux-kbuild-"];
const SYMBOLS: &str = "Module.symvers";

/// Source of a module.
#[derive(Debug)]
pub struct StandIn {
    module: &'static str,
    source: &'static str,
    /// Header in `rdma/` of MOFED's headers, by name: drivers are compiled against it.
    header: Option<(&'static str, &'static str)>,
}

impl StandIn {
    fn kbuild(&self) -> String {
        format!("obj-m := {}.o\nccflags-y := -I$(src)/include\n", self.module)
    }
}

/// A stand-in that was compiled for a kernel.
#[derive(Debug)]
pub struct Made {
    dir: PathBuf,
    release: String,
    of: &'static StandIn,
}

impl Made {
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

/// Compiles a module for the kernel `release` of a suite with this machine's compiler, or returns the cached one.
///
/// # Errors
/// The suite has no headers for the kernel, or the compile fails.
pub fn make(
    cache: &Cache,
    bits: &Bits,
    (suite, release): (&str, &str),
    of: &'static StandIn,
) -> Result<Made, Error> {
    let packages = headers(bits, suite, release)?;
    let digests = packages.iter().map(|package| package.sha256.as_str());
    let (kbuild, header) = (of.kbuild(), of.header.map(|(_, text)| text));
    let inputs: Vec<&str> = digests.chain([of.source, &kbuild]).chain(header).collect();
    let dir = cache.produce("stand-in", &inputs, |dir| fill(dir, bits, &packages, release, of))?;
    Ok(Made { dir, release: release.to_owned(), of })
}

/// Returns the packages with the kernel's headers, the first one with its configuration.
fn headers(bits: &Bits, suite: &str, release: &str) -> Result<Vec<Package>, Error> {
    let mut found = vec![bits.newest(&format!("linux-headers-{release}"), suite)?];
    let wanted = |name: &str| HEADERS.iter().any(|prefix| name.starts_with(prefix));
    let needed = found[0].depends.iter().filter_map(|clause| clause.0.first());
    let names: Vec<String> =
        needed.map(|relation| relation.name.clone()).filter(|name| wanted(name)).collect();
    for name in names {
        found.push(bits.newest(&name, suite)?);
    }
    Ok(found)
}

fn fill(
    dir: &Path,
    bits: &Bits,
    packages: &[Package],
    release: &str,
    of: &StandIn,
) -> Result<(), Error> {
    bits.fetch(packages)?;
    let tree = dir.join("tree");
    fs::create_dir(&tree).at("make", &tree)?;
    for package in packages {
        let blob = bits.store().blob_path(&package.sha256);
        let reader = File::open(&blob).at("open", &blob)?;
        deb::unpack(&package.name, reader, &tree, &mut |path| Some(path.to_path_buf()))?;
    }
    let build = tree.join("usr/src").join(format!("linux-headers-{release}"));
    relocate(&build.join("Makefile"), &tree)?;
    let module = dir.join("module");
    let headers = module.join("include/rdma");
    fs::create_dir_all(&headers).at("make", &headers)?;
    let name = of.module;
    let kbuild = of.kbuild();
    let files =
        [(module.join(format!("{name}.c")), of.source), (module.join("Kbuild"), kbuild.as_str())];
    let header = of.header.map(|(file, text)| (headers.join(file), text));
    for (path, text) in files.into_iter().chain(header) {
        fs::write(&path, text).at("write", &path)?;
    }
    let source = format!("M={}", module.display());
    run(Command::new("make").arg("-C").arg(&build).args([&source, "modules"]), LIMIT)?;
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

/// Makes the configuration's Makefile, which names the common one by its absolute path, fit the tree.
fn relocate(makefile: &Path, tree: &Path) -> Result<(), Error> {
    let text = fs::read_to_string(makefile).at("read", makefile)?;
    let text = text.replace("/usr/src/", &format!("{}/usr/src/", tree.display()));
    fs::write(makefile, text).at("write", makefile)
}
