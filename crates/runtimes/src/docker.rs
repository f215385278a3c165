//! docker: `features.cdi` in daemon.json.
//!
//! CDI came with 25.0 as a feature that is off, and is on by default from 28.2.

use std::path::Path;

use serde_json::Value;

use crate::invocation::{Flag, Invocation};
use crate::json_text;
use crate::runtime::Runtime;
use crate::spec_dirs;
use crate::verdict::{Assessment, Edit, Refusal, State, text_of};
use crate::version::Version;

/// First version that has CDI.
const FIRST: Version = Version::new(25, 0, 0);
/// First version that has it on by default.
const DEFAULT: Version = Version::new(28, 2, 0);
/// Key of the features in daemon.json, and of CDI among them.
const FLAG: (&str, &str) = ("features", "cdi");

/// First version whose --feature sets a feature.
const BY_FLAG: &str = "27.1";
/// Flags whose key in daemon.json has another name, and the short ones (daemon/command/config.go and
/// config_unix.go of moby 28.5).
const KEYS: [(&str, &str); 27] = [
    ("H", "hosts"),
    ("host", "hosts"),
    ("D", "debug"),
    ("l", "log-level"),
    ("G", "group"),
    ("s", "storage-driver"),
    ("p", "pidfile"),
    ("b", "bridge"),
    ("g", "graph"),
    ("add-runtime", "runtimes"),
    ("authorization-plugin", "authorization-plugins"),
    ("cdi-spec-dir", "cdi-spec-dirs"),
    ("default-address-pool", "default-address-pools"),
    ("default-network-opt", "default-network-opts"),
    ("default-ulimit", "default-ulimits"),
    ("dns-opt", "dns-opts"),
    ("exec-opt", "exec-opts"),
    ("feature", "features"),
    ("host-gateway-ip", "host-gateway-ips"),
    ("insecure-registry", "insecure-registries"),
    ("label", "labels"),
    ("log-opt", "log-opts"),
    ("node-generic-resource", "node-generic-resources"),
    ("registry-mirror", "registry-mirrors"),
    ("storage-opt", "storage-opts"),
    ("cluster-store-opt", "cluster-store-opts"),
    ("r", "restart"),
];
/// Key that may be in both.
const IN_BOTH: &str = "runtimes";

/// Assesses the daemon.json at `path`; None where there is none. `invocation` is the command line of dockerd,
/// where it is known.
pub fn assess(
    version: Option<Version>,
    path: &Path,
    file: Option<Vec<u8>>,
    invocation: Option<&Invocation>,
) -> Assessment {
    let state = state(version, path, file, invocation).unwrap_or_else(State::from);
    Assessment { runtime: Runtime::Docker, version, state, notes: Vec::new() }
}

fn state(
    version: Option<Version>,
    path: &Path,
    file: Option<Vec<u8>>,
    invocation: Option<&Invocation>,
) -> Result<State, Refusal> {
    if let Some(version) = version.filter(|version| *version < FIRST) {
        return Ok(State::Impossible {
            reason: format!("docker {version} has no CDI, which came with 25.0"),
            remedy:
                "start containers with `docker run $(longshore docker-args --gpus all) IMAGE`, or \
                     upgrade docker"
                    .to_owned(),
        });
    }
    let before = file.map(|bytes| text_of(path, bytes)).transpose()?;
    let text = before.as_deref().unwrap_or_default();
    let value = json_text::parse(text).map_err(|why| broken(path, &why))?;
    let in_file = flag(path, &value)?;
    if let Some(invocation) = invocation {
        check_conflicts(path, &value, invocation)?;
    }
    // An edit would not change that: pods and containers would still find no spec.
    if let Some((reason, remedy)) = lacking_dirs(path, &value, invocation) {
        return Ok(State::Manual { reason, remedy });
    }
    if let Some(state) = invocation.and_then(|invocation| by_flags(version, path, invocation)) {
        return Ok(state);
    }
    let on = match in_file {
        Some(true) => Some(format!("{} has features.cdi = true", path.display())),
        None if version.is_some_and(|version| version >= DEFAULT) => {
            Some("on by default since docker 28.2".to_owned())
        }
        _ => None,
    };
    if let Some(reason) = on {
        return Ok(State::on(reason));
    }
    let after = json_text::with_flag(text, FLAG.0, FLAG.1).map_err(|why| unedited(path, &why))?;
    let edit = Edit { path: path.to_path_buf(), before, after };
    Ok(match (in_file, version) {
        (Some(_), _) => {
            State::Off { reason: format!("{} has features.cdi = false", path.display()), edit }
        }
        (None, Some(version)) => State::Off {
            reason: format!("features.cdi is not set, and off by default in docker {version}"),
            edit,
        },
        (None, None) => State::Unknown {
            reason: "features.cdi is not set, and dockerd did not tell its version: CDI is on by default \
                     from 28.2, off before, and not there before 25.0"
                .to_owned(),
            remedy: "set features.cdi = true, which is right for every version from 25.0 on".to_owned(),
            edit: Some(edit),
        },
    })
}

