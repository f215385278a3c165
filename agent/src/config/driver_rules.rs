//! Rules of the driver by GPU: one configuration for a fleet of mixed GPUs.

use serde::Deserialize;

use super::values::{DriverSelector, FlavourSelector};
use super::{Config, DriverConfig};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::pci_id::PciId;
use longshore_host::facts::{DeviceKind, PciDevice};
use longshore_support::SupportTable;

/// PCI vendor id of NVIDIA.
const NVIDIA: u16 = 0x10de;

/// Driver of the hosts that have a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriverRule {
    /// GPU: a generation of the support table (`hopper`), a PCI id (`10de:2330`), or a part of its name in the table
    /// (`H100`).
    pub gpu: String,
    /// Version, branch, newest or auto; None for that of all hosts.
    pub driver: Option<DriverSelector>,
    /// Flavour; None for that of all hosts.
    pub flavour: Option<FlavourSelector>,
}

impl DriverRule {
    /// Checks that the table has a GPU that the rule may be for, and that the rule says something.
    ///
    /// # Errors
    /// Exit code 2, naming the rule.
    fn check(&self, table: &SupportTable) -> Result<(), Failure> {
        let wrong = |cause: &str| {
            let cause = format!("[[driver-for]] gpu = \"{}\": {cause}", self.gpu);
            Failure::new(FailureKind::Usage, cause)
        };
        if self.driver.is_none() && self.flavour.is_none() {
            return Err(wrong("has neither driver nor flavour")
                .remedy("add driver or flavour, or leave the rule out"));
        }
        let is_id = self.id().is_some();
        let is_generation = table.generation_named(&self.gpu).is_some();
        if is_id || is_generation || table.names().any(|name| self.is_in(name)) {
            return Ok(());
        }
        let generations: Vec<&str> = table.generation_names().collect();
        Err(wrong("no GPU of the support table is of this generation or has this in its name").remedy(
            format!(
                "name a generation ({}), a part of a name such as H100, or a PCI id such as 10de:2330",
                generations.join(", ")
            ),
        ))
    }

    fn id(&self) -> Option<u16> {
        let id: PciId = self.gpu.parse().ok()?;
        (id.vendor == NVIDIA).then_some(id.device)
    }

    /// True if the name has the rule's words, as whole words.
    fn is_in(&self, name: &str) -> bool {
        let words = |text: &str| -> Vec<String> {
            let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
            parts.filter(|part| !part.is_empty()).map(str::to_ascii_lowercase).collect()
        };
        let (wanted, have) = (words(&self.gpu), words(name));
        !wanted.is_empty() && have.windows(wanted.len()).any(|part| part == wanted)
    }

    fn is_for(&self, device: u16, table: &SupportTable) -> bool {
        self.id() == Some(device)
            || table
                .gpu(device)
                .is_some_and(|gpu| gpu.generation == self.gpu || self.is_in(&gpu.name))
    }
}

/// Rules of the driver by GPU, and the driver of hosts that none is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverRules {
    /// The rules; of those for one GPU the first counts.
    pub rules: Vec<DriverRule>,
    /// Driver without a rule, where one was applied.
    without: Option<Request>,
}

/// Requested driver, as far as a rule can change it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    version: Option<String>,
    is_named: bool,
    auto: bool,
    flavour: Option<Flavour>,
}

impl Request {
    fn from_driver(driver: &DriverConfig) -> Self {
        let DriverConfig { version, is_named, auto, flavour, .. } = driver;
        Self { version: version.clone(), is_named: *is_named, auto: *auto, flavour: *flavour }
    }

    fn with(mut self, rule: &DriverRule) -> Self {
        if let Some(driver) = &rule.driver {
            self.version = driver.version().map(str::to_owned);
            self.is_named = true;
            self.auto = driver.is_auto();
        }
        if let Some(flavour) = rule.flavour {
            self.flavour = flavour.flavour();
        }
        self
    }

    fn put_into(self, driver: &mut DriverConfig) {
        let Self { version, is_named, auto, flavour } = self;
        (driver.version, driver.is_named, driver.auto, driver.flavour) =
            (version, is_named, auto, flavour);
    }
}

/// Two rules for GPUs of one host that want different drivers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RulesConflict {
    /// GPUs and rules, for a message.
    pub detail: String,
}

impl DriverRules {
    /// Makes the rules, of which none was applied yet.
    pub(super) fn new(rules: Vec<DriverRule>) -> Self {
        Self { rules, without: None }
    }

    /// Checks that each rule is for a GPU that the table has, and says something.
    ///
    /// # Errors
    /// Exit code 2, naming the rule that is wrong.
    pub fn check(&self, table: &SupportTable) -> Result<(), Failure> {
        self.rules.iter().try_for_each(|rule| rule.check(table))
    }
}

