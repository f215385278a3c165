//! SELinux of a host: its state, and the labels of its policy that containers and the kernel read by.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::statfs::{SELINUX_MAGIC, fstatfs};
use serde::{Deserialize, Serialize};

use crate::facts::Probe;
use longshore_core::root::{Root, if_there};

/// True if SELinux denies; it exists while a policy is loaded.
const ENFORCE: &str = "sys/fs/selinux/enforce";
/// The kernel answers a write to it with EINVAL if the policy does not have the label.
const CONTEXT: &str = "sys/fs/selinux/context";
/// The host's own choice of policy (selinux_config(5)).
const CONFIG: &str = "etc/selinux/config";
/// The policy of a host whose configuration names none, as libselinux takes it.
const POLICY: &str = "targeted";
/// Type of the kernel's modules: both the reference policy and Red Hat's have it.
const MODULES: &str = "modules_object_t";
/// Size limit of the list of labels in a captured tree.
const LARGEST: u64 = 64 << 10;

/// SELinux of a host whose kernel has a policy loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selinux {
    /// True if it denies; false if it only logs.
    pub enforcing: bool,
    /// Label of files that every confined container may read and execute, and none may change.
    pub files: Probe<String>,
    /// Label of nodes and sockets that every confined container may open.
    pub nodes: Probe<String>,
    /// Label of files that the kernel loads as modules.
    pub modules: Probe<String>,
}

impl Selinux {
    /// All labels, each with its use.
    pub fn labels(&self) -> [(&'static str, &Probe<String>); 3] {
        [("files", &self.files), ("nodes", &self.nodes), ("modules", &self.modules)]
    }
}

/// Reads the state; from `host` if a mount is missing in the container's own /sys. None without
/// SELinux.
pub(super) fn read(root: &Root, host: &Root) -> Option<Selinux> {
    let enforce = |of: &&Root| of.read_to_string(ENFORCE);
    let (of, enforcing) = [host, root].into_iter().find_map(|of| Some((of, enforce(&of).ok()?)))?;
    let known = |label: Result<String, String>| match label.and_then(|label| known(of, label)) {
        Ok(label) => Probe::Read(label),
        Err(why) => Probe::Unreadable(why),
    };
    let files = named(host, &["ro_file", "file"]);
    let modules = files.as_ref().map_err(String::clone).map(|label| with_type(label, MODULES));
    Some(Selinux {
        enforcing: enforcing.trim() == "1",
        nodes: known(named(host, &["file"])),
        modules: known(modules),
        files: known(files),
    })
}

/// Finds the label that container runtimes take by the first of these names: they read the same file
/// of the policy (`lxc_contexts`).
fn named(host: &Root, names: &[&str]) -> Result<String, String> {
    let file = format!("etc/selinux/{}/contexts/lxc_contexts", policy(host)?);
    let text = host.read_to_string(&file).map_err(|e| e.to_string())?;
    let label = names.iter().find_map(|name| value(&text, name));
    let label = label.ok_or_else(|| format!("/{file} names no label `{}`", names[0]))?;
    if is_label(label) { Ok(label.to_owned()) } else { Err(format!("/{file} has no valid label")) }
}

/// Returns the name of the host's policy.
fn policy(host: &Root) -> Result<String, String> {
    let text = if_there(host.read_to_string(CONFIG)).map_err(|e| e.to_string())?;
    let text = text.unwrap_or_default();
    let name = value(&text, "SELINUXTYPE").unwrap_or(POLICY);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_plain) {
        true => Ok(name.to_owned()),
        false => Err(format!("/{CONFIG} names no policy")),
    }
}

/// Returns the value of a line `name = value`, with or without quotes.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| key.trim() == name)?;
    Some(value.trim().trim_matches('"'))
}

/// True for USER:ROLE:TYPE and USER:ROLE:TYPE:LEVEL in characters that no mount option ends at.
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    let is_named = text.split(':').take(3).filter(|part| !part.is_empty()).count() == 3;
    is_named && text.len() < 256 && text.bytes().all(is_plain)
}

fn with_type(label: &str, kind: &str) -> String {
    let parts = label.splitn(4, ':').enumerate();
    let parts: Vec<&str> = parts.map(|(at, part)| if at == 2 { kind } else { part }).collect();
    parts.join(":")
}

/// Returns the label if the loaded policy has it.
fn known(of: &Root, label: String) -> Result<String, String> {
    match has(of, &label) {
        Ok(true) => Ok(label),
        Ok(false) => Err(format!("the loaded policy has no {label}")),
        Err(e) => Err(format!("{label} cannot be checked: {e}")),
    }
}