/// Returns the name of a flag: of short ones in one word the last, which can have its value behind it (pflag).
fn name_of(flag: &Flag) -> &str {
    if !flag.is_short {
        return &flag.name;
    }
    let rest = flag.name.trim_start_matches('D');
    let name = if rest.is_empty() { &flag.name } else { rest };
    name.chars().next().map_or("", |first| &name[..first.len_utf8()])
}

/// Returns the key of a flag in daemon.json.
fn key_of(flag: &str) -> &str {
    KEYS.iter().find(|(name, _)| *name == flag).map_or(flag, |(_, key)| key)
}

/// Refuses a key that is both in the file and a flag: dockerd does not start then (daemon/config/config.go,
/// findConfigurationConflicts).
fn check_conflicts(path: &Path, value: &Value, invocation: &Invocation) -> Result<(), Refusal> {
    for flag in invocation.flags() {
        let name = name_of(&flag);
        let key = key_of(name);
        let set = value.get(key).is_some_and(|value| !value.is_null());
        if key == IN_BOTH || !set {
            continue;
        }
        let name = dashed(name);
        return Err(Refusal::new(
            format!(
                "docker does not start: {key} is set by the flag {name} ({invocation}) and in {}, and dockerd \
                 refuses a setting that is in both",
                path.display()
            ),
            format!(
                "remove {name} from ExecStart ({invocation}), or {key} from {}",
                path.display()
            ),
        ));
    }
    Ok(())
}

/// True for a flag's value that Go's strconv.ParseBool takes for true.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn dashed(name: &str) -> String {
    if name.len() == 1 { format!("-{name}") } else { format!("--{name}") }
}

/// Returns the verdict where the flag --feature is given, with which the file cannot have `features`.
fn by_flags(version: Option<Version>, path: &Path, invocation: &Invocation) -> Option<State> {
    let given = invocation.values(&["feature"]);
    if given.is_empty() {
        return None;
    }
    let on = given.iter().rev().find_map(|given| match given.split_once('=') {
        None => (given == FLAG.1).then_some(true),
        Some((name, value)) => (name == FLAG.1).then_some(is_true(value)),
    });
    let unit = &invocation.unit;
    let others: Vec<&str> = given
        .iter()
        .map(String::as_str)
        .filter(|given| given.split('=').next() != Some(FLAG.1))
        .collect();
    let reload = format!("`systemctl daemon-reload`, `systemctl restart {unit}`");
    Some(match on {
        Some(true) => State::on(format!("dockerd has the flag --feature cdi ({invocation})")),
        Some(false) => State::Manual {
            reason: format!("dockerd has the flag --feature cdi=false ({invocation})"),
            remedy: format!("write --feature cdi in its place ({invocation}), then {reload}"),
        },
        None if version.is_some_and(|version| version >= DEFAULT) => {
            State::on("on by default since docker 28.2")
        }
        None => State::Manual {
            reason: format!(
                "dockerd has the flag --feature {} ({invocation}), so {} must not have `features`: dockerd refuses \
                 a setting that is in both, and does not start",
                others.join(" --feature "),
                path.display()
            ),
            remedy: format!(
                "add --feature cdi to ExecStart ({invocation}; docker {BY_FLAG} and later), then {reload}; or \
                 write every feature into {} and remove the flags",
                path.display()
            ),
        },
    })
}

