//! Judges a kernel that appraises module files (script.sh): the agent is refused while the store's modules have
//! no digest in their attribute, and installs the driver once they have it.

use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::records::Records;
use crate::scenarios::{Ima, Scenario};

/// Exit code of an agent whose module the kernel refuses.
const REFUSED: &str = "16";

impl Scenario for Ima {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = unlabelled(records);
        if !records.text("labelled.blobs").contains("labelled") {
            wrong.push(format!("no module got its digest: {}", records.text("labelled.blobs")));
        }
        let end = records.fact("labelled.end");
        if end != "ready" {
            wrong.push(format!("with their digests the agent ended with {end}"));
            wrong.extend(end::last_lines(records, "labelled.log"));
        }
        wrong.extend(checks::ready(expected, records, "ready"));
        wrong
    }
}

/// Checks the agent that the kernel refuses: it names the policy, and leaves the host as it was.
fn unlabelled(records: &Records) -> Vec<String> {
    let mut wrong = end::differences_between(records, "before", "unlabelled");
    let end = records.fact("unlabelled.end");
    if end != REFUSED {
        wrong.push(format!("without a digest the agent ended with {end}, not {REFUSED}"));
    }
    if records.text("unlabelled.refused").is_empty() {
        wrong.push("the kernel refused no module file".into());
    }
    let log = records.text("unlabelled.log");
    for text in ["IMA", "remedy:"] {
        if !log.contains(text) {
            wrong.push(format!("the refused agent's log does not say `{text}`"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        records.facts.insert("unlabelled.end".into(), REFUSED.into());
        for (name, text) in [
            ("refused", "audit: op=appraise_data cause=missing-hash"),
            ("log", "error: IMA refuses it\n  remedy: sign it"),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("unlabelled.{name}"), lines);
        }
        for when in ["before", "unlabelled"] {
            crate::judge::testing::report_scene(&mut records, when);
        }
        records
    }

    #[test]
    fn the_refusal_has_to_be_the_kernels_and_explained() {
        assert_eq!(unlabelled(&good()), Vec::<String>::new());
        for (section, wanted) in [
            ("unlabelled.refused", "refused no module file"),
            ("unlabelled.log", "does not say `IMA`"),
        ] {
            let mut records = good();
            records.sections.insert(section.into(), Vec::new());
            let wrong = unlabelled(&records).join("\n");
            assert!(wrong.contains(wanted), "{wrong}");
        }
        let mut other = good();
        other.facts.insert("unlabelled.end".into(), "ready".into());
        assert!(unlabelled(&other)[0].contains("ended with ready"));
    }

    #[test]
    fn an_agent_that_is_refused_with_digests_is_a_fault() {
        let mut records = good();
        records.facts.insert("labelled.end".into(), "16".into());
        let wrong = Ima.wrong(&Expected::default(), &records).join("\n");
        assert!(wrong.contains("with their digests the agent ended with 16"), "{wrong}");
        assert!(wrong.contains("no module got its digest"), "{wrong}");
    }
}
