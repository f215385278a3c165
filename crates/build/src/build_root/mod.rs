//! A build root from somewhere else: a file system in which a distribution's own tools put a kernel's headers and
//! its compiler.
//!
//! It comes as an OCI image, by its digest, or as a directory, an image layout or a tar file, and is unpacked into
//! the store as `roots/DIGEST`, named after what it came from, where every build with it uses it again. What it
//! holds is judged as hostile: layers are [unpacked](unpack) within bounds and never outside, and its programs run in
//! the sandbox alone.

mod bounds;
mod compilers;
mod contents;
mod directory;
mod layout;
mod source;
mod target;
mod unpack;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest, Sha256};

use self::bounds::LIMITS;
use self::directory::Directory;
use self::layout::Layout;
use self::unpack::{Refusal, Unpacking, copy, is_compressed};
use super::outputs::OutputDir;
use super::root::{MOUNT_POINTS, WhileWanted, in_thread};
use super::{build_lock, check_space};
use longshore_core::digest::{digest_of, hex};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::ownership;
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::root::{is_absent, reopen};
use longshore_core::scratch::claim;
use longshore_core::space;
use longshore_core::store::Store;
use longshore_modules::artifact::image::{Descriptor, hex_of};
use longshore_modules::artifact::root_image::unpacked_size;
use longshore_modules::registry::OpenRegistry;
use longshore_sources::headers::{AvailableHeaders, Wanted};

pub use compilers::{Compiler, Run};
pub use contents::{Contents, Kernel, Toolkit, inspect};
pub(super) use contents::{compiler_for, headers};
pub use source::{BadBuildRoot, BuildRootSource};
#[cfg(any(test, feature = "testing"))]
pub use unpack::unpack_layers;

/// Maximum number of files in an image layout.
const MOST_OF_LAYOUT: usize = 100_000;
const REMEDY: &str = "correct `build-root`: a directory, a tar file, or an image as oci://HOST/REPOSITORY@sha256:...";
/// Version of the unpacking, changed whenever it changes a root's contents.
const RECIPE: &str = "build-root 2";
/// Name of a build root in the key of a set, among the headers.
pub(super) const KEYED: &str = "build-root";

/// A build root in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildRoot {
    /// Directory in the store.
    pub path: PathBuf,
    /// sha256 (hex) of what it came from: an image's manifest, a tar file, or a whole directory.
    pub digest: String,
    /// Place that it came from.
    pub place: String,
}

/// A build root by its digest, in the store or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identified {
    source: BuildRootSource,
    /// sha256 (hex) of what it comes from.
    pub digest: String,
}

/// Finds the digest of a build root: an image's is in its name, everything else is read.
///
/// # Errors
/// Exit code 2 where there is nothing at the path, 11 where it cannot be read, 13 where it is damaged or far too
/// large.
pub async fn identify(source: &BuildRootSource) -> Result<Identified, Failure> {
    let digest = match source {
        BuildRootSource::Image { digest, .. } => hex_of(digest).unwrap_or_default().to_owned(),
        BuildRootSource::Path(path) => {
            let path = path.clone();
            in_thread("reading a build root", move || Opened::at(&path)?.digest()).await?
        }
    };
    Ok(Identified { source: source.clone(), digest })
}

impl Identified {
    /// Returns the build root, where the store has it.
    pub fn stored(&self, store: &Store) -> Option<BuildRoot> {
        let root = self.root(store);
        root.path.is_dir().then_some(root)
    }

    /// Place that it comes from.
    pub fn place(&self) -> String {
        self.source.to_string()
    }

    /// Returns the headers for a kernel, for the catalog: fetches and unpacks nothing. Headers in a root that the
    /// store does not have are assumed to fit.
    pub fn available(&self, wanted: Wanted<'_>, store: &Store) -> AvailableHeaders {
        let (place, digest) = (self.place(), self.digest.clone());
        let Some(root) = self.stored(store) else {
            return AvailableHeaders::BuildRoot { place, digest, compiler: None };
        };
        match headers(&root, wanted) {
            Ok(found) => {
                let compiler = Some(found.stated.compiler);
                AvailableHeaders::BuildRoot { place, digest, compiler }
            }
            Err(unfit) => {
                let passed_over = vec![unfit.to_string()];
                AvailableHeaders::Missing { nearest: Vec::new(), passed_over }
            }
        }
    }

    fn root(&self, store: &Store) -> BuildRoot {
        let name = hex(&Sha256::digest(format!("{RECIPE} {}", self.digest)));
        let path = store.dir("roots").join(name);
        BuildRoot { path, digest: self.digest.clone(), place: self.place() }
    }