/// Returns reason and remedy where the effective list of directories lacks that of longshore's spec.
fn lacking_dirs(
    path: &Path,
    value: &Value,
    invocation: Option<&Invocation>,
) -> Option<(String, String)> {
    let given =
        invocation.map(|invocation| invocation.values(&["cdi-spec-dir"])).unwrap_or_default();
    match (given.is_empty(), invocation, dirs(value)) {
        (false, Some(invocation), _) => {
            spec_dirs::missing(&format!("--cdi-spec-dir ({invocation})"), &given)
        }
        (_, _, Some(dirs)) if !dirs.is_empty() => {
            spec_dirs::missing(&format!("cdi-spec-dirs in {}", path.display()), &dirs)
        }
        _ => None,
    }
}

/// Returns the flag's value; None where it is not set.
fn flag(path: &Path, value: &Value) -> Result<Option<bool>, Refusal> {
    let (outer, inner) = FLAG;
    let Some(object) = value.as_object() else {
        return Err(broken(path, "it is no object"));
    };
    if let Some(other) = object.keys().find(|key| *key != outer && key.eq_ignore_ascii_case(outer))
    {
        return Err(broken(path, &format!("docker knows no key \"{other}\", but \"{outer}\"")));
    }
    match &value[outer] {
        Value::Null => Ok(None),
        Value::Object(features) => match features.get(inner) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(on)) => Ok(Some(*on)),
            Some(_) => Err(broken(path, "features.cdi is neither true nor false")),
        },
        _ => Err(broken(path, "features is no object")),
    }
}

fn dirs(value: &Value) -> Option<Vec<String>> {
    let dirs = value.get("cdi-spec-dirs")?.as_array()?.iter();
    Some(dirs.filter_map(|dir| dir.as_str().map(str::to_owned)).collect())
}

/// True if containers go on while docker restarts.
pub fn keeps_containers(file: &str) -> bool {
    json_text::parse(file).is_ok_and(|value| value["live-restore"].as_bool() == Some(true))
}

fn broken(path: &Path, why: &str) -> Refusal {
    let reason = format!("{} is a file that docker refuses: {why}", path.display());
    Refusal::new(reason, "correct the file (`dockerd --validate --config-file FILE` checks it)")
}

