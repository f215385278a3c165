//! Rules of the driver by GPU: one configuration for a fleet of mixed GPUs.

use serde::Deserialize;

use super::values::{DriverSelector, FlavourSelector};
use super::{Config, DriverConfig};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::pci_id::PciId;
use longshore_host::facts::{DeviceKind, PciDevice};
use longshore_support::{Generation, Gpu, SupportTable};

/// PCI vendor id of NVIDIA.
const NVIDIA: u16 = 0x10de;

/// Driver of the hosts that have a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DriverRule {
    /// GPU: a generation of the support table by name or title (`grace-hopper`, `Grace Hopper`), a PCI id
    /// (`10de:2330`), or a part of its name in the table (`H100`).
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
        if is_id || self.generation(table).is_some() || table.names().any(|name| self.is_in(name)) {
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

    /// Returns the generation that the rule names, by its name or title, in any case.
    fn generation<'t>(&self, table: &'t SupportTable) -> Option<&'t Generation> {
        let is_named = |generation: &&Generation| {
            [&generation.name, &generation.title]
                .into_iter()
                .any(|name| name.eq_ignore_ascii_case(&self.gpu))
        };
        table.generations().find(is_named)
    }

    /// True for a GPU of the rule. A generation counts before names: some GPUs have its title in their name, most not.
    fn is_for(&self, device: u16, table: &SupportTable) -> bool {
        let is_its = |gpu: &Gpu| match self.generation(table) {
            Some(generation) => gpu.generation == generation.name,
            None => self.is_in(&gpu.name),
        };
        self.id() == Some(device) || table.gpu(device).is_some_and(is_its)
    }
}

/// Layer of the configuration above the file, which counts before rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Above {
    /// A flag.
    Flag,
    /// A variable of the environment.
    Variable,
}

impl Above {
    /// Returns the layer that sets something; None where neither does.
    pub(super) fn from_layers(flag: bool, variable: bool) -> Option<Self> {
        let layers = [(flag, Self::Flag), (variable, Self::Variable)];
        layers.into_iter().find(|(is_set, _)| *is_set).map(|(_, layer)| layer)
    }
}

/// Rules of the driver by GPU, and the driver of hosts that none is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverRules {
    /// The rules; of those for one GPU the first counts.
    pub rules: Vec<DriverRule>,
    /// Layer that sets the driver, where that counts before rules; None without rules.
    pub driver_above: Option<Above>,
    /// Layer that sets the flavour, where that counts before rules; None without rules.
    pub flavour_above: Option<Above>,
    /// Driver without a rule, where one was applied.
    without: Option<Request>,
}