    /// Returns the build root, unpacked into the store unless it is there already. Waits at most `limit` for another
    /// process that unpacks the same.
    ///
    /// # Errors
    /// Exit code 12 where the image cannot be fetched, 13 where it is damaged, hostile, for another machine, or
    /// changed meanwhile, 15 where the store cannot be written or has too little space.
    pub async fn acquire(
        &self,
        open: OpenRegistry<'_>,
        limit: Duration,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<BuildRoot, Failure> {
        let root = self.root(store);
        if root.path.is_dir() {
            store.mark_used(root.path.strip_prefix(store.root()).unwrap_or(&root.path));
            return Ok(root);
        }
        let what = format!("unpacking the build root {}", root.place);
        let lock = root.path.with_extension("lock");
        let lock = build_lock::take(&lock, limit, &what, progress).await?;
        if root.path.is_dir() {
            return Ok(root);
        }
        check_space(store)?;
        let from = match &self.source {
            BuildRootSource::Image { repository, digest } => {
                let registry = open(repository)?;
                Origin::Layers(registry.pull_image(digest, store, progress).await?)
            }
            BuildRootSource::Path(path) => Origin::Path(path.clone()),
        };
        let waiting = Arc::new(());
        let (caller, store) = (Arc::downgrade(&waiting), store.clone());
        let task = progress.begin(&what, None, Unit::Items);
        let unpacking = Filling { root: root.clone(), store, caller, task };
        in_thread(&what, move || {
            let _lock = lock;
            unpacking.fill(from)
        })
        .await?;
        Ok(root)
    }
}

/// Something to unpack.
enum Origin {
    /// Layers in the store.
    Layers(Vec<Descriptor>),
    /// A directory, layout or tar file.
    Path(PathBuf),
}

/// A build root that is being unpacked.
struct Filling {
    root: BuildRoot,
    store: Store,
    /// Gone when the build was cancelled.
    caller: Weak<()>,
    task: Box<dyn Task>,
}

impl Filling {
    fn fill(&self, from: Origin) -> Result<(), Failure> {
        let scratch = claim(&self.store, "root")?;
        let dir = scratch.path();
        let refused = |refusal: Refusal| refusal.failure(&self.root.place);
        let mut unpacking = Unpacking::into(dir).map_err(refused)?;
        match from {
            Origin::Layers(layers) => self.layers(&layers, &mut unpacking)?,
            Origin::Path(path) => self.path(&path, dir, &mut unpacking)?,
        }
        finish(&mut unpacking, dir).map_err(refused)?;
        let disk = self.store.disk();
        let sync = || disk.sync_whole(&File::open(dir)?);
        sync().map_err(|e| write_failure(dir, e))?;
        let target = &self.root.path;
        fs::rename(dir, target).map_err(|e| write_failure(target, e))?;
        scratch.moved();
        Ok(())
    }

    fn layers(&self, layers: &[Descriptor], to: &mut Unpacking) -> Result<(), Failure> {
        for (number, layer) in layers.iter().enumerate() {
            self.task.note(&format!("layer {} of {}", number + 1, layers.len()));
            let blob = self.store.open_blob(hex_of(&layer.digest).unwrap_or_default())?;
            to.layer(|| self.opened(&blob)).map_err(|e| e.failure(&self.root.place))?;
            self.task.advance(1);
        }
        Ok(())
    }

    fn path(&self, path: &Path, dir: &Path, to: &mut Unpacking) -> Result<(), Failure> {
        let opened = Opened::at(path)?;
        let refused = |refusal: Refusal| refusal.failure(&self.root.place);
        let digest = match &opened {
            Opened::Directory { dir, place } => match Layout::open(dir, place) {
                Some(layout) => return self.layout(&layout, to),
                None => {
                    let read = OutputDir::below(dir, ".").map_err(|e| refused(Refusal::Read(e)))?;
                    let wanted = || self.caller.strong_count() > 0;
                    let read = Directory::read(read).map_err(refused)?;
                    space::require(self.store.root(), read.size)?;
                    read.copy(to, &wanted).map_err(refused)?
                }
            },
            Opened::File { file, .. } => {
                let blob = self.imported(file)?;
                to.layer(|| self.opened(&blob)).map_err(refused)?;
                return self.inner_layout(dir, to);
            }
        };
        if digest == self.root.digest { Ok(()) } else { Err(self.changed()) }
    }

    /// Copies a tar file into the store, verified: the file itself can change between its hashing and unpacking.
    fn imported(&self, file: &File) -> Result<File, Failure> {
        let digest = &self.root.digest;
        let read = |e: io::Error| Refusal::Read(e).failure(&self.root.place);
        let there = self.store.has_blob(digest);
        let there = there.then(|| self.store.open_blob(digest)).transpose()?;
        let space = space_of(there.as_ref().unwrap_or(file), there.is_some()).map_err(read)?;
        space::require(self.store.root(), space)?;
        if there.is_none() {
            let mut from = self.opened(file).map_err(read)?.take(bounded_size(file).map_err(read)?);
            let mut to = self.store.blob_writer()?;
            let unwritten = |e| Refusal::Write(self.store.root().to_path_buf(), e);
            copy(&mut from, &mut to, unwritten).map_err(|e| e.failure(&self.root.place))?;
            to.commit(Some(digest)).map_err(|failure| match failure.kind() {
                FailureKind::Verification => self.changed(),
                _ => failure,
            })?;
        }
        self.store.open_blob(digest)
    }

