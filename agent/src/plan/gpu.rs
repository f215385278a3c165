//! Driver branches and flavours that support a GPU, from its PCI device id.

use std::ops::RangeInclusive;

use crate::catalog::Chip;
use longshore_core::driver_version::FIRST_OPEN_BRANCH;
use longshore_core::flavour::Flavour;

/// A GPU generation, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub enum Generation {
    /// Fermi and older.
    #[display("Fermi or older")]
    Fermi,
    /// Kepler: K80, K40.
    Kepler,
    /// Maxwell: M60, M40.
    Maxwell,
    /// Pascal: P100, P4.
    Pascal,
    /// Volta: V100.
    Volta,
    /// Turing: T4.
    Turing,
    /// Ampere: A100, A10.
    Ampere,
    /// Hopper on a card: H100, H200.
    Hopper,
    /// Hopper beside a Grace CPU: GH200.
    #[display("Grace Hopper")]
    GraceHopper,
    /// Ada: L4, L40.
    Ada,
    /// Blackwell: B200, GB200, RTX PRO 6000.
    Blackwell,
}

/// Device ids by generation, as the public PCI id list groups the chips. A range may include
/// unassigned ids; none includes ids of two generations.
const RANGES: [(RangeInclusive<u16>, Generation); 26] = [
    (0x0020..=0x0fbf, Generation::Fermi),
    (0x0fc0..=0x0fff, Generation::Kepler),
    (0x1000..=0x103f, Generation::Kepler),
    (0x1040..=0x117f, Generation::Fermi),
    (0x1180..=0x11ff, Generation::Kepler),
    (0x1200..=0x127f, Generation::Fermi),
    (0x1280..=0x133f, Generation::Kepler),
    (0x1340..=0x15ef, Generation::Maxwell),
    (0x15f0..=0x15ff, Generation::Pascal),
    (0x1600..=0x171f, Generation::Maxwell),
    (0x1720..=0x173f, Generation::Pascal),
    (0x1740..=0x1aef, Generation::Maxwell),
    (0x1b00..=0x1d7f, Generation::Pascal),
    (0x1d80..=0x1dff, Generation::Volta),
    (0x1e00..=0x1fff, Generation::Turing),
    (0x2000..=0x20ff, Generation::Ampere),
    (0x2180..=0x21ff, Generation::Turing),
    (0x2200..=0x22a2, Generation::Ampere),
    (0x2300..=0x233f, Generation::Hopper),
    (0x2340..=0x234f, Generation::GraceHopper),
    (0x2350..=0x23ff, Generation::Hopper),
    (0x2400..=0x25ff, Generation::Ampere),
    (0x2600..=0x28ff, Generation::Ada),
    (0x2900..=0x2bff, Generation::Blackwell),
    (0x2c00..=0x2fff, Generation::Blackwell),
    (0x3180..=0x31ff, Generation::Blackwell),
];

/// Returns the generation of a GPU; None where the id is newer than this table.
pub fn generation_of(device: u16) -> Option<Generation> {
    RANGES.iter().find(|(range, _)| range.contains(&device)).map(|(_, generation)| *generation)
}

impl Generation {
    /// Returns the first and the last driver branch that support it, by NVIDIA's release notes: the
    /// first where an older branch is still available, the last where support has ended.
    pub fn branches(self) -> (Option<u64>, Option<u64>) {
        match self {
            Self::Fermi => (None, Some(390)),
            Self::Kepler => (None, Some(470)),
            Self::Maxwell | Self::Pascal | Self::Volta => (None, Some(580)),
            Self::Turing => (Some(410), None),
            Self::Ampere => (Some(450), None),
            Self::Hopper => (Some(515), None),
            Self::GraceHopper | Self::Ada => (Some(525), None),
            Self::Blackwell => (Some(570), None),
        }
    }

    /// True if the flavour supports this generation. The open modules need a GPU System Processor,
    /// which came with Turing; Grace Hopper and Blackwell are supported by the open modules only.
    pub fn takes(self, flavour: Flavour) -> bool {
        match flavour {
            Flavour::Open => self >= Self::Turing,
            Flavour::Proprietary => !matches!(self, Self::GraceHopper | Self::Blackwell),
        }
    }
}

/// First branch whose packages recommend the open modules.
pub const OPEN_RECOMMENDED_BRANCH: u64 = 560;

/// Reason why a driver does not support a GPU, with a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Reason, for example `Kepler needs branch 470: newer ones no longer support it`.
    pub why: String,
    /// Branch or flavour to select instead.
    pub remedy: String,
}

/// Checks that a branch supports a generation, in any flavour.
///
/// # Errors
/// Names the branch that does.
pub fn branch_fits(generation: Generation, branch: u64) -> Result<(), Unfit> {
    match generation.branches() {
        (_, Some(last)) if branch > last => Err(Unfit {
            why: format!("{generation} needs branch {last}: newer ones no longer support it"),
            remedy: format!("select driver {last}, from an archive that has it"),
        }),
        (Some(first), _) if branch < first => Err(Unfit {
            why: format!("{generation} needs branch {first} or newer"),
            remedy: format!("select driver {first} or newer"),
        }),
        _ => Ok(()),
    }
}

