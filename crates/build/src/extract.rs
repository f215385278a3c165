//! Self-extraction of a .run file with an unknown header, in the build sandbox.
//!
//! Only a file with the expected digest is run, as the compiling user, in a root of the archive's
//! packages, without a network and with a time limit. Its output is checked file by file without
//! following a link, and from there on handled like that of every other .run file.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::BuildUser;
use crate::outputs::{OutputDir, OutputEntry};
use crate::sandbox::{self, Bind, Bound, Held, Outcome, Spec};
use crate::{root, user};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::progress::{Progress, Unit};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Requirement};
use longshore_debian::faults::bad;
use longshore_sources::pinned::{PinnedFetcher, keep_failure};
use longshore_sources::runfile::Foreign;
use longshore_sources::runfile::header::Header;
use longshore_sources::runfile::unpack::{self, Unpacked};
use longshore_sources::runfile::{StoredRunFile, stored};

/// Programs that a self-extracting script calls.
const TOOLS: [&str; 11] = [
    "dash",
    "coreutils",
    "tar",
    "gzip",
    "xz-utils",
    "zstd",
    "bzip2",
    "sed",
    "grep",
    "mawk",
    "findutils",
];
/// Command-line options for extraction: of NVIDIA's files, and of makeself's own.
const WAYS: [&[&str]; 2] = [&["--extract-only", "--target"], &["--noexec", "--target"]];
/// Bound of what lies below /build: the output, and the file's own copies of it.
const BOUND: Bound = Bound { bytes: 2 * unpack::MOST_UNPACKED, entries: 2 * unpack::MOST_FILES };
/// Name of the file inside, and the paths of it and its output.
const NAME: &str = "driver.run";
const FILE: &str = "/build/driver.run";
const OUT: &str = "/build/out";

/// Resources to run a file.
pub struct Workshop<'a> {
    /// The file's root file system: see [`Workshop::root`].
    pub root: PathBuf,
    /// The sandbox's helper program.
    pub helper: &'a Path,
    /// Downloads the file.
    pub fetcher: PinnedFetcher<'a>,
    /// Time limit of the file.
    pub limit: Duration,
    /// The user that the file runs as.
    pub user: BuildUser,
}

impl Workshop<'_> {
    /// Extracts a file into the store by running it.
    ///
    /// # Errors
    /// Exit code 10 where no sandbox can be made, 12 where no mirror has it, 13 where it does not
    /// match its digest or does not extract itself, 15 without space.
    pub async fn extract(
        &self,
        file: &Foreign,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<StoredRunFile, Failure> {
        let work = Arc::new(claim(store, "extract")?);
        self.fetch(file, work.path(), store, progress).await?;
        tracing::warn!("{} is of an unknown form: it extracts itself in the sandbox", file.name);
        let task = progress.begin(&format!("unpacking {}", file.name), None, Unit::Items);
        let inside = self.run(file, &work).await?;
        task.note("verifying");
        let (file, store) = (file.clone(), store.clone());
        let what = format!("keeping {}", file.name);
        let keep = move || {
            let unpacked = adopt(&file.name, &inside, &store)?;
            drop(work);
            stored::keep(unpacked, &file.name, &file.sha256, &store)
        };
        root::in_thread(&what, keep).await
    }

    /// Assembles a root with the programs that a script may call, from the archive's packages.
    ///
    /// # Errors
    /// Exit code 11 where a tool is missing, 12 and 13 for downloads, 15 without space.
    pub async fn root(
        archive: &Archive,
        limit: Duration,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        let tools = TOOLS.map(Requirement::any);
        let packages =
            archive.closure(&tools).map_err(|missing| missing.failure(FailureKind::Toolchain))?;
        root::assemble(&packages, limit, archive, store, progress).await
    }

    /// Downloads the file to `dir`, verified.
    async fn fetch(
        &self,
        file: &Foreign,
        dir: &Path,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let task = progress.begin(&format!("fetching {}", file.name), None, Unit::Bytes);
        let mut kept = None;
        for url in &file.source.urls {
            match self.fetcher.blob(url, &file.sha256, store, task.as_ref()).await {
                Ok(()) => {
                    let to = dir.join(NAME);
                    // Blobs are read-only and shared, and no other build needs this one.
                    let moved = fs::rename(store.blob_path(&file.sha256), &to)
                        .and_then(|()| fs::set_permissions(&to, Permissions::from_mode(0o644)));
                    return moved.map_err(|e| write_failure(&to, e));
                }
                Err(failure) => keep_failure(&mut kept, failure),
            }
        }
        Err(kept.unwrap_or_else(|| Failure::new(FailureKind::Usage, "a .run file without a URL")))
    }

    /// Runs the file's extraction; returns the directory bound to /build, with the output in `out`.
    async fn run(&self, file: &Foreign, work: &Arc<ScratchDir>) -> Result<PathBuf, Failure> {
        let mut said = String::new();
        for (number, way) in WAYS.iter().enumerate() {
            // Each attempt has a directory of its own: nothing is handed over twice.
            let inside = work.path().join(format!("build-{number}"));
            prepare(&inside).map_err(|e| write_failure(&inside, e))?;
            let held: Held = Some(Arc::clone(work) as _);
            user::hand_over(inside.clone(), self.user, held.clone()).await?;
            let mut command = vec!["/bin/sh".to_owned(), FILE.to_owned()];
            command.extend(way.iter().map(|word| (*word).to_owned()));
            command.push(OUT.to_owned());
            let spec = Spec { held, ..self.spec(&inside, work.path(), command) };
            let mut note = |line: &str| {
                tracing::debug!("{}: {line}", file.name);
                if !line.trim().is_empty() {
                    line.trim().clone_into(&mut said);
                }
            };
            match sandbox::run(self.helper, &spec, self.limit, &mut note).await? {
                Outcome::Exited(0) if has_left_something(&inside) => return Ok(inside),
                Outcome::Outgrown => return Err(too_big(&file.name)),
                Outcome::NoSpace => {
                    return Err(write_failure(&inside, ErrorKind::StorageFull.into()));
                }
                Outcome::TimedOut => {
                    said = format!("it was not done after {} s", self.limit.as_secs());
                    break;
                }
                _ => {}
            }
            fs::remove_dir_all(&inside).map_err(|e| write_failure(&inside, e))?;
        }
        let cause = format!(
            "{} is of an unknown form, and does not unpack itself by --extract-only: {said}",
            file.name
        );
        Err(Failure::new(FailureKind::Verification, cause).remedy(unpack::REMEDY))
    }

    fn spec(&self, inside: &Path, work: &Path, command: Vec<String>) -> Spec {
        let environment = [
            ("PATH", "/usr/bin:/usr/sbin"),
            ("HOME", "/build"),
            ("TMPDIR", "/tmp"),
            ("LC_ALL", "C"),
        ];
        Spec {
            root: self.root.clone(),
            binds: vec![
                Bind::new(inside, "/build"),
                Bind::new(inside.join("tmp"), "/tmp"),
                Bind::read_only(work.join(NAME), FILE),
            ],
            command,
            environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            handed_on: Vec::new(),
            directory: "/build".into(),
            user: Some(self.user.id()),
            bound: BOUND,
            outcome: inside.with_extension("outcome"),
            held: None,
        }
    }
}

