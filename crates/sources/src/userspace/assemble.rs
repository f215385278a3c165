//! Assembles driver roots from a driver version's packages, or from a .run file.

use std::path::Path;

use super::assembly::Assembly;
use super::manifest::PackageUsed;
use super::selection::{Selection, choose};
use super::sources::Sources;
use crate::parts;
use crate::place::place;
use crate::runfile::{StoredRunFile, Written};
use crate::userspace::AvailableUserspace;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::machine::Machine;
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_debian::deb;
use longshore_debian::packages::Package;

/// Assembles the user-mode tree of a driver version in the store, with its kernel sources of the flavour
/// `sources` if given; an existing, undamaged one is returned.
///
/// Exit code 2 for an invalid version, 10 for an architecture without an NVIDIA driver, 12 where
/// the archives lack a required part or a download fails, 13 for packages without the expected
/// contents, 15 for a store that cannot be written.
pub async fn assemble(
    driver_version: &str,
    sources: Option<Flavour>,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<AvailableUserspace, Failure> {
    check_version(driver_version)?;
    let machine = Machine::this()?;
    let selection = select(driver_version, machine, archive)?;
    let in_archive = |flavour| Sources::in_archive(driver_version, flavour, archive);
    let sources = sources.map(in_archive).transpose()?;
    let source_package = sources.as_ref().and_then(Sources::package).cloned();
    let assembly = of_packages(driver_version, machine, &selection, sources, store);
    if let Some(tree) = assembly.there()? {
        return Ok(tree);
    }
    let packages: Vec<_> = selection.packages.iter().cloned().chain(source_package).collect();
    archive.fetch(&packages, store, progress).await?;
    let what = format!("assembling the user-mode driver {driver_version}");
    let task = progress.begin(&what, Some(selection.packages.len() as u64), Unit::Items);
    let blocking = tokio::task::spawn_blocking(move || {
        assembly.carry_out(|root| assembly.unpack(&selection, root, task.as_ref()))
    });
    blocking.await.or_fail(FailureKind::Bug, || format!("{what}: the worker ended early"))?
}

/// Assembles the user-mode tree of an unpacked .run file in the store, with its kernel sources of the
/// flavour `sources` if given; an existing, undamaged one is returned.
///
/// # Errors
/// Exit code 12 where the .run file lacks these sources; 13 where the .run file lacks expected contents, or the store's copy of it is damaged;
/// 15 for a store that cannot be written.
pub async fn assemble_run_file(
    file: StoredRunFile,
    sources: Option<Flavour>,
    store: &Store,
    progress: &dyn Progress,
) -> Result<AvailableUserspace, Failure> {
    let machine = Machine::this()?;
    let assembly = of_run_file(&file, machine, sources, store);
    if let Some(tree) = assembly.there()? {
        return Ok(tree);
    }
    let what = format!("assembling the user-mode driver {}", file.written.version);
    let task = progress.begin(&what, None, Unit::Items);
    let blocking = tokio::task::spawn_blocking(move || {
        task.note(&file.written.name);
        assembly.carry_out(|root| file.fill(root, machine))
    });
    blocking.await.or_fail(FailureKind::Bug, || format!("{what}: the worker ended early"))?
}

fn of_packages(
    driver_version: &str,
    machine: Machine,
    selection: &Selection,
    sources: Option<Sources>,
    store: &Store,
) -> Assembly {
    let used = selection.packages.iter().map(PackageUsed::from_package).collect();
    Assembly::new(driver_version, machine, used, selection.missing.clone(), sources, store)
}

fn of_run_file(
    file: &StoredRunFile,
    machine: Machine,
    sources: Option<Flavour>,
    store: &Store,
) -> Assembly {
    let sources = sources.map(|flavour| Sources::of_run_file(file, flavour));
    let Written { name, sha256, version, .. } = file.written.clone();
    let used = PackageUsed { name, version: version.clone(), suite: None, sha256 };
    Assembly::new(&version, machine, vec![used], Vec::new(), sources, store)
}

impl Assembly {
    fn unpack(&self, selection: &Selection, root: &Path, task: &dyn Task) -> Result<(), Failure> {
        for package in &selection.packages {
            task.note(&package.name);
            self.unpack_package(package, root)?;
            task.advance(1);
        }
        Ok(())
    }

    fn unpack_package(&self, package: &Package, root: &Path) -> Result<(), Failure> {
        let blob = self.store.open_blob(&package.sha256)?;
        let mut twice = None;
        let mut target_of = |path: &Path| {
            let target = place(path, self.machine.triplet, &self.driver_version)?;
            if root.join(&target).symlink_metadata().is_ok() {
                twice = Some(target);
                return None;
            }
            Some(target)
        };
        deb::unpack(&package.name, blob, root, &mut target_of)?;
        let Some(twice) = twice else { return Ok(()) };
        let cause = format!("{} brings {} a second time", package.name, twice.display());
        Err(Failure::new(FailureKind::Verification, cause))
    }
}

/// Checks the version, which becomes part of paths.
fn check_version(driver_version: &str) -> Result<(), Failure> {
    if DriverVersion::parse(driver_version).is_some() {
        return Ok(());
    }
    let cause = format!("{driver_version:?} is not a driver version");
    Err(Failure::new(FailureKind::Usage, cause).remedy("write it like 535.261.03"))
}

fn select(driver_version: &str, machine: Machine, archive: &Archive) -> Result<Selection, Failure> {
    let names = archive.names_matching(&parts::is_part);
    let offered: Vec<Package> = names.iter().flat_map(|name| archive.packages(name)).collect();
    choose(driver_version, machine.debian, &offered)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use super::super::manifest::{Depth, examine, verify};
    use super::super::sample::{VERSION, driver, library, package, store, tool};
    use super::*;
    use crate::userspace::{available, manifest_of};
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use longshore_core::progress::Silent;
    use rstest::rstest;

    fn assembly(store: &Store, packages: Vec<Package>) -> (Assembly, Selection) {
        assembly_with(store, packages, None)
    }

    fn assembly_with(
        store: &Store,
        packages: Vec<Package>,
        sources: Option<Sources>,
    ) -> (Assembly, Selection) {
        let machine = Machine::named("x86_64").expect("known");
        let selection = Selection { packages, missing: vec!["libnvidia-nscq".into()] };
        (of_packages(VERSION, machine, &selection, sources, store), selection)
    }

    pub(in super::super) fn assembled(
        store: &Store,
        packages: Vec<Package>,
    ) -> Result<AvailableUserspace, Failure> {
        assembled_with(store, packages, None)
    }

    pub(in super::super) fn assembled_with(
        store: &Store,
        packages: Vec<Package>,
        sources: Option<Sources>,
    ) -> Result<AvailableUserspace, Failure> {
        let (assembly, selection) = assembly_with(store, packages, sources);
        assembly.carry_out(|root| assembly.unpack(&selection, root, &Silent))
    }

    fn is_empty(dir: PathBuf) -> bool {
        fs::read_dir(dir).expect("listed").next().is_none()
    }

    #[test]
    fn packages_become_a_tree_that_is_as_its_manifest_says() {
        let (_dir, store) = store();
        let tree = assembled(&store, driver(&store)).expect("assembled");
        verify(&tree, Depth::Full, Disk::default()).expect("verifies");
        assert_eq!(available(&store).expect("listed"), std::slice::from_ref(&tree));
        let manifest = manifest_of(&tree).expect("manifest");
        assert_eq!(manifest.needs, ["libc.so.6"]);
        assert_eq!(manifest.missing, ["libnvidia-nscq"]);
        assert_eq!(manifest.packages.len(), 4);
        for path in
            ["usr/bin/nvidia-smi", "usr/lib/x86_64-linux-gnu/libcuda.so.1", "etc/ld.so.cache"]
        {
            assert!(manifest.entries.contains_key(Path::new(path)), "{path}");
        }
        assert!(is_empty(store.dir("tmp")));
    }

    #[test]
    fn a_changed_tree_stays_under_who_uses_it_and_another_is_put_beside_it() {
        let (_dir, store) = store();
        let first = assembled(&store, driver(&store)).expect("assembled");
        // As with a mount, this refers to the directory regardless of later renames.
        let held = fs::File::open(first.root.join("usr/lib/x86_64-linux-gnu")).expect("opened");
        let held = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        let library = held.join(format!("libcuda.so.{VERSION}"));
        fs::remove_file(first.root.join("usr/bin/nvidia-smi")).expect("removed");
        let second = assembled(&store, driver(&store)).expect("assembled");
        assert!(library.is_file(), "it is gone from under its user");
        assert_eq!(second.root, with_generation(&first.root, 2));
        verify(&second, Depth::Full, Disk::default()).expect("verifies");
        assert_eq!(second.tools, ["nvidia-smi"]);
        // Both exist, and the damaged one is not offered to new users.
        assert_eq!(available(&store).expect("listed"), std::slice::from_ref(&second));
        assert_eq!(assembled(&store, driver(&store)).expect("found"), second);
        assert!(is_empty(store.dir("tmp")));
    }

    #[test]
    fn a_tree_with_a_flipped_bit_is_used_no_more_once_that_was_seen() {
        let (_dir, store) = store();
        let first = assembled(&store, driver(&store)).expect("assembled");
        let tool = first.root.join("usr/bin/nvidia-smi");
        let mut bytes = fs::read(&tool).expect("read");
        bytes[10] ^= 1;
        fs::write(&tool, bytes).expect("flipped");
        assert_eq!(available(&store).expect("listed").len(), 1, "the quick check does not see it");
        let failure = examine(&first.root, Depth::Changed, Disk::default()).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.remedy_text().is_some_and(|text| text.contains("run again")));
        assert_eq!(available(&store).expect("listed"), []);
        let second = assembled(&store, driver(&store)).expect("assembled");
        assert_eq!(second.root, with_generation(&first.root, 2));
        examine(&second.root, Depth::Changed, Disk::default()).expect("as it should be");
        assert!(tool.is_file(), "it is gone from under its user");
    }

    fn with_generation(root: &Path, number: u32) -> PathBuf {
        let name = root.parent().and_then(Path::file_name).expect("a name");
        let name = format!("{}.{number}", name.to_string_lossy());
        root.parent().expect("directory").with_file_name(name).join("root")
    }

    #[rstest]
    #[case::no_firmware("do not hold lib/firmware", |store: &Store, packages: &mut Vec<Package>| {
        packages[0] = package(store, "firmware-nvidia-gsp", &[]);
    })]
    #[case::wrong_version("libcuda.so.535.1.2", |store: &Store, packages: &mut Vec<Package>| {
        packages[1] = package(store, "libcuda1", &[tool("usr/lib/x86_64-linux-gnu/libcuda.so.1.1")]);
    })]
    #[case::the_same_file_twice("a second time", |store: &Store, packages: &mut Vec<Package>| {
        packages.push(package(store, "libcuda2", &[library("libcuda")]));
    })]
    #[case::a_changed_blob("sha256", |store: &Store, packages: &mut Vec<Package>| {
        fs::write(store.blob_path(&packages[1].sha256), b"!<arch>\n").expect("written");
    })]
    fn nothing_is_left_of_packages_with(
        #[case] said: &str,
        #[case] change: fn(&Store, &mut Vec<Package>),
    ) {
        let (_dir, store) = store();
        let mut packages = driver(&store);
        change(&store, &mut packages);
        let failure = assembled(&store, packages).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
        assert!(failure.report().contains(said), "{}", failure.report());
        assert!(is_empty(store.dir("userspace")) && is_empty(store.dir("tmp")));
    }

    #[test]
    fn another_package_makes_another_name() {
        let (_dir, store) = store();
        let name = |packages: &[Package]| assembly(&store, packages.to_vec()).0.name;
        let mut packages = driver(&store);
        let before = name(&packages);
        assert!(before.starts_with("535.1.2-x86_64-"), "{before}");
        packages[1].sha256 = "0".repeat(64);
        assert_ne!(name(&packages), before);
    }

    #[rstest]
    #[case("")]
    #[case("535")]
    #[case("../../etc")]
    #[case("535..1")]
    #[case("535.1/2")]
    fn is_no_version(#[case] text: &str) {
        assert_eq!(check_version(text).expect_err("refused").code(), ExitCode::Usage);
    }
}
