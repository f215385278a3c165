//! CRI-O and podman: both always read CDI specs, so nothing is edited; their version and their list of
//! directories are checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::files::Files;
use crate::invocation::Invocation;
use crate::runtime::Runtime;
use crate::spec_dirs;
use crate::verdict::{Assessment, Refusal, State, text_of, toml_of, unread};
use crate::version::Version;

/// First CRI-O with CDI.
const CRIO: Version = Version::new(1, 23, 0);
/// First podman with CDI.
const PODMAN: Version = Version::new(4, 1, 0);
/// First podman that reads specs above version 0.5.0.
const NEWER_SPECS: Version = Version::new(4, 4, 0);
/// First podman that reads `cdi_spec_dirs`, with /etc/cdi alone by default (libpod of v5.5.0 to v5.5.2, with
/// containers/common v0.63); earlier ones look into both directories whatever is set (libpod of v5.4.1).
const LISTS: Version = Version::new(5, 5, 0);
/// First podman with both directories by default again (containers/common v0.64, pull request 2462).
const BOTH: Version = Version::new(5, 6, 0);
/// Directories where nothing is set, and in podman 5.5.
const DEFAULTS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// A list of directories, with the setting that has it.
#[derive(Debug, Clone)]
struct Dirs {
    setting: String,
    dirs: Vec<String>,
}

/// Assesses CRI-O. Its flags are before its files, and its files are those of --config and --config-dir.
pub fn crio(
    version: Option<Version>,
    files: &dyn Files,
    invocation: Option<&Invocation>,
) -> Assessment {
    let given = |flags: &[&str], variable: &str| {
        let invocation = invocation?;
        let flag = invocation.value(flags);
        flag.or_else(|| invocation.variables.get(variable).cloned())
    };
    let file = given(&["config", "c"], "CONTAINER_CONFIG");
    let dir = given(&["config-dir", "d"], "CONTAINER_CONFIG_DIR");
    let found = || {
        if let Some(invocation) = invocation {
            let mut dirs = invocation.values(&["cdi-spec-dirs"]);
            dirs.extend(match dirs.is_empty() {
                true => invocation.variables.get("CONTAINER_CDI_SPEC_DIRS").cloned(),
                false => None,
            });
            let dirs: Vec<String> =
                dirs.iter().flat_map(|dirs| dirs.split(',')).map(str::to_owned).collect();
            if !dirs.is_empty() {
                return Ok(Some(Dirs { setting: format!("--cdi-spec-dirs ({invocation})"), dirs }));
            }
        }
        let file = file.as_deref().unwrap_or("/etc/crio/crio.conf");
        let dir = dir.as_deref().unwrap_or("/etc/crio/crio.conf.d");
        let mut paths = vec![PathBuf::from(file)];
        if !dir.is_empty() {
            paths.extend(names(files, Path::new(dir), "")?);
        }
        listed(files, &paths, &["crio", "runtime", "cdi_spec_dirs"], &DEFAULTS)
    };
    assess(Runtime::Crio, version, CRIO, found)
}

/// Variables that name other files of podman's.
const CONF: &str = "CONTAINERS_CONF";
const OVERRIDE: &str = "CONTAINERS_CONF_OVERRIDE";

/// Assesses podman. `variables` are those that the host sets for it, and `help` the output of `podman
/// --help`, which has the effective list of directories from 5.5 on.
pub fn podman(
    version: Option<Version>,
    files: &dyn Files,
    variables: &BTreeMap<String, String>,
    help: Option<&str>,
) -> Assessment {
    let found = || {
        let paths = podman_paths(files, variables)?;
        let defaults = if is_narrow(version) { &DEFAULTS[..1] } else { &DEFAULTS[..] };
        let listed = listed(files, &paths, &["engine", "cdi_spec_dirs"], defaults)?;
        if version.is_some_and(|version| version < LISTS) {
            return Ok(None);
        }
        if let Some(dirs) = help.and_then(dirs_of_help) {
            let setting = match &listed {
                Some(listed) if listed.dirs == dirs => listed.setting.clone(),
                _ => usual_setting(version),
            };
            return Ok(Some(Dirs { setting, dirs }));
        }
        Ok(match (listed, is_narrow(version)) {
            (None, true) => {
                let dirs = vec![DEFAULTS[0].to_owned()];
                Some(Dirs { setting: usual_setting(version), dirs })
            }
            (listed, _) => listed,
        })
    };
    let mut made = assess(Runtime::Podman, version, PODMAN, found);
    if let Some(version) = version.filter(|version| *version >= PODMAN && *version < NEWER_SPECS) {
        made.notes.push(format!(
            "podman {version} reads specs up to version 0.5.0, as longshore's are; not newer ones of other \
             programs"
        ));
    }
    made
}

