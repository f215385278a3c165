//! Judges the agent's answers to probes and to readers of its metrics while the driver is Ready
//! (scenarios/round_trip/script.sh).

use serde_json::Value;

use crate::cell::Cell;
use crate::gpu::Model;
use crate::judge::checks::Expected;
use crate::judge::records::Records;

/// Returns the faults of the answers of an agent whose driver was Ready.
pub(crate) fn wrong(cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, answer) in [("healthz", "ok"), ("readyz", "ready")] {
        let said = answered(records, &format!("ready.{path}"));
        if said.as_deref().map(str::trim_end) != Ok(answer) {
            wrong.push(format!("/{path} answered {said:?}"));
        }
    }
    wrong.extend(status(expected, records));
    wrong.extend(missing(cell, records));
    for (section, least) in [("ready.metrics", 0), ("ready.held-metrics", 1)] {
        match answered(records, section) {
            Ok(said) => wrong.extend(metrics(cell, expected, &said, least)),
            Err(said) => wrong.push(format!("{section} was answered `{said}`")),
        }
    }
    wrong
}

/// Returns the text of a command that ended with 0, or the body of an HTTP answer with status 200; else the whole
/// answer as the error.
pub(crate) fn answered(records: &Records, section: &str) -> Result<String, String> {
    let said = records.text(section);
    match said.split_once("\n\n") {
        Some((head, body)) if head == "exit code 0" || head.starts_with("HTTP/1.1 200 ") => {
            Ok(body.to_owned())
        }
        _ => Err(said),
    }
}

fn status(expected: &Expected, records: &Records) -> Option<String> {
    let json = match answered(records, "ready.status") {
        Ok(json) => json,
        Err(said) => return Some(format!("/status was answered `{said}`")),
    };
    let status: Value = match serde_json::from_str(&json) {
        Ok(status) => status,
        Err(error) => return Some(format!("/status is no JSON: {error}: {json}")),
    };
    let right = status["phase"] == "ready"
        && status["live"]["ready"] == true
        && status["driver_version"] == expected.version.as_str();
    (!right).then(|| format!("/status does not report the driver as Ready: {json}"))
}

/// Returns the numbers of GPUs that the driver should bind, and that it can bind.
pub(crate) fn gpus(cell: &Cell) -> (usize, usize) {
    let gpus = || cell.gpus.iter().filter(|gpu| gpu.model != Model::NvSwitch);
    (gpus().count(), gpus().filter(|gpu| gpu.fault.is_none()).count())
}

/// Checks that each GPU that the driver did not bind is a finding with the kernel's log line, in
/// `/status` and in `longshore status`; and that there is no such finding otherwise.
fn missing(cell: &Cell, records: &Records) -> Vec<String> {
    let (expected, bound) = gpus(cell);
    let json = answered(records, "ready.status").unwrap_or_default();
    let status: Value = serde_json::from_str(&json).unwrap_or_default();
    let none = Vec::new();
    let findings = status["live"]["findings"].as_array().unwrap_or(&none);
    let missing: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["code"] == "gpu-missing")
        .filter_map(|finding| finding["detail"].as_str())
        .collect();
    let mut wrong = Vec::new();
    if missing.len() != expected - bound {
        wrong.push(format!("{} GPUs are missing, and /status says {missing:?}", expected - bound));
    }
    let wordless = missing.iter().filter(|seen| !seen.contains("the kernel says: "));
    wrong.extend(wordless.map(|seen| format!("without a line of the kernel's: {seen}")));
    if expected > bound && !records.text("ready.look").contains("gpu-missing: ") {
        wrong.push("`longshore status` does not report the missing GPU".into());
    }
    wrong
}

