//! Files and links of a user-mode tree that containers can get.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use longshore_core::machine::Machine;
use longshore_core::root::{Root, is_absent};
use longshore_sources::userspace::{Manifest, TreeEntry};

/// Tools below the tree's root.
const TOOLS: &str = "usr/bin";

/// Number of links that are followed from one name: a development name links to a SONAME, and that to
/// the file. More of them are a circle.
const MOST_LINKS: usize = 4;

/// A file of the tree, or a link to another of the same directory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    File,
    Link(String),
}

/// Libraries and tools of a user-mode tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Multiarch directory of the libraries, for example `x86_64-linux-gnu`.
    pub(super) triplet: &'static str,
    libraries: BTreeMap<String, Named>,
    tools: BTreeMap<String, Named>,
}

/// A name in one directory of a tree, and the file that it leads to.
pub(super) struct Name<'a> {
    pub(super) name: &'a str,
    /// Name of the file in the same directory.
    pub(super) file: &'a str,
}

impl Tree {
    /// Takes the tree of a manifest, for a machine; it need not be exposed yet.
    pub fn of_manifest(manifest: &Manifest, machine: Machine) -> Self {
        let named = |dir: &Path| {
            let entries = manifest.entries.iter().filter(|(path, _)| path.parent() == Some(dir));
            let named = entries.filter_map(|(path, entry)| {
                Some((path.file_name()?.to_str()?.to_owned(), Named::from_entry(entry)?))
            });
            named.collect()
        };
        let libraries = named(&libraries_of(machine));
        Self { triplet: machine.triplet, libraries, tools: named(Path::new(TOOLS)) }
    }

    /// Reads the tree that is exposed at `root`; one that is not there is empty.
    ///
    /// # Errors
    /// The kernel's, with the path.
    pub fn exposed(root: &Path, machine: Machine) -> io::Result<Self> {
        let root = match Root::open(root) {
            Err(e) if is_absent(&e) => return Ok(Self::empty(machine)),
            other => other?,
        };
        let libraries = read(&root, &libraries_of(machine))?;
        let tools = read(&root, Path::new(TOOLS))?;
        Ok(Self { triplet: machine.triplet, libraries, tools })
    }

    fn empty(machine: Machine) -> Self {
        let (libraries, tools) = (BTreeMap::new(), BTreeMap::new());
        Self { triplet: machine.triplet, libraries, tools }
    }

    /// Driver version of its CUDA library; None where it has none.
    pub fn driver_version(&self) -> Option<&str> {
        let files = self.libraries.iter().filter(|(_, named)| **named == Named::File);
        let mut versions = files.filter_map(|(name, _)| name.strip_prefix("libcuda.so."));
        versions.find(|version| version.contains('.'))
    }

    /// Names of libraries, with the file of each. Links that lead to no file are left out.
    pub(super) fn libraries(&self) -> impl Iterator<Item = Name<'_>> {
        resolved(&self.libraries)
    }

    /// Names of tools, with the file of each.
    pub(super) fn tools(&self) -> impl Iterator<Item = Name<'_>> {
        resolved(&self.tools)
    }
}

impl Named {
    fn from_entry(entry: &TreeEntry) -> Option<Self> {
        match entry {
            TreeEntry::Dir { .. } => None,
            TreeEntry::File { .. } => Some(Self::File),
            TreeEntry::Link { target } => Some(Self::Link(target.to_str()?.to_owned())),
        }
    }
}

fn libraries_of(machine: Machine) -> PathBuf {
    Path::new("usr/lib").join(machine.triplet)
}

fn read(root: &Root, dir: &Path) -> io::Result<BTreeMap<String, Named>> {
    let names = match root.read_dir(dir) {
        Err(e) if is_absent(&e) => return Ok(BTreeMap::new()),
        other => other?,
    };
    let mut named = BTreeMap::new();
    for name in names {
        let path = dir.join(&name);
        // Only a symlink has a target.
        if let Ok(target) = root.read_link(&path) {
            named.extend(target.to_str().map(|target| (name, Named::Link(target.to_owned()))));
        } else if root.file(&path)?.metadata()?.is_file() {
            named.insert(name, Named::File);
        }
    }
    Ok(named)
}

fn resolved(named: &BTreeMap<String, Named>) -> impl Iterator<Item = Name<'_>> {
    named.keys().filter_map(|name| Some(Name { name, file: file_of(named, name)? }))
}

/// Follows links within the directory; None where they leave it, or lead to nothing or in a circle.
fn file_of<'a>(named: &'a BTreeMap<String, Named>, name: &'a str) -> Option<&'a str> {
    let mut name = name;
    for _ in 0..=MOST_LINKS {
        match named.get(name)? {
            Named::File => return Some(name),
            Named::Link(target) => name = target,
        }
    }
    None
}
