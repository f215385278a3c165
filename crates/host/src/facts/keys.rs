//! The kernel's keys, as far as /proc/keys shows them.
//!
//! A line (security/keys/proc.c, and asymmetric_key_describe in
//! crypto/asymmetric_keys/asymmetric_type.c):
//!
//! ```text
//! 1c5c1c1c I------     1 perm 1f030000     0     0 asymmetri NAME: KEYID: X509.rsa 1234abcd []
//! ```
//!
//! The line does not name the key's keyring. So a certificate that is not listed is surely not
//! trusted; of a listed one only the kernel knows.

use crate::facts::{KernelKey, Probe};
use longshore_core::root::Root;

/// Keyrings that the kernel creates itself; if one is visible, its keys are visible too.
const KEYRINGS: [&str; 4] =
    [".builtin_trusted_keys", ".secondary_trusted_keys", ".machine", ".platform"];

/// Reads the public keys of certificates, or the reason why they are not known.
pub(super) fn read(root: &Root) -> Probe<Vec<KernelKey>> {
    match root.read_to_string("proc/keys") {
        Ok(text) if is_whole(&text) => Probe::Read(text.lines().filter_map(key).collect()),
        Ok(_) => Probe::Unreadable("/proc/keys does not show the kernel's own keys".to_owned()),
        Err(e) => Probe::Unreadable(e.to_string()),
    }
}

/// True if the kernel's own keys are visible: container runtimes mask the file, and user namespaces
/// hide the kernel's keys.
fn is_whole(text: &str) -> bool {
    text.lines().any(|line| keyring(line).is_some_and(|(name, _)| KEYRINGS.contains(&name)))
}

/// True if `.platform` has keys and `.machine` has none, or does not exist.
pub(super) fn has_only_platform(root: &Root) -> bool {
    let text = root.read_to_string("proc/keys").unwrap_or_default();
    let has = |name: &str| text.lines().any(|line| keyring(line) == Some((name, true)));
    has(".platform") && !has(".machine")
}

/// Returns the name of a keyring, and if it has keys: `.machine: empty`, `.platform: 2`
/// (keyring_describe in security/keys/keyring.c).
fn keyring(line: &str) -> Option<(&str, bool)> {
    let ("keyring", description) = kind_and_description(line)? else { return None };
    let (name, count) = description.trim_end().rsplit_once(": ")?;
    Some((name, count != "empty"))
}

fn key(line: &str) -> Option<KernelKey> {
    // Revoked, dead, negative or invalidated keys are left out.
    let flags = line.split_ascii_whitespace().nth(1)?;
    if flags.contains(['R', 'D', 'N', 'i']) {
        return None;
    }
    let ("asymmetri", description) = kind_and_description(line)? else { return None };
    let (described, _) = description.rsplit_once(": X509.")?;
    let (name, id) = described.rsplit_once(": ")?;
    Some(KernelKey { name: name.to_owned(), id: id.to_owned() })
}

/// The eighth column (type) and the rest of the line.
fn kind_and_description(line: &str) -> Option<(&str, &str)> {
    let mut rest = line;
    for _ in 0..7 {
        rest = rest.trim_start().split_once(' ')?.1;
    }
    let (kind, description) = rest.trim_start().split_once(' ')?;
    Some((kind, description.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "\
07a6d5b1 I------     1 perm 1f0b0000     0     0 keyring   .builtin_trusted_keys: 2
1d1bc34c I--Q---     3 perm 1f3f0000     0 65534 keyring   _uid.0: empty
1e1c9d2a I------     1 perm 1f030000     0     0 asymmetri Debian Secure Boot CA: 6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1: X509.rsa bb419ea1 []
2b0e77c4 I------     1 perm 1f010000     0     0 asymmetri Example: Module signing: 25a7e07a509423d9b62468531c37a604632a7585: X509.rsa 632a7585 []
2b0e77c5 IR-----     1 perm 1f010000     0     0 asymmetri Revoked: 00: X509.rsa 00 []
3a2e6f15 I------     1 perm 1f010000     0     0 user      invocation_id: 16
";

    fn keys(text: &str) -> Probe<Vec<KernelKey>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::fs::write(dir.path().join("proc/keys"), text).unwrap();
        read(&Root::open(dir.path()).unwrap())
    }

    #[test]
    fn certificates_are_read_and_nothing_else() {
        let Probe::Read(found) = keys(KEYS) else { panic!("not known") };
        let wanted = [
            ("Debian Secure Boot CA", "6ccece7e4c6c0d1f6149f3dd27dfcc5cbb419ea1"),
            ("Example: Module signing", "25a7e07a509423d9b62468531c37a604632a7585"),
        ];
        let found: Vec<_> = found.iter().map(|k| (k.name.as_str(), k.id.as_str())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_firmwares_keys_are_in_platform_alone_where_machine_has_none() {
        let ring = |name: &str, count: &str| {
            format!("07a6d5b1 I------     1 perm 1f0b0000     0     0 keyring   {name}: {count}\n")
        };
        let cases = [
            (&[(".platform", "2"), (".machine", "empty")][..], true),
            (&[(".platform", "2")], true),
            (&[(".platform", "2"), (".machine", "1")], false),
            (&[(".platform", "empty")], false),
            (&[(".secondary_trusted_keys", "1")], false),
        ];
        for (rings, expected) in cases {
            let text: String = rings.iter().map(|(name, count)| ring(name, count)).collect();
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("proc")).unwrap();
            std::fs::write(dir.path().join("proc/keys"), text).unwrap();
            let root = Root::open(dir.path()).unwrap();
            assert_eq!(has_only_platform(&root), expected, "{rings:?}");
        }
    }

    #[test]
    fn without_the_kernels_own_keyrings_nothing_is_known() {
        let others: String = KEYS.lines().skip(1).map(|line| format!("{line}\n")).collect();
        for text in ["", &others] {
            assert!(matches!(keys(text), Probe::Unreadable(_)), "{text}");
        }
        let none = tempfile::tempdir().unwrap();
        assert!(matches!(read(&Root::open(none.path()).unwrap()), Probe::Unreadable(_)));
    }
}
