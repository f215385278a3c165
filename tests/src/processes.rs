//! Processes that a test looks at through /proc.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::scene::names;

/// A child process.
#[derive(Debug)]
pub struct ChildProcess {
    /// Its id.
    pub pid: u32,
    /// True if it has ended and is not waited for.
    pub is_ended: bool,
    /// Its command line; empty after its end.
    pub words: Vec<String>,
}

/// Returns the children of `parent`.
pub fn children(parent: u32) -> Vec<ChildProcess> {
    let pids = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok());
    let child = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let is_of = fields.get(1)? == &parent.to_string();
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        is_of.then_some(ChildProcess { pid, is_ended: fields[0] == "Z", words })
    };
    pids.filter_map(child).collect()
}

/// Checks that a process has no capability, no group but that of `user`, no new privileges, a seccomp filter, the root
/// as its directory, and is not dumpable. Returns the fields of its `status` (proc_pid_status(5)).
///
/// # Panics
/// If it has a right.
pub fn assert_without_rights(pid: u32, user: &str) -> BTreeMap<String, Vec<String>> {
    let dir = format!("/proc/{pid}");
    let status = fs::read_to_string(format!("{dir}/status")).expect("its status");
    let fields: BTreeMap<String, Vec<String>> = status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| {
            (name.to_owned(), value.split_whitespace().map(str::to_owned).collect())
        })
        .collect();
    for name in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(fields[name], ["0000000000000000"], "{name}");
    }
    for name in ["Uid", "Gid"] {
        assert_eq!(fields[name], [user; 4], "{name}");
    }
    assert!(fields["Groups"].is_empty(), "{:?}", fields["Groups"]);
    assert_eq!(fields["NoNewPrivs"], ["1"]);
    assert_eq!(fields["Seccomp"], ["2"]);
    assert_eq!(fs::read_link(format!("{dir}/cwd")).expect("its directory"), Path::new("/"));
    // The files below /proc of a process that is not dumpable are root's (proc_pid(5)).
    assert_eq!(fs::metadata(format!("{dir}/environ")).expect("there").uid(), 0);
    fields
}

/// Checks that these limits of a process, as its `limits` names them, are 0.
///
/// # Panics
/// If one is another, or absent.
pub fn assert_limits_of_zero(pid: u32, limits: &[&str]) {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
    for name in limits {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        let words: Vec<&str> = line[name.len()..].split_whitespace().take(2).collect();
        assert_eq!(words, ["0", "0"], "{line}");
    }
}
