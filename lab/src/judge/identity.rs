//! Identity of each loaded module and its reference count (`identity` in guest/scripts/ready.sh): shows
//! whether it was loaded again.

use std::collections::BTreeMap;

use crate::judge::records::Records;

/// Modules that are always recorded.
const MODULES: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

/// A module as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Inode of its directory in /sys/module, and seconds since boot at which it logged that it was
    /// loaded: the next loading changes both.
    pub loading: (u64, String),
    /// Its reference count.
    pub refcount: u64,
}

/// Returns the modules that the guest reported under `when`, by name.
///
/// # Errors
/// The section is missing, a module is, or a line is not `NAME inode N refcount N loaded SECONDS`.
pub(crate) fn read(records: &Records, when: &str) -> Result<BTreeMap<String, Loaded>, String> {
    let section = format!("{when}.identity");
    let mut all = BTreeMap::new();
    for line in records.section(&section)? {
        let (name, loaded) = parse(line).ok_or_else(|| format!("`{section}` says: {line}"))?;
        all.insert(name, loaded);
    }
    match MODULES.iter().find(|name| !all.contains_key(**name)) {
        Some(name) => Err(format!("`{section}` has no {name}")),
        None => Ok(all),
    }
}

fn parse(line: &str) -> Option<(String, Loaded)> {
    let words: Vec<&str> = line.split(' ').collect();
    let [name, "inode", inode, "refcount", refcount, "loaded", since] = words[..] else {
        return None;
    };
    since.parse::<f64>().ok()?;
    let loading = (inode.parse().ok()?, since.to_owned());
    Some((name.to_owned(), Loaded { loading, refcount: refcount.parse().ok()? }))
}

/// Compares the modules of `now` with those of `then`: the modules in `anew`, and no others, must
/// have been loaded again since; the others must have the same reference count.
pub(crate) fn compare(records: &Records, then: &str, now: &str, anew: &[&str]) -> Vec<String> {
    let (then, now) = match (read(records, then), read(records, now)) {
        (Ok(then), Ok(now)) => (then, now),
        (then, now) => return [then.err(), now.err()].into_iter().flatten().collect(),
    };
    let mut wrong = Vec::new();
    for (name, now) in &now {
        let Some(then) = then.get(name) else { continue };
        let differs = then.loading.0 != now.loading.0 && then.loading.1 != now.loading.1;
        if anew.contains(&name.as_str()) {
            if !differs {
                wrong.push(format!("{name} was not loaded again: {then:?}, then {now:?}"));
            }
        } else if then != now {
            wrong.push(format!("{name} is not untouched: {then:?}, then {now:?}"));
        }
    }
    wrong
}

/// All modules, for [`compare`].
pub(crate) const ALL: &[&str] = &MODULES;

#[cfg(test)]
mod tests {
    use super::*;

    const THEN: &str = "nvidia inode 7 refcount 3 loaded 9.250001\n\
        nvidia_uvm inode 8 refcount 0 loaded 9.900000\n\
        nvidia_modeset inode 9 refcount 0 loaded 10.100000";

    fn why(now: &str, anew: &[&str]) -> String {
        let mut records = Records::default();
        for (when, text) in [("then", THEN), ("now", now)] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("{when}.identity"), lines);
        }
        compare(&records, "then", "now", anew).join("; ")
    }

    #[test]
    fn what_is_untouched_has_the_same_loading_and_users() {
        assert_eq!(why(THEN, &[]), "");
        for (from, to) in
            [("inode 8", "inode 18"), ("9.900000", "99.900000"), ("refcount 3", "refcount 4")]
        {
            assert!(why(&THEN.replace(from, to), &[]).contains("is not untouched"), "{to}");
        }
    }

    #[test]
    fn what_was_loaded_anew_has_another_inode_and_time() {
        let uvm = THEN.replace("inode 8 refcount 0 loaded 9.9", "inode 18 refcount 1 loaded 99.9");
        assert_eq!(why(&uvm, &["nvidia_uvm"]), "");
        assert!(why(&uvm, ALL).starts_with("nvidia was not loaded again"));
        let one = THEN.replace("inode 8", "inode 18");
        assert!(why(&one, &["nvidia_uvm"]).starts_with("nvidia_uvm was not loaded again"));
    }

    #[test]
    fn what_cannot_be_read_is_wrong() {
        assert!(why("nvidia inode 7 refcount 3 loaded 9.25", &[]).contains("has no nvidia_uvm"));
        assert!(why(&THEN.replace("9.900000", ""), &[]).contains("says: nvidia_uvm inode 8"));
        assert!(why("cat: no such file", &[]).contains("says: cat"));
        assert_eq!(
            compare(&Records::default(), "then", "now", &[]),
            ["the guest did not report `then.identity`", "the guest did not report `now.identity`"]
        );
    }
}
