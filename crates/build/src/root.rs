//! The hermetic build root: packages unpacked side by side, without a package manager and without
//! running any of their programs.
//!
//! It lies in the store as `roots/DIGEST`, named after its packages, and every build with the same
//! packages uses it again. It is renamed into place only when complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::build_lock;
use super::mofed::Mofed;
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package, Taker};
use longshore_debian::deb;
use longshore_sources::headers::Trees;

/// Version of the assembly, changed whenever it changes a root's contents.
const RECIPE: &str = "1";
/// Mount points of the sandbox.
pub(super) const MOUNT_POINTS: [&str; 4] = ["proc", "dev", "tmp", "build"];
/// Links that maintainer scripts would have made.
const LINKS: [(&str, &str); 1] = [("usr/bin/awk", "mawk")];
/// Directories that no build reads; they are a third of the bytes.
const LEFT_OUT: [&str; 5] =
    ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian"];

/// Contents of a root.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// Packages.
    pub packages: Vec<Package>,
    /// Headers that are not packages.
    pub trees: Option<Trees>,
    /// Digests of the headers, by package or tree.
    pub header_digests: BTreeMap<String, String>,
    /// MOFED's headers.
    pub mofed: Option<Mofed>,
}

/// Returns the path of these parts' root, assembled or not.
pub fn path_of(parts: &Parts, store: &Store) -> PathBuf {
    let digests: BTreeSet<&str> = parts.packages.iter().map(|p| p.sha256.as_str()).collect();
    let mut hash = Sha256::new();
    hash.update(RECIPE);
    digests.iter().for_each(|digest| hash.update(digest));
    if parts.trees.is_some() {
        for (name, digest) in &parts.header_digests {
            hash.update(format!("{name} {digest}\n"));
        }
    }
    // Answers and objects of earlier builds are kept by this name: those with MOFED are others.
    if let Some((name, digest)) = parts.mofed.as_ref().map(Mofed::keyed) {
        hash.update(format!("{name} {digest}\n"));
    }
    store.dir("roots").join(hex(&hash.finalize()))
}

/// Assembles the root of `packages`, unless it exists already. Packages missing in the store are
/// fetched; each is unpacked when it has arrived, while others are still being downloaded. Waits at
/// most `limit` for another process that assembles the same root.
///
/// # Errors
/// Exit code 12 for packages that cannot be downloaded, 13 for a damaged package, 15 where the
/// store cannot be written.
pub async fn assemble(
    packages: &[Package],
    limit: Duration,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    let packages = packages.to_vec();
    assemble_parts(&Parts { packages, ..Parts::default() }, limit, archive, store, progress).await
}

/// Like [`assemble`], with headers that are not packages.
///
/// # Errors
/// As [`assemble`]; 13 for headers that change while they are copied.
pub(crate) async fn assemble_parts(
    parts: &Parts,
    limit: Duration,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<PathBuf, Failure> {
    let (path, packages) = (path_of(parts, store), &parts.packages);
    if path.is_dir() {
        store.mark_used(path.strip_prefix(store.root()).unwrap_or(&path));
        return Ok(path);
    }
    let lock =
        build_lock::take(&path.with_extension("lock"), limit, "the build root", progress).await?;
    if path.is_dir() {
        return Ok(path);
    }
    let what = format!("unpacking {} packages", packages.len());
    let task = progress.begin(&what, Some(packages.len() as u64), Unit::Items);
    let started = store.clone();
    let root = in_thread(&what, move || Unfinished::start(&started, lock, task)).await?;
    let root = Arc::new(root);
    let waiting = Arc::new(());
    let (unfinished, caller) = (Arc::clone(&root), Arc::downgrade(&waiting));
    let take: Taker = Arc::new(move |package, file| unfinished.add(package, file, &caller));
    archive.fetch_each(packages, store, progress, take).await?;
    let (parts, target) = (parts.clone(), path.clone());
    in_thread(&what, move || Unfinished::finish(root, &parts, &target)).await?;
    Ok(path)
}

pub(super) async fn in_thread<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.or_fail(FailureKind::Bug, || what.to_owned())?
}

/// A root under construction. Shared with the threads that unpack, which may outlive a cancelled
/// caller. When dropped, the directory is removed first, then the lock is released.
struct Unfinished {
    dir: ScratchDir,
    disk: Disk,
    task: Box<dyn Task>,
    _lock: build_lock::BuildLock,
}

impl Unfinished {
    fn start(
        store: &Store,
        lock: build_lock::BuildLock,
        task: Box<dyn Task>,
    ) -> Result<Self, Failure> {
        let dir = claim(store, "root")?;
        // Before any package is unpacked: none may put a directory in these links' places.
        deb::make_usrmerge_links(dir.path())?;
        Ok(Self { dir, disk: store.disk(), task, _lock: lock })
    }