fn is_narrow(version: Option<Version>) -> bool {
    version.is_some_and(|version| version >= LISTS && version < BOTH)
}

fn usual_setting(version: Option<Version>) -> String {
    let version = version.map_or_else(String::new, |version| format!(" of podman {version}"));
    format!("the default{version} (cdi_spec_dirs in /etc/containers/containers.conf is not set)")
}

/// Returns podman's files in their order (containers/common, pkg/config/new.go).
fn podman_paths(
    files: &dyn Files,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, Refusal> {
    let set = |name: &str| variables.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut paths = match set(CONF) {
        Some(path) => match files.read(&path).map_err(|error| unread(&path, &error))? {
            Some(_) => vec![path],
            None => {
                return Err(Refusal::new(
                    format!(
                        "podman does not start: {CONF} names {}, which is absent",
                        path.display()
                    ),
                    format!("correct the variable {CONF}"),
                ));
            }
        },
        None => {
            let usual =
                ["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"];
            let mut paths: Vec<PathBuf> = usual.iter().map(PathBuf::from).collect();
            paths.extend(names(files, Path::new("/etc/containers/containers.conf.d"), ".conf")?);
            paths
        }
    };
    paths.extend(set(OVERRIDE));
    Ok(paths)
}

/// Returns the list in podman's help, as its default of --cdi-spec-dir.
fn dirs_of_help(help: &str) -> Option<Vec<String>> {
    let line = help.lines().find(|line| line.trim_start().starts_with("--cdi-spec-dir "))?;
    let (_, list) = line.rsplit_once("(default [")?;
    let (list, _) = list.split_once("])")?;
    Some(list.split(',').map(|dir| dir.trim().to_owned()).collect())
}

fn assess(
    runtime: Runtime,
    version: Option<Version>,
    first: Version,
    found: impl FnOnce() -> Result<Option<Dirs>, Refusal>,
) -> Assessment {
    let state = match version.filter(|version| *version < first) {
        Some(version) => State::Impossible {
            reason: format!("{runtime} {version} has no CDI, which came with {first}"),
            remedy: format!("upgrade {runtime}"),
        },
        None => match found() {
            Err(refusal) => refusal.into(),
            Ok(found) => state(runtime, version, found),
        },
    };
    Assessment { runtime, version, state, notes: Vec::new() }
}

fn state(runtime: Runtime, version: Option<Version>, found: Option<Dirs>) -> State {
    let missing = found.as_ref().and_then(|found| spec_dirs::missing(&found.setting, &found.dirs));
    if let Some((reason, remedy)) = missing {
        let remedy = match runtime {
            Runtime::Podman => {
                let mut dirs = found.map(|found| found.dirs).unwrap_or_default();
                dirs.push(DEFAULTS[1].to_owned());
                format!(
                    "set `cdi_spec_dirs = {dirs:?}` in the section [engine] of a file such as \
                     /etc/containers/containers.conf.d/50-cdi.conf"
                )
            }
            _ => remedy,
        };
        return State::Manual { reason, remedy };
    }
    // Without a version podman may be 5.5, whose default lacks one of them.
    if runtime == Runtime::Podman && version.is_none() && found.is_none() {
        return State::Unknown {
            reason: "podman did not tell its version: 5.5 looks into /etc/cdi alone by default"
                .to_owned(),
            remedy: format!(
                "ask it with `podman --version`; `cdi_spec_dirs = {DEFAULTS:?}` in the section [engine] of \
                 containers.conf is right for every version"
            ),
            edit: None,
        };
    }
    State::on(format!("{runtime} always reads CDI specs: nothing to set"))
}

/// Returns the effective list with the name of its setting; None where it is not set. The last file that
/// has one decides; one that is to be appended adds to those before it, at first to the defaults.
fn listed(
    files: &dyn Files,
    paths: &[PathBuf],
    keys: &[&str],
    defaults: &[&str],
) -> Result<Option<Dirs>, Refusal> {
    let mut effective: Option<Dirs> = None;
    for path in paths {
        let Some(values) = values(files, path)? else { continue };
        let values = Value::Table(values);
        let found = keys.iter().try_fold(&values, |value, key| value.get(*key));
        let Some(value) = found else { continue };
        let Some(mut dirs) = spec_dirs::of_toml(value) else { continue };
        if is_appended(value) {
            let before = effective.take().map(|before| before.dirs);
            let mut all =
                before.unwrap_or_else(|| defaults.iter().map(|dir| (*dir).to_owned()).collect());
            all.append(&mut dirs);
            dirs = all;
        }
        let setting = format!("cdi_spec_dirs in {}", path.display());
        effective = Some(Dirs { setting, dirs });
    }
    Ok(effective)
}

/// True for an array with the attribute `{append = true}` (containers.conf(5)).
fn is_appended(value: &Value) -> bool {
    let attribute = |value: &Value| value.get("append").and_then(Value::as_bool) == Some(true);
    value.as_array().is_some_and(|values| values.iter().any(attribute))
}

fn names(files: &dyn Files, dir: &Path, ending: &str) -> Result<Vec<PathBuf>, Refusal> {
    let names = files.names(dir).map_err(|error| unread(dir, &error))?;
    Ok(names.into_iter().filter(|name| name.ends_with(ending)).map(|name| dir.join(name)).collect())
}

fn values(files: &dyn Files, path: &Path) -> Result<Option<Table>, Refusal> {
    let Some(bytes) = files.read(path).map_err(|error| unread(path, &error))? else {
        return Ok(None);
    };
    toml_of("its runtime", path, &text_of(path, bytes)?).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::memory::Memory;
    use rstest::rstest;

    type Files = &'static [(&'static str, &'static str)];

    const PART: &str = "/etc/containers/containers.conf.d/a.conf";
    const ETC: &str = "[engine]\ncdi_spec_dirs = [\"/etc/cdi\"]\n";

    #[rstest]
    #[case::new(Runtime::Podman, Some((5, 4)), &[], "on", "always reads")]
    #[case::old_specs(Runtime::Podman, Some((4, 3)), &[], "on", "always reads")]
    #[case::too_old(Runtime::Podman, Some((4, 0)), &[], "no_cdi", "has no CDI")]
    #[case::crio(Runtime::Crio, Some((1, 30)), &[], "on", "always reads")]
    #[case::crio_too_old(Runtime::Crio, Some((1, 22)), &[], "no_cdi", "has no CDI")]
    #[case::the_list_of_5_4_is_not_read(Runtime::Podman, Some((5, 4)), &[(PART, ETC)], "on", "always reads")]
    #[case::of_5_5(Runtime::Podman, Some((5, 5)), &[], "off", "the default of podman 5.5.0")]
    #[case::of_5_5_with_the_list(
        Runtime::Podman,
        Some((5, 5)),
        &[(PART, "[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n")],
        "on",
        "always reads"
    )]
    #[case::of_5_5_appended(
        Runtime::Podman,
        Some((5, 5)),
        &[(PART, "[engine]\ncdi_spec_dirs = [\"/run/cdi\", {append = true}]\n")],
        "on",
        "always reads"
    )]
    #[case::of_5_6(Runtime::Podman, Some((5, 6)), &[], "on", "always reads")]
    #[case::other_dirs(Runtime::Podman, Some((5, 6)), &[(PART, ETC)], "off", "containers.conf.d/a.conf lists no /var/run/cdi")]
    #[case::appended_to_the_default(
        Runtime::Podman,
        Some((5, 6)),
        &[(PART, "[engine]\ncdi_spec_dirs = [\"/opt/cdi\", {append = true}]\n")],
        "on",
        "always reads"
    )]
    #[case::unknown(Runtime::Podman, None, &[], "unknown", "did not tell its version")]
    #[case::the_last_file_decides(
        Runtime::Podman,
        Some((5, 6)),
        &[
            (PART, ETC),
            ("/etc/containers/containers.conf.d/b.conf", "[engine]\ncdi_spec_dirs = [\"/run/cdi/\"]\n"),
            ("/etc/containers/containers.conf.d/c.txt", "no toml"),
        ],
        "on",
        "always reads"
    )]
    #[case::of_crio(
        Runtime::Crio,
        Some((1, 30)),
        &[("/etc/crio/crio.conf.d/99", "[crio.runtime]\ncdi_spec_dirs = [\"/opt/cdi\"]\n")],
        "off",
        "cdi_spec_dirs in /etc/crio/crio.conf.d/99"
    )]
    #[case::no_toml(Runtime::Crio, Some((1, 30)), &[("/etc/crio/crio.conf", "[")], "refused", "is not TOML")]
    fn readers(
        #[case] runtime: Runtime,
        #[case] version: Option<(u32, u32)>,
        #[case] files: Files,
        #[case] name: &str,
        #[case] reason: &str,
    ) {
        let files = Memory::new(files);
        let version = version.map(|(major, minor)| Version::new(major, minor, 0));
        let made = match runtime {
            Runtime::Podman => podman(version, &files, &BTreeMap::new(), None),
            _ => crio(version, &files, None),
        };
        assert_eq!(made.state.name(), name, "{made:?}");
        assert!(made.state.reason().contains(reason), "{made:?}");
        assert_eq!(made.notes.len(), usize::from(version == Some(Version::new(4, 3, 0))));
    }

    #[rstest]
    #[case(&[(CONF, "/srv/c.conf")], &[("/srv/c.conf", ETC)], "off")]
    #[case(&[(CONF, "/srv/c.conf")], &[("/srv/c.conf", ""), (PART, ETC)], "on")]
    #[case(&[(CONF, "/srv/none")], &[], "refused")]
    #[case(&[(OVERRIDE, "/srv/c.conf")], &[("/srv/c.conf", ETC)], "off")]
    #[case(&[(OVERRIDE, "/srv/none")], &[], "on")]
    fn variables_of_podman(
        #[case] variables: &[(&str, &str)],
        #[case] files: &[(&str, &str)],
        #[case] name: &str,
    ) {
        let variables = variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let made = podman(Some(Version::new(5, 6, 0)), &Memory::new(files), &variables, None);
        assert_eq!(made.state.name(), name, "{made:?}");
    }

    #[rstest]
    #[case((5, 5), "[/etc/cdi]", "off")]
    #[case((5, 5), "[/etc/cdi,/var/run/cdi]", "on")]
    #[case((5, 8), "[/etc/cdi]", "off")]
    fn podman_s_own_list_decides(
        #[case] version: (u32, u32),
        #[case] list: &str,
        #[case] name: &str,
    ) {
        let help = format!(
            "Options:\n      --cdi-spec-dir stringArray   Set the CDI spec directory path (may be set multiple times) (default {list})\n"
        );
        let version = Some(Version::new(version.0, version.1, 0));
        let made = podman(version, &Memory::new(&[]), &BTreeMap::new(), Some(&help));
        assert_eq!(made.state.name(), name, "{made:?}");
    }

    #[rstest]
    #[case("crio --cdi-spec-dirs /etc/cdi,/var/run/cdi", &[], "on")]
    #[case("crio --cdi-spec-dirs=/etc/cdi", &[], "off")]
    #[case("crio --cdi-spec-dirs /etc/cdi --cdi-spec-dirs /run/cdi", &[], "on")]
    #[case("crio --config /srv/crio.conf", &[("/srv/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/opt\"]\n")], "off")]
    #[case("crio -d /srv", &[("/srv/a", "[crio.runtime]\ncdi_spec_dirs = [\"/opt\"]\n")], "off")]
    #[case("crio -c /srv/none", &[("/etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/opt\"]\n")], "on")]
    fn flags_of_crio(#[case] line: &str, #[case] files: &[(&str, &str)], #[case] name: &str) {
        let invocation = Invocation {
            argv: line.split(' ').map(str::to_owned).collect(),
            variables: BTreeMap::new(),
            source: crate::invocation::Source::Process(7),
            unit: "crio.service".to_owned(),
            at: None,
        };
        let version = Some(Version::new(1, 30, 0));
        let made = crio(version, &Memory::new(files), Some(&invocation));
        assert_eq!(made.state.name(), name, "{made:?}");
    }
}
