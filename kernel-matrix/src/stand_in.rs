//! Stand-in for nouveau, compiled for a guest's kernel: nouveau itself does not bind to the simulated
//! GPU, which has no VBIOS.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_debian::archive::Package;
use longshore_debian::deb;

use crate::bits::Bits;
use crate::cache::Cache;
use crate::error::{At, Error};
use crate::process::{LIMIT, run};

const SOURCE: &str = include_str!("../guest/nouveau.c");
/// Packages of a kernel's headers.
const HEADERS: [&str; 2] = ["linux-headers-", "linux-kbuild-"];

/// Compiles the module for the kernel `release` of a suite with this machine's compiler, or returns
/// the cached one.
///
/// # Errors
/// The suite has no headers for the kernel, or the compile fails.
pub fn make(cache: &Cache, bits: &Bits, suite: &str, release: &str) -> Result<PathBuf, Error> {
    let packages = headers(bits, suite, release)?;
    let digests = packages.iter().map(|package| package.sha256.as_str());
    let inputs: Vec<&str> = digests.chain([SOURCE]).collect();
    let dir = cache.produce("stand-in", &inputs, |dir| fill(dir, bits, &packages, release))?;
    Ok(dir.join("nouveau.ko"))
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

fn fill(dir: &Path, bits: &Bits, packages: &[Package], release: &str) -> Result<(), Error> {
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
    fs::create_dir(&module).at("make", &module)?;
    for (name, text) in [("nouveau.c", SOURCE), ("Kbuild", "obj-m := nouveau.o\n")] {
        let path = module.join(name);
        fs::write(&path, text).at("write", &path)?;
    }
    let source = format!("M={}", module.display());
    run(Command::new("make").arg("-C").arg(&build).args([&source, "modules"]), LIMIT)?;
    let made = module.join("nouveau.ko");
    fs::rename(&made, dir.join("nouveau.ko")).at("take", &made)?;
    fs::remove_dir_all(&tree).at("remove", &tree)
}

/// Makes the configuration's Makefile, which names the common one by its absolute path, fit the tree.
fn relocate(makefile: &Path, tree: &Path) -> Result<(), Error> {
    let text = fs::read_to_string(makefile).at("read", makefile)?;
    let text = text.replace("/usr/src/", &format!("{}/usr/src/", tree.display()));
    fs::write(makefile, text).at("write", makefile)
}
