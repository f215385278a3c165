//! Unpacking of a package's files below one directory, and nowhere else.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use super::faults::{bad, damaged};
use longshore_core::durable::write_failure;
use longshore_core::failure::Failure;

/// Directories that usrmerge replaced by links: `bin` -> `usr/bin`.
const USRMERGE: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// An entry of the data tar, in any compression.
pub(super) type TarEntry<'a, 'b> = tar::Entry<'a, &'b mut dyn Read>;

/// An unpacked entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedEntry {
    /// Path relative to the directory it was unpacked into.
    pub path: PathBuf,
    /// Kind of entry.
    pub kind: EntryKind,
    /// Permission bits, without setuid, setgid and sticky.
    pub mode: u32,
}

/// The kinds of entries that are unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A file of this many bytes.
    File(u64),
    /// A symbolic link with its literal target.
    Symlink(PathBuf),
    /// A hard link to a file unpacked before; the path is relative to the same directory.
    HardLink(PathBuf),
}

/// Creates usr/bin, usr/sbin, usr/lib and usr/lib64 below `into`, and the links to them.
///
/// # Errors
/// Exit code 15 where `into` cannot be written.
pub fn make_usrmerge_links(into: &Path) -> Result<(), Failure> {
    for name in USRMERGE {
        let target = Path::new("usr").join(name);
        let dir = into.join(&target);
        fs::create_dir_all(&dir).map_err(|e| write_failure(&dir, e))?;
        let link = into.join(name);
        match symlink(&target, &link) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(write_failure(&link, e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the path of an entry as the package has it.
pub(super) fn entry_path(package: &str, entry: &TarEntry<'_, '_>) -> Result<PathBuf, Failure> {
    entry.path().map(|path| path.into_owned()).map_err(|e| damaged(package, e))
}

/// Maximum number of directories: packages have some thousand; far more could fill a disk from a
/// small package.
const MOST_DIRECTORIES: usize = 20_000;

/// Maximum depth of a path; those of today's packages are below 20.
const DEEPEST: usize = 100;

/// Returns `path` relative and without `.`; refuses absolute paths, `..`, and too deep ones.
pub(super) fn clean(path: &Path) -> Result<PathBuf, String> {
    let mut clean = PathBuf::new();
    for (depth, component) in path.components().enumerate() {
        if depth > DEEPEST {
            return Err(format!("it holds a path of more than {DEEPEST} directories"));
        }
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return Err(format!("its path {} leads outside", path.display())),
        }
    }
    Ok(clean)
}

/// Error of an entry.
enum Refusal {
    /// The package's contents are forbidden.
    Bad(String),
    /// The file system refused a write.
    Write(PathBuf, io::Error),
    /// The package cannot be read.
    Read(io::Error),
}

type Outcome<T> = Result<T, Refusal>;

/// A directory that packages are unpacked into.
pub struct Tree<'a> {
    into: &'a Path,
    /// Directories checked to be real: relative path -> absolute path.
    known: HashMap<PathBuf, PathBuf>,
}

impl<'a> Tree<'a> {
    /// Creates the directory to unpack into, if it is absent.
    ///
    /// # Errors
    /// Exit code 15 where it cannot be created.
    pub fn open(into: &'a Path) -> Result<Self, Failure> {
        fs::create_dir_all(into).map_err(|e| write_failure(into, e))?;
        let known = HashMap::from([(PathBuf::new(), into.to_path_buf())]);
        Ok(Self { into, known })
    }

    /// Adds one entry at the path from `place`; None where it is left out.
    pub fn add(
        &mut self,
        package: &str,
        entry: &mut TarEntry<'_, '_>,
        place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
    ) -> Result<Option<UnpackedEntry>, Failure> {
        let path = entry_path(package, entry)?;
        self.try_add(&path, entry, place).map_err(|refusal| match refusal {
            Refusal::Bad(what) => bad(package, &what),
            Refusal::Write(path, error) => write_failure(&path, error),
            Refusal::Read(error) => damaged(package, error),
        })
    }

    fn try_add(
        &mut self,
        path: &Path,
        entry: &mut TarEntry<'_, '_>,
        place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
    ) -> Outcome<Option<UnpackedEntry>> {
        let inside = clean(path).map_err(Refusal::Bad)?;
        if inside.as_os_str().is_empty() {
            return Ok(None);
        }
        let Some(placed) = place(&inside) else { return Ok(None) };
        let placed = clean(&placed).map_err(Refusal::Bad)?;
        let mode = entry.header().mode().map_err(Refusal::Read)? & 0o777;
        let kind = match entry.header().entry_type() {
            tar::EntryType::Directory => {
                self.make_directory(&placed, mode)?;
                EntryKind::Directory
            }
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                EntryKind::File(self.write_file(&placed, mode, entry)?)
            }
            tar::EntryType::Symlink => EntryKind::Symlink(self.make_symlink(&placed, entry)?),
            tar::EntryType::Link => {
                EntryKind::HardLink(self.make_hard_link(&placed, entry, place)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(UnpackedEntry { path: placed, kind, mode }))
    }

    fn make_directory(&mut self, path: &Path, mode: u32) -> Outcome<()> {
        let new = fs::symlink_metadata(self.into.join(path)).is_err();
        let lies = self.directory(path)?;
        if new {
            fs::set_permissions(&lies, Permissions::from_mode(mode | 0o700))
                .map_err(|e| Refusal::Write(lies, e))?;
        }
        Ok(())
    }

    fn write_file(&mut self, path: &Path, mode: u32, entry: &mut TarEntry<'_, '_>) -> Outcome<u64> {
        let target = self.vacant(path)?;
        let write = |e| Refusal::Write(target.clone(), e);
        // create_new is O_EXCL: it never follows a link at the path.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&target)
            .map_err(write)?;
        let size = copy(entry, &mut file, &target)?;
        if size != entry.size() {
            return Err(Refusal::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        file.set_permissions(Permissions::from_mode(mode)).map_err(write)?;
        // make(1) compares times, so they are taken from the package.
        let modified = entry.header().mtime().map_err(Refusal::Read)?;
        if let Some(time) = UNIX_EPOCH.checked_add(Duration::from_secs(modified)) {
            file.set_modified(time).map_err(write)?;
        }
        Ok(size)
    }

    /// Creates a link with any target; links are never followed here.
    fn make_symlink(&mut self, path: &Path, entry: &TarEntry<'_, '_>) -> Outcome<PathBuf> {
        let target = link_target(entry)?;
        if is_usrmerge(path) && fs::read_link(self.into.join(path)).is_ok_and(|t| t == target) {
            return Ok(target);
        }
        let link = self.vacant(path)?;
        symlink(&target, &link).map_err(|e| Refusal::Write(link, e))?;
        Ok(target)
    }

    fn make_hard_link(
        &mut self,
        path: &Path,
        entry: &TarEntry<'_, '_>,
        place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
    ) -> Outcome<PathBuf> {
        let inside = clean(&link_target(entry)?).map_err(Refusal::Bad)?;
        let bad = |what: &str| {
            let (path, target) = (path.display(), inside.display());
            Refusal::Bad(format!("{path} is another name of {target}, which {what}"))
        };
        let Some(placed) = place(&inside) else { return Err(bad("is left out")) };
        let placed = clean(&placed).map_err(Refusal::Bad)?;
        let source = self.parent(&placed)?;
        if !fs::symlink_metadata(&source).is_ok_and(|found| found.is_file()) {
            return Err(bad("is not a file in it"));
        }
        if placed == path {
            return Ok(placed);
        }
        let link = self.vacant(path)?;
        fs::hard_link(&source, &link).map_err(|e| Refusal::Write(link, e))?;
        Ok(placed)
    }

    /// Returns the absolute path of `path`, after creating its parent and removing an existing
    /// file, but not a directory.
    fn vacant(&mut self, path: &Path) -> Outcome<PathBuf> {
        let lies = self.parent(path)?;
        match fs::symlink_metadata(&lies) {
            Ok(found) if found.is_dir() => {
                Err(Refusal::Bad(format!("{} is a directory already", path.display())))
            }
            Ok(_) => {
                fs::remove_file(&lies).map_err(|e| Refusal::Write(lies.clone(), e))?;
                Ok(lies)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(lies),
            Err(e) => Err(Refusal::Write(lies, e)),
        }
    }

    /// Returns the absolute path of `path`, after creating its parent.
    fn parent(&mut self, path: &Path) -> Outcome<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Refusal::Bad("a file has no name".to_owned()));
        };
        Ok(self.directory(parent)?.join(name))
    }

    /// Returns the absolute path of the directory `path`: created if missing, every link checked.
    fn directory(&mut self, path: &Path) -> Outcome<PathBuf> {
        if let Some(lies) = self.known.get(path) {
            return Ok(lies.clone());
        }
        let lies = self.parent(path)?;
        let lies = match fs::symlink_metadata(&lies) {
            Ok(found) if found.is_dir() => lies,
            Ok(found) if found.is_symlink() => self.through_link(path, &lies)?,
            Ok(_) => {
                let path = path.display();
                return Err(Refusal::Bad(format!("{path} is a file and should be a directory")));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.make(&lies)?;
                lies
            }
            Err(e) => return Err(Refusal::Write(lies, e)),
        };
        self.known.insert(path.to_path_buf(), lies.clone());
        Ok(lies)
    }

    /// Creates a directory, unless another package that is unpacked in parallel created it first.
    fn make(&mut self, lies: &Path) -> Outcome<()> {
        if self.known.len() > MOST_DIRECTORIES {
            let what = format!("it has more than {MOST_DIRECTORIES} directories");
            return Err(Refusal::Bad(what));
        }
        match fs::DirBuilder::new().mode(0o755).create(lies) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && is_directory(lies) => Ok(()),
            made => made.map_err(|e| Refusal::Write(lies.to_path_buf(), e)),
        }
    }

    /// Follows usrmerge's links, the only ones that files may go through: they stay inside.
    fn through_link(&mut self, path: &Path, lies: &Path) -> Outcome<PathBuf> {
        let target = fs::read_link(lies).map_err(|e| Refusal::Write(lies.to_path_buf(), e))?;
        let merged = Path::new("usr").join(path);
        if is_usrmerge(path) && (target == merged || target == Path::new("/").join(&merged)) {
            return self.directory(&merged);
        }
        let (path, target) = (path.display(), target.display());
        Err(Refusal::Bad(format!("it writes through {path}, a symbolic link to {target}")))
    }
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn is_usrmerge(path: &Path) -> bool {
    USRMERGE.iter().any(|name| path == Path::new(name))
}

fn link_target(entry: &TarEntry<'_, '_>) -> Outcome<PathBuf> {
    let name = entry.link_name().map_err(Refusal::Read)?;
    name.map(|name| name.into_owned())
        .ok_or_else(|| Refusal::Bad("it has a link without a target".to_owned()))
}

/// Copies, and distinguishes a package that cannot be read from a disk that cannot be written.
fn copy(from: &mut impl Read, to: &mut File, path: &Path) -> Outcome<u64> {
    let mut buffer = [0; 1 << 16];
    let mut size = 0;
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Refusal::Read(e)),
        };
        to.write_all(&buffer[..n]).map_err(|e| Refusal::Write(path.to_path_buf(), e))?;
        size += n as u64;
    }
}
