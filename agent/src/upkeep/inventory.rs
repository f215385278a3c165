//! Inventory of the store: every item, its size, and the time of its last use.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use longshore_core::digest::is_sha256;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::locks;
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::sets::SetStore;
use longshore_sources::userspace::{self, Depth};

/// Kind of an item in the store, the cheapest to restore first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ItemKind {
    /// Unfinished files of processes that ended, and files that are no longer read.
    Leftover,
    /// A package or an archive's index: it can be fetched again.
    Download,
    /// A hermetic build root: it can be assembled again.
    BuildRoot,
    /// Cache of a build or a run, to be faster the next time.
    Cache,
    /// An unpacked .run file.
    Driver,
    /// A compiler's log, or the record of a failed compile.
    Record,
    /// A user-mode tree.
    UserMode,
    /// A set of modules.
    Modules,
}

/// One item in the store, which is kept or removed as a whole.
#[derive(Debug, Clone)]
pub struct StoredItem {
    /// Its kind.
    pub kind: ItemKind,
    /// File or directory, relative to the store.
    pub path: PathBuf,
    /// Time of last use, as far as that is known.
    pub used: SystemTime,
    /// sha256 (hex) of a set's modules, which are blobs that other sets may share.
    pub modules: Vec<String>,
    /// Path of the set that this one was signed from, relative to the store.
    pub(super) signed_from: Option<PathBuf>,
    /// True for a user-mode tree that differs from its manifest, so that no process begins to use
    /// it.
    pub(super) is_damaged: bool,
    /// Files that are removed with it: a set's signatures.
    pub(super) beside: Vec<PathBuf>,
    /// All its files, with their size on the disk; files may be shared.
    files: Vec<(FileId, u64)>,
}

/// Device and inode.
type FileId = (u64, u64);

/// All items, and their total size.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The items, in no order.
    pub items: Vec<StoredItem>,
    /// Number of items that share a file, and its size.
    shares: HashMap<FileId, (u64, u64)>,
}

impl Inventory {
    /// Lists everything in the store.
    ///
    /// # Errors
    /// Exit code 15 where it cannot be listed.
    pub fn read(store: &Store) -> Result<Self, Failure> {
        let listing = || format!("listing {}", store.root().display());
        let items = list(store).or_fail(FailureKind::Preflight, listing)?;
        let mut shares = HashMap::new();
        for (id, size) in items.iter().flat_map(|item| &item.files) {
            shares.entry(*id).or_insert((0, *size)).0 += 1;
        }
        Ok(Self { items, shares })
    }

    /// Bytes on the disk of all items; shared files count once.
    pub fn size(&self) -> u64 {
        self.shares.values().filter(|(count, _)| *count > 0).map(|(_, size)| size).sum()
    }

    /// Bytes on the disk of one item, shared or not.
    pub fn size_of(item: &StoredItem) -> u64 {
        let files: BTreeMap<_, _> = item.files.iter().copied().collect();
        files.values().sum()
    }

    /// Removes an item from the count, and returns how many bytes that frees: shared files stay.
    pub(super) fn forget(&mut self, item: &StoredItem) -> u64 {
        let mut freed = 0;
        for (id, _) in &item.files {
            if let Some((count, size)) = self.shares.get_mut(id) {
                *count -= 1;
                freed += if *count == 0 { *size } else { 0 };
            }
        }
        freed
    }
}

fn list(store: &Store) -> io::Result<Vec<StoredItem>> {
    let root = store.root();
    let mut items = Vec::new();
    let blobs = Path::new("blobs/sha256");
    let mut modules = BTreeMap::new();
    for name in names(&root.join(blobs))? {
        let digest = name.to_str().filter(|name| is_sha256(name)).map(str::to_owned);
        let kind = if digest.is_some() { ItemKind::Download } else { ItemKind::Leftover };
        match (digest, item(root, kind, blobs.join(&name), "")?) {
            (Some(digest), Some(item)) => drop(modules.insert(digest, item)),
            (_, item) => items.extend(item),
        }
    }
    items.extend(sets(store, &mut modules)?);
    // A blob that no set names was downloaded.
    items.extend(modules.into_values().filter(|item| item.kind == ItemKind::Download));
    let folders = [
        ("userspace", ItemKind::UserMode, "manifest.json"),
        ("drivers", ItemKind::Driver, "driver.json"),
        ("roots", ItemKind::BuildRoot, ""),
        ("logs", ItemKind::Record, ""),
        ("failures", ItemKind::Record, ""),
        ("patches", ItemKind::Cache, ""),
        ("conftests", ItemKind::Cache, ""),
        ("core", ItemKind::Cache, ""),
    ];
    for (folder, kind, dated) in folders {
        for name in names(&root.join(folder))? {
            let kind = if is_leftover(&name) { ItemKind::Leftover } else { kind };
            let Some(mut item) = item(root, kind, Path::new(folder).join(name), dated)? else {
                continue;
            };
            if kind == ItemKind::UserMode {
                let beside = names(&root.join(&item.path))?.into_iter().filter(|n| is_leftover(n));
                for name in beside {
                    items.extend(self::item(root, ItemKind::Leftover, item.path.join(name), "")?);
                }
                let tree = root.join(&item.path).join("root");
                item.is_damaged =
                    userspace::verify_root(&tree, Depth::Quick, store.disk()).is_err();
            }
            items.push(item);
        }
    }
    for name in names(root)?.into_iter().filter(|name| is_leftover(name)) {
        items.extend(item(root, ItemKind::Leftover, name.into(), "")?);
    }
    // ccache manages it, so it is one item here.
    items.extend(item(root, ItemKind::Cache, "objects".into(), "")?);
    for name in names(&root.join("tmp"))? {
        if is_held(&root.join("tmp").join(&name)) {
            continue;
        }
        items.extend(item(root, ItemKind::Leftover, Path::new("tmp").join(name), "")?);
    }
    Ok(items)
}

