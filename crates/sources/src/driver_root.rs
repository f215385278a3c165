//! The driver root: the user-mode files exposed to the host under one path.
//!
//! ```text
//! usr/lib/TRIPLET/libcuda.so.535.261.03      libraries, their SONAMEs and development names as links
//! usr/bin/nvidia-smi                         tools
//! lib/firmware/nvidia/535.261.03/gsp_*.bin   firmware_class searches lib/firmware
//! etc/ld.so.cache                            names of the libraries, for container runtimes
//! etc/OpenCL/vendors/nvidia.icd              if OpenCL is included
//! dev/ proc/ sys/ run/                       empty, to mount on
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use object::elf::{DT_NEEDED, DT_SONAME, FileHeader64};
use object::read::elf::{ElfFile, FileHeader};
use object::{LittleEndian, ReadCache};

use crate::ldcache;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::machine::Machine;

/// Libraries that programs are linked with by their unversioned name; Debian has links for the same
/// ones.
const DEVELOPMENT_NAMES: [&str; 6] = [
    "libcuda.so",
    "libnvcuvid.so",
    "libnvidia-encode.so",
    "libnvidia-fbc.so",
    "libnvidia-ml.so",
    "libnvidia-opticalflow.so",
];

const EMPTY_DIRS: [&str; 5] = ["dev", "proc", "sys", "run", "lib/firmware"];
const OPENCL: &str = "libnvidia-opencl.so.1";

/// Completes a root that has its libraries, tools and firmware in place: links, loader cache,
/// OpenCL, empty directories. Returns the SONAMEs that are needed and are not in the root.
///
/// # Errors
/// Exit code 13 for a library of another machine, one that cannot be read, or a dangling link; 15
/// where the root cannot be written.
pub fn finish(root: &Path, machine: Machine) -> Result<Vec<String>, Failure> {
    let libraries = root.join("usr/lib").join(machine.triplet);
    for dir in EMPTY_DIRS.iter().map(|dir| root.join(dir)).chain([libraries.clone()]) {
        fs::create_dir_all(&dir).map_err(|e| write_failure(&dir, e))?;
    }
    let objects = read_libraries(&libraries, machine)?;
    let links = links(&libraries, &objects)?;
    let names = names(&objects, &links);
    if names.contains(OPENCL) {
        write(&root.join("etc/OpenCL/vendors/nvidia.icd"), format!("{OPENCL}\n").as_bytes())?;
    }
    write_cache(root, machine, &names)?;
    let tools = read_tools(&root.join("usr/bin"), machine)?;
    let needed = objects.values().chain(tools.values()).flat_map(|object| &object.needed);
    let absent: BTreeSet<_> = needed.filter(|name| !names.contains(*name)).cloned().collect();
    Ok(absent.into_iter().collect())
}

/// Fields of an ELF file that the loader reads.
struct Object {
    soname: Option<String>,
    needed: Vec<String>,
}

fn read_libraries(dir: &Path, machine: Machine) -> Result<BTreeMap<String, Object>, Failure> {
    let objects = read_objects(dir, machine)?;
    for (name, object) in &objects {
        if object.soname.as_ref().is_some_and(|soname| soname.contains('/') || soname.is_empty()) {
            return Err(damaged(&dir.join(name), "its SONAME is no file name"));
        }
    }
    Ok(objects)
}

fn read_tools(dir: &Path, machine: Machine) -> Result<BTreeMap<String, Object>, Failure> {
    if dir.is_dir() { read_objects(dir, machine) } else { Ok(BTreeMap::new()) }
}

/// Reads the regular files of a directory: file name -> object.
fn read_objects(dir: &Path, machine: Machine) -> Result<BTreeMap<String, Object>, Failure> {
    let mut objects = BTreeMap::new();
    for (name, kind) in list(dir)? {
        if kind.is_file() {
            let path = dir.join(&name);
            let object = read_object(&path, machine)
                .or_fail(FailureKind::Verification, || format!("reading {}", path.display()))?;
            objects.insert(name, object);
        }
    }
    Ok(objects)
}

fn list(dir: &Path) -> Result<Vec<(String, fs::FileType)>, Failure> {
    let entries = || -> io::Result<Vec<_>> {
        let named = |entry: fs::DirEntry| {
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.file_type()?))
        };
        fs::read_dir(dir)?.map(|entry| named(entry?)).collect()
    };
    entries().map_err(|e| write_failure(dir, e))
}

