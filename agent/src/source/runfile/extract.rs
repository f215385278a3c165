//! A .run file whose header is of an unknown form: it unpacks itself, in the build's sandbox.
//!
//! Only a file whose digest is the one asked for is run, as nobody, in a root of the archive's
//! packages, without a network and for a bounded time. What it leaves is looked at file by file
//! without following a link, and from there on goes the way of every other .run file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::header::Header;
use super::unpack::{self, Unpacked};
use super::{StoredRunFile, stored};
use crate::build::claim::{Claimed, claim};
use crate::build::compile::{NOBODY, hand_over};
use crate::build::root;
use crate::build::sandbox::{self, Bind, Outcome, Spec};
use crate::config::RunFileSource;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::progress::{Progress, Unit};
use crate::source::archive::{Archive, Requirement};
use crate::source::deb::bad;
use crate::source::http::{Expected, Fetcher};
use crate::store::{Store, write_failure};

/// What a self-extracting script calls.
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
/// How to ask: as NVIDIA's files want it, and as makeself's own do.
const WAYS: [&[&str]; 2] = [&["--extract-only", "--target"], &["--noexec", "--target"]];
/// How often it is looked at what has been written.
const PERIOD: Duration = Duration::from_millis(250);
/// The file and what comes of it, inside.
const FILE: &str = "/build/driver.run";
const OUT: &str = "/build/out";

/// A file that has to unpack itself.
#[derive(Debug, Clone)]
pub struct Foreign {
    /// Its name.
    pub name: String,
    /// Its sha256 (hex).
    pub sha256: String,
    /// Where it is to be had.
    pub source: RunFileSource,
}

/// What it takes to run a file.
pub struct Workshop<'a> {
    /// What the file sees as its root: see [`Workshop::root`].
    pub root: PathBuf,
    /// The sandbox's helper program.
    pub helper: &'a Path,
    /// Downloads the file.
    pub fetcher: &'a Fetcher,
    /// How long the file may take.
    pub limit: Duration,
}

impl Workshop<'_> {
    /// Brings a file into the store, unpacked by itself.
    ///
    /// # Errors
    /// Exit code 10 where there can be no sandbox, 12 where no mirror has it, 13 where it is not what
    /// its digest says or does not unpack itself, 15 without space.
    pub async fn extract(
        &self,
        file: &Foreign,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<StoredRunFile, Failure> {
        let work = claim(store, "extract")?;
        let inside = work.path().join("build");
        self.fetch(file, &inside, store, progress).await?;
        tracing::warn!("{} is of an unknown form: it unpacks itself, in the sandbox", file.name);
        let task = progress.begin(&format!("unpacking {}", file.name), None, Unit::Items);
        self.run(file, work.path()).await?;
        task.note("verifying");
        let (file, store) = (file.clone(), store.clone());
        let what = format!("keeping {}", file.name);
        let keep = move || {
            let unpacked = adopt(&file.name, &inside.join("out"), &store)?;
            drop(work);
            stored::keep(unpacked, &file.name, &file.sha256, &store)
        };
        tokio::task::spawn_blocking(keep).await.or_fail(ExitCode::Bug, || what)?
    }

    /// A root with what a script may call, out of the archive's packages.
    ///
    /// # Errors
    /// Exit code 11 where a tool is not to be had, 12 and 13 for downloads, 15 without space.
    pub async fn root(
        archive: &Archive,
        limit: Duration,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        let tools = TOOLS.map(Requirement::any);
        let packages =
            archive.closure(&tools).map_err(|missing| missing.failure(ExitCode::Toolchain))?;
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
        for made in ["tmp", "out"] {
            let made = dir.join(made);
            fs::create_dir_all(&made).map_err(|e| write_failure(&made, e))?;
        }
        let task = progress.begin(&format!("fetching {}", file.name), None, Unit::Bytes);
        let expected = Expected { sha256: Some(file.sha256.clone()), size: None };
        let mut first = None;
        for url in &file.source.urls {
            match self.fetcher.blob(url, &expected, store, task.as_ref()).await {
                Ok(sha256) => {
                    let to = dir.join("driver.run");
                    // A blob is nobody's to change, and this one is of no use to others.
                    return fs::rename(store.blob_path(&sha256), &to)
                        .map_err(|e| write_failure(&to, e));
                }
                Err(error) => drop(first.get_or_insert(Failure::from(error))),
            }
        }
        Err(first.unwrap_or_else(|| Failure::new(ExitCode::Usage, "a .run file without a URL")))
    }

    /// Has the file unpack itself into `work`/build/out.
    async fn run(&self, file: &Foreign, work: &Path) -> Result<(), Failure> {
        let inside = work.join("build");
        let out = inside.join("out");
        let mut said = String::new();
        for (number, way) in WAYS.iter().enumerate() {
            hand_over(&inside).map_err(|e| write_failure(&inside, e))?;
            let mut command = vec!["/bin/sh".to_owned(), FILE.to_owned()];
            command.extend(way.iter().map(|word| (*word).to_owned()));
            command.push(OUT.to_owned());
            let spec = spec(&self.root, work, command, number);
            let mut note = |line: &str| {
                tracing::debug!("{}: {line}", file.name);
                if !line.trim().is_empty() {
                    line.trim().clone_into(&mut said);
                }
            };
            let outcome = tokio::select! {
                outcome = sandbox::run(self.helper, &spec, self.limit, &mut note) => outcome?,
                () = outgrown(&inside) => return Err(too_big(&file.name)),
            };
            match outcome {
                Outcome::Exited(0) if !is_empty(&out) => return Ok(()),
                Outcome::TimedOut => {
                    said = format!("it was not done after {} s", self.limit.as_secs());
                    break;
                }
                _ => {}
            }
            empty(&out).map_err(|e| write_failure(&out, e))?;
        }
        let cause = format!(
            "{} is of an unknown form, and does not unpack itself by --extract-only: {said}",
            file.name
        );
        Err(Failure::new(ExitCode::Verification, cause).remedy(unpack::REMEDY))
    }
}

