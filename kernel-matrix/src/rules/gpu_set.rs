//! Sets of simulated devices of a rule: `["t4"]`, `["8xH100", "4xNVSwitch"]`.

use serde::{Deserialize, Serialize};

use longshore_lab::gpu::{self, Model, Spec};

/// Devices of a cell, in the order of the rule; shown as the end of its cells' names: `8xh100-4xnvswitch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[display("{}", self.parts().join("-").replace(':', "-"))]
pub struct GpuSet(Vec<(usize, Spec)>);

impl GpuSet {
    /// Returns the devices, one by one.
    pub fn devices(&self) -> Vec<Spec> {
        self.0.iter().flat_map(|(count, spec)| vec![*spec; *count]).collect()
    }

    /// Returns its models, each once.
    pub fn models(&self) -> Vec<Model> {
        let mut models: Vec<Model> = Vec::new();
        for (_, spec) in &self.0 {
            if !models.contains(&spec.model) {
                models.push(spec.model);
            }
        }
        models
    }

    /// Returns its parts as a rule has them.
    fn parts(&self) -> Vec<String> {
        let part = |(count, spec): &(usize, Spec)| match count {
            1 => spec.to_string(),
            count => format!("{count}x{spec}"),
        };
        self.0.iter().map(part).collect()
    }

    /// Checks that a driver can come up with it.
    fn check(&self) -> Result<(), String> {
        if self.0.iter().all(|(_, spec)| spec.fault.is_some()) {
            return Err(format!(
                "the set [{}] has no device without a fault",
                self.parts().join(", ")
            ));
        }
        gpu::check(&self.devices())
    }
}

impl TryFrom<Vec<String>> for GpuSet {
    type Error = String;

    fn try_from(texts: Vec<String>) -> Result<Self, String> {
        let set = Self(texts.iter().map(|text| part(text)).collect::<Result<_, _>>()?);
        set.check()?;
        Ok(set)
    }
}

impl From<GpuSet> for Vec<String> {
    fn from(set: GpuSet) -> Self {
        set.parts()
    }
}

/// Parses `[COUNTx]MODEL[:FAULT]`, in letters of either case.
fn part(text: &str) -> Result<(usize, Spec), String> {
    let text = text.to_ascii_lowercase();
    let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()) && !digits.is_empty();
    let (count, model) = match text.split_once('x') {
        Some((count, model)) if number(count) => (count, model),
        _ => ("1", text.as_str()),
    };
    // No VM has room for more than two digits of devices.
    match count.parse::<u8>() {
        Ok(count @ 1..=99) => Ok((usize::from(count), model.parse()?)),
        _ => Err(format!("`{text}` is not 1 to 99 devices")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> Result<GpuSet, String> {
        GpuSet::try_from(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn models_are_counted_and_named() {
        for (texts, name, devices, models) in [
            (&["T4"][..], "t4", 1, 1),
            (&["8xH100", "4xNVSwitch"], "8xh100-4xnvswitch", 12, 2),
            (&["K80", "V100"], "k80-v100", 2, 2),
            (&["t4", "2xt4:off-bus"], "t4-2xt4-off-bus", 3, 1),
        ] {
            let set = set(texts).unwrap();
            assert_eq!(set.to_string(), name);
            assert_eq!((set.devices().len(), set.models().len()), (devices, models));
        }
    }

    #[test]
    fn sets_that_no_vm_could_have_are_refused() {
        for (texts, expected) in [
            (&["T5"][..], "no simulated device `t5`"),
            (&["9xT4"], "at most 8 GPUs"),
            (&["0xT4"], "not 1 to 99"),
            (&["256xT4"], "not 1 to 99"),
            (&["x"], "no simulated device"),
            (&["t4:off-bus"], "no device without a fault"),
            (&[], "no device without a fault"),
            (&["t4:odd"], "no fault `odd`"),
        ] {
            let error = set(texts).unwrap_err();
            assert!(error.contains(expected), "{texts:?}: {error}");
        }
    }
}