/// Asks the kernel; a captured tree has the policy's labels in the file, one a line.
fn has(of: &Root, label: &str) -> io::Result<bool> {
    let file = of.file(CONTEXT)?;
    if fstatfs(file.as_fd())?.filesystem_type() == SELINUX_MAGIC {
        return is_accepted(&file, label);
    }
    let mut text = String::new();
    file.take(LARGEST).read_to_string(&mut text)?;
    Ok(text.lines().any(|line| line.trim() == label))
}

fn is_accepted(file: &File, label: &str) -> io::Result<bool> {
    // It is opened again: a root opens for reading alone.
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut file = File::options().write(true).open(again)?;
    // The kernel takes the terminator for a part of the label, as libselinux writes it.
    match file.write_all(format!("{label}\0").as_bytes()) {
        Err(e) if e.raw_os_error() == Some(Errno::EINVAL as i32) => Ok(false),
        written => written.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::path::Path;

    const LXC: &str = "etc/selinux/targeted/contexts/lxc_contexts";
    const RO: &str = "system_u:object_r:container_ro_file_t:s0";
    const RW: &str = "system_u:object_r:container_file_t:s0";
    const KO: &str = "system_u:object_r:modules_object_t:s0";

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    fn contexts() -> String {
        format!("process = \"a:b:c\"\nfile = \"{RW}\"\nro_file=\"{RO}\"\n")
    }

    fn facts(lxc: &str, known: &str) -> Selinux {
        let (_dir, root) = tree(&[(ENFORCE, "1"), (LXC, lxc), (CONTEXT, known)]);
        read(&root, &root).unwrap()
    }

    fn label(of: &Probe<String>) -> Result<&str, &str> {
        match of {
            Probe::Read(label) => Ok(label),
            Probe::Unreadable(why) => Err(why),
        }
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&[("sys/fs/selinux/policyvers", "33")], None)]
    #[case(&[(ENFORCE, "0")], Some(false))]
    #[case(&[(ENFORCE, "1\n")], Some(true))]
    fn the_state_is_the_kernels(#[case] files: &[(&str, &str)], #[case] wanted: Option<bool>) {
        let (_dir, root) = tree(files);
        let (_other, empty) = tree(&[]);
        for (root, host) in [(&root, &root), (&empty, &root), (&root, &empty)] {
            assert_eq!(read(root, host).map(|found| found.enforcing), wanted);
        }
    }

    #[test]
    fn labels_are_those_of_the_policys_container_runtimes() {
        let found = facts(&contexts(), &format!("{RO}\n{RW}\n{KO}\n"));
        assert_eq!(found.labels().map(|(_, of)| label(of)), [Ok(RO), Ok(RW), Ok(KO)]);
    }

    #[test]
    fn a_label_that_the_policy_lacks_is_said() {
        // Debian 12's policy names labels of a module that it does not have.
        let found = facts(&contexts(), KO);
        let why = format!("the loaded policy has no {RO}");
        assert_eq!(label(&found.files), Err(why.as_str()));
        assert_eq!(label(&found.modules), Ok(KO));
    }

    #[rstest]
    #[case("", "names no label")]
    #[case("ro_file = \"a:b\"\nfile = \"\"", "no valid label")]
    #[case("ro_file = \"a:b:c:s0,size=1g\"\nfile = \"a b:c:d\"", "no valid label")]
    fn a_file_without_labels_is_named(#[case] lxc: &str, #[case] why: &str) {
        let found = facts(lxc, RO);
        for (_, of) in found.labels() {
            assert!(label(of).unwrap_err().contains(why), "{of:?}");
        }
    }

    #[test]
    fn files_without_a_label_of_their_own_get_the_other() {
        let found = facts(&format!("file = \"{RW}\""), RW);
        assert_eq!((label(&found.files), label(&found.nodes)), (Ok(RW), Ok(RW)));
    }

    #[rstest]
    #[case("SELINUXTYPE=default\n", Ok("default"))]
    #[case("# SELINUXTYPE=x\nSELINUX=enforcing\n", Ok("targeted"))]
    #[case("SELINUXTYPE=../../tmp\n", Err("/etc/selinux/config names no policy"))]
    #[case("SELINUXTYPE=\n", Err("/etc/selinux/config names no policy"))]
    fn policies(#[case] config: &str, #[case] wanted: Result<&str, &str>) {
        let (_dir, root) = tree(&[(CONFIG, config)]);
        assert_eq!(policy(&root).as_deref().map_err(String::as_str), wanted);
    }

    #[rstest]
    #[case(RO, true)]
    #[case("u:r:t", true)]
    #[case("u:r:t:s0-s0:c0.c1023", true)]
    #[case("u::t", false)]
    #[case("u:r", false)]
    #[case("u:r:t,rw", false)]
    #[case("u:r:t s0", false)]
    fn labels(#[case] text: &str, #[case] wanted: bool) {
        assert_eq!(is_label(text), wanted);
    }
}
