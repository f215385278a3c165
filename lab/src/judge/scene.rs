//! State of the host before and after, reduced to what must be exactly the same.

use std::collections::BTreeMap;

use crate::judge::records::Records;

/// State of a host as a guest reported it, reduced to what must be the same again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scene {
    aspects: BTreeMap<&'static str, Lines>,
}

/// Lines and their number of occurrences.
type Lines = BTreeMap<String, usize>;

/// A section of a state, and the function that reduces its lines.
type Aspect = (&'static str, fn(&str) -> Option<String>);
pub(super) const ASPECTS: [Aspect; 7] = [
    ("modules", module),
    ("mounts", mount),
    ("dev", file),
    ("firmware-path", whole),
    ("run", file),
    ("majors", whole),
    ("processes", whole),
];
/// The aspect that may have no lines.
const MAY_BE_EMPTY: &str = "firmware-path";
/// Aspects that are manifests of a directory (guest/scripts/manifest.sh), and the last line of a whole one.
pub(super) const MANIFESTS: [&str; 2] = ["dev", "run"];
pub(super) const WHOLE: &str = "rc 0";
/// Record of the agent, which stays: type, mode and path of each file. It differs from run to run.
const RECORD: [(&str, &str, &str); 5] = [
    ("d", "700", "/run/longshore"),
    ("f", "600", "/run/longshore/state.json"),
    ("f", "600", "/run/longshore/lock"),
    ("f", "644", "/run/longshore/starts.json"),
    ("f", "644", "/run/longshore/last-failure.json"),
];
/// The identity and address of a running agent, with its process id. It goes when the agent ends, as its socket
/// agent.sock does, which is the same in each run.
const SERVING: &str = "/run/longshore/serving.json";

impl Scene {
    /// Reads the state the guest reported under `when`.
    ///
    /// # Errors
    /// A section is missing or empty, or a manifest is incomplete.
    pub(crate) fn read(records: &Records, when: &str) -> Result<Self, String> {
        let mut scene = Self::default();
        for (aspect, reduce) in ASPECTS {
            let mut lines = Lines::new();
            let mut reported = records.section(&format!("{when}.{aspect}"))?;
            if MANIFESTS.contains(&aspect) {
                reported = reported.strip_suffix(&[WHOLE.to_owned()]).ok_or_else(|| {
                    format!("`{when}.{aspect}` is not whole: {:?}", reported.last())
                })?;
            }
            for line in reported {
                if let Some(line) = reduce(line) {
                    *lines.entry(line).or_default() += 1;
                }
            }
            if lines.is_empty() && aspect != MAY_BE_EMPTY {
                return Err(format!("`{when}.{aspect}` is empty"));
            }
            scene.aspects.insert(aspect, lines);
        }
        Ok(scene)
    }

    /// Returns the differences in `after`, one line each; empty where there is none.
    pub(crate) fn differences(&self, after: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (aspect, before) in &self.aspects {
            let empty = Lines::new();
            let after = after.aspects.get(aspect).unwrap_or(&empty);
            let gone = before.iter().filter(|(line, n)| after.get(*line) != Some(n));
            let new = after.iter().filter(|(line, n)| before.get(*line) != Some(n));
            found.extend(gone.map(|(line, n)| format!("{aspect}: before {}", times(line, *n))));
            found.extend(new.map(|(line, n)| format!("{aspect}: after {}", times(line, *n))));
        }
        found
    }
}

fn times(line: &str, n: usize) -> String {
    if n == 1 { line.to_owned() } else { format!("{n} times {line}") }
}

#[allow(clippy::unnecessary_wraps)]
fn whole(line: &str) -> Option<String> {
    Some(line.to_owned())
}

/// Reduces a line of a manifest: size and digest of what the agent itself writes are left out.
fn file(line: &str) -> Option<String> {
    let varies = |kind: &str, path: &str| {
        RECORD.iter().any(|(own, _mode, record)| (*own, *record) == (kind, path))
            || (kind, path) == ("f", SERVING)
    };
    let is_digest = |(digest, path): (&str, &str)| digest.len() == 64 && varies("f", path);
    if line.split_once("  ").is_some_and(is_digest) {
        return None;
    }
    let mut words: Vec<&str> = line.split(' ').collect();
    if let [kind, _mode, _owner, size, path] = words.as_mut_slice()
        && varies(kind, path)
    {
        *size = "-";
    }
    Some(words.join(" "))
}

/// True for the reduced line of a file of the agent's own record.
pub(crate) fn is_own_record(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    matches!(words[..], [kind, mode, "0:0", "-", path] if RECORD.contains(&(kind, mode, path)))
}

/// Reduces a line of /proc/modules to `name refcount users state`, without size and address.
fn module(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (name, _size, refcount) = (words.next()?, words.next()?, words.next()?);
    let mut users: Vec<&str> = words.next()?.split(',').filter(|u| !u.is_empty()).collect();
    users.sort_unstable();
    let state = words.next()?;
    Some(format!("{name} refcount {refcount} users {} {state}", users.join(",")))
}

/// Removes ids and peer group numbers from a line of mountinfo (proc_pid_mountinfo(5)).
fn mount(line: &str) -> Option<String> {
    let (first, second) = line.split_once(" - ")?;
    let mut words = first.split(' ').skip(3);
    let (root, target, options) = (words.next()?, words.next()?, words.next()?);
    let propagation: Vec<&str> = words.map(|w| w.split(':').next().unwrap_or(w)).collect();
    let line = format!("{target} {root} {options} {} {second}", propagation.join(","));
    Some(line.split('/').map(part).collect::<Vec<_>>().join("/"))
}

/// Returns a part of a path, with `ID` for a container's id, which is new at every start.
fn part(name: &str) -> &str {
    let is_id = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
    if is_id { "ID" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::testing::MOUNT;

    fn records(when: &str, changed: &[(&str, &str)]) -> Records {
        let mut lines: BTreeMap<&str, String> = BTreeMap::from([
            (
                "modules",
                "ext4 983040 4 - Live 0xffffffffc0\nipmi_msghandler 77824 0 - Live 0x0".into(),
            ),
            ("mounts", MOUNT.into()),
            ("dev", "c 600 0:0 5:1 /dev/console".into()),
            ("firmware-path", String::new()),
            ("run", "d 755 0:0 - /run/nvidia".into()),
            ("majors", "1 mem".into()),
            ("processes", "1 sh".into()),
        ]);
        for (aspect, text) in changed {
            lines.insert(aspect, (*text).to_owned());
        }
        let mut records = Records::default();
        for (aspect, text) in lines {
            let end = MANIFESTS.contains(&aspect).then_some(WHOLE);
            let lines = text.lines().chain(end).map(str::to_owned).collect();
            records.sections.insert(format!("{when}.{aspect}"), lines);
        }
        records
    }

    fn differences(changed: &[(&str, &str)]) -> Vec<String> {
        let before = Scene::read(&records("before", &[]), "before").unwrap();
        let after = Scene::read(&records("after", changed), "after").unwrap();
        before.differences(&after)
    }

    #[test]
    fn the_same_state_has_no_differences() {
        assert!(differences(&[]).is_empty());
    }

    #[test]
    fn sizes_addresses_and_mount_ids_do_not_matter() {
        let same = [
            ("modules", "ipmi_msghandler 1 0 - Live 0x9\next4 2 4 - Live 0x8"),
            ("mounts", "99 98 7:0 /mnt1 /mnt2 rw,noatime shared:7 - ext3 /dev/root rw"),
        ];
        assert!(differences(&same).is_empty());
    }

    #[test]
    fn the_address_of_an_agent_may_change_but_must_go() {
        let path = "/run/longshore/serving.json";
        let of = |size: &str, digit: &str| {
            format!("f 644 0:0 {size} {path}\n{}  {path}", digit.repeat(64))
        };
        let between = |before: &str, after: &str| {
            let read = |when, text| Scene::read(&records(when, &[("run", text)]), when).unwrap();
            read("a", before).differences(&read("b", after))
        };
        assert!(between(&of("61", "1"), &of("62", "2")).is_empty());
        let left = between(
            "d 755 0:0 - /run/nvidia",
            &format!("d 755 0:0 - /run/nvidia\n{}", of("62", "2")),
        );
        assert_eq!(left, [format!("run: after f 644 0:0 - {path}")]);
        assert!(!is_own_record(&format!("f 644 0:0 - {path}")));
        let other = between(&of("61", "1"), &of("61", "1").replace("644", "666"));
        assert_eq!(other.len(), 2, "{other:?}");
    }

    #[test]
    fn a_containers_id_does_not_matter() {
        let of =
            |digit: &str| mount(&MOUNT.replace("/mnt2", &format!("/a/{}/b", digit.repeat(64))));
        assert_eq!(of("1"), of("e"));
        assert!(of("1").unwrap().starts_with("/a/ID/b "), "{:?}", of("1"));
    }

    #[test]
    fn every_kind_of_leftover_is_found() {
        let twice = format!("{MOUNT}\n{MOUNT}");
        let cases: &[(&str, &str, &str)] = &[
            ("modules", "ext4 9 4 - Live 0x0", "before ipmi_msghandler refcount 0"),
            (
                "modules",
                "ext4 9 4 - Live 0\nipmi_msghandler 7 1 - Live 0",
                "after ipmi_msghandler refcount 1",
            ),
            (
                "modules",
                "ext4 9 4 - Live 0\nipmi_msghandler 7 0 - Live 0\nnvidia 1 0 - Live 0",
                "after nvidia",
            ),
            ("mounts", &twice, "after 2 times /mnt2"),
            ("mounts", "36 35 98:0 /mnt1 /mnt2 rw,noatime - ext3 /dev/root rw", "before /mnt2"),
            (
                "dev",
                "c 600 0:0 5:1 /dev/console\nc 666 0:0 195:255 /dev/nvidiactl",
                "after c 666 0:0 195:255 /dev/nvidiactl",
            ),
            ("dev", "c 600 0:0 5:0 /dev/console", "after c 600 0:0 5:0 /dev/console"),
            ("dev", "c 600 0:6 5:1 /dev/console", "after c 600 0:6 5:1 /dev/console"),
            ("dev", "find: '/dev': Input/output error", "before c 600 0:0 5:1 /dev/console"),
            ("firmware-path", "/run/nvidia/driver/lib/firmware", "after /run/nvidia"),
            (
                "run",
                "d 755 0:0 - /run/nvidia\nd 755 0:0 - /run/nvidia/driver",
                "after d 755 0:0 - /run/nvidia/driver",
            ),
            ("run", "d 700 0:0 - /run/nvidia", "before d 755 0:0 - /run/nvidia"),
            ("run", "d 755 0:0 - /run/nvidia\nab  /run/x", "after ab  /run/x"),
            ("majors", "1 mem\n195 nvidia", "after 195 nvidia"),
            ("processes", "1 sh\n1 nvidia-persiste", "after 1 nvidia-persiste"),
        ];
        for (aspect, text, expected) in cases {
            let found = differences(&[(aspect, text)]);
            assert!(found.iter().any(|f| f.contains(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_missing_section_is_an_error() {
        let mut records = records("after", &[]);
        records.sections.remove("after.mounts");
        assert!(Scene::read(&records, "after").unwrap_err().contains("after.mounts"));
    }

    #[test]
    fn an_empty_section_or_a_manifest_that_failed_is_an_error() {
        let fault = |aspect: &str, text: &str| {
            let mut records = records("after", &[]);
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("after.{aspect}"), lines);
            Scene::read(&records, "after").err().unwrap_or_default()
        };
        for (aspect, _) in ASPECTS.iter().filter(|(aspect, _)| *aspect != MAY_BE_EMPTY) {
            assert!(fault(aspect, "").contains(&format!("after.{aspect}")), "{aspect}");
        }
        assert_eq!(fault(MAY_BE_EMPTY, ""), "");
        for aspect in MANIFESTS {
            assert!(fault(aspect, WHOLE).contains("is empty"));
            assert!(fault(aspect, "d 755 0:0 - /run").contains("is not whole"));
            assert!(fault(aspect, "d 755 0:0 - /run\nrc 1").contains("rc 1"));
        }
    }

    #[test]
    fn the_agents_record_may_differ_in_size_and_content_and_in_nothing_else() {
        let of = |line: &str| differences(&[("run", &format!("d 755 0:0 - /run/nvidia\n{line}"))]);
        let own = "/run/longshore/state.json";
        assert_eq!(of(&format!("{}  {own}", "b".repeat(64))), Vec::<String>::new());
        assert_eq!(of(&format!("f 600 0:0 81 {own}")), [format!("run: after f 600 0:0 - {own}")]);
        assert!(is_own_record(&format!("f 600 0:0 - {own}")));
        for line in [
            format!("f 600 1:0 - {own}"),
            format!("f 666 0:0 - {own}"),
            format!("d 600 0:0 - {own}"),
            "d 777 0:0 - /run/longshore".into(),
            format!("l 777 0:0 - {own} /etc/passwd"),
            format!("f 600 0:0 - {own}.next"),
            format!("2 times f 600 0:0 - {own}"),
        ] {
            assert!(!is_own_record(&line), "{line}");
        }
    }
}
