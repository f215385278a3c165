//! Header trees in a file system: their directories, digests and copies.
//!
//! Distributions split headers: Debian's flavour names its common part in its Makefile and links to
//! `linux-kbuild-*`, Ubuntu's is mostly links, others have one tree. All directories that the first
//! tree refers to are found by following it, and copied to the same paths inside a build root, so
//! that absolute paths in it stay right.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::view::View;
use longshore_core::digest::{add_field, hex};
use longshore_core::ownership;

/// Maximum number of files: headers of one kernel are 100 MiB and 25 000 files; far more is
/// something else.
const MOST_FILES: u64 = 400_000;
const MOST_BYTES: u64 = 4 << 30;
/// Files that every build needs: a tree without them was not prepared, or is incomplete.
const NEEDED: [&str; 4] =
    ["Makefile", "Module.symvers", "include/generated/autoconf.h", "scripts/mod/modpost"];
/// Name prefix of linked directories that belong to the headers as a whole.
const FAMILY: &str = "linux-";

/// The headers of one kernel, as its own system sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trees {
    release: String,
    view: View,
    /// Target of `/lib/modules/RELEASE/build`.
    build: PathBuf,
    /// Target of `/lib/modules/RELEASE/source`, if the link exists.
    source: Option<PathBuf>,
    /// The directories that belong to it, none below another.
    parts: Vec<PathBuf>,
}

impl Trees {
    /// Finds the directories of the headers that `build` and `source` lead to.
    ///
    /// # Errors
    /// The reason why they are unusable.
    pub(super) fn follow(
        view: View,
        release: &str,
        build: &Path,
        source: Option<&Path>,
    ) -> Result<Self, String> {
        let found = |path: &Path| view.resolve(path).map_err(|e| e.to_string());
        let build = found(build)?.ok_or_else(|| format!("there is no {}", build.display()))?;
        let source = match source {
            Some(path) => found(path)?,
            None => None,
        };
        // Without the link Debian's flavour still names its common part in its Makefile.
        let source = source.or(view.included(&build).map_err(|e| e.to_string())?);
        let parts = Vec::new();
        let mut trees = Self { release: release.to_owned(), view, build, source, parts };
        let mut next: Vec<PathBuf> = trees.source.iter().chain([&trees.build]).cloned().collect();
        while let Some(dir) = next.pop() {
            if trees.parts.iter().any(|part| dir.starts_with(part)) {
                continue;
            }
            if dir.components().count() < 3 {
                return Err(format!("{} is not a directory of headers", dir.display()));
            }
            trees.parts.retain(|part| !part.starts_with(&dir));
            next.extend(trees.led_to(&dir).map_err(|e| format!("{}: {e}", dir.display()))?);
            trees.parts.push(dir);
        }
        trees.parts.sort();
        trees.check()?;
        Ok(trees)
    }

