//! Judges the access of a running container to its nodes after systemd has read its units again
//! (`consume_docker_reload` of guest/consumers.sh).

use crate::guests::Consumer;
use crate::records::Records;

/// Returns the faults: the container keeps its nodes, with links of their numbers in /dev/char and
/// without. runc 1.1.3 to 1.1.6 loses them without (opencontainers/runc#3671); this guest's is newer.
pub fn wrong(records: &Records) -> Vec<String> {
    let seen = match records.section(&Consumer::DockerReload.section()) {
        Ok(seen) => seen,
        Err(missing) => return vec![missing],
    };
    let mut wrong = Vec::new();
    for links in ["with", "without"] {
        for (when, node) in [("before", "nvidiactl"), ("after", "nvidiactl"), ("after", "null")] {
            let expected = format!("{links} {when} opens {node}");
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
        without after opens nvidiactl\nwithout after opens null\n\
        with before opens nvidiactl\nwith after opens nvidiactl\nwith after opens null";

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
            let wrong = wrong(&records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
    }
}