/// Checks the samples of driver and GPUs, and for `least` holders, to which a daemon may add.
fn metrics(cell: &Cell, expected: &Expected, said: &str, least: u64) -> Vec<String> {
    let driver = format!("longshore_driver_info{{version=\"{}\",", expected.version);
    let references = "longshore_module_references{module=\"nvidia\"} ";
    let has = |start: &&&str| said.lines().any(|line| line.starts_with(**start));
    let (expected, bound) = gpus(cell);
    let expected = format!("longshore_gpus_expected {expected}");
    let bound = format!("longshore_gpus_bound {bound}");
    let samples = ["longshore_ready 1", &driver, references, &expected, &bound];
    let missing = samples.iter().filter(|start| !has(start));
    let mut wrong: Vec<String> = missing.map(|start| format!("no sample `{start}`")).collect();
    let seen = said.lines().find_map(|line| line.strip_prefix("longshore_driver_holders "));
    let count = seen.and_then(|count| count.parse::<u64>().ok());
    let right = |count| count == least || (cell.has_daemon() && count > least);
    if !count.is_some_and(right) {
        wrong.push(format!("longshore_driver_holders is {seen:?}, not {least}"));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(persistenced: bool) -> Cell {
        toml::from_str(&format!(
            "name = 'a'\nscenario = 'round-trip'\npersistenced = {persistenced}\n\
             kernel = {{ suite = 's', package = 'p' }}\n\
             driver = {{ branch = '535', flavour = 'open' }}\ngpus = ['t4', 't4:off-bus']"
        ))
        .unwrap()
    }

    fn http(body: &str) -> String {
        format!("HTTP/1.1 200 OK\ncontent-type: text/plain\n\n{body}")
    }

    fn command(text: &str) -> String {
        format!("exit code 0\n\n{text}")
    }

    fn metrics(holders: &str) -> String {
        http(&format!(
            "# TYPE longshore_ready gauge\nlongshore_ready 1\n\
             longshore_driver_info{{version=\"535.1\",flavour=\"open\"}} 1\n\
             longshore_module_references{{module=\"nvidia\"}} 2\n\
             longshore_gpus_expected 2\nlongshore_gpus_bound 1\n{holders}"
        ))
    }

    const SILENT: &str =
        r#"{"live":{"findings":[{"code":"gpu-missing","detail":"0000:00:05.0"}]}}"#;

    fn why(persistenced: bool, section: &str, text: &str) -> String {
        let mut records = Records::default();
        let status = r#"{"phase":"ready","driver_version":"535.1","live":{"ready":true,
            "findings":[{"code":"gpu-missing","detail":"0000:00:05.0; the kernel says: off"}]}}"#;
        for (name, text) in [
            ("ready.healthz", command("ok\n")),
            ("ready.readyz", command("ready\n")),
            ("ready.status", command(status)),
            ("ready.look", "finding   warning gpu-missing: 0000:00:05.0".to_owned()),
            ("ready.metrics", metrics("longshore_driver_holders 0\n")),
            ("ready.held-metrics", metrics("longshore_driver_holders 1\n")),
            (section, text.to_owned()),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(name.into(), lines);
        }
        let expected = Expected { version: "535.1".into(), ..Expected::default() };
        wrong(&cell(persistenced), &expected, &records).join("; ")
    }

    #[test]
    fn what_is_served_has_to_be_right() {
        assert_eq!(why(false, "other", ""), "");
        let none = metrics("longshore_driver_holders 0\n");
        let cases = [
            ("ready.healthz", String::new(), "/healthz answered Err(\"\")"),
            ("ready.readyz", "exit code 30\n\nready\n".to_owned(), "/readyz answered Err"),
            ("ready.readyz", command("not ready: x"), "/readyz answered Ok(\"not ready: x\")"),
            ("ready.status", command("{}"), "does not report"),
            ("ready.status", command("{}"), "1 GPUs are missing, and /status says []"),
            ("ready.status", command(SILENT), "without a line of the kernel's: 0000:00:05.0"),
            ("ready.look", String::new(), "does not report the missing GPU"),
            ("ready.metrics", http("x"), "no sample `longshore_gpus_bound 1`"),
            ("ready.status", command("{"), "no JSON"),
            ("ready.status", "refused".to_owned(), "/status was answered `refused`"),
            ("ready.metrics", http("x"), "no sample `longshore_ready 1`"),
            ("ready.metrics", "refused".to_owned(), "ready.metrics was answered `refused`"),
            ("ready.metrics", metrics(""), "holders is None, not 0"),
            ("ready.held-metrics", metrics(""), "holders is None, not 1"),
            ("ready.held-metrics", none, "Some(\"0\"), not 1"),
        ];
        for (section, text, wanted) in cases {
            let wrong = why(false, section, &text);
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
    }

    #[test]
    fn a_daemon_may_hold_the_driver_as_well() {
        let two = metrics("longshore_driver_holders 2\n");
        assert_eq!(why(true, "ready.held-metrics", &two), "");
        assert!(why(false, "ready.held-metrics", &two).contains("not 1"));
        let none = metrics("longshore_driver_holders 0\n");
        assert!(why(true, "ready.held-metrics", &none).contains("not 1"));
    }
}