/// Checks that a flavour of a branch supports a generation.
///
/// # Errors
/// Names the flavour that does.
pub fn flavour_fits(generation: Generation, branch: u64, flavour: Flavour) -> Result<(), Unfit> {
    if flavour == Flavour::Open && branch < FIRST_OPEN_BRANCH {
        return Err(Unfit {
            why: format!(
                "branch {branch} has no open modules (they came with {FIRST_OPEN_BRANCH})"
            ),
            remedy: "select flavour proprietary or auto".into(),
        });
    }
    if generation.takes(flavour) {
        return Ok(());
    }
    let why = match flavour {
        Flavour::Open => "has no GPU System Processor, which the open modules need",
        Flavour::Proprietary => "is supported by the open modules only",
    };
    Err(Unfit {
        why: format!("{generation} {why}"),
        remedy: format!("select flavour {} or auto", other(flavour)),
    })
}

/// Returns the other flavour.
pub(crate) fn other(flavour: Flavour) -> Flavour {
    match flavour {
        Flavour::Open => Flavour::Proprietary,
        Flavour::Proprietary => Flavour::Open,
    }
}

/// Checks that a driver's own list has a GPU as supported by modules of a flavour.
///
/// # Errors
/// Names what the list has instead, and what to select.
pub fn driver_says_it_fits(chip: &Chip, version: &str, flavour: Flavour) -> Result<(), Unfit> {
    let name = &chip.name;
    if let Some(last) = chip.last_branch {
        return Err(Unfit {
            why: format!("{name} needs branch {last} (list of driver {version})"),
            remedy: format!("select driver {last}, from its .run file or an archive that has it"),
        });
    }
    if chip.takes(flavour) != Some(false) {
        return Ok(());
    }
    Err(Unfit {
        why: format!("{name} is not supported by the {flavour} modules (list of {version})"),
        remedy: format!("select flavour {} or auto", other(flavour)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(0x1db4, Generation::Volta, "V100 PCIe")]
    #[case(0x1db1, Generation::Volta, "V100 SXM2")]
    #[case(0x102d, Generation::Kepler, "K80")]
    #[case(0x1024, Generation::Kepler, "K40c")]
    #[case(0x13f2, Generation::Maxwell, "M60")]
    #[case(0x17fd, Generation::Maxwell, "M40")]
    #[case(0x15f8, Generation::Pascal, "P100 PCIe")]
    #[case(0x1bb3, Generation::Pascal, "P4")]
    #[case(0x1b38, Generation::Pascal, "P40")]
    #[case(0x1eb8, Generation::Turing, "T4")]
    #[case(0x1fb9, Generation::Turing, "T1000")]
    #[case(0x2182, Generation::Turing, "GTX 1660 Ti")]
    #[case(0x20b0, Generation::Ampere, "A100 SXM4")]
    #[case(0x20f1, Generation::Ampere, "A100 PCIe")]
    #[case(0x2236, Generation::Ampere, "A10")]
    #[case(0x25b6, Generation::Ampere, "A16, A2")]
    #[case(0x2330, Generation::Hopper, "H100 SXM5")]
    #[case(0x2335, Generation::Hopper, "H200")]
    #[case(0x2342, Generation::GraceHopper, "GH200")]
    #[case(0x27b8, Generation::Ada, "L4")]
    #[case(0x26b5, Generation::Ada, "L40")]
    #[case(0x2901, Generation::Blackwell, "B200")]
    #[case(0x2941, Generation::Blackwell, "GB200")]
    #[case(0x2bb1, Generation::Blackwell, "RTX PRO 6000")]
    #[case(0x06d1, Generation::Fermi, "C2050")]
    fn generations(#[case] device: u16, #[case] wanted: Generation, #[case] name: &str) {
        assert_eq!(generation_of(device), Some(wanted), "{name}");
    }

    #[rstest]
    #[case(Generation::Kepler, 470, true)]
    #[case(Generation::Kepler, 535, false)]
    #[case(Generation::Volta, 580, true)]
    #[case(Generation::Volta, 590, false)]
    #[case(Generation::Blackwell, 550, false)]
    #[case(Generation::Turing, 550, true)]
    fn branches(#[case] generation: Generation, #[case] branch: u64, #[case] fits: bool) {
        assert_eq!(branch_fits(generation, branch).is_ok(), fits);
    }

    #[rstest]
    #[case(Generation::Volta, 550, Flavour::Open, false)]
    #[case(Generation::Volta, 550, Flavour::Proprietary, true)]
    #[case(Generation::Turing, 470, Flavour::Open, false)]
    #[case(Generation::Turing, 535, Flavour::Open, true)]
    #[case(Generation::Hopper, 550, Flavour::Open, true)]
    #[case(Generation::Hopper, 550, Flavour::Proprietary, true)]
    #[case(Generation::Blackwell, 570, Flavour::Proprietary, false)]
    #[case(Generation::GraceHopper, 550, Flavour::Proprietary, false)]
    fn flavours(
        #[case] generation: Generation,
        #[case] branch: u64,
        #[case] flavour: Flavour,
        #[case] fits: bool,
    ) {
        assert_eq!(flavour_fits(generation, branch, flavour).is_ok(), fits);
    }

    proptest! {
        #[test]
        fn no_id_belongs_to_two_generations(device in any::<u16>()) {
            let hits = RANGES.iter().filter(|(range, _)| range.contains(&device)).count();
            prop_assert!(hits <= 1);
        }
    }
}
