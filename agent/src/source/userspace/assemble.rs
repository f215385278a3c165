//! Fetches the packages of a driver version and makes a driver root of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::manifest::{Depth, Manifest, PackageUsed, measure, verify};
use super::parts;
use super::place::place;
use super::selection::{Selection, choose};
use crate::catalog::UserspaceAtHand;
use crate::expose::tree::{self, Machine};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::progress::{Progress, Task, Unit};
use crate::source::archive::Archive;
use crate::source::deb;
use crate::source::packages::Package;
use crate::store::{Store, hex, write_failure};

/// Part of a tree's digest, so that a change to how trees are laid out makes new ones.
const LAYOUT: &str = "driver-root-1";

/// Brings the user-mode tree of a driver version into the store; what is there already and as it
/// should be is not made again.
///
/// # Errors
/// Exit code 2 for a version that is none, 10 for an architecture NVIDIA has no driver for, 12
/// where the archives lack a part the driver cannot do without or a download fails, 13 for
/// packages that do not hold what they should, 15 for a store that cannot be written.
pub async fn assemble(
    driver_version: &str,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<UserspaceAtHand, Failure> {
    check_version(driver_version)?;
    let machine = Machine::this()?;
    let selection = select(driver_version, machine, archive)?;
    let directory = store.dir("userspace").join(name_of(driver_version, machine, &selection));
    let tree = UserspaceAtHand {
        driver_version: driver_version.to_owned(),
        arch: machine.uname.to_owned(),
        root: directory.join("root"),
    };
    if directory.exists() {
        match verify(&tree, Depth::Quick) {
            Ok(()) => return Ok(tree),
            Err(failure) => tracing::warn!("assembling it anew: {}", failure.one_line()),
        }
    }
    archive.fetch(&selection.packages, store, progress).await?;
    let what = format!("assembling the user-mode driver {driver_version}");
    let task = progress.begin(&what, Some(selection.packages.len() as u64), Unit::Items);
    let work = Work { machine, selection, store: store.clone(), tree };
    let blocking = tokio::task::spawn_blocking(move || work.carry_out(task.as_ref()));
    blocking.await.or_fail(ExitCode::Bug, || format!("{what}: the worker ended early"))?
}

/// The version becomes part of paths.
fn check_version(driver_version: &str) -> Result<(), Failure> {
    let numbers = || driver_version.split('.');
    let sound = numbers().count() > 1
        && numbers().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if sound {
        return Ok(());
    }
    let cause = format!("{driver_version:?} is no driver version");
    Err(Failure::new(ExitCode::Usage, cause).remedy("write it like 535.261.03"))
}

fn select(driver_version: &str, machine: Machine, archive: &Archive) -> Result<Selection, Failure> {
    let names = archive.names_matching(&parts::is_part);
    let offered: Vec<Package> = names.iter().flat_map(|name| archive.packages(name)).collect();
    choose(driver_version, machine.debian, &offered)
}

/// A directory name that says what is in it, and changes with every package.
fn name_of(driver_version: &str, machine: Machine, selection: &Selection) -> String {
    let mut hash = Sha256::new();
    hash.update(LAYOUT);
    for package in &selection.packages {
        hash.update(format!("\n{} {}", package.name, package.sha256));
    }
    let digest = hex(&hash.finalize());
    format!("{driver_version}-{}-{}", machine.uname, &digest[..12])
}

/// What is left to do once the packages are in the store.
struct Work {
    machine: Machine,
    selection: Selection,
    store: Store,
    tree: UserspaceAtHand,
}

impl Work {
    fn carry_out(self, task: &dyn Task) -> Result<UserspaceAtHand, Failure> {
        let tmp = self.store.dir("tmp");
        let scratch = tempfile::Builder::new()
            .prefix("userspace-")
            .tempdir_in(&tmp)
            .map_err(|e| write_failure(&tmp, e))?;
        let root = scratch.path().join("root");
        fs::create_dir(&root).map_err(|e| write_failure(&root, e))?;
        for package in &self.selection.packages {
            task.note(&package.name);
            self.unpack(package, &root)?;
            task.advance(1);
        }
        let needs = tree::finish(&root, self.machine)?;
        self.check(&root)?;
        self.write_manifest(&root, needs)?;
        self.keep(scratch)?;
        Ok(self.tree)
    }

    fn unpack(&self, package: &Package, root: &Path) -> Result<(), Failure> {
        let blob = self.store.open_blob(&package.sha256)?;
        let mut twice = None;
        let mut target_of = |path: &Path| {
            let target = place(path, self.machine.triplet, &self.tree.driver_version)?;
            if root.join(&target).symlink_metadata().is_ok() {
                twice = Some(target);
                return None;
            }
            Some(target)
        };
        deb::unpack(&package.name, blob, root, &mut target_of)?;
        let Some(twice) = twice else { return Ok(()) };
        let cause = format!("{} brings {} a second time", package.name, twice.display());
        Err(Failure::new(ExitCode::Verification, cause))
    }

    /// The packages hold what their names promise.
    fn check(&self, root: &Path) -> Result<(), Failure> {
        let version = &self.tree.driver_version;
        let library = |name: &str| {
            PathBuf::from(format!("usr/lib/{}/{name}.so.{version}", self.machine.triplet))
        };
        let files = [library("libcuda"), library("libnvidia-ml"), "usr/bin/nvidia-smi".into()];
        let mut absent: Vec<_> = files.iter().filter(|path| !root.join(path).is_file()).collect();
        let firmware = PathBuf::from(format!("lib/firmware/nvidia/{version}"));
        if parts::wants_firmware(version) && !root.join(&firmware).is_dir() {
            absent.push(&firmware);
        }
        if absent.is_empty() {
            return Ok(());
        }
        let absent: Vec<_> = absent.iter().map(|path| path.display().to_string()).collect();
        let packages: Vec<_> = self.selection.packages.iter().map(|p| p.name.as_str()).collect();
        let cause = format!(
            "the packages of the user-mode driver {version} do not hold {} (unpacked {})",
            absent.join(", "),
            packages.join(", ")
        );
        Err(Failure::new(ExitCode::Verification, cause))
    }

    fn write_manifest(&self, root: &Path, needs: Vec<String>) -> Result<(), Failure> {
        let used = |p: &Package| PackageUsed {
            name: p.name.clone(),
            version: p.version.clone(),
            suite: p.suite.clone(),
            sha256: p.sha256.clone(),
        };
        let manifest = Manifest {
            packages: self.selection.packages.iter().map(used).collect(),
            missing: self.selection.missing.clone(),
            needs,
            entries: measure(root).map_err(|e| write_failure(root, e))?,
            ..Manifest::new(&self.tree.driver_version, self.machine.uname)
        };
        let path = root.with_file_name("manifest.json");
        let text = serde_json::to_vec_pretty(&manifest)
            .or_fail(ExitCode::Bug, || format!("writing {}", path.display()))?;
        fs::write(&path, text).map_err(|e| write_failure(&path, e))
    }

    /// Syncs, and puts the finished directory in its place.
    fn keep(&self, scratch: tempfile::TempDir) -> Result<(), Failure> {
        let Some(target) = self.tree.root.parent() else {
            return Err(Failure::new(ExitCode::Bug, "a tree's root without a directory above it"));
        };
        let failed = |e| write_failure(target, e);
        make_readable(scratch.path()).map_err(failed)?;
        // One call for hundreds of files; the rename must not reach the disk before their content.
        let opened = File::open(scratch.path()).map_err(failed)?;
        nix::unistd::syncfs(&opened).map_err(|e| failed(e.into()))?;
        if target.exists() {
            let aside = scratch.path().with_extension("replaced");
            fs::rename(target, &aside).map_err(failed)?;
            fs::rename(scratch.path(), target).map_err(failed)?;
            fs::remove_dir_all(&aside).map_err(failed)?;
        } else {
            fs::rename(scratch.path(), target).map_err(failed)?;
        }
        let _ = scratch.keep();
        File::open(self.store.dir("userspace")).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}

/// A temporary directory is its owner's alone, and the tree is for everybody.
fn make_readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expose::sample_elf::elf;
    use crate::progress::Silent;
    use crate::source::userspace::{at_hand, manifest_of};
    use rstest::rstest;

    const VERSION: &str = "535.1.2";
    const CURRENT: &str = "usr/lib/x86_64-linux-gnu/nvidia/current";

    fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
        }
        tar.into_inner().expect("tar")
    }

    fn deb(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut deb = b"!<arch>\n".to_vec();
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar", tar_of(&[])),
            ("data.tar", tar_of(files)),
        ];
        for (name, bytes) in members {
            let header =
                format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len());
            deb.extend(header.bytes());
            deb.extend(&bytes);
            deb.resize(deb.len().next_multiple_of(2), b'\n');
        }
        deb
    }

    fn package(store: &Store, name: &str, files: &[(String, Vec<u8>)]) -> Package {
        let bytes = deb(files);
        Package {
            name: name.into(),
            version: format!("{VERSION}-1"),
            arch: "amd64".into(),
            source: Some("graphics".into()),
            suite: "bookworm".into(),
            component: "non-free".into(),
            filename: String::new(),
            size: bytes.len() as u64,
            sha256: store.put(&bytes).expect("stored"),
            depends: Vec::new(),
            provides: Vec::new(),
            base_url: "file:///archive".into(),
        }
    }

    fn library(name: &str) -> (String, Vec<u8>) {
        let soname = format!("{name}.so.1");
        (format!("{CURRENT}/{name}.so.{VERSION}"), elf(62, Some(&soname), &["libc.so.6"]))
    }

    fn tool(path: &str) -> (String, Vec<u8>) {
        (path.to_owned(), elf(62, None, &["libc.so.6"]))
    }

    /// A whole driver, in three packages.
    fn driver(store: &Store) -> Vec<Package> {
        let gsp = format!("lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin");
        vec![
            package(store, "firmware-nvidia-gsp", &[(gsp, b"firmware".to_vec())]),
            package(store, "libcuda1", &[library("libcuda")]),
            package(store, "libnvidia-ml1", &[library("libnvidia-ml")]),
            package(store, "nvidia-smi", &[tool("usr/lib/nvidia/current/nvidia-smi")]),
        ]
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path()).expect("store");
        (dir, store)
    }

    fn work(store: &Store, packages: Vec<Package>) -> Work {
        let machine = Machine::named("x86_64").expect("known");
        let selection = Selection { packages, missing: vec!["libnvidia-nscq".into()] };
        let name = name_of(VERSION, machine, &selection);
        let tree = UserspaceAtHand {
            driver_version: VERSION.into(),
            arch: machine.uname.into(),
            root: store.dir("userspace").join(name).join("root"),
        };
        Work { machine, selection, store: store.clone(), tree }
    }

    fn is_empty(dir: PathBuf) -> bool {
        fs::read_dir(dir).expect("listed").next().is_none()
    }

    #[test]
    fn packages_become_a_tree_that_is_as_its_manifest_says() {
        let (_dir, store) = store();
        let tree = work(&store, driver(&store)).carry_out(&Silent).expect("assembled");
        verify(&tree, Depth::Full).expect("verifies");
        assert_eq!(at_hand(&store).expect("listed"), std::slice::from_ref(&tree));
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
    fn a_changed_tree_is_replaced() {
        let (_dir, store) = store();
        let tree = work(&store, driver(&store)).carry_out(&Silent).expect("assembled");
        fs::remove_file(tree.root.join("usr/bin/nvidia-smi")).expect("removed");
        let again = work(&store, driver(&store)).carry_out(&Silent).expect("assembled");
        assert_eq!(again, tree);
        verify(&again, Depth::Full).expect("verifies");
        assert!(is_empty(store.dir("tmp")));
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
        let failure = work(&store, packages).carry_out(&Silent).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification, "{}", failure.report());
        assert!(failure.report().contains(said), "{}", failure.report());
        assert!(is_empty(store.dir("userspace")) && is_empty(store.dir("tmp")));
    }

    #[test]
    fn another_package_makes_another_name() {
        let (_dir, store) = store();
        let name = |packages| work(&store, packages).tree.root;
        let mut packages = driver(&store);
        let before = name(packages.clone());
        assert!(before.ends_with("root") && before.to_string_lossy().contains("535.1.2-x86_64-"));
        packages[1].sha256 = "0".repeat(64);
        assert_ne!(name(packages), before);
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