    fn changed(&self) -> Failure {
        let cause = format!("the build root {} changed while it was read", self.root.place);
        Failure::new(FailureKind::Verification, cause)
            .remedy("run again when no process writes to it any more")
    }

    fn layout(&self, layout: &Layout<'_>, to: &mut Unpacking) -> Result<(), Failure> {
        // The name of its manifest: everything below is verified by it.
        let layers = layout.import(&format!("sha256:{}", self.root.digest), &self.store, 0)?;
        self.layers(&layers, to)
    }

    /// Unpacks the image, where the tar file held an image layout.
    fn inner_layout(&self, dir: &Path, to: &mut Unpacking) -> Result<(), Failure> {
        let read = |e: io::Error| Refusal::Read(e).failure(&self.root.place);
        let outer = OutputDir::open(dir).map_err(read)?;
        let Some(layout) = Layout::open(&outer, &self.root.place) else { return Ok(()) };
        let layers = layout.import(&layout.digest()?, &self.store, to.bytes())?;
        to.start_over().map_err(|refusal| refusal.failure(&self.root.place))?;
        self.layers(&layers, to)
    }

    /// Opens the same file at its start.
    fn opened(&self, file: &File) -> io::Result<WhileWanted<'_, File>> {
        Ok(WhileWanted { inner: reopen(file)?, caller: &self.caller })
    }
}

/// Adds the sandbox's mount points, as directories: a mount would follow a link to the outside.
fn finish(unpacking: &mut Unpacking, dir: &Path) -> Result<(), Refusal> {
    for point in MOUNT_POINTS.map(Path::new) {
        unpacking.target.make_dir(point, 0o755).map_err(|e| unpacking.refusal(point, e))?;
    }
    unpacking.target.finish().map_err(|e| Refusal::Write(dir.to_path_buf(), e))
}

/// A build root at a path.
enum Opened {
    Directory { dir: OutputDir, place: String },
    File { file: File, place: String },
}

impl Opened {
    fn at(path: &Path) -> Result<Self, Failure> {
        let place = path.display().to_string();
        let what = || format!("reading the build root {place}");
        Self::check_owners(path).map_err(|error| {
            ownership::failure(FailureKind::Verification, what(), error, REMEDY)
        })?;
        let open = || -> io::Result<Self> {
            let path = fs::canonicalize(path)?;
            let place = place.clone();
            if path.is_dir() {
                return Ok(Self::Directory { dir: OutputDir::open(&path)?, place });
            }
            let parent = OutputDir::open(path.parent().unwrap_or(&path))?;
            Ok(Self::File { file: parent.file(path.file_name().unwrap_or_default())?, place })
        };
        open().map_err(|error| {
            let kind = match error.kind() {
                io::ErrorKind::NotFound => FailureKind::Usage,
                _ => FailureKind::Toolchain,
            };
            Failure::new(kind, what()).with_source(error).remedy(REMEDY)
        })
    }

    /// Checks the way to a build root, and the files of an image layout; a directory is checked where it is read.
    fn check_owners(path: &Path) -> io::Result<()> {
        let checked = match path.join("oci-layout").is_file() {
            true => ownership::tree(Path::new("/"), path, MOST_OF_LAYOUT),
            false => ownership::way(Path::new("/"), path).map(drop),
        };
        // One that is not there is reported as such.
        checked.or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })
    }

    fn digest(&self) -> Result<String, Failure> {
        match self {
            Self::Directory { dir, place } => match Layout::open(dir, place) {
                Some(layout) => Ok(hex_of(&layout.digest()?).unwrap_or_default().to_owned()),
                None => {
                    let read = dir.below(".").map_err(Refusal::Read).and_then(Directory::read);
                    read.and_then(|read| read.digest()).map_err(|e| e.failure(place))
                }
            },
            Self::File { file, place } => {
                let hash = || digest_of(reopen(file)?.take(bounded_size(file)?));
                hash().map_err(|e| Refusal::Read(e).failure(place))
            }
        }
    }
}

/// Returns the bytes that the copy of a tar file, unless it is stored already, and its contents take.
fn space_of(file: &File, is_stored: bool) -> io::Result<u64> {
    let size = bounded_size(file)?;
    let unpacked = unpacked_size(size, is_compressed(reopen(file)?)?);
    Ok(if is_stored { unpacked } else { size.saturating_add(unpacked) })
}

/// Returns the size of a tar file; refuses one that is too large to be read.
fn bounded_size(file: &File) -> io::Result<u64> {
    let (size, most) = (file.metadata()?.len(), LIMITS.bytes);
    if size <= most {
        return Ok(size);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has more than {} GiB", most >> 30)))
}

#[cfg(test)]
mod tests;
