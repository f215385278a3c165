//! User id that compilers run as.

use std::str::FromStr;

use derive_more::Display;
use serde::Deserialize;

use longshore_core::value::BadValue;

/// User id, and the same group id, that build programs run as in the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, Deserialize)]
#[serde(try_from = "i64")]
pub struct BuildUser(u32);

impl BuildUser {
    /// Above all ids that distributions, user namespaces and directory services assign, and below
    /// those that systemd gives to foreign disk images (docs/supply-chain/building.md).
    const DEFAULT: u32 = 2_104_104_104;

    /// Ids in other use: root; nobody, which unmapped files and foreign daemons also have; -1 in 16
    /// and in 32 bits, which chown(2) reads as "leave unchanged".
    const OTHERS: [u32; 4] = [0, 65_534, 65_535, u32::MAX];

    /// Returns the user id, which is also the group id.
    pub fn id(self) -> u32 {
        self.0
    }
}

impl Default for BuildUser {
    fn default() -> Self {
        Self(Self::DEFAULT)
    }
}

impl TryFrom<i64> for BuildUser {
    type Error = BadValue;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        let id = u32::try_from(number).ok().filter(|id| !Self::OTHERS.contains(id));
        id.map(Self).ok_or_else(|| {
            let wanted = "a user id that no other program has (from 1 to 4294967294, neither 65534 nor 65535)";
            BadValue::new(&number.to_string(), wanted)
        })
    }
}

impl FromStr for BuildUser {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number: Result<i64, _> = text.parse();
        number.map_err(|_| BadValue::new(text, "a number, a user id"))?.try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::root("0")]
    #[case::nobody("65534")]
    #[case::none_in_16_bits("65535")]
    #[case::none("4294967295")]
    #[case::negative("-1")]
    #[case::too_large("4294967296")]
    #[case::a_name("nobody")]
    fn an_id_that_others_have_is_refused(#[case] text: &str) {
        assert!(text.parse::<BuildUser>().is_err());
        assert!(toml::Value::Integer(0).try_into::<BuildUser>().is_err());
    }

    #[test]
    fn the_default_is_an_id_that_can_be_set() {
        let default = BuildUser::default();
        assert_eq!(default.to_string().parse(), Ok(default));
    }

    /// Each from systemd's "Users, Groups, UIDs and GIDs" or the program named.
    #[rstest]
    #[case::system_users_and_people(1, 65_535)]
    #[case::containers_of_systemd(524_288, 1_879_048_191)]
    #[case::foreign_images(2_147_352_576, 2_147_418_111)]
    #[case::subordinate_ids(100_000, 600_100_000)]
    #[case::user_namespaces_of_kubelet(65_536, 65_536 * 111)]
    #[case::directory_services(200_000, 2_000_200_000)]
    #[case::openshift(1_000_000_000, 1_100_000_000)]
    #[case::signed(1 << 31, u32::MAX)]
    fn the_default_lies_outside_of_known_ranges(#[case] first: u32, #[case] last: u32) {
        assert!(!(first..=last).contains(&BuildUser::default().id()));
    }
}
