//! Driver branches and flavours that support a GPU, by its generation in the support table and by a driver's own list.

use crate::catalog::Chip;
use longshore_core::driver_version::FIRST_OPEN_BRANCH;
use longshore_core::finding::Code;
use longshore_core::flavour::Flavour;
use longshore_support::Generation;

/// Reason why a driver does not support a GPU, with a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// Code of the finding about it.
    pub code: Code,
    /// Reason, for example `Kepler needs branch 470: newer ones no longer support it`.
    pub why: String,
    /// Branch or flavour to select instead.
    pub remedy: String,
}

impl Unfit {
    /// Adds, to a branch that does not support a generation, that no branch supports it in this flavour.
    #[must_use]
    pub(super) fn and_flavour(self, generation: &Generation, flavour: Flavour) -> Self {
        if generation.takes(flavour) {
            return self;
        }
        let Self { code, why, remedy } = self;
        let why = format!("{why}; no branch supports it with {flavour} modules");
        let remedy = format!("{remedy}, and flavour {} or auto", other(flavour));
        Self { code, why, remedy }
    }
}

/// Checks that a branch supports a generation, in any flavour.
///
/// # Errors
/// Names the branch that does.
pub fn branch_fits(generation: &Generation, branch: u64) -> Result<(), Unfit> {
    match (generation.first_branch, generation.last_branch) {
        (_, Some(last)) if branch > last => Err(Unfit {
            code: Code::GpuUnsupported,
            why: format!("{generation} needs branch {last}: newer ones no longer support it"),
            remedy: format!("select driver {last}, from an archive that has it"),
        }),
        (Some(first), _) if branch < first => Err(Unfit {
            code: Code::GpuUnsupported,
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
pub fn flavour_fits(generation: &Generation, branch: u64, flavour: Flavour) -> Result<(), Unfit> {
    if flavour == Flavour::Open && branch < FIRST_OPEN_BRANCH {
        return Err(Unfit {
            code: Code::GpuUnsupported,
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
        code: Code::GpuUnsupported,
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
            code: Code::GpuUnsupported,
            why: format!("{name} needs branch {last} (list of driver {version})"),
            remedy: format!("select driver {last}, from its .run file or an archive that has it"),
        });
    }
    if chip.takes(flavour) != Some(false) {
        return Ok(());
    }
    Err(Unfit {
        code: Code::GpuUnsupported,
        why: format!("{name} is not supported by the {flavour} modules (list of {version})"),
        remedy: format!("select flavour {} or auto", other(flavour)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_support::SupportTable;
    use rstest::rstest;

    fn generation(name: &str) -> &'static Generation {
        SupportTable::built_in().unwrap().generation_named(name).unwrap()
    }

    #[rstest]
    #[case("kepler", 470, true)]
    #[case("kepler", 535, false)]
    #[case("volta", 580, true)]
    #[case("volta", 590, false)]
    #[case("blackwell", 550, false)]
    #[case("turing", 550, true)]
    fn branches(#[case] name: &str, #[case] branch: u64, #[case] fits: bool) {
        assert_eq!(branch_fits(generation(name), branch).is_ok(), fits);
    }

    #[rstest]
    #[case("volta", 550, Flavour::Open, false)]
    #[case("volta", 550, Flavour::Proprietary, true)]
    #[case("turing", 470, Flavour::Open, false)]
    #[case("turing", 535, Flavour::Open, true)]
    #[case("hopper", 550, Flavour::Open, true)]
    #[case("hopper", 550, Flavour::Proprietary, true)]
    #[case("blackwell", 570, Flavour::Proprietary, false)]
    #[case("grace-hopper", 550, Flavour::Proprietary, false)]
    fn flavours(
        #[case] name: &str,
        #[case] branch: u64,
        #[case] flavour: Flavour,
        #[case] fits: bool,
    ) {
        assert_eq!(flavour_fits(generation(name), branch, flavour).is_ok(), fits);
    }
}