impl Config {
    /// Returns the rule that counts on a host with these devices; None where none is for one of its GPUs.
    ///
    /// # Errors
    /// The conflict, where GPUs have rules that want different drivers.
    pub fn rule_for(&self, devices: &[PciDevice]) -> Result<Option<&DriverRule>, RulesConflict> {
        let table = self.support.table.as_ref();
        let gpus = devices.iter().filter(|device| device.kind == DeviceKind::Gpu);
        let mut counting: Option<(&PciDevice, &DriverRule)> = None;
        for device in gpus {
            let mut rules = self.driver_rules.rules.iter();
            let Some(rule) = rules.find(|rule| rule.is_for(device.device, table)) else { continue };
            match counting {
                None => counting = Some((device, rule)),
                Some((other, first))
                    if (&first.driver, first.flavour) != (&rule.driver, rule.flavour) =>
                {
                    let detail = format!(
                        "GPU 10de:{:04x} has the rule for {}, and GPU 10de:{:04x} that for {}, which wants another driver",
                        other.device, first.gpu, device.device, rule.gpu
                    );
                    return Err(RulesConflict { detail });
                }
                Some(_) => {}
            }
        }
        Ok(counting.map(|(_, rule)| rule))
    }

    /// Returns the configuration of a host with these devices: with the driver of the rule that counts. A conflict
    /// changes nothing: the plan refuses it.
    #[must_use]
    pub fn for_devices(mut self, devices: &[PciDevice]) -> Self {
        let rule = self.rule_for(devices).ok().flatten().cloned();
        let without = self.driver_rules.without.take();
        match (rule, without) {
            (Some(rule), without) => {
                let without = without.unwrap_or_else(|| Request::from_driver(&self.driver));
                without.clone().with(&rule).put_into(&mut self.driver);
                self.driver_rules.without = Some(without);
            }
            (None, Some(without)) => without.put_into(&mut self.driver),
            (None, None) => {}
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Fragment, load};
    use rstest::rstest;

    fn config(rules: &str) -> Result<Config, Failure> {
        let flags: Fragment =
            toml::from_str(&format!("driver = \"580\"\nflavour = \"auto\"\n{rules}")).unwrap();
        load(flags, &|_| None, None)
    }

    fn gpus(ids: &[u16]) -> Vec<PciDevice> {
        let gpu = |(n, id): (usize, &u16)| PciDevice {
            address: format!("0000:0{n}:00.0"),
            kind: DeviceKind::Gpu,
            device: *id,
            subsystem_device: 0,
            vgpu: false,
            class: 0x03_0200,
            driver: None,
        };
        ids.iter().enumerate().map(gpu).collect()
    }

    const RULES: &str = "\
        [[driver-for]]\ngpu = \"10de:1eb8\"\ndriver = \"535\"\nflavour = \"proprietary\"\n\
        [[driver-for]]\ngpu = \"hopper\"\ndriver = \"595.91.07\"\n\
        [[driver-for]]\ngpu = \"Tesla K80\"\ndriver = \"470\"\n\
        [[driver-for]]\ngpu = \"turing\"\ndriver = \"auto\"\n";

    #[rstest]
    #[case::by_generation(&[0x2330], Some("595.91.07"), false, None)]
    #[case::by_id_before_generation(&[0x1eb8], Some("535"), false, Some(Flavour::Proprietary))]
    #[case::by_name(&[0x102d, 0x102d], Some("470"), false, None)]
    #[case::auto(&[0x1e30], None, true, None)]
    #[case::without_a_rule(&[0x2901], Some("580"), false, None)]
    #[case::one_gpu_without_a_rule(&[0x2901, 0x2330], Some("595.91.07"), false, None)]
    #[case::no_gpu(&[], Some("580"), false, None)]
    #[case::conflict(&[0x2330, 0x102d], Some("580"), false, None)]
    fn drivers(
        #[case] ids: &[u16],
        #[case] version: Option<&str>,
        #[case] auto: bool,
        #[case] flavour: Option<Flavour>,
    ) {
        let DriverConfig { version: chosen, auto: is_auto, flavour: of, .. } =
            config(RULES).unwrap().for_devices(&gpus(ids)).driver;
        assert_eq!((chosen.as_deref(), is_auto, of), (version, auto, flavour));
    }

    #[test]
    fn a_gpu_that_comes_and_goes_changes_the_driver_and_back() {
        let none = config(RULES).unwrap();
        let with = none.clone().for_devices(&gpus(&[0x2330]));
        assert_eq!(with.driver.version.as_deref(), Some("595.91.07"));
        assert_eq!(with.clone().for_devices(&gpus(&[0x2330])), with);
        assert_eq!(with.for_devices(&gpus(&[])), none);
    }

    #[test]
    fn two_gpus_with_rules_for_different_drivers_conflict() {
        let config = config(RULES).unwrap();
        let conflict = config.rule_for(&gpus(&[0x2330, 0x102d])).unwrap_err();
        assert_eq!(
            conflict.detail,
            "GPU 10de:2330 has the rule for hopper, and GPU 10de:102d that for Tesla K80, which wants \
             another driver"
        );
    }

    #[rstest]
    #[case::misspelt(
        "[[driver-for]]\ngpu = \"hoper\"\ndriver = \"580\"",
        "no GPU of the support table"
    )]
    #[case::part_of_a_word(
        "[[driver-for]]\ngpu = \"H10\"\ndriver = \"580\"",
        "no GPU of the support table"
    )]
    #[case::without_effect("[[driver-for]]\ngpu = \"hopper\"", "has neither driver nor flavour")]
    #[case::empty("[[driver-for]]\ngpu = \"\"\ndriver = \"580\"", "no GPU of the support table")]
    fn wrong_rules(#[case] rules: &str, #[case] cause: &str) {
        let failure = config(rules).unwrap_err();
        assert!(failure.to_string().contains(cause), "{failure}");
        assert_eq!(failure.kind(), FailureKind::Usage);
    }
}