    /// Returns the directories that the Makefile and the links of `dir` refer to.
    fn led_to(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut led: Vec<PathBuf> = self.view.included(dir)?.into_iter().collect();
        for (path, kind) in self.entries(dir)? {
            let TreeFileKind::Link(target) = kind else { continue };
            let link = dir.join(&path);
            let target = link.parent().unwrap_or(dir).join(target);
            let Some(target) = self.view.resolve(&target)? else { continue };
            let of_family =
                |p: &&Path| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(FAMILY));
            led.extend(target.ancestors().filter(of_family).last().map(Path::to_path_buf));
        }
        led.dedup();
        Ok(led)
    }

    fn check(&self) -> Result<(), String> {
        let has = |name: &str| {
            let in_dir = |dir: &PathBuf| self.view.resolve(&dir.join(name)).ok().flatten();
            [Some(&self.build), self.source.as_ref()].into_iter().flatten().find_map(in_dir)
        };
        match NEEDED.iter().find(|name| has(name).is_none()) {
            Some(absent) => Err(format!("{} has no {absent}", self.build.display())),
            None => Ok(()),
        }
    }

    /// Checks that the directories, and the way to each, are root's alone.
    ///
    /// # Errors
    /// The file that others may write to.
    pub(super) fn check_owners(&self) -> io::Result<()> {
        let most = usize::try_from(MOST_FILES).unwrap_or(usize::MAX);
        let inner = [Some(&self.build), self.source.as_ref()].into_iter().flatten();
        for path in inner.chain(&self.parts) {
            let (root, path) = self.view.place(path);
            ownership::tree(&root, &path, most)?;
        }
        Ok(())
    }

    /// Returns the directories of the sources and of the output; one where they lie together.
    pub(super) fn dirs(&self) -> (PathBuf, PathBuf) {
        (self.source.clone().unwrap_or_else(|| self.build.clone()), self.build.clone())
    }

    /// Reads a file of the headers by its path in them; empty where it does not exist.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        self.view.read(&self.build.join(path))
    }

    /// Returns the sha256 (hex) of each part, by its path: of names, links, executable bits, and
    /// contents.
    ///
    /// # Errors
    /// An error where a file cannot be read.
    pub fn digests(&self) -> io::Result<BTreeMap<String, String>> {
        let mut digests = BTreeMap::new();
        for part in &self.parts {
            let mut hash = Sha256::new();
            for (path, kind) in self.entries(part)? {
                let mut field = |bytes: &[u8]| add_field(&mut hash, bytes);
                field(path.as_os_str().as_encoded_bytes());
                match &kind {
                    TreeFileKind::Directory => field(b"directory"),
                    TreeFileKind::Link(target) => {
                        field(b"link");
                        field(target.as_os_str().as_encoded_bytes());
                    }
                    TreeFileKind::File { executable, size } => {
                        field(if *executable { b"program" } else { b"file" });
                        hash.update(size.to_le_bytes());
                        self.feed(&part.join(&path), *size, &mut hash)?;
                    }
                }
            }
            digests.insert(part.display().to_string(), hex(&hash.finalize()));
        }
        Ok(digests)
    }

    fn feed(&self, path: &Path, size: u64, hash: &mut Sha256) -> io::Result<()> {
        let lies = self.lies(path);
        let mut file = File::open(&lies)?;
        let mut buffer = vec![0; 1 << 16];
        let mut left = size;
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 && left == 0 {
                return Ok(());
            }
            left = match left.checked_sub(n as u64) {
                Some(left) if n > 0 => left,
                _ => {
                    let what = format!("{} changed while it was read", lies.display());
                    return Err(io::Error::other(what));
                }
            };
            hash.update(&buffer[..n]);
        }
    }

    /// Copies everything below `root`, and the two links below /usr/lib/modules.
    ///
    /// # Errors
    /// An error where something cannot be read or written.
    pub fn copy_into(&self, root: &Path) -> io::Result<()> {
        let at = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
        for part in &self.parts {
            fs::create_dir_all(at(part))?;
            for (path, kind) in self.entries(part)? {
                let inside = part.join(&path);
                let (from, to) = (self.lies(&inside), at(&inside));
                match kind {
                    TreeFileKind::Directory => fs::create_dir(&to)?,
                    TreeFileKind::Link(target) => symlink(target, &to)?,
                    TreeFileKind::File { executable, .. } => {
                        fs::copy(&from, &to)?;
                        let mode = if executable { 0o755 } else { 0o644 };
                        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
                        // make(1) compares times.
                        let modified = fs::metadata(&from)?.modified()?;
                        File::options().write(true).open(&to)?.set_modified(modified)?;
                    }
                }
            }
        }
        let modules = root.join("usr/lib/modules").join(&self.release);
        fs::create_dir_all(&modules)?;
        for (name, target) in [("build", Some(&self.build)), ("source", self.source.as_ref())] {
            let link = modules.join(name);
            if let Some(target) = target.filter(|_| link.symlink_metadata().is_err()) {
                symlink(target, link)?;
            }
        }
        Ok(())
    }

    /// Returns the copy that [`Trees::copy_into`] made.
    pub fn copied_to(&self, root: &Path) -> Self {
        Self { view: View::new("/", root), ..self.clone() }
    }

    fn lies(&self, inside: &Path) -> PathBuf {
        self.view.outside(inside).unwrap_or_default()
    }

    /// Lists everything below `dir`, sorted, directories before their contents; follows no link.
    fn entries(&self, dir: &Path) -> io::Result<Vec<(PathBuf, TreeFileKind)>> {
        let top = self.lies(dir);
        let (mut found, mut bytes) = (Vec::new(), 0u64);
        let mut next = vec![PathBuf::new()];
        while let Some(relative) = next.pop() {
            for entry in fs::read_dir(top.join(&relative))? {
                let entry = entry?;
                let path = relative.join(entry.file_name());
                let meta = entry.path().symlink_metadata()?;
                let kind = if meta.is_dir() {
                    next.push(path.clone());
                    TreeFileKind::Directory
                } else if meta.is_symlink() {
                    TreeFileKind::Link(fs::read_link(entry.path())?)
                } else if meta.is_file() {
                    bytes = bytes.saturating_add(meta.len());
                    TreeFileKind::File { executable: meta.mode() & 0o111 != 0, size: meta.len() }
                } else {
                    continue;
                };
                found.push((path, kind));
                if found.len() as u64 > MOST_FILES || bytes > MOST_BYTES {
                    return Err(io::Error::other("far larger than the headers of a kernel"));
                }
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}

enum TreeFileKind {
    Directory,
    Link(PathBuf),
    File { executable: bool, size: u64 },
}
