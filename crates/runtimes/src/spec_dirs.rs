//! Directories in which a runtime looks for CDI specs.

/// Directory of generated specs, under both names that hosts have for it.
const GENERATED: [&str; 2] = ["/var/run/cdi", "/run/cdi"];

/// Returns the reason and the remedy where a runtime's list of directories lacks that of generated specs, as
/// longshore's is; `setting` names the list, with its file.
pub(crate) fn missing(setting: &str, dirs: &[String]) -> Option<(String, String)> {
    let is_generated = |dir: &String| GENERATED.contains(&dir.trim_end_matches('/'));
    if dirs.iter().any(is_generated) {
        return None;
    }
    Some((
        format!("{setting} lists no /var/run/cdi: specs there, as longshore's, are not read"),
        format!("add /var/run/cdi to {setting}"),
    ))
}

/// Returns the strings of a TOML array; None for anything else.
pub(crate) fn of_toml(value: &toml::Value) -> Option<Vec<String>> {
    let strings = value.as_array()?.iter();
    Some(strings.filter_map(|dir| dir.as_str().map(str::to_owned)).collect())
}
