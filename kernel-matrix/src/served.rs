//! What the agent answers over HTTP while the driver is Ready (guest/round-trip.sh).

use serde_json::Value;

use crate::checks::Expected;
use crate::matrix::Cell;
use crate::records::Records;

/// What is wrong with the answers of an agent whose driver was Ready.
pub fn wrong(cell: &Cell, expected: &Expected, records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, answer) in [("healthz", "ok"), ("readyz", "ready")] {
        let said = records.text(&format!("ready.{path}"));
        if said != format!("{answer}\nrc 0") {
            wrong.push(format!("/{path} answered `{said}`"));
        }
    }
    wrong.extend(status(expected, records));
    let driver = format!("longshore_driver_info{{version=\"{}\",", expected.version);
    for (section, holders) in [("ready.metrics", Some(0)), ("ready.held-metrics", None)] {
        let said = records.text(section);
        let has = |start: &str| said.lines().any(|line| line.starts_with(start));
        for sample in
            ["longshore_ready 1", &driver, "longshore_module_references{module=\"nvidia\"} "]
        {
            if !has(sample) {
                wrong.push(format!("{section}: no sample `{sample}`"));
            }
        }
        // A daemon may hold the driver as well.
        let least = holders.unwrap_or(1);
        let seen = said.lines().find_map(|line| line.strip_prefix("longshore_driver_holders "));
        let count = seen.and_then(|count| count.parse::<u64>().ok());
        let right =
            count.is_some_and(|count| count == least || (cell.persistenced && count > least));
        if !right {
            wrong.push(format!("{section}: longshore_driver_holders is {seen:?}, not {least}"));
        }
    }
    wrong
}

fn status(expected: &Expected, records: &Records) -> Option<String> {
    let said = records.text("ready.status");
    let json = said.strip_suffix("\nrc 0").unwrap_or(&said);
    let status: Value = match serde_json::from_str(json) {
        Ok(status) => status,
        Err(error) => return Some(format!("/status is no JSON: {error}: {said}")),
    };
    let right = status["phase"] == "ready"
        && status["live"]["ready"] == true
        && status["driver_version"] == expected.version.as_str();
    (!right).then(|| format!("/status does not tell of the driver as Ready: {json}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(persistenced: bool) -> Cell {
        toml::from_str(&format!(
            "name = 'a'\nscenario = 'round-trip'\npersistenced = {persistenced}\n\
             kernel = {{ suite = 's', package = 'p' }}\n\
             driver = {{ branch = '535', flavour = 'open' }}"
        ))
        .unwrap()
    }

    fn metrics(holders: &str) -> String {
        format!(
            "# TYPE longshore_ready gauge\nlongshore_ready 1\n\
             longshore_driver_info{{version=\"535.1\",flavour=\"open\"}} 1\n\
             longshore_module_references{{module=\"nvidia\"}} 2\n{holders}rc 0"
        )
    }

    fn why(persistenced: bool, section: &str, text: &str) -> String {
        let mut records = Records::default();
        let status =
            "{\"phase\":\"ready\",\"driver_version\":\"535.1\",\"live\":{\"ready\":true}}\nrc 0";
        for (name, text) in [
            ("ready.healthz", "ok\nrc 0"),
            ("ready.readyz", "ready\nrc 0"),
            ("ready.status", status),
            ("ready.metrics", &metrics("longshore_driver_holders 0\n")),
            ("ready.held-metrics", &metrics("longshore_driver_holders 1\n")),
            (section, text),
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
        let cases = [
            ("ready.healthz", "rc 1", "/healthz answered `rc 1`"),
            ("ready.readyz", "not ready: x\nrc 1", "/readyz answered"),
            ("ready.status", "{}\nrc 0", "does not tell"),
            ("ready.status", "wget: refused\nrc 1", "no JSON"),
            ("ready.metrics", "rc 1", "no sample `longshore_ready 1`"),
            ("ready.metrics", &metrics(""), "holders is None, not 0"),
            ("ready.held-metrics", &metrics(""), "holders is None, not 1"),
            ("ready.held-metrics", &metrics("longshore_driver_holders 0\n"), "Some(\"0\"), not 1"),
        ];
        for (section, text, wanted) in cases {
            let wrong = why(false, section, text);
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