/// Driver and flavour of a rule, as far as they count.
type Wanted<'a> = (Option<&'a DriverSelector>, Option<FlavourSelector>);

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

    fn with(mut self, (driver, flavour): Wanted<'_>) -> Self {
        if let Some(driver) = driver {
            self.version = driver.version().map(str::to_owned);
            self.is_named = true;
            self.auto = driver.is_auto();
        }
        if let Some(flavour) = flavour {
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
        Self { rules, ..Self::default() }
    }

    /// Returns what counts of a rule: no driver or flavour that a flag or a variable sets.
    fn wanted<'a>(&self, rule: &'a DriverRule) -> Wanted<'a> {
        let driver = rule.driver.as_ref().filter(|_| self.driver_above.is_none());
        (driver, rule.flavour.filter(|_| self.flavour_above.is_none()))
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
                    if self.driver_rules.wanted(first) != self.driver_rules.wanted(rule) =>
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

    /// Takes the version in the tag of the pod's image where no setting names one: it is a default, which rules
    /// override.
    pub fn take_image_version(&mut self, of_image: Option<String>) {
        if let Some(without) = &mut self.driver_rules.without
            && !without.is_named
        {
            without.version.clone_from(&of_image);
        }
        if !self.driver.is_named {
            self.driver.version = of_image;
        }
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
                let wanted = self.driver_rules.wanted(&rule);
                without.clone().with(wanted).put_into(&mut self.driver);
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
    use std::fs;

    type Variables<'a> = &'a [(&'a str, &'a str)];

    /// Reads a configuration whose file has driver 580, flavour auto and these rules.
    fn layers(flags: &str, variables: Variables<'_>, rules: &str) -> Result<Config, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        fs::write(&file, format!("driver = \"580\"\nflavour = \"auto\"\n{rules}")).unwrap();
        let variable = |name: &str| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        load(toml::from_str(flags).unwrap(), &variable, Some(&file))
    }

    fn config(rules: &str) -> Result<Config, Failure> {
        layers("", &[], rules)
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

    /// Flags, variables and the file of one configuration: what is nearest to the command counts, and rules are of the
    /// file. Of `1eb8` the rule has a driver and a flavour, of hopper a driver alone.
    #[rstest]
    #[case::file("", &[], 0x2330, Some("595.91.07"), None)]
    #[case::flag("driver = \"570\"", &[], 0x2330, Some("570"), None)]
    #[case::flag_newest("driver = \"newest\"", &[], 0x2330, None, None)]
    #[case::variable("", &[("LONGSHORE_DRIVER", "550")], 0x2330, Some("550"), None)]
    #[case::of_the_operator("", &[("DRIVER_VERSION", "550.90.07")], 0x2330, Some("550.90.07"), None)]
    #[case::empty_variable("", &[("LONGSHORE_DRIVER", "")], 0x2330, Some("595.91.07"), None)]
    #[case::flavour_of_the_rule("driver = \"570\"", &[], 0x1eb8, Some("570"), Some(Flavour::Proprietary))]
    #[case::flavour_flag("flavour = \"open\"", &[], 0x1eb8, Some("535"), Some(Flavour::Open))]
    #[case::flavour_auto("", &[("LONGSHORE_FLAVOUR", "auto")], 0x1eb8, Some("535"), None)]
    fn flags_and_variables_count_before_rules(
        #[case] flags: &str,
        #[case] variables: Variables<'_>,
        #[case] gpu: u16,
        #[case] version: Option<&str>,
        #[case] flavour: Option<Flavour>,
    ) {
        let config = layers(flags, variables, RULES).unwrap().for_devices(&gpus(&[gpu]));
        assert_eq!((config.driver.version.as_deref(), config.driver.flavour), (version, flavour));
    }

    #[test]
    fn rules_do_not_conflict_over_what_a_flag_sets() {
        let mut config = config(RULES).unwrap();
        config.driver_rules.driver_above = Some(Above::Flag);
        assert!(config.rule_for(&gpus(&[0x2330, 0x102d])).is_ok());
        assert!(config.rule_for(&gpus(&[0x2330, 0x1eb8])).is_err(), "flavours differ");
        config.driver_rules.flavour_above = Some(Above::Variable);
        assert!(config.rule_for(&gpus(&[0x2330, 0x1eb8])).is_ok());
    }

    #[rstest]
    #[case::rule_without_a_driver("gpu = \"hopper\"\nflavour = \"open\"", Some("550"))]
    #[case::rule_with_one("gpu = \"hopper\"\ndriver = \"595\"", Some("595"))]
    #[case::rule_of_another_gpu("gpu = \"turing\"\ndriver = \"595\"", Some("550"))]
    fn the_tag_of_the_image_is_a_default_that_rules_override(
        #[case] rule: &str,
        #[case] version: Option<&str>,
    ) {
        let rules: Fragment = toml::from_str(&format!("[[driver-for]]\n{rule}")).unwrap();
        let mut config = load(rules, &|_| None, None).unwrap().for_devices(&gpus(&[0x2330]));
        config.take_image_version(Some("550".to_owned()));
        let config = config.for_devices(&gpus(&[0x2330]));
        assert_eq!(config.driver.version.as_deref(), version);
    }

    #[rstest]
    #[case::name("blackwell", 0x2901, true)]
    #[case::title("Blackwell", 0x2901, true)]
    #[case::title_that_is_in_a_name("Blackwell", 0x2bb5, true)]
    #[case::upper_case("HOPPER", 0x2330, true)]
    #[case::two_words("Grace Hopper", 0x2342, true)]
    #[case::two_words_by_name("grace-hopper", 0x2342, true)]
    #[case::another("Hopper", 0x2342, false)]
    #[case::turing("Turing", 0x1eb8, true)]
    fn generations_by_name_and_title(#[case] gpu: &str, #[case] id: u16, #[case] is_for: bool) {
        let rule = format!("[[driver-for]]\ngpu = \"{gpu}\"\ndriver = \"470\"\n");
        let config = config(&rule).unwrap().for_devices(&gpus(&[id]));
        assert_eq!(config.driver.version.as_deref(), Some(if is_for { "470" } else { "580" }));
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
