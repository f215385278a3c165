//! Package indexes of an archive.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::relation::{self, Clause, Provided};
use longshore_core::package_origin::PackageOrigin;

/// One version of one package in one suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Name, for example `linux-headers-6.1.0-50-amd64`.
    pub name: String,
    /// Debian version.
    pub version: String,
    /// Debian architecture: `amd64`, `arm64` or `all`.
    pub arch: String,
    /// Source package, where its name differs, without its version.
    pub source: Option<String>,
    /// Component, for example `non-free`.
    pub component: String,
    /// Path below the archive's base URL.
    pub filename: String,
    /// Bytes of the .deb.
    pub size: u64,
    /// sha256 (hex) of the .deb: its name in the store.
    pub sha256: String,
    /// Pre-Depends, then Depends.
    pub depends: Vec<Clause>,
    /// Names it provides beyond its own.
    pub provides: Vec<Provided>,
    /// Base URL of the archive.
    pub base_url: Arc<str>,
    /// Codename of the suite, for example `bookworm-security`; percentage of hosts that apt already gives it to
    /// (Phased-Update-Percentage); a flat source of the host's apt counts as added.
    pub origin: PackageOrigin,
}

impl Package {
    /// Returns the name of the package that this one only leads to: a dependency without alternatives
    /// for which `is_successor` is true. Ubuntu's transitional packages hold nothing but that
    /// (`nvidia-kernel-source-570` depends on `nvidia-kernel-source-580`).
    pub fn successor(&self, is_successor: impl Fn(&str) -> bool) -> Option<&str> {
        let names = self.depends.iter().filter_map(|clause| match &clause.0[..] {
            [only] => Some(only.name.as_str()),
            _ => None,
        });
        names.into_iter().find(|name| *name != self.name && is_successor(name))
    }

    /// Returns the URL of the .deb. Filename is a path, in which `%3a` (an epoch's colon, as dpkg-deb writes it)
    /// is no escape.
    pub fn url(&self) -> String {
        let path = self.filename.replace('%', "%25");
        format!("{}/{path}", self.base_url.trim_end_matches('/'))
    }
}

/// Origin of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Base URL of the archive.
    pub base_url: Arc<str>,
    /// Codename of the suite.
    pub suite: String,
    /// Component.
    pub component: String,
    /// Debian architecture of this host.
    pub arch: String,
    /// True for a flat source of the host's apt that no configuration names.
    pub host_flat: bool,
}

/// The fields that are kept; half of an index is descriptions and tags.
const KEPT: [&[u8]; 11] = [
    b"Package:",
    b"Version:",
    b"Architecture:",
    b"Source:",
    b"Filename:",
    b"Size:",
    b"SHA256:",
    b"Depends:",
    b"Pre-Depends:",
    b"Provides:",
    b"Phased-Update-Percentage:",
];

/// Maximum uncompressed size of an index: ten times Debian's.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// Maximum size of the kept fields of an index, which stay in memory: ten times Debian's.
const MOST_KEPT: usize = 512 << 20;

/// Maximum length of a line: those of today's indexes are below 1 MiB.
const MOST_LINE: u64 = 8 << 20;

/// An index: the text of its stanzas, read on demand.
#[derive(Debug)]
pub struct Index {
    origin: Origin,
    text: Vec<u8>,
    /// Sorted by name.
    stanzas: Vec<Stanza>,
    /// Virtual name -> positions in `stanzas`.
    providers: OnceLock<HashMap<Box<str>, Vec<u32>>>,
}

#[derive(Debug, Clone)]
struct Stanza {
    start: u32,
    name: Range<u32>,
    /// Value of Provides; empty where there is none.
    provides: Range<u32>,
    end: u32,
}

/// A stanza being parsed.
#[derive(Debug, Default)]
struct Open {
    /// The field that continuation lines belong to, if it is kept.
    field: Option<&'static [u8]>,
    name: Option<Range<u32>>,
    provides: Range<u32>,
}

impl Index {
    /// Reads an index; `promised` is its uncompressed size in bytes, or the maximum.
    ///
    /// # Errors
    /// An error where the input cannot be read, or is longer than promised or than the maximum.
    pub fn read(reader: impl Read, promised: u64, origin: Origin) -> io::Result<Self> {
        let most = promised.min(MOST_BYTES);
        let mut reader = BufReader::with_capacity(1 << 18, reader.take(most + 1));
        let mut index =
            Self { origin, text: Vec::new(), stanzas: Vec::new(), providers: OnceLock::new() };
        let mut open = Open::default();
        let mut size = 0u64;
        let mut line = Vec::with_capacity(1 << 10);
        while (&mut reader).take(MOST_LINE).read_until(b'\n', &mut line)? > 0 {
            size += line.len() as u64;
            if line.len() as u64 == MOST_LINE {
                return Err(invalid(&format!("a line in it has {} MiB", MOST_LINE >> 20)));
            }
            index.take(&line, &mut open)?;
            line.clear();
        }
        if size > most && promised <= MOST_BYTES {
            return Err(invalid("it is longer than stated in the archive's metadata"));
        }
        if size > most {
            return Err(invalid(&format!("it has more than {} MiB", MOST_BYTES >> 20)));
        }
        index.close(&mut open);
        index.text.shrink_to_fit();
        let mut stanzas = std::mem::take(&mut index.stanzas);
        stanzas.sort_by(|a, b| index.bytes(&a.name).cmp(index.bytes(&b.name)));
        index.stanzas = stanzas;
        Ok(index)
    }

    /// Returns the number of packages.
    pub fn len(&self) -> usize {
        self.stanzas.len()
    }

    /// True if it has no packages.
    pub fn is_empty(&self) -> bool {
        self.stanzas.is_empty()
    }