fn read_object(
    path: &Path,
    machine: Machine,
) -> Result<Object, Box<dyn std::error::Error + Send + Sync>> {
    let cache = ReadCache::new(File::open(path)?);
    let file = ElfFile::<FileHeader64<LittleEndian>, _>::parse(&cache)?;
    let found = file.elf_header().e_machine(LittleEndian);
    if found != machine.elf {
        return Err(format!("it is for another machine than {} ({found:?})", machine.uname).into());
    }
    let table = file.elf_dynamic_table()?;
    let mut object = Object { soname: None, needed: Vec::new() };
    for entry in table.iter() {
        let text = || Ok::<_, object::Error>(String::from_utf8_lossy(table.string(entry)?).into());
        match entry.tag {
            DT_SONAME => object.soname = Some(text()?),
            DT_NEEDED => object.needed.push(text()?),
            _ => {}
        }
    }
    Ok(object)
}

/// Makes the missing links and returns all of them: name -> file name.
fn links(
    dir: &Path,
    objects: &BTreeMap<String, Object>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut links = BTreeMap::new();
    for (file, object) in objects {
        if let Some(soname) = object.soname.as_ref().filter(|soname| *soname != file) {
            link(dir, soname, file)?;
            links.insert(soname.clone(), file.clone());
        }
    }
    for name in DEVELOPMENT_NAMES {
        let soname = links.keys().find(|soname| soname.starts_with(&format!("{name}."))).cloned();
        if let Some(soname) = soname {
            link(dir, name, &soname)?;
            links.insert(name.to_owned(), soname);
        }
    }
    for (name, kind) in list(dir)? {
        if kind.is_symlink() && !links.contains_key(&name) {
            let target = fs::read_link(dir.join(&name)).map_err(|e| write_failure(dir, e))?;
            let target = target.to_string_lossy().into_owned();
            if !objects.contains_key(&target) && !links.contains_key(&target) {
                let why = format!("it links to {target:?}, which is no library beside it");
                return Err(damaged(&dir.join(&name), &why));
            }
            links.insert(name, target);
        }
    }
    Ok(links)
}

/// Makes `name` a link to `target`, both in `dir`; replaces a link of that name.
fn link(dir: &Path, name: &str, target: &str) -> Result<(), Failure> {
    let path = dir.join(name);
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => {
            fs::remove_file(&path).map_err(|e| write_failure(&path, e))?
        }
        Ok(_) => return Err(damaged(&path, &format!("a link to {target} belongs in its place"))),
        Err(_) => {}
    }
    symlink(target, &path).map_err(|e| write_failure(&path, e))
}

/// The names under which libraries are looked up; a file's full name only if no SONAME links to it.
fn names(objects: &BTreeMap<String, Object>, links: &BTreeMap<String, String>) -> BTreeSet<String> {
    let is_own_name =
        |(file, object): &(&String, &Object)| object.soname.as_ref().is_none_or(|s| s == *file);
    let files = objects.iter().filter(is_own_name).map(|(file, _)| file.clone());
    files.chain(links.keys().cloned()).collect()
}

fn write_cache(root: &Path, machine: Machine, names: &BTreeSet<String>) -> Result<(), Failure> {
    let path = |name: &String| format!("/usr/lib/{}/{name}", machine.triplet);
    let libraries: Vec<_> = names
        .iter()
        .map(|name| ldcache::Library { name: name.clone(), path: path(name) })
        .collect();
    let target = root.join("etc/ld.so.cache");
    let cache = ldcache::encode(&libraries, machine.cache_flags)
        .ok_or_else(|| damaged(&target, "too many libraries for a loader cache"))?;
    write(&target, &cache)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::write(path, bytes)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))
    };
    write().map_err(|e| write_failure(path, e))
}

