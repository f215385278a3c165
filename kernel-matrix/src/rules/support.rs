//! Drivers that support a simulated device, and the exclusion of cells whose driver does not.
//!
//! Branches are those of the lists of supported products in NVIDIA's drivers.

use std::collections::BTreeMap;

use super::{Cell, Driver, Excluded};
use longshore_core::flavour::Flavour;
use longshore_lab::gpu::Model;

/// Support of a model.
struct Support {
    model: Model,
    /// Architecture.
    architecture: &'static str,
    /// First branch that supports it.
    first: u32,
    /// Last one; None as long as there is none.
    last: Option<u32>,
    /// The only flavour that supports it; None where both do. The open modules need a GPU System Processor, which came
    /// with Turing; Blackwell is supported by them alone.
    only: Option<Flavour>,
}

const fn support(
    model: Model,
    architecture: &'static str,
    first: u32,
    last: Option<u32>,
    only: Option<Flavour>,
) -> Support {
    Support { model, architecture, first, last, only }
}

const SUPPORTED: &[Support] = &[
    support(Model::K80, "Kepler", 340, Some(470), Some(Flavour::Proprietary)),
    support(Model::V100, "Volta", 384, Some(580), Some(Flavour::Proprietary)),
    support(Model::T4, "Turing", 410, None, None),
    support(Model::A100, "Ampere", 450, None, None),
    support(Model::L4, "Ada Lovelace", 525, None, None),
    support(Model::H100, "Hopper", 525, None, None),
    support(Model::NvSwitch, "NVSwitch of Hopper", 525, None, None),
    support(Model::B200, "Blackwell", 570, None, Some(Flavour::Open)),
];

/// Removes the cells with a device that their driver does not support, and returns them with the reason.
///
/// # Errors
/// Nothing is recorded of a model.
pub(super) fn exclude(cells: &mut Vec<Cell>) -> Result<Vec<Excluded>, String> {
    let mut found: Vec<Excluded> = Vec::new();
    let mut kept = Vec::new();
    for cell in std::mem::take(cells) {
        let Some((condition, reason)) = unsupported(&cell)? else {
            kept.push(cell);
            continue;
        };
        let gpus = ("gpus".to_owned(), cell.gpus.to_string());
        let of: BTreeMap<String, String> = [gpus, condition].into();
        match found.iter_mut().find(|known| known.of == of && known.reason == reason) {
            Some(known) => known.cells.push(cell.name),
            None => found.push(Excluded { of, reason, cells: vec![cell.name] }),
        }
    }
    *cells = kept;
    Ok(found)
}

/// Key and pattern of an exclusion, and its reason.
type Unsupported = ((String, String), String);

/// Returns the condition and the reason for which a cell's driver does not support one of its devices.
fn unsupported(cell: &Cell) -> Result<Option<Unsupported>, String> {
    for model in cell.gpus.models() {
        let support = SUPPORTED.iter().find(|of| of.model == model).ok_or_else(|| {
            format!("{}: there is no record of the drivers that support {model:?}", cell.name)
        })?;
        if let Some(why) = support.lacks(&cell.driver) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

impl Support {
    fn lacks(&self, driver: &Driver) -> Option<Unsupported> {
        let Self { model, architecture, first, last, only } = self;
        let of = |key: &str, value: String| (key.to_owned(), value);
        if only.is_some_and(|only| only != driver.flavour) {
            let why = match driver.flavour {
                Flavour::Open => "has no GPU System Processor, which NVIDIA's open modules need",
                Flavour::Proprietary => "is supported by NVIDIA's open modules alone",
            };
            let reason = format!("{model:?} ({architecture}) {why}");
            return Some((of("flavour", driver.flavour.to_string()), reason));
        }
        let branch = branch(&driver.branch)?;
        if branch < *first {
            let reason = format!("{model:?} ({architecture}) is supported since branch {first}");
            return Some((of("branch", format!("..{first}")), reason));
        }
        let last = last.filter(|last| branch > *last)?;
        let reason = format!("{model:?} ({architecture}) is supported until branch {last}");
        Some((of("branch", format!("{}..", last + 1)), reason))
    }
}

/// Returns the number of a branch, or of a version's branch.
fn branch(text: &str) -> Option<u32> {
    text.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use crate::rules::Rules;

    fn rules(gpus: &str) -> Result<Rules, String> {
        Rules::parse(&format!(
            "format = 1\n[[kernels]]\ndistribution = 'debian'\nsuites = ['sid']\n\
             flavours = ['generic']\narchitecture = 'amd64'\n\
             [[drivers]]\nbranches = ['470']\nflavours = ['proprietary']\nsuites = ['sid']\n\
             [[drivers]]\nbranches = ['535', '590']\nflavours = ['open', 'proprietary']\n\
             suites = ['sid']\n\
             [[rule]]\nname = 'all'\n[[rule]]\nname = 'boot'\nscenarios = ['round-trip']\ngpus = {gpus}\n"
        ))
    }

    fn booted(gpus: &str) -> String {
        let rules = rules(gpus).unwrap();
        let booted = rules.cells.iter().filter(|cell| cell.rule == "boot");
        booted.map(|cell| cell.driver.id.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn cells_are_left_to_the_drivers_that_support_every_device() {
        let all = "535-open 535-proprietary 590-open 590-proprietary";
        for (gpus, expected) in [
            ("[['T4']]", format!("470-proprietary {all}")),
            ("[['H100']]", all.to_owned()),
            ("[['B200']]", "590-open".to_owned()),
            ("[['V100']]", "470-proprietary 535-proprietary".to_owned()),
            ("[['K80', 'V100']]", "470-proprietary".to_owned()),
            ("[['T4', 'V100']]", "470-proprietary 535-proprietary".to_owned()),
        ] {
            assert_eq!(booted(gpus), expected, "{gpus}");
        }
    }

    #[test]
    fn each_exclusion_has_its_reason_and_its_cells() {
        let rules = rules("[['V100'], ['H100'], ['K80']]").unwrap();
        let reasons: Vec<(&str, usize)> =
            rules.excluded.iter().map(|e| (e.reason.as_str(), e.cells.len())).collect();
        assert_eq!(
            reasons,
            [
                ("H100 (Hopper) is supported since branch 525", 1),
                ("V100 (Volta) has no GPU System Processor, which NVIDIA's open modules need", 2),
                ("K80 (Kepler) has no GPU System Processor, which NVIDIA's open modules need", 2),
                ("K80 (Kepler) is supported until branch 470", 2),
                ("V100 (Volta) is supported until branch 580", 1),
            ]
        );
        let until = &rules.excluded[3].of;
        assert_eq!((until["gpus"].as_str(), until["branch"].as_str()), ("k80", "471.."));
    }

    #[test]
    fn every_model_is_recorded() {
        for model in ["t4", "h100", "v100", "a100", "l4", "nvswitch", "k80", "b200"] {
            rules(&format!("[['{model}']]")).unwrap();
        }
    }
}
