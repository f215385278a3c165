//! Judges the access of a running container to its nodes after systemd has read its units again
//! (`consume_docker_reload` of guest/consumers.sh).

use crate::guests::Consumer;
use crate::records::Records;

/// Returns the faults: with links in /dev/char the container keeps its nodes. Without them it loses
/// those of the driver, which shows that the guest has the mechanism at all.
pub fn wrong(records: &Records) -> Vec<String> {
    let seen = match records.section(&Consumer::DockerReload.section()) {
        Ok(seen) => seen,
        Err(missing) => return vec![missing],
    };
    let mut wrong = Vec::new();
    for links in ["with", "without"] {
        for (when, node) in [("before", "nvidiactl"), ("after", "nvidiactl"), ("after", "null")] {
            let lost = links == "without" && when == "after" && node == "nvidiactl";
            let expected =
                format!("{links} {when} {} {node}", if lost { "refuses" } else { "opens" });
            if !seen.contains(&expected) {
                wrong.push(format!("not `{expected}`"));
            }
        }
    }
    if !wrong.is_empty() {
        wrong.extend(seen.iter().map(|line| format!("it says: {line}")));
    }
    wrong.into_iter().map(|why| format!("container under systemd: {why}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "without before opens nvidiactl\nwithout before opens null\n\
        without after refuses nvidiactl\nwithout after opens null\n\
        with before opens nvidiactl\nwith after opens nvidiactl\nwith after opens null";

    #[test]
    fn access_is_kept_with_links_and_lost_without() {
        let cases = [
            ("", "", ""),
            ("with after opens nvidiactl", "with after refuses nvidiactl", "with after opens nvid"),
            ("refuses nvidiactl", "opens nvidiactl", "not `without after refuses nvidiactl`"),
            ("without after opens null", "", "not `without after opens null`"),
        ];
        for (from, to, reason) in cases {
            let mut records = Records::default();
            let lines = GOOD.replacen(from, to, 1).lines().map(str::to_owned).collect();
            records.sections.insert(Consumer::DockerReload.section(), lines);
            let wrong = wrong(&records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
    }
}
