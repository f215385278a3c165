//! longshore's log in one form, independent of its format.

use serde_json::Value;

/// Converts the lines of a log to the format for people: JSON lines become those that longshore
/// would have written for people, and all others stay as they are.
pub(crate) fn for_people(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .flat_map(|line| one_for_people(line).unwrap_or_else(|| vec![line.clone()]))
        .collect()
}

fn one_for_people(line: &str) -> Option<Vec<String>> {
    let value: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let (timestamp, level, message) = (text("timestamp")?, text("level")?, text("message")?);
    if value.get("exit_code").is_none() {
        return Some(vec![format!("{timestamp} {level:>5} {message}")]);
    }
    let mut all = format!("error: {}", text("cause")?);
    let chain = value.get("caused_by").and_then(Value::as_array);
    for cause in chain.into_iter().flatten().filter_map(Value::as_str) {
        all.push_str(&format!("\n  caused by: {cause}"));
    }
    all.push_str(&format!("\n  remedy: {}", text("remedy")?));
    Some(all.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_log_say_the_same() {
        let json = [
            r#"{"timestamp":"2026-11-20T17:55:51.1Z","level":"INFO","message":"phase ready","phase":"ready"}"#,
            r#"{"timestamp":"2026-11-20T17:55:52.1Z","level":"ERROR","message":"a\nb: c","exit_code":17,"cause":"a\nb","caused_by":["c"],"remedy":"put one in"}"#,
            "[1]",
            "podman: no space",
        ];
        let pretty = [
            "2026-11-20T17:55:51.1Z  INFO phase ready",
            "error: a",
            "b",
            "  caused by: c",
            "  remedy: put one in",
            "[1]",
            "podman: no space",
        ];
        assert_eq!(for_people(&json.map(str::to_owned)), pretty);
        assert_eq!(for_people(&pretty.map(str::to_owned)), pretty);
    }
}
