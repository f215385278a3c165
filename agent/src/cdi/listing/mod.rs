//! The specs that runtimes of this host read, whichever program wrote them.

mod reading;
mod rows;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_cdi::Spec;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::root::{Root, is_absent};
use longshore_core::sanitize::in_line;

use reading::Reading;
pub use rows::rows;

/// Directories of specs; one takes precedence over those before it (pkg/cdi/spec-dirs.go).
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Limit of the files of a directory.
const MOST: usize = 1000;

/// A file of one of the directories.
#[derive(Debug)]
pub struct SpecFile {
    /// Path on the host.
    pub path: PathBuf,
    /// Position of its directory.
    directory: usize,
    /// Its contents.
    pub contents: Arc<Contents>,
}

/// Contents of a file.
#[derive(Debug)]
pub enum Contents {
    /// Full names of its devices, for example `nvidia.com/gpu=0`.
    Devices(Vec<String>),
    /// YAML, which is not read here, with the kind that one of its lines names.
    Yaml(Option<String>),
    /// A spec that readers refuse, with the reason.
    Refused(String),
    /// A file that cannot be read, with the reason.
    Unreadable(String),
}

/// Use of a device that readers make.
enum Use<'a> {
    Taken,
    /// Two files of one directory have it, so no reader has it.
    Conflict(&'a Path),
    /// A later directory has it, too.
    Replaced(&'a Path),
}

/// Reads the specs of the host whose file system begins at `host_root`, in the order of the directories
/// and then of names.
///
/// # Errors
/// Exit code 15 where a directory cannot be read, or has too much.
pub fn read(host_root: &Path) -> Result<Vec<SpecFile>, Failure> {
    let root = Root::open(host_root).or_fail(FailureKind::Preflight, || "looking at the host")?;
    let mut files = Vec::new();
    let mut reading = Reading::below(&root);
    for (directory, path) in DIRECTORIES.iter().enumerate() {
        let names = match root.read_small_dir(path, MOST) {
            Err(e) if is_absent(&e) => continue,
            other => other.map_err(|error| unlisted(path, error))?,
        };
        for name in names {
            let path = Path::new(path).join(name);
            let contents = reading.contents(&path)?;
            files.extend(contents.map(|contents| SpecFile { path, directory, contents }));
        }
    }
    Ok(files)
}

fn unlisted(path: &str, error: io::Error) -> Failure {
    Failure::new(FailureKind::Preflight, format!("listing {path}"))
        .with_source(error)
        .remedy("remove files that are no CDI specs")
}

/// Parses a spec. Readers take each ending for YAML, of which JSON is a part.
fn parsed(text: &[u8], ends_in_yaml: bool) -> Contents {
    let is_json = text.trim_ascii_start().starts_with(b"{");
    if !is_json && (ends_in_yaml || yaml_value(text, "cdiVersion:").is_some()) {
        return Contents::Yaml(yaml_value(text, "kind:"));
    }
    let checked = Spec::from_json(text).map_err(|e| e.to_string()).and_then(|spec| {
        spec.check().map_err(|refusal| refusal.to_string())?;
        Ok(spec.full_names().collect())
    });
    checked.map_or_else(Contents::Refused, Contents::Devices)
}

/// Returns the value of the line that begins with `key`.
fn yaml_value(text: &[u8], key: &str) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().trim_matches(['"', '\'']).to_owned())
}

/// Files by the names of their devices.
fn by_name(files: &[SpecFile]) -> BTreeMap<&str, Vec<&SpecFile>> {
    let mut by_name: BTreeMap<&str, Vec<&SpecFile>> = BTreeMap::new();
    for file in files {
        for name in file.devices() {
            by_name.entry(name).or_default().push(file);
        }
    }
    by_name
}

/// Formats a line for each device, with its file, and for each file that has none for readers.
pub fn render(files: &[SpecFile]) -> String {
    if files.is_empty() {
        return format!("no CDI spec is in {}\n", DIRECTORIES.join(" or "));
    }
    let by_name = by_name(files);
    let width = by_name.keys().map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for file in files {
        for name in file.devices() {
            let others = by_name.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let used = file.use_beside(others).text();
            text.push_str(&format!("{name:<width$}  {}{used}\n", shown(&file.path)));
        }
        text.push_str(&file.without_devices().unwrap_or_default());
    }
    text
}

impl SpecFile {
    fn devices(&self) -> &[String] {
        if let Contents::Devices(names) = &*self.contents { names } else { &[] }
    }

    /// Use of a device of this file that all of `files` have. A name that is twice in any one directory
    /// is nobody's (pkg/cdi/cache.go).
    fn use_beside<'a>(&self, files: &[&'a SpecFile]) -> Use<'a> {
        let others = || files.iter().filter(|other| other.path != self.path);
        let is_twice = |one: &&&SpecFile| {
            files.iter().any(|two| two.path != one.path && two.directory == one.directory)
        };
        // The twin of this file, where it has one, is the file to name.
        let twin = others().find(|other| other.directory == self.directory);
        if let Some(other) = twin.or_else(|| others().find(is_twice)) {
            return Use::Conflict(&other.path);
        }
        others()
            .rfind(|other| other.directory > self.directory)
            .map_or(Use::Taken, |other| Use::Replaced(&other.path))
    }

    /// Line of a file whose devices are not known.
    fn without_devices(&self) -> Option<String> {
        let path = shown(&self.path);
        match &*self.contents {
            Contents::Devices(_) => None,
            Contents::Yaml(kind) => {
                let kind = kind.as_ref().map(|kind| format!(" of kind {}", in_line(kind)));
                let kind = kind.unwrap_or_default();
                Some(format!(
                    "not read    {path}: a spec{kind} in YAML, which longshore does not read\n"
                ))
            }
            Contents::Refused(why) => Some(format!("refused     {path}: {}\n", in_line(why))),
            Contents::Unreadable(why) => Some(format!("unreadable  {path}: {}\n", in_line(why))),
        }
    }

    /// Failure of a file that readers skip.
    fn failure(&self) -> Option<Failure> {
        let path = self.path.display();
        match &*self.contents {
            Contents::Devices(_) | Contents::Yaml(_) => None,
            Contents::Refused(why) => {
                let cause = format!("{path} is no spec that runtimes accept");
                Some(Failure::new(FailureKind::Verification, cause).with_source(why.clone()).remedy(
                    "runtimes skip the file, and call its devices unresolvable: correct or remove it, \
                     or let the program that wrote it write it again",
                ))
            }
            Contents::Unreadable(why) => {
                let cause = format!("reading the spec {path}");
                Some(Failure::new(FailureKind::Preflight, cause).with_source(why.clone()))
            }
        }
    }
}

impl Use<'_> {
    fn text(&self) -> String {
        match self {
            Self::Taken => String::new(),
            Self::Conflict(other) => format!("  (unresolvable: also in {})", shown(other)),
            Self::Replaced(other) => format!("  (replaced by {})", shown(other)),
        }
    }
}

fn shown(path: &Path) -> String {
    in_line(&path.to_string_lossy()).into_owned()
}

/// Returns the failure of the first file that runtimes skip.
pub fn failure(files: &[SpecFile]) -> Option<Failure> {
    files.iter().find_map(SpecFile::failure)
}
