//! CRI-O and podman: both always read CDI specs, so nothing is edited; their version and their list of
//! directories are checked.

use std::path::{Path, PathBuf};

use toml::Table;

use crate::files::Files;
use crate::runtime::Runtime;
use crate::spec_dirs;
use crate::verdict::{Assessment, Refusal, State, text_of};
use crate::version::Version;

/// First CRI-O with CDI.
const CRIO: Version = Version::new(1, 23, 0);
/// First podman with CDI.
const PODMAN: Version = Version::new(4, 1, 0);
/// First podman that reads specs above version 0.5.0.
const NEWER_SPECS: Version = Version::new(4, 4, 0);

/// A runtime's place for the list of directories.
struct Place<'a> {
    files: &'a [&'a str],
    /// Directory of further files, and the ending of those.
    dir: (&'a str, &'a str),
    keys: &'a [&'a str],
}

const OF_CRIO: Place<'_> = Place {
    files: &["/etc/crio/crio.conf"],
    dir: ("/etc/crio/crio.conf.d", ""),
    keys: &["crio", "runtime", "cdi_spec_dirs"],
};
const OF_PODMAN: Place<'_> = Place {
    files: &["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"],
    dir: ("/etc/containers/containers.conf.d", ".conf"),
    keys: &["engine", "cdi_spec_dirs"],
};

/// Assesses CRI-O.
pub fn crio(version: Option<Version>, files: &dyn Files) -> Assessment {
    assess(Runtime::Crio, version, CRIO, files, &OF_CRIO)
}

/// Assesses podman.
pub fn podman(version: Option<Version>, files: &dyn Files) -> Assessment {
    let mut made = assess(Runtime::Podman, version, PODMAN, files, &OF_PODMAN);
    if let Some(version) = version.filter(|version| *version >= PODMAN && *version < NEWER_SPECS) {
        made.notes.push(format!(
            "podman {version} reads specs up to version 0.5.0, as longshore's are; not newer ones of other \
             programs"
        ));
    }
    made
}

fn assess(
    runtime: Runtime,
    version: Option<Version>,
    first: Version,
    files: &dyn Files,
    place: &Place<'_>,
) -> Assessment {
    let mut notes = Vec::new();
    let state = match version.filter(|version| *version < first) {
        Some(version) => State::Impossible {
            reason: format!("{runtime} {version} has no CDI, which came with {first}"),
            remedy: format!("upgrade {runtime}"),
        },
        None => match dirs(files, place) {
            Err(refusal) => refusal.into(),
            Ok(found) => {
                let missing =
                    found.and_then(|(setting, dirs)| spec_dirs::missing(&setting, Some(&dirs)));
                notes.extend(missing);
                State::on(format!("{runtime} always reads CDI specs: nothing to set"))
            }
        },
    };
    Assessment { runtime, version, state, notes }
}

/// Returns the effective list with the name of its setting; None where it is not set. The last file that
/// has one decides.
fn dirs(files: &dyn Files, place: &Place<'_>) -> Result<Option<(String, Vec<String>)>, Refusal> {
    let mut effective = None;
    for path in paths(files, place)? {
        let Some(values) = values(files, &path)? else { continue };
        let mut value = Some(&toml::Value::Table(values)).cloned();
        for key in place.keys {
            value = value.and_then(|value| value.get(key).cloned());
        }
        if let Some(dirs) = value.as_ref().and_then(spec_dirs::of_toml) {
            effective = Some((format!("cdi_spec_dirs in {}", path.display()), dirs));
        }
    }
    Ok(effective)
}

fn paths(files: &dyn Files, place: &Place<'_>) -> Result<Vec<PathBuf>, Refusal> {
    let (dir, ending) = place.dir;
    let dir = Path::new(dir);
    let names = files.names(dir).map_err(|error| unread(dir, &error))?;
    let own = names.into_iter().filter(|name| name.ends_with(ending)).map(|name| dir.join(name));
    Ok(place.files.iter().map(PathBuf::from).chain(own).collect())
}

fn values(files: &dyn Files, path: &Path) -> Result<Option<Table>, Refusal> {
    let Some(bytes) = files.read(path).map_err(|error| unread(path, &error))? else {
        return Ok(None);
    };
    let values = text_of(path, bytes)?.parse::<Table>().map_err(|error| {
        let why = error.to_string().lines().collect::<Vec<_>>().join(" ");
        Refusal::new(format!("{} is not TOML: {why}", path.display()), "correct the file")
    })?;
    Ok(Some(values))
}

fn unread(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new(format!("reading {}: {error}", path.display()), "make it readable")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::memory::Memory;
    use rstest::rstest;

    type Files = &'static [(&'static str, &'static str)];

    #[rstest]
    #[case::new(Runtime::Podman, (5, 4), &[], true, None)]
    #[case::old_specs(Runtime::Podman, (4, 3), &[], true, Some("up to version 0.5.0"))]
    #[case::too_old(Runtime::Podman, (4, 0), &[], false, None)]
    #[case::crio(Runtime::Crio, (1, 30), &[], true, None)]
    #[case::crio_too_old(Runtime::Crio, (1, 22), &[], false, None)]
    #[case::other_dirs(
        Runtime::Podman,
        (5, 4),
        &[("/etc/containers/containers.conf.d/a.conf", "[engine]\ncdi_spec_dirs = [\"/etc/cdi\"]\n")],
        true,
        Some("cdi_spec_dirs in /etc/containers/containers.conf.d/a.conf lists no /var/run/cdi")
    )]
    #[case::the_last_file_decides(
        Runtime::Podman,
        (5, 4),
        &[
            ("/etc/containers/containers.conf.d/a.conf", "[engine]\ncdi_spec_dirs = [\"/etc/cdi\"]\n"),
            ("/etc/containers/containers.conf.d/b.conf", "[engine]\ncdi_spec_dirs = [\"/run/cdi/\"]\n"),
            ("/etc/containers/containers.conf.d/c.txt", "no toml"),
        ],
        true,
        None
    )]
    #[case::of_crio(
        Runtime::Crio,
        (1, 30),
        &[("/etc/crio/crio.conf.d/99", "[crio.runtime]\ncdi_spec_dirs = [\"/opt/cdi\"]\n")],
        true,
        Some("cdi_spec_dirs in /etc/crio/crio.conf.d/99")
    )]
    #[case::no_toml(Runtime::Crio, (1, 30), &[("/etc/crio/crio.conf", "[")], false, None)]
    fn readers(
        #[case] runtime: Runtime,
        #[case] version: (u32, u32),
        #[case] files: Files,
        #[case] is_well: bool,
        #[case] note: Option<&str>,
    ) {
        let files = Memory::of(files);
        let version = Some(Version::new(version.0, version.1, 0));
        let made = match runtime {
            Runtime::Podman => podman(version, &files),
            _ => crio(version, &files),
        };
        assert_eq!(made.state.is_well(), is_well, "{made:?}");
        match note {
            None => assert_eq!(made.notes, [""; 0]),
            Some(note) => assert!(made.notes[0].contains(note), "{made:?}"),
        }
    }
}
