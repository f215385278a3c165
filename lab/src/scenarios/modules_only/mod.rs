//! The modules alone (script.sh): they are loaded with their nodes, and nothing is shown to the host.

use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::{ModulesOnly, Scenario};

/// Directory that a driver root would be in.
const DRIVER_ROOT: &str = "/run/nvidia/driver";

impl Scenario for ModulesOnly {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        if !records.phases.iter().any(|phase| phase == "ready") {
            return vec!["the agent was never Ready".into()];
        }
        let mut wrong = checks::modules_alone(expected, records, "ready");
        match records.section("ready.mounts") {
            Ok(mounts) => wrong.extend(shown(mounts)),
            Err(missing) => wrong.push(missing),
        }
        wrong
    }
}

/// Returns the fault of mounts in a driver root, which there must be none of.
fn shown<T: AsRef<str>>(mounts: &[T]) -> Option<String> {
    let is_of_root = |line: &&T| {
        let target = line.as_ref().split(' ').nth(1).unwrap_or_default();
        target.starts_with(DRIVER_ROOT)
    };
    let found = mounts.iter().find(is_of_root)?;
    Some(format!("a driver root is mounted, though only modules are wanted: {}", found.as_ref()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("tmpfs /run tmpfs rw 0 0", false)]
    #[case("tmpfs /run/nvidia/driver tmpfs rw 0 0", true)]
    #[case("/dev/vda /run/nvidia/driver/usr ext4 ro 0 0", true)]
    fn a_driver_root_is_a_fault(#[case] line: &str, #[case] wrong: bool) {
        assert_eq!(shown(&[line]).is_some(), wrong);
    }
}
