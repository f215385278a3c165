//! Judges the differences between two manifests of a guest's root file system (guest/scripts/manifest.sh): those that
//! the guest makes itself, as a control, and no others. With the second one comes what taints the kernel.

use crate::judge::records::Records;
use crate::judge::tainted;

/// Least number of lines of a manifest: a small Debian has more files.
const LEAST: usize = 5000;
/// Differences that the guest makes itself: in content, owner, number and target, and a file that is removed. Lines of
/// the manifest before are as they are, and those of the manifest after begin with a tab (comm(1)).
pub(super) const CONTROL: [&str; 10] = [
    "9160d4be34c8695bd172a76c7c7966587ea5a4d991ad22c87b2b91af54aa9ebb  /var/lib/matrix/changed",
    "\t94b2653828c6a6f1f0f1b24383ad3249637ade3dceeaa0213bd93982cce2993c  /var/lib/matrix/changed",
    "f 644 0:0 0 /var/lib/matrix/owned",
    "\tf 644 1:1 0 /var/lib/matrix/owned",
    "f 644 0:0 0 /var/lib/matrix/removed",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  /var/lib/matrix/removed",
    "c 644 0:0 1:3 /var/lib/matrix/node",
    "\tc 644 0:0 1:5 /var/lib/matrix/node",
    "l 777 0:0 - /var/lib/matrix/link before",
    "\tl 777 0:0 - /var/lib/matrix/link after!",
];

/// Returns the differences, and the faults of the manifests.
pub(crate) fn wrong(records: &Records) -> Vec<String> {
    let mut wrong: Vec<String> =
        ["before", "after"].into_iter().filter_map(|when| taken(records, when)).collect();
    let compared = records.facts.get("after.compared").map_or("nothing", String::as_str);
    if compared != "0" {
        wrong.push(format!("the comparison of both manifests of / ended with {compared}"));
    }
    wrong.extend(records.faults("after.root", beyond_control));
    wrong.extend(records.faults("after.written", |files| {
        files.iter().map(|file| format!("written: {file}")).collect()
    }));
    wrong.extend(tainted::wrong(records));
    wrong
}

/// Checks that a manifest was taken without a failure, of a whole file system: `CODE LINES`.
fn taken(records: &Records, when: &str) -> Option<String> {
    let fact = records.facts.get(&format!("{when}.root")).map_or("", String::as_str);
    let (code, lines) = fact.split_once(' ').unwrap_or((fact, ""));
    let is_whole = code == "0" && lines.parse::<usize>().is_ok_and(|lines| lines >= LEAST);
    (!is_whole).then(|| format!("the manifest of / {when} has code and lines `{fact}`"))
}

fn beyond_control(differences: &[String]) -> Vec<String> {
    let not_found =
        CONTROL.iter().filter(|wanted| !differences.iter().any(|line| line == **wanted));
    let mut wrong: Vec<String> = not_found
        .map(|wanted| format!("the comparison of / did not find `{}`", wanted.trim()))
        .collect();
    let others = differences.iter().filter(|line| !CONTROL.contains(&line.as_str()));
    wrong.extend(others.map(|line| match line.strip_prefix('\t') {
        Some(after) => format!("root: after {after}"),
        None => format!("root: before {line}"),
    }));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::report_unchanged;

    fn faults(change: impl FnOnce(&mut Records)) -> String {
        let mut records = Records::default();
        report_unchanged(&mut records);
        change(&mut records);
        wrong(&records).join("\n")
    }

    #[test]
    fn a_file_system_with_the_controls_differences_alone_is_as_before() {
        assert_eq!(faults(|_| {}), "");
    }

    #[test]
    fn every_other_difference_is_a_fault() {
        for line in [
            "f 644 0:0 20 /etc/modprobe.d/nvidia.conf",
            "\td 755 0:0 - /etc/longshore",
            "\tc 600 0:0 195:255 /srv/node",
            "\tf 4755 0:0 9 /usr/bin/true",
            "find: '/etc': Input/output error",
        ] {
            let found = faults(|records| {
                records.sections.get_mut("after.root").unwrap().push(line.into());
            });
            let wanted = match line.strip_prefix('\t') {
                Some(after) => format!("root: after {after}"),
                None => format!("root: before {line}"),
            };
            assert_eq!(found, wanted);
        }
        let written = |records: &mut Records| {
            records.sections.insert("after.written".into(), vec!["/etc/x".into()]);
        };
        assert_eq!(faults(written), "written: /etc/x");
    }

    #[test]
    fn a_manifest_that_finds_nothing_is_a_fault() {
        for (at, line) in CONTROL.iter().enumerate() {
            let found = faults(|records| {
                records.sections.get_mut("after.root").unwrap().remove(at);
            });
            assert_eq!(found, format!("the comparison of / did not find `{}`", line.trim()));
        }
        for (fact, value) in [
            ("before.root", "0 0"),
            ("before.root", "1 9000"),
            ("after.root", "0 4999"),
            ("after.root", ""),
            ("after.compared", "1"),
        ] {
            let found = faults(|records| {
                records.facts.insert(fact.into(), value.into());
            });
            assert!(found.contains(value) && found.lines().count() == 1, "{found}");
        }
        let nothing = wrong(&Records::default()).join("\n");
        assert_eq!(nothing.lines().count(), 6, "{nothing}");
    }
}