    /// Returns the packages of this name; one whose stanza cannot be parsed is left out.
    pub fn named(&self, name: &str) -> Vec<Package> {
        let start = self.stanzas.partition_point(|s| self.bytes(&s.name) < name.as_bytes());
        self.stanzas[start..]
            .iter()
            .take_while(|stanza| self.bytes(&stanza.name) == name.as_bytes())
            .filter_map(|stanza| self.package(stanza))
            .collect()
    }

    /// Returns the packages that provide this name.
    pub fn providing(&self, name: &str) -> Vec<Package> {
        let providers = self.providers.get_or_init(|| self.find_providers());
        let positions = providers.get(name).map(Vec::as_slice).unwrap_or_default();
        positions.iter().filter_map(|&at| self.package(&self.stanzas[at as usize])).collect()
    }

    /// Returns all names; those with several versions occur several times.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stanzas.iter().map(|s| std::str::from_utf8(self.bytes(&s.name)).unwrap_or_default())
    }

    /// Parses one line of the input, with its newline if it has one.
    fn take(&mut self, line: &[u8], open: &mut Open) -> io::Result<()> {
        let before = self.text.len();
        match line.first() {
            Some(b'\n') => {
                self.close(open);
                return Ok(());
            }
            // A continuation line is kept if its field was.
            Some(b' ' | b'\t') => {}
            _ => open.field = KEPT.iter().find(|field| line.starts_with(field)).copied(),
        }
        let Some(field) = open.field else { return Ok(()) };
        if self.text.len() + line.len() > MOST_KEPT {
            return Err(invalid(&format!("its packages take more than {} MiB", MOST_KEPT >> 20)));
        }
        self.text.extend_from_slice(line);
        if line.last() != Some(&b'\n') {
            self.text.push(b'\n');
        }
        let after = position(self.text.len())?;
        if field == b"Package:" && line.starts_with(field) {
            let value = &line[field.len()..];
            let blanks = value.iter().take_while(|b| b.is_ascii_whitespace()).count();
            let start = position(before + field.len() + blanks)?;
            open.name = Some(start..start + position(value.trim_ascii().len())?);
        } else if field == b"Provides:" {
            if line.starts_with(field) {
                open.provides.start = position(before + field.len())?;
            }
            open.provides.end = after;
        }
        Ok(())
    }

    fn close(&mut self, open: &mut Open) {
        let Open { name, provides, .. } = std::mem::take(open);
        if let (Some(name), Ok(end)) = (name, position(self.text.len())) {
            let start = self.stanzas.last().map_or(0, |before| before.end);
            self.stanzas.push(Stanza { start, name, provides, end });
        }
    }

    fn bytes(&self, range: &Range<u32>) -> &[u8] {
        &self.text[range.start as usize..range.end as usize]
    }

    fn fields(&self, stanza: &Stanza) -> HashMap<&str, String> {
        let text = &self.text[stanza.start as usize..stanza.end as usize];
        let mut fields: HashMap<&str, String> = HashMap::new();
        let mut last = "";
        for line in std::str::from_utf8(text).unwrap_or_default().lines() {
            if line.starts_with([' ', '\t']) {
                fields.entry(last).or_default().push_str(line);
            } else if let Some((name, value)) = line.split_once(':') {
                last = name;
                fields.insert(name, value.trim().to_owned());
            }
        }
        fields
    }

    fn package(&self, stanza: &Stanza) -> Option<Package> {
        let name = std::str::from_utf8(self.bytes(&stanza.name)).ok()?.to_owned();
        let mut fields = self.fields(stanza);
        let arch = fields.remove("Architecture")?;
        let filename = fields.remove("Filename")?;
        let sha256 = fields.remove("SHA256")?.to_ascii_lowercase();
        let sound = sha256.len() == 64
            && sha256.bytes().all(|b| b.is_ascii_hexdigit())
            && !filename.starts_with('/')
            && filename.split('/').all(|part| part != "..");
        if !sound || (arch != "all" && arch != self.origin.arch) {
            return None;
        }
        let clauses = |field: Option<String>| relation::parse_clauses(&field.unwrap_or_default());
        let mut depends = clauses(fields.remove("Pre-Depends")).ok()?;
        depends.extend(clauses(fields.remove("Depends")).ok()?);
        let source = fields.remove("Source");
        let phased = fields.remove("Phased-Update-Percentage").and_then(|text| text.parse().ok());
        Some(Package {
            name,
            version: fields.remove("Version")?,
            arch,
            source: source.and_then(|s| s.split_whitespace().next().map(str::to_owned)),
            component: self.origin.component.clone(),
            filename,
            size: fields.remove("Size")?.parse().ok()?,
            sha256,
            depends,
            provides: relation::parse_provides(&fields.remove("Provides").unwrap_or_default()),
            base_url: self.origin.base_url.clone(),
            origin: PackageOrigin {
                text: self.origin.suite.clone(),
                percentage: phased.filter(|percentage| *percentage < 100),
                is_added: self.origin.host_flat,
            },
        })
    }

    fn find_providers(&self) -> HashMap<Box<str>, Vec<u32>> {
        let mut providers: HashMap<Box<str>, Vec<u32>> = HashMap::new();
        for (at, stanza) in (0..).zip(&self.stanzas) {
            let field = std::str::from_utf8(self.bytes(&stanza.provides)).unwrap_or_default();
            for provided in field.split(',') {
                let name = provided.trim().split([' ', '(', ':']).next().unwrap_or_default();
                providers.entry(name.into()).or_default().push(at);
            }
        }
        providers
    }
}

fn position(at: usize) -> io::Result<u32> {
    u32::try_from(at).map_err(|_| invalid("it has more than 4 GiB"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