fn damaged(path: &Path, why: &str) -> Failure {
    let cause = format!("{} does not belong in a driver root: {why}", path.display());
    Failure::new(FailureKind::Verification, cause)
        .remedy("the package it is from is damaged or of an unknown form; take another archive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_elf::elf;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const TRIPLET: &str = "usr/lib/x86_64-linux-gnu";
    fn x86(soname: Option<&str>, needed: &[&str]) -> Vec<u8> {
        elf(62, soname, needed)
    }

    fn root(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (path, bytes) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directories");
            fs::write(path, bytes).expect("written");
        }
        dir
    }

    fn machine() -> Machine {
        Machine::named("x86_64").expect("known")
    }

    #[test]
    fn a_finished_root_has_links_cache_and_mount_points() {
        let root = root(&[
            (&format!("{TRIPLET}/libcuda.so.1.2"), x86(Some("libcuda.so.1"), &["libc.so.6"])),
            (
                &format!("{TRIPLET}/libnvidia-gpucomp.so.1.2"),
                x86(Some("libnvidia-gpucomp.so.1.2"), &[]),
            ),
            (&format!("{TRIPLET}/libnvidia-opencl.so.1.2"), x86(Some(OPENCL), &["libcuda.so.1"])),
            ("usr/bin/nvidia-persistenced", x86(None, &["libtirpc.so.3", "libc.so.6"])),
        ]);
        let needs = finish(root.path(), machine()).expect("finished");
        assert_eq!(needs, ["libc.so.6", "libtirpc.so.3"]);
        let read = |name: &str| fs::read_link(root.path().join(TRIPLET).join(name)).expect("link");
        assert_eq!(read("libcuda.so.1"), Path::new("libcuda.so.1.2"));
        assert_eq!(read("libcuda.so"), Path::new("libcuda.so.1"));
        let icd = fs::read_to_string(root.path().join("etc/OpenCL/vendors/nvidia.icd"));
        assert_eq!(icd.expect("icd"), "libnvidia-opencl.so.1\n");
        let cache = fs::read(root.path().join("etc/ld.so.cache")).expect("cache");
        let cache = String::from_utf8_lossy(&cache);
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-gpucomp.so.1.2", OPENCL] {
            assert!(cache.contains(&format!("\0/usr/lib/x86_64-linux-gnu/{name}\0")), "{name}");
        }
        assert!(!cache.contains("libcuda.so.1.2"));
        for dir in EMPTY_DIRS {
            assert!(root.path().join(dir).is_dir(), "{dir}");
        }
    }

    #[test]
    fn links_that_are_there_are_kept_or_put_right() {
        let root = root(&[(&format!("{TRIPLET}/libcuda.so.1.2"), x86(Some("libcuda.so.1"), &[]))]);
        let dir = root.path().join(TRIPLET);
        symlink("/etc/passwd", dir.join("libcuda.so.1")).expect("link");
        symlink("libcuda.so.1", dir.join("libother.so")).expect("link");
        finish(root.path(), machine()).expect("finished");
        let read = |name: &str| fs::read_link(dir.join(name)).expect("link");
        assert_eq!(read("libcuda.so.1"), Path::new("libcuda.so.1.2"));
        assert_eq!(read("libother.so"), Path::new("libcuda.so.1"));
    }

    #[rstest]
    #[case::another_machine("another machine", elf(183, Some("libcuda.so.1"), &[]))]
    #[case::not_elf("libcuda.so.1.2", b"#!/bin/sh\n".to_vec())]
    #[case::cut_off("libcuda.so.1.2", x86(Some("libcuda.so.1"), &[])[..100].to_vec())]
    #[case::empty("libcuda.so.1.2", Vec::new())]
    #[case::soname_elsewhere("SONAME", x86(Some("../../../etc/cron.d/x"), &[]))]
    fn a_library_is_refused_that_is(#[case] said: &str, #[case] bytes: Vec<u8>) {
        let root = root(&[(&format!("{TRIPLET}/libcuda.so.1.2"), bytes)]);
        let failure = finish(root.path(), machine()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.report().contains(said), "{}", failure.report());
    }

    #[test]
    fn a_link_that_leaves_the_root_is_refused() {
        let root = root(&[(&format!("{TRIPLET}/libcuda.so.1.2"), x86(None, &[]))]);
        symlink("/etc/passwd", root.path().join(TRIPLET).join("libx.so")).expect("link");
        let failure = finish(root.path(), machine()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
    }

    #[test]
    fn a_machine_without_a_driver_is_refused() {
        let failure = Machine::named("riscv64").expect_err("refused");
        assert_eq!(failure.code(), ExitCode::HostUnsupported);
    }
}
