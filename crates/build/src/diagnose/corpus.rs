//! Logs of failed compiles in the forms of many compilers, kernels and drivers, each with its class, name and
//! the line that is shown.
//!
//! `corpus.txt` has one after the other: `== TITLE | CLASS | NAME or - | SHOWN`, and then the log.

use std::path::Path;
use std::time::Duration;

use super::{Diagnosis, Subject};
use crate::sandbox::Outcome;
use longshore_core::flavour::Flavour;

struct Case<'a> {
    title: &'a str,
    class: &'a str,
    name: Option<&'a str>,
    shown: &'a str,
    log: Vec<&'a str>,
}

fn cases() -> Vec<Case<'static>> {
    let mut cases: Vec<Case<'static>> = Vec::new();
    for line in include_str!("corpus.txt").lines().filter(|line| !line.starts_with("##")) {
        let Some(head) = line.strip_prefix("== ") else {
            cases.last_mut().expect("a head comes first").log.push(line);
            continue;
        };
        let parts: Vec<&str> = head.splitn(4, " | ").collect();
        let [title, class, name, shown] = parts[..] else { panic!("{head}: four parts") };
        let name = Some(name).filter(|name| *name != "-");
        cases.push(Case { title, class, name, shown, log: Vec::new() });
    }
    cases
}

#[test]
fn the_cause_of_each_log_is_found() {
    let cases = cases();
    assert!(cases.len() >= 60, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let mut diagnosis = Diagnosis::default();
        case.log.iter().for_each(|line| diagnosis.line(line));
        let subject = Subject {
            driver: "580.95.05",
            flavour: Flavour::Open,
            release: "6.19.0-1-amd64",
            log: Path::new("/logs/a.log"),
            limit: Duration::from_secs(3600),
        };
        let (class, failure) = diagnosis.failure(Outcome::Exited(2), subject);
        let described = class.described();
        let found = (described.class.as_str(), described.name.as_deref());
        let is_shown = failure.to_string().contains(case.shown);
        if found != (case.class, case.name) || !is_shown {
            wrong.push(format!("{}: {found:?}: {failure}", case.title));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
