//! The files of containerd's configuration, in the order in which it reads them.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Component, Path, PathBuf};

use glob::Pattern;

use super::layer::Layer;
use crate::distribution::{K0S_DROP_INS, Keeping};
use crate::files::Files;
use crate::verdict::{Refusal, unread};

/// Number of files above which the configuration is refused.
const MOST: usize = 64;

/// File that k0s writes at its start, from its own configuration and that of its directory.
const OF_K0S: &str = "/run/k0s/containerd-cri.toml";

/// Reads the file at `path` and all that it imports; none where it is absent. The files of k0s' directory
/// are read after them, as k0s does at its start.
pub(super) fn load(
    files: &dyn Files,
    path: &Path,
    keeping: Keeping,
) -> Result<Vec<Layer>, Refusal> {
    let (mut layers, mut seen) = (Vec::new(), BTreeSet::new());
    let mut pending = VecDeque::from([path.to_path_buf()]);
    if keeping == Keeping::K0s {
        let dir = Path::new(K0S_DROP_INS);
        let names = files.names(dir).map_err(|error| unread(dir, &error))?;
        pending
            .extend(names.iter().filter(|name| name.ends_with(".toml")).map(|name| dir.join(name)));
    }
    while let Some(next) = pending.pop_front() {
        if !seen.insert(next.clone()) {
            continue;
        }
        if seen.len() > MOST {
            let reason = format!("{} imports more than {MOST} files", path.display());
            return Err(Refusal::new(reason, "import fewer files"));
        }
        match files.read(&next).map_err(|error| unread(&next, &error))? {
            Some(bytes) => layers.push(Layer::parse(&next, bytes)?),
            None if next == path => return Ok(layers),
            None if keeping == Keeping::K0s && next == Path::new(OF_K0S) => continue,
            None => return Err(absent(&next)),
        }
        let Some(layer) = layers.last() else { continue };
        let mut found = Vec::new();
        for import in layer.imports() {
            found.extend(resolve(files, &next, &import)?);
        }
        match (keeping, next == path) {
            // k0s' own file comes before those that are added to it.
            (Keeping::K0s, true) => {
                found.into_iter().rev().for_each(|path| pending.push_front(path))
            }
            _ => pending.extend(found),
        }
    }
    Ok(layers)
}

/// Returns the files that one import names. A relative path begins at the file that has it.
pub(super) fn resolve(files: &dyn Files, of: &Path, import: &str) -> Result<Vec<PathBuf>, Refusal> {
    let path = clean(&of.parent().unwrap_or(Path::new("/")).join(import));
    if !import.contains('*') {
        return Ok(vec![path]);
    }
    let odd = || {
        let reason = format!("{} imports {import}, a pattern that is not read here", of.display());
        Refusal::new(reason, "use a pattern in the name of the file alone, such as DIR/*.toml")
    };
    let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str()))
    else {
        return Err(odd());
    };
    if dir.to_string_lossy().contains(['*', '?', '[']) {
        return Err(odd());
    }
    let pattern = Pattern::new(name).map_err(|_| odd())?;
    let names = files.names(dir).map_err(|error| unread(dir, &error))?;
    Ok(names.into_iter().filter(|name| pattern.matches(name)).map(|name| dir.join(name)).collect())
}

/// Resolves `.` and `..` by name, as containerd does.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

fn absent(path: &Path) -> Refusal {
    let reason = format!("{} is imported and absent, so containerd does not start", path.display());
    Refusal::new(reason, "restore the file, or remove its import")
}
