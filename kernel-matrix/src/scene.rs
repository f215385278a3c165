//! State of the host before and after, reduced to what must be exactly the same.

use std::collections::BTreeMap;

use crate::records::Records;

/// State of a host as a guest reported it, reduced to what must be the same again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scene {
    aspects: BTreeMap<&'static str, Lines>,
}

/// Lines and their number of occurrences.
type Lines = BTreeMap<String, usize>;

/// A section of a state, and the function that reduces its lines.
type Aspect = (&'static str, fn(&str) -> Option<String>);
const ASPECTS: &[Aspect] = &[
    ("modules", module),
    ("mounts", mount),
    ("dev", whole),
    ("firmware-path", whole),
    ("run", whole),
    ("majors", whole),
    ("processes", whole),
];

impl Scene {
    /// Reads the state the guest reported under `when`.
    ///
    /// # Errors
    /// A section is missing.
    pub fn read(records: &Records, when: &str) -> Result<Self, String> {
        let mut scene = Self::default();
        for (aspect, reduce) in ASPECTS {
            let mut lines = Lines::new();
            for line in records.section(&format!("{when}.{aspect}"))? {
                if let Some(line) = reduce(line) {
                    *lines.entry(line).or_default() += 1;
                }
            }
            scene.aspects.insert(aspect, lines);
        }
        Ok(scene)
    }

    /// Returns the differences in `after`, one line each; empty where there is none.
    pub fn differences(&self, after: &Self) -> Vec<String> {
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

    const MOUNT: &str = "36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw";

    fn records(when: &str, changed: &[(&str, &str)]) -> Records {
        let mut lines: BTreeMap<&str, String> = BTreeMap::from([
            (
                "modules",
                "ext4 983040 4 - Live 0xffffffffc0\nipmi_msghandler 77824 0 - Live 0x0".into(),
            ),
            ("mounts", MOUNT.into()),
            ("dev", "c 600 /dev/console ".into()),
            ("firmware-path", String::new()),
            ("run", "d 755 /run/nvidia ".into()),
            ("majors", "1 mem".into()),
            ("processes", "1 sh".into()),
        ]);
        for (aspect, text) in changed {
            lines.insert(aspect, (*text).to_owned());
        }
        let mut records = Records::default();
        for (aspect, text) in lines {
            let lines = text.lines().map(str::to_owned).collect();
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
            ("dev", "c 600 /dev/console \nc 666 /dev/nvidiactl ", "after c 666 /dev/nvidiactl"),
            ("firmware-path", "/run/nvidia/driver/lib/firmware", "after /run/nvidia"),
            (
                "run",
                "d 755 /run/nvidia \nd 755 /run/nvidia/driver ",
                "after d 755 /run/nvidia/driver",
            ),
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
}