    fn add(&self, package: &Package, file: File, caller: &Weak<()>) -> Result<(), Failure> {
        self.task.note(&package.name);
        let reader = WhileWanted { inner: file, caller };
        let mut place = |path: &Path| {
            let wanted = !LEFT_OUT.iter().any(|out| path.starts_with(out));
            wanted.then(|| path.to_path_buf())
        };
        deb::unpack(&package.name, reader, self.dir.path(), &mut place)?;
        self.task.advance(1);
        Ok(())
    }

    fn finish(this: Arc<Self>, parts: &Parts, target: &Path) -> Result<(), Failure> {
        let shared = || Failure::new(FailureKind::Bug, "a build root is still being written");
        let Self { dir, disk, _lock, .. } = Arc::into_inner(this).ok_or_else(shared)?;
        let root = dir.path();
        if let Some(trees) = &parts.trees {
            copy(trees, &parts.header_digests, root)?;
        }
        if let Some(mofed) = &parts.mofed {
            mofed.copy_into(root)?;
        }
        finish(root, disk).map_err(|e| write_failure(root, e))?;
        fs::rename(root, target).map_err(|e| write_failure(target, e))?;
        dir.moved();
        Ok(())
    }
}

/// Copies headers, and checks that the copy has the digests in the build's key.
fn copy(trees: &Trees, digests: &BTreeMap<String, String>, root: &Path) -> Result<(), Failure> {
    trees.copy_into(root).map_err(|e| write_failure(root, e))?;
    let what = || format!("reading the headers copied to {}", root.display());
    let copied = trees.copied_to(root).digests().or_fail(FailureKind::Verification, what)?;
    if copied == *digests {
        return Ok(());
    }
    let cause = "the headers changed while they were copied";
    Err(Failure::new(FailureKind::Verification, cause)
        .remedy("run again when no process writes to them any more"))
}

/// Reader that fails once its consumer is gone: a cancelled build ends at once.
pub(super) struct WhileWanted<'a, R> {
    pub(super) inner: R,
    pub(super) caller: &'a Weak<()>,
}

impl<R: Read> Read for WhileWanted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.caller.strong_count() == 0 {
            return Err(io::Error::other("the build was cancelled"));
        }
        self.inner.read(buffer)
    }
}

/// Adds mount points and links, and syncs everything before the rename.
fn finish(root: &Path, disk: Disk) -> std::io::Result<()> {
    for point in MOUNT_POINTS {
        fs::create_dir_all(root.join(point))?;
    }
    for (link, target) in LINKS {
        let link = root.join(link);
        let there = root.join("usr/bin").join(target).exists();
        if there && link.symlink_metadata().is_err() {
            symlink(target, link)?;
        }
    }
    // A temporary directory is accessible to its owner only; the build runs as another user.
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    disk.sync_whole(&File::open(root)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    fn package(sha256: &str) -> Package {
        Package {
            name: "make".into(),
            version: "4.3-4.1".into(),
            arch: "amd64".into(),
            source: None,
            component: "main".into(),
            filename: String::new(),
            size: 0,
            sha256: sha256.into(),
            depends: Vec::new(),
            provides: Vec::new(),
            base_url: "".into(),
            origin: longshore_core::package_origin::PackageOrigin::named("bookworm"),
        }
    }

    #[test]
    fn a_root_is_named_after_its_packages_in_any_order() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let (a, b) = (package(&"a".repeat(64)), package(&"b".repeat(64)));
        let path = |packages: &[&Package]| {
            let packages = packages.iter().copied().cloned().collect();
            path_of(&Parts { packages, ..Parts::default() }, &store)
        };
        assert_eq!(path(&[&a, &b]), path(&[&b, &a]));
        assert_ne!(path(&[&a, &b]), path(&[&a]));
    }

    #[tokio::test]
    async fn a_damaged_package_leaves_no_root() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let digest = store.put(b"not a package").expect("put");
        let packages = [package(&digest)];
        let archive = Archive::empty();
        let assembled =
            assemble(&packages, crate::LIMIT, &archive, &store, &longshore_core::progress::Silent)
                .await;
        let failure = assembled.expect_err("bad");
        assert_eq!(failure.code(), ExitCode::Verification);
        let parts = Parts { packages: packages.to_vec(), ..Parts::default() };
        assert!(!path_of(&parts, &store).exists());
        assert_eq!(fs::read_dir(store.dir("tmp")).expect("list").count(), 0);
    }
}
