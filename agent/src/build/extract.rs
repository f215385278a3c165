//! A .run file whose header is of an unknown form: it unpacks itself, in the build's sandbox.
//!
//! Only a file whose digest is the one asked for is run, as the user that compiles, in a root of the
//! archive's packages, without a network and for a bounded time. What it leaves is looked at file by file
//! without following a link, and from there on goes the way of every other .run file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::build::outputs::{Entry, OutputDir};
use crate::build::sandbox::{self, Bind, Held, Outcome, Spec};
use crate::build::{root, user};
use crate::config::BuildUser;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::landing::write_failure;
use crate::progress::{Progress, Unit};
use crate::scratch::{Claimed, claim};
use crate::source::archive::{Archive, Requirement};
use crate::source::deb::bad;
use crate::source::http::{Expected, Fetcher};
use crate::source::runfile::Foreign;
use crate::source::runfile::header::Header;
use crate::source::runfile::unpack::{self, Unpacked};
use crate::source::runfile::{StoredRunFile, stored};
use crate::store::Store;

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
/// The file, and where it and what comes of it are inside.
const NAME: &str = "driver.run";
const FILE: &str = "/build/driver.run";
const OUT: &str = "/build/out";

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
    /// The user that it runs as.
    pub user: BuildUser,
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
        let work = Arc::new(claim(store, "extract")?);
        self.fetch(file, work.path(), store, progress).await?;
        tracing::warn!("{} is of an unknown form: it unpacks itself, in the sandbox", file.name);
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
        let task = progress.begin(&format!("fetching {}", file.name), None, Unit::Bytes);
        let expected = Expected { sha256: Some(file.sha256.clone()), size: None };
        let mut first = None;
        for url in &file.source.urls {
            match self.fetcher.blob(url, &expected, store, task.as_ref()).await {
                Ok(sha256) => {
                    let to = dir.join(NAME);
                    // A blob is nobody's to change, and this one is of no use to others.
                    let moved = fs::rename(store.blob_path(&sha256), &to)
                        .and_then(|()| fs::set_permissions(&to, Permissions::from_mode(0o644)));
                    return moved.map_err(|e| write_failure(&to, e));
                }
                Err(error) => drop(first.get_or_insert(Failure::from(error))),
            }
        }
        Err(first.unwrap_or_else(|| Failure::new(ExitCode::Usage, "a .run file without a URL")))
    }

    /// Has the file unpack itself; the directory that is /build inside, with what it left in `out`.
    async fn run(&self, file: &Foreign, work: &Arc<Claimed>) -> Result<PathBuf, Failure> {
        let mut said = String::new();
        for (number, way) in WAYS.iter().enumerate() {
            // Each way has a directory of its own: nothing is handed over twice.
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
            let outcome = tokio::select! {
                outcome = sandbox::run(self.helper, &spec, self.limit, &mut note) => outcome?,
                () = outgrown(&inside) => return Err(too_big(&file.name)),
            };
            match outcome {
                Outcome::Exited(0) if has_left_something(&inside) => return Ok(inside),
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
        Err(Failure::new(ExitCode::Verification, cause).remedy(unpack::REMEDY))
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
            outcome: inside.with_extension("outcome"),
            held: None,
        }
    }
}

/// Makes the directory that is /build inside, with all that is bound or written there.
fn prepare(inside: &Path) -> io::Result<()> {
    for made in ["tmp", "out"] {
        fs::create_dir_all(inside.join(made))?;
    }
    File::create(inside.join(NAME)).map(drop)
}

fn has_left_something(inside: &Path) -> bool {
    // One entry is enough to know; that it could not be listed is said when it is taken.
    let listed = OutputDir::open(inside).and_then(|dir| dir.below("out")?.entries(0));
    listed.is_err()
}

/// Ends when more lies below `dir` than any .run file unpacks to, the file itself counted in.
async fn outgrown(dir: &Path) {
    loop {
        let mut total = Total::default();
        // What cannot be looked at now, since it is being moved, is the next time.
        let looked = OutputDir::open(dir).map(|dir| total.add(&dir, unpack::DEEPEST));
        if let Ok(Err(TooMuch)) = looked {
            return;
        }
        tokio::time::sleep(PERIOD).await;
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
    fn add(&mut self, dir: &OutputDir, deepest: usize) -> Result<(), TooMuch> {
        let entries = match dir.entries(2 * unpack::MOST_FILES) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(TooMuch),
            Err(_) => return Ok(()),
        };
        for entry in entries {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(entry.size());
            if self.bytes > 2 * unpack::MOST_UNPACKED || self.files > 2 * unpack::MOST_FILES {
                return Err(TooMuch);
            }
            if let (true, Ok(below)) = (entry.is_dir(), dir.below(&entry.name)) {
                self.add(&below, deepest.checked_sub(1).ok_or(TooMuch)?)?;
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

/// Takes what is wanted of what a file left in `inside`/out.
fn adopt(name: &str, inside: &Path, store: &Store) -> Result<Unpacked, Failure> {
    let dir = claim(store, "driver")?;
    let mut adoption = Adoption { name, dir: &dir, left: unpack::MOST_UNPACKED, files: 0 };
    let unreadable = |e: io::Error| bad(name, &format!("what it left: {e}"));
    let from = OutputDir::open(inside).and_then(|inside| inside.below("out"));
    let adopted = from.map_err(unreadable).and_then(|out| adoption.directory(&out, Path::new("")));
    adopted.map_err(|failure| match failure.code() {
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

    fn file(&mut self, lies: &OutputDir, entry: &Entry, path: &Path) -> Result<(), Failure> {
        let shown = path.display();
        if !entry.is_file() {
            // The manifest says which links there are; sources and libraries have no others.
            tracing::debug!("leaving out {shown}, which is no file");
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
