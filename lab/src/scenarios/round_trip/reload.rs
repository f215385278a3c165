//! Judges the access of a running container to its nodes after systemd has read its units again
//! (`reloads` of guest/scripts/consumers.sh).

use crate::cell::guests::Consumer;
use crate::judge::checks;
use crate::judge::records::Records;

/// Returns the faults: the container keeps its nodes where their numbers have links in /dev/char. Without,
/// runc 1.1.3 to 1.1.6 loses them (opencontainers/runc#3671), which is that of a docker without CDI
/// (Debian 12); a newer one keeps them.
pub(super) fn wrong(consumer: Consumer, records: &Records) -> Vec<String> {
    let seen = match records.section(&consumer.section()) {
        Ok(seen) => seen,
        Err(missing) => return vec![missing],
    };
    let loses = consumer == Consumer::DockerOptionsReload;
    let mut wrong = Vec::new();
    for links in ["with", "without"] {
        for (when, node) in [("before", "nvidiactl"), ("after", "nvidiactl"), ("after", "null")] {
            let is_lost = loses && (links, when, node) == ("without", "after", "nvidiactl");
            let expected =
                format!("{links} {when} {} {node}", if is_lost { "refuses" } else { "opens" });
            if !seen.contains(&expected) {
                wrong.push(format!("not `{expected}`"));
            }
        }
    }
    if !wrong.is_empty() {
        wrong.extend(seen.iter().map(|line| format!("it says: {line}")));
    }
    checks::under("container under systemd", wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "without before opens nvidiactl\nwithout before opens null\n\
        without after opens nvidiactl\nwithout after opens null\n\
        with before opens nvidiactl\nwith after opens nvidiactl\nwith after opens null";

    #[test]
    fn an_old_runc_loses_access_without_links() {
        let mut records = Records::default();
        let mut why = |text: &str| {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(Consumer::DockerOptionsReload.section(), lines);
            wrong(Consumer::DockerOptionsReload, &records).join("\n")
        };
        assert!(why(GOOD).contains("not `without after refuses nvidiactl`"));
        let (kept, lost) = ("without after opens nvidiactl", "without after refuses nvidiactl");
        assert_eq!(why(&GOOD.replace(kept, lost)), "");
    }

    #[test]
    fn access_is_kept_with_links_and_without() {
        let cases = [
            ("", "", ""),
            ("with after opens nvidiactl", "with after refuses nvidiactl", "with after opens nvid"),
            ("without after opens nvidiactl", "without after refuses nvidiactl", "not `without"),
            ("without after opens null", "", "not `without after opens null`"),
        ];
        for (from, to, reason) in cases {
            let mut records = Records::default();
            let lines = GOOD.replacen(from, to, 1).lines().map(str::to_owned).collect();
            records.sections.insert(Consumer::DockerReload.section(), lines);
            let wrong = wrong(Consumer::DockerReload, &records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
    }
}