fn unedited(path: &Path, why: &str) -> Refusal {
    let reason = format!("{} is not edited: {why}", path.display());
    Refusal::new(reason, "set \"features\": {\"cdi\": true} in it by hand")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const PATH: &str = "/etc/docker/daemon.json";

    fn assessed(version: Option<(u32, u32)>, file: Option<&str>) -> State {
        let version = version.map(|(major, minor)| Version::new(major, minor, 0));
        assess(version, Path::new(PATH), file.map(|text| text.as_bytes().to_vec()), None).state
    }

    fn started(version: (u32, u32), file: &str, flags: &str) -> State {
        let at =
            crate::systemd::Setting { file: "/etc/systemd/system/docker.service".into(), line: 4 };
        let invocation = Invocation {
            argv: format!("/usr/bin/dockerd {flags}").split(' ').map(str::to_owned).collect(),
            variables: Default::default(),
            source: crate::invocation::Source::Unit(at.clone()),
            unit: "docker.service".to_owned(),
            at: Some(at),
        };
        let version = Some(Version::new(version.0, version.1, 0));
        assess(version, Path::new(PATH), Some(file.as_bytes().to_vec()), Some(&invocation)).state
    }

    #[rstest]
    #[case::no_conflict((27, 3), "{}", "-H fd:// --debug", "off", "off by default")]
    #[case::a_feature((27, 3), "{}", "--feature containerd-snapshotter", "off", "--feature containerd-snapshotter (/etc/systemd/system/docker.service, line 4)")]
    #[case::a_feature_of_28_2((28, 2), "{}", "--feature containerd-snapshotter", "on", "by default")]
    #[case::both((27, 3), "{\"features\": {\"cdi\": true}}", "--feature=containerd-snapshotter", "refused", "features is set by the flag --feature (/etc/systemd/system/docker.service, line 4)")]
    #[case::on_by_flag((27, 3), "{}", "--feature cdi", "on", "--feature cdi")]
    #[case::off_by_flag((28, 2), "{}", "--feature cdi=false", "off", "cdi=false")]
    #[case::the_last_flag((28, 2), "{}", "--feature cdi=false --feature cdi=true", "on", "--feature cdi")]
    #[case::hosts((27, 3), "{\"hosts\": []}", "-H fd://", "refused", "hosts is set by the flag -H")]
    #[case::runtimes((27, 3), "{\"runtimes\": {}}", "--add-runtime a=b", "off", "off by default")]
    #[case::directories((28, 2), "{}", "--cdi-spec-dir /etc/cdi", "off", "--cdi-spec-dir (")]
    #[case::directories_twice((28, 2), "{\"cdi-spec-dirs\": [\"/run/cdi\"]}", "--cdi-spec-dir /etc/cdi", "refused", "cdi-spec-dirs is set by the flag")]
    #[case::both_directories((28, 2), "{}", "--cdi-spec-dir /etc/cdi --cdi-spec-dir=/var/run/cdi/", "on", "by default")]
    #[case::directories_without_cdi((27, 3), "{\"cdi-spec-dirs\": [\"/etc/cdi\"]}", "-D", "off", "lists no /var/run/cdi")]
    #[case::directories_and_a_flag((27, 3), "{\"cdi-spec-dirs\": [\"/etc/cdi\"]}", "--feature cdi", "off", "lists no /var/run/cdi")]
    #[case::directories_by_default((28, 2), "{\"cdi-spec-dirs\": [\"/etc/cdi\"]}", "--feature other", "off", "lists no /var/run/cdi")]
    #[case::a_value_behind_its_flag((27, 3), "{\"hosts\": []}", "-Hfd://", "refused", "hosts is set by the flag -H")]
    #[case::short_flags_in_one_word((27, 3), "{\"hosts\": []}", "-DHfd://", "refused", "hosts is set by the flag -H")]
    #[case::no_directory((28, 2), "{\"cdi-spec-dirs\": [\"\"]}", "-D", "off", "lists no /var/run/cdi")]
    fn flags_count(
        #[case] version: (u32, u32),
        #[case] file: &str,
        #[case] flags: &str,
        #[case] name: &str,
        #[case] reason: &str,
    ) {
        let state = started(version, file, flags);
        assert_eq!(state.name(), name, "{state:?}");
        assert!(state.reason().contains(reason), "{state:?}");
        assert!(!reason.contains("lists no") || state.edit().is_none(), "{state:?}");
    }

    #[rstest]
    #[case::too_old(Some((20, 10)), None, "docker 20.10.0 has no CDI, which came with 25.0")]
    #[case::too_old_but_set(Some((24, 0)), Some("{\"features\": {\"cdi\": true}}"), "has no CDI")]
    #[case::off(Some((26, 1)), None, "features.cdi is not set, and off by default in docker 26.1.0")]
    #[case::default(Some((28, 2)), None, "on by default since docker 28.2")]
    #[case::before_default(Some((28, 1)), None, "off by default in docker 28.1.0")]
    #[case::default_off(Some((29, 0)), Some("{\"features\": {\"cdi\": false}}"), "features.cdi = false")]
    #[case::unknown(None, None, "dockerd did not tell its version")]
    #[case::unknown_on(None, Some("{\"features\": {\"cdi\": true}}"), "features.cdi = true")]
    fn verdicts_by_version(
        #[case] version: Option<(u32, u32)>,
        #[case] file: Option<&str>,
        #[case] reason: &str,
    ) {
        let state = assessed(version, file);
        assert!(state.reason().contains(reason), "{state:?}");
    }

    #[test]
    fn an_absent_file_is_made() {
        let State::Off { edit, .. } = assessed(Some((26, 1)), None) else { panic!("it is off") };
        let after = "{\n  \"features\": {\n    \"cdi\": true\n  }\n}\n".to_owned();
        assert_eq!(edit, Edit { path: PATH.into(), before: None, after });
    }

    #[test]
    fn comments_are_named_as_the_reason() {
        let state = assessed(Some((26, 1)), Some("{ /* of the proxy */ }"));
        assert!(state.reason().contains("comments and trailing commas are no JSON"), "{state:?}");
    }

    #[rstest]
    #[case("{\"live-restore\": true}", true)]
    #[case("{\"live-restore\": false}", false)]
    #[case("{", false)]
    fn live_restore(#[case] file: &str, #[case] keeps: bool) {
        assert_eq!(keeps_containers(file), keeps);
    }
}
