//! Judges a guest whose kernel enforces SELinux (guest/scripts/selinux.sh).

use crate::judge::records::Records;

/// Labels of a Ready driver's files, as stat prints them: the end of the path, and the type.
const LABELS: [(&str, &str); 5] = [
    ("nvidia-smi", "container_ro_file_t"),
    ("libcuda.so.1", "container_ro_file_t"),
    ("driver", "container_ro_file_t"),
    ("dev", "container_file_t"),
    ("nvidiactl", "container_file_t"),
];

/// Lines of the confined container.
const SEEN: [&str; 3] = [
    "/driver/dev /driver/etc /driver/lib /driver/proc /driver/run /driver/sys /driver/usr",
    "tried libcuda.so.1",
    "opens nvidiactl",
];

/// Mark in the kernel's log at the moment since which the policy is enforced (guest/scripts/stage.sh).
const MARK: &str = "SELinux enforces from here";

/// Returns the faults of labels, of the confined container, and the denials.
pub(super) fn wrong(records: &Records) -> Vec<String> {
    let mut wrong = labels(records);
    wrong.extend(confined(records));
    wrong.extend(denials(records));
    let log = records.text("agent-log");
    if log.contains("from memory instead of its file") {
        wrong.push("the kernel was denied a module's file".into());
    }
    wrong
}

fn labels(records: &Records) -> Vec<String> {
    let seen = records.section("ready.labels").unwrap_or_default();
    let has = |name: &str, kind: &str| {
        seen.iter().any(|line| {
            let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
            line.split_once(' ')
                .is_some_and(|(at, label)| at == name && label.split(':').nth(2) == Some(kind))
        })
    };
    let mut wanted = LABELS.to_vec();
    wanted.push(("blob", "modules_object_t"));
    let missing = wanted.into_iter().filter(|(name, kind)| !has(name, kind));
    let mut wrong: Vec<String> =
        missing.map(|(name, kind)| format!("{name} is not {kind}: {seen:?}")).collect();
    if seen.first().map(String::as_str) != Some("Enforcing") {
        wrong.push(format!("SELinux does not enforce: {seen:?}"));
    }
    wrong
}

fn confined(records: &Records) -> Vec<String> {
    let seen = records.section("ready.confined").unwrap_or_default();
    let is_confined = |line: &String| line.split(':').nth(2) == Some("container_t");
    let mut wrong = Vec::new();
    if !seen.first().is_some_and(is_confined) {
        wrong.push(format!("the container is not confined: {seen:?}"));
    }
    let refused = seen.iter().any(|line| line.contains("LD_PRELOAD"));
    let missing = SEEN.iter().filter(|line| !seen.iter().any(|seen| seen == *line));
    let missing =
        missing.map(|line| format!("no `{line}`")).chain(refused.then(|| "libcuda".into()));
    wrong.extend(missing.map(|why| format!("confined container: {why}; it says {seen:?}")));
    wrong
}

/// Returns the denials, and the faults of a log that is not whole: a ring buffer that has lost the mark has lost
/// denials, too, and so has an audit that says so.
fn denials(records: &Records) -> Vec<String> {
    records.faults("ready.denials", |lines| match lines {
        [first, denials @ ..] if first.contains(MARK) => {
            let denied = denials.iter().filter(|line| !is_of_others(line));
            denied.map(|line| format!("SELinux: {line}")).collect()
        }
        _ => vec![format!("the kernel's log has lost the mark `{MARK}`: {lines:?}")],
    })
}

/// True for a denial that is not about the driver's files: pipes between a container and the engine, the
/// console that the initramfs opened, the results port, which tools of a domain of their own inherit, and
/// a sysctl that nvidia-smi asks for and does without.
fn is_of_others(line: &str) -> bool {
    const OTHERS: [&str; 4] =
        ["dev=\"pipefs\"", "dev=\"rootfs\"", "path=\"/dev/vport", "name=\"mmap_min_addr\""];
    OTHERS.iter().any(|other| line.contains(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = "Enforcing\nnvidia-smi a:b:container_ro_file_t:s0\n\
        driver a:b:container_ro_file_t:s0\ndev a:b:container_file_t:s0\n\
        nvidiactl a:b:container_file_t:s0\nlibcuda.so.1 a:b:container_ro_file_t:s0\n\
             4 blob a:b:modules_object_t:s0";
    const CONFINED: &str = "a:b:container_t:s0:c1,c2\n\
        /driver/dev /driver/etc /driver/lib /driver/proc /driver/run /driver/sys /driver/usr\n\
        tried libcuda.so.1\nopens nvidiactl";
    const MARKED: &str = "[    9.1] SELinux enforces from here\n";
    const PIPE: &str = "avc:  denied  { write } for  pid=1 dev=\"pipefs\" ino=1";
    const DENIED: &str = "avc:  denied  { read } for  pid=1 comm=\"longshore\"";

    #[test]
    fn a_guest_is_judged() {
        for (what, by, reason) in [
            ("", "", ""),
            ("Enforcing", "Permissive", "does not enforce"),
            ("blob a:b:modules", "blob a:b:var_lib", "blob is not modules_object_t"),
            ("nvidiactl a:b:container_file_t", "nvidiactl a:b:tmpfs_t", "nvidiactl is not"),
            ("a:b:container_t:", "a:b:spc_t:", "not confined"),
            ("opens nvidiactl", "", "no `opens nvidiactl`"),
            (PIPE, DENIED, "comm=\"longshore\""),
            (PIPE, "audit: audit_lost=1 audit_rate_limit=0", "SELinux: audit: audit_lost=1"),
            (PIPE, "kauditd_printk_skb: 12 callbacks suppressed", "12 callbacks suppressed"),
            (MARKED, "", "has lost the mark"),
        ] {
            let mut records = Records::default();
            let log = format!("{MARKED}{PIPE}");
            for (section, text) in
                [("ready.labels", READY), ("ready.confined", CONFINED), ("ready.denials", &log)]
            {
                let lines = text.replacen(what, by, 1).lines().map(str::to_owned).collect();
                records.sections.insert(section.to_owned(), lines);
            }
            let wrong = wrong(&records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
        assert_eq!(denials(&Records::default()).len(), 1);
    }
}
