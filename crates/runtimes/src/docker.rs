//! docker: `features.cdi` in daemon.json.
//!
//! CDI came with 25.0 as a feature that is off, and is on by default from 28.2.

use std::path::Path;

use serde_json::Value;

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

/// Assesses the daemon.json at `path`; None where there is none.
pub fn assess(version: Option<Version>, path: &Path, file: Option<Vec<u8>>) -> Assessment {
    let mut notes = Vec::new();
    let state = state(version, path, file, &mut notes).unwrap_or_else(State::from);
    Assessment { runtime: Runtime::Docker, version, state, notes }
}

fn state(
    version: Option<Version>,
    path: &Path,
    file: Option<Vec<u8>>,
    notes: &mut Vec<String>,
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
    let setting = format!("cdi-spec-dirs in {}", path.display());
    notes.extend(spec_dirs::missing(&setting, dirs(&value).as_deref()));
    match flag(path, &value)? {
        Some(true) => return Ok(State::on(format!("{} has features.cdi = true", path.display()))),
        None if version.is_some_and(|version| version >= DEFAULT) => {
            return Ok(State::on("on by default since docker 28.2"));
        }
        _ => {}
    }
    let reason = reason(version, path, &value);
    let after = json_text::with_flag(text, FLAG.0, FLAG.1).map_err(|why| unedited(path, &why))?;
    Ok(State::Off { reason, edit: Edit { path: path.to_path_buf(), before, after } })
}

fn reason(version: Option<Version>, path: &Path, value: &Value) -> String {
    match (value[FLAG.0][FLAG.1].as_bool(), version) {
        (Some(false), _) => format!("{} has features.cdi = false", path.display()),
        (_, Some(version)) => {
            format!("features.cdi is not set, and off by default in docker {version}")
        }
        (_, None) => "features.cdi is not set, and the version of docker is not known".to_owned(),
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
        assess(version, Path::new(PATH), file.map(|text| text.as_bytes().to_vec())).state
    }

    #[rstest]
    #[case::too_old(Some((20, 10)), None, "docker 20.10.0 has no CDI, which came with 25.0")]
    #[case::too_old_but_set(Some((24, 0)), Some("{\"features\": {\"cdi\": true}}"), "has no CDI")]
    #[case::off(Some((26, 1)), None, "features.cdi is not set, and off by default in docker 26.1.0")]
    #[case::default(Some((28, 2)), None, "on by default since docker 28.2")]
    #[case::before_default(Some((28, 1)), None, "off by default in docker 28.1.0")]
    #[case::default_off(Some((29, 0)), Some("{\"features\": {\"cdi\": false}}"), "features.cdi = false")]
    #[case::unknown(None, None, "the version of docker is not known")]
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