/// Creates the directory bound to /build, with its mount points and files.
fn prepare(inside: &Path) -> io::Result<()> {
    for made in ["tmp", "out"] {
        fs::create_dir_all(inside.join(made))?;
    }
    File::create(inside.join(NAME)).map(drop)
}

fn has_left_something(inside: &Path) -> bool {
    // A single entry suffices; an unreadable directory is reported when the output is taken.
    let listed = OutputDir::open(inside).and_then(|dir| dir.below("out")?.entries(0));
    listed.is_err()
}

fn too_big(name: &str) -> Failure {
    let most = unpack::MOST_UNPACKED >> 20;
    bad(name, &format!("it unpacks to more than {most} MiB or {} files", unpack::MOST_FILES))
        .remedy(unpack::REMEDY)
}

/// Takes the wanted files from the output in `inside`/out.
fn adopt(name: &str, inside: &Path, store: &Store) -> Result<Unpacked, Failure> {
    let dir = claim(store, "driver")?;
    let mut adoption = Adoption { name, dir: &dir, left: unpack::MOST_UNPACKED, files: 0 };
    let unreadable = |e: io::Error| bad(name, &format!("what it left: {e}"));
    let from = OutputDir::open(inside).and_then(|inside| inside.below("out"));
    let adopted = from.map_err(unreadable).and_then(|out| adoption.directory(&out, Path::new("")));
    adopted.map_err(|failure| match failure.kind() {
        FailureKind::Verification => failure.remedy(unpack::REMEDY),
        _ => failure,
    })?;
    Ok(Unpacked { dir, header: Header::default() })
}

struct Adoption<'a> {
    name: &'a str,
    dir: &'a ScratchDir,
    left: u64,
    files: usize,
}

impl Adoption<'_> {
    /// Moves the wanted files of `lies`, which is `path` in the file, to the tree.
    fn directory(&mut self, lies: &OutputDir, path: &Path) -> Result<(), Failure> {
        let unreadable = |e: io::Error| bad(self.name, &format!("{}: {e}", path.display()));
        unpack::check_path(self.name, path.as_os_str().as_encoded_bytes())?;
        for entry in lies.entries(unpack::MOST_FILES).map_err(unreadable)? {
            let path = path.join(&entry.name);
            self.files += 1;
            if self.files > unpack::MOST_FILES {
                return Err(too_big(self.name));
            }
            if entry.is_dir() {
                self.directory(&lies.below(&entry.name).map_err(unreadable)?, &path)?;
            } else if let Some(placed) = unpack::wanted(&path) {
                self.file(lies, &entry, &placed)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, lies: &OutputDir, entry: &OutputEntry, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        if !entry.is_file() {
            // The manifest lists the links; sources and libraries have no others.
            tracing::debug!("leaving out {shown}, which is not a file");
            return Ok(());
        }
        self.left = self.left.checked_sub(entry.size()).ok_or_else(|| too_big(self.name))?;
        let to = self.dir.path().join("tree").join(path);
        let moved = || -> io::Result<()> {
            fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
            lies.take(&entry.name, &to)
        };
        moved().map_err(|e| write_failure(&to, e))
    }
}