fn spec(root: &Path, work: &Path, command: Vec<String>, number: usize) -> Spec {
    let inside = work.join("build");
    let environment =
        [("PATH", "/usr/bin:/usr/sbin"), ("HOME", "/build"), ("TMPDIR", "/tmp"), ("LC_ALL", "C")];
    let owner = fs::metadata(inside.join("tmp")).map(|m| std::os::unix::fs::MetadataExt::uid(&m));
    Spec {
        root: root.to_path_buf(),
        binds: vec![Bind::new(&inside, "/build"), Bind::new(inside.join("tmp"), "/tmp")],
        command,
        environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
        handed_on: Vec::new(),
        directory: "/build".into(),
        user: owner.ok().filter(|uid| *uid == NOBODY),
        outcome: work.join(format!("outcome-{number}")),
    }
}

/// Ends when more lies below `dir` than any .run file unpacks to, the file itself counted in.
async fn outgrown(dir: &Path) {
    let mut total = Total::default();
    while total.add(dir).is_ok() {
        tokio::time::sleep(PERIOD).await;
        total = Total::default();
    }
}

/// What lies below a directory.
#[derive(Debug, Default)]
struct Total {
    bytes: u64,
    files: usize,
}

impl Total {
    /// Adds what lies below `dir`; what goes meanwhile does not count.
    fn add(&mut self, dir: &Path) -> Result<(), TooMuch> {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            self.files += 1;
            self.bytes += found.len();
            if self.bytes > 2 * unpack::MOST_UNPACKED || self.files > 2 * unpack::MOST_FILES {
                return Err(TooMuch);
            }
            if found.is_dir() {
                self.add(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// More than any .run file unpacks to.
struct TooMuch;

fn too_big(name: &str) -> Failure {
    let most = unpack::MOST_UNPACKED >> 20;
    bad(name, &format!("it unpacks to more than {most} MiB or {} files", unpack::MOST_FILES))
        .remedy(unpack::REMEDY)
}

/// Takes what is wanted of the directory that a file unpacked itself to.
fn adopt(name: &str, from: &Path, store: &Store) -> Result<Unpacked, Failure> {
    let dir = claim(store, "driver")?;
    let mut adoption = Adoption { name, dir: &dir, left: unpack::MOST_UNPACKED, files: 0 };
    adoption.directory(from, Path::new("")).map_err(|failure| match failure.code() {
        ExitCode::Verification => failure.remedy(unpack::REMEDY),
        _ => failure,
    })?;
    Ok(Unpacked { dir, header: Header::default() })
}

struct Adoption<'a> {
    name: &'a str,
    dir: &'a Claimed,
    left: u64,
    files: usize,
}

impl Adoption<'_> {
    /// Moves the wanted files of `lies`, which is `path` in the file, to the tree.
    fn directory(&mut self, lies: &Path, path: &Path) -> Result<(), Failure> {
        let unreadable = |e: io::Error| bad(self.name, &format!("{}: {e}", path.display()));
        unpack::check_path(self.name, path.as_os_str().as_encoded_bytes())?;
        let entries = fs::read_dir(lies).map_err(unreadable)?;
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let (lies, path) = (entry.path(), path.join(entry.file_name()));
            self.files += 1;
            if self.files > unpack::MOST_FILES {
                return Err(too_big(self.name));
            }
            let found = fs::symlink_metadata(&lies).map_err(unreadable)?;
            if found.is_dir() {
                self.directory(&lies, &path)?;
            } else if let Some(placed) = unpack::wanted(&path) {
                self.file(&lies, &found, &placed)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, lies: &Path, found: &fs::Metadata, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        if !found.is_file() {
            // The manifest says which links there are; sources and libraries have no others.
            tracing::debug!("leaving out {shown}, which is no file");
            return Ok(());
        }
        self.left = self.left.checked_sub(found.len()).ok_or_else(|| too_big(self.name))?;
        let to = self.dir.path().join("tree").join(path);
        let moved = || -> io::Result<()> {
            fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
            fs::rename(lies, &to)?;
            std::os::unix::fs::lchown(&to, Some(0), Some(0)).or(Ok(()))
        };
        moved().map_err(|e| write_failure(&to, e))
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

fn empty(dir: &Path) -> io::Result<()> {
    fs::remove_dir_all(dir)?;
    fs::create_dir(dir)
}