/// Extensions of the files beside a set's, which are removed with it.
const BESIDE_SETS: [&str; 2] = ["evidence", "build"];

/// Lists sets with their modules, which are removed from `blobs` if present.
fn sets(store: &Store, blobs: &mut BTreeMap<String, StoredItem>) -> io::Result<Vec<StoredItem>> {
    let (root, folder) = (store.root(), Path::new("sets"));
    let known: BTreeMap<String, ModuleSet> = store
        .sets()
        .map_err(io::Error::other)?
        .into_iter()
        .map(|set| (format!("{}.json", set.key.file_stem()), set))
        .collect();
    let mut items = Vec::new();
    for name in names(&root.join(folder))? {
        let path = folder.join(&name);
        let text = name.to_string_lossy();
        let is_beside =
            BESIDE_SETS.iter().any(|extension| text.ends_with(&format!(".{extension}")));
        if is_beside && root.join(path.with_extension("json")).exists() {
            continue;
        }
        let is_set = text.ends_with(".json") && !is_leftover(&name);
        let kind = if is_set { ItemKind::Modules } else { ItemKind::Leftover };
        let Some(mut item) = item(root, kind, path.clone(), "")? else { continue };
        if is_set {
            for beside in BESIDE_SETS.map(|extension| path.with_extension(extension)) {
                if let Ok(metadata) = root.join(&beside).symlink_metadata() {
                    item.files.push(size_on_disk(&metadata));
                    item.beside.push(beside);
                }
            }
        }
        if let Some(set) = known.get(&*text) {
            let unsigned = || folder.join(format!("{}.json", set.key.unsigned().file_stem()));
            item.signed_from = set.key.signed_by.as_ref().map(|_| unsigned());
            for module in &set.modules {
                item.modules.push(module.sha256.clone());
                if let Some(blob) = blobs.get_mut(&module.sha256) {
                    blob.kind = ItemKind::Modules;
                    item.files.extend_from_slice(&blob.files);
                }
            }
        }
        items.push(item);
    }
    Ok(items)
}

/// True for temporary names and locks: with the store locked exclusively, they have no owner.
fn is_leftover(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with(".tmp") || name.ends_with(".lock")
}

/// True if a running process holds its lock (see build::claim).
fn is_held(path: &Path) -> bool {
    let is_locked = |file| !matches!(locks::try_alone(file), Ok(Some(_)));
    File::open(path).is_ok_and(is_locked)
}

/// Describes an item; None if it is gone meanwhile.
fn item(root: &Path, kind: ItemKind, path: PathBuf, dated: &str) -> io::Result<Option<StoredItem>> {
    let whole = root.join(&path);
    let Some(metadata) = present(whole.symlink_metadata())? else { return Ok(None) };
    // A directory's own time is that of its creation; a file in it is marked at every use.
    let dated = whole.join(dated).symlink_metadata().unwrap_or_else(|_| metadata.clone());
    let mut files = Vec::new();
    add_sizes(&whole, &metadata, &mut files)?;
    let used = dated.modified()?;
    let (modules, beside) = (Vec::new(), Vec::new());
    let (signed_from, is_damaged) = (None, false);
    Ok(Some(StoredItem { kind, path, used, modules, signed_from, is_damaged, beside, files }))
}

fn add_sizes(path: &Path, metadata: &Metadata, files: &mut Vec<(FileId, u64)>) -> io::Result<()> {
    files.push(size_on_disk(metadata));
    if metadata.is_dir() {
        for name in names(path)? {
            let child = path.join(name);
            if let Some(metadata) = present(child.symlink_metadata())? {
                add_sizes(&child, &metadata, files)?;
            }
        }
    }
    Ok(())
}

fn size_on_disk(metadata: &Metadata) -> (FileId, u64) {
    // In units of 512 bytes, whatever the file system's own are (stat(2)).
    ((metadata.dev(), metadata.ino()), metadata.blocks() * 512)
}

fn names(dir: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    match present(fs::read_dir(dir))? {
        Some(entries) => entries.map(|entry| Ok(entry?.file_name())).collect(),
        None => Ok(Vec::new()),
    }
}

fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}
