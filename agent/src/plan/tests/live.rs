//! A loaded driver: adopted, changed where longshore loaded it, refused where it did not.

use super::*;
use longshore_core::failure::ExitCode;
use longshore_sources::runfile::{Pin, RunFileSource};

use crate::config::Reaction;
use crate::steps::LoadModule;
use longshore_host::facts::gpus::{Gpu, Taken};

/// Makes a host with the driver of [`stocked`] loaded by an agent of longshore, with these
/// parameters.
fn ours(parameters: &str) -> (HostFacts, Catalog) {
    let mut facts = facts("bookworm-t4-live");
    for (name, module) in &mut facts.loaded {
        if name.starts_with("nvidia") {
            module.srcversion = Some(format!("SRC{name}"));
            let given = if name == "nvidia" { parameters } else { "" };
            facts.ours.insert(name.clone(), given.to_owned());
        }
    }
    let catalog = stocked(&facts, Flavour::Proprietary);
    (facts, catalog)
}

fn with_parameter(driver: &str, parameters: &str) -> Config {
    let mut config = config(driver, "auto");
    config.driver.parameters.insert("nvidia".into(), parameters.into());
    config
}

fn replaced(plan: &Plan) -> Vec<&str> {
    plan.replaces.iter().map(|replaced| replaced.module.as_str()).collect()
}

#[test]
fn a_driver_as_it_is_wanted_is_adopted_without_asking_anybody() {
    let (facts, mut catalog) = ours("");
    let adopts = |config: &Config, catalog: &Catalog| {
        adopts(config, &facts, &plan(config, &facts, catalog).unwrap())
    };
    // Newer drivers in an archive would change nothing.
    for requested in ["535", "535.261.03", "newest"] {
        let plan = plan(&config(requested, "auto"), &facts, &catalog).unwrap();
        assert!(plan.refusal().is_none() && plan.replaces.is_empty(), "{:?}", plan.findings);
        assert!(adopts(&config(requested, "auto"), &catalog), "{requested}");
    }
    assert!(!adopts(&config("550", "auto"), &catalog));
    assert!(!adopts(&config("535", "open"), &catalog));
    assert!(!adopts(&with_parameter("535", "NVreg_EnableMSI=0"), &catalog));
    // The version of a configured .run file is not known yet.
    let mut of_file = config("newest", "auto");
    let pin = Pin::Sha256("0".repeat(64));
    of_file.run_files.push(RunFileSource { urls: Vec::new(), pin });
    assert!(!adopts(&of_file, &catalog));
    catalog.userspace.clear();
    assert!(!adopts(&config("535", "auto"), &catalog), "its tree has to be assembled");
}

#[rstest]
#[case::version("550", "auto", "driver 535.261.03 is loaded")]
#[case::flavour("535", "open", "in the other flavour than open")]
fn another_driver_takes_the_place_of_ours(
    #[case] driver: &str,
    #[case] flavour: &str,
    #[case] why_so: &str,
) {
    let (facts, _) = ours("");
    let plan = plan(&config(driver, flavour), &facts, &archives()).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    // Modules that hold nvidia are replaced with it.
    assert_eq!(replaced(&plan), ["nvidia", "nvidia_modeset", "nvidia_uvm"]);
    assert!(plan.replaces[0].reason.contains(why_so), "{}", plan.replaces[0].reason);
    assert!(why(&plan, "driver changed in place").contains("stays until everything is available"));
    assert!(plan.acquire.iter().any(|a| matches!(a, Acquire::BuildSet { .. })));
}

#[rstest]
#[case::never_given("", None, "NVreg_EnableMSI=0", true)]
#[case::given_and_live("NVreg_EnableMSI=0", Some("0"), "NVreg_EnableMSI=0x0", false)]
#[case::given_and_changed("NVreg_EnableMSI=0", Some("1"), "NVreg_EnableMSI=0", true)]
#[case::given_no_longer("NVreg_EnableMSI=0", Some("0"), "", true)]
#[case::as_the_default_is("", Some("1"), "", false)]
fn a_module_with_other_parameters_is_loaded_anew(
    #[case] given: &str,
    #[case] live: Option<&str>,
    #[case] wanted: &str,
    #[case] changes: bool,
) {
    let (mut facts, catalog) = ours(given);
    if let (Some(live), Some(module)) = (live, facts.loaded.get_mut("nvidia")) {
        module.parameters.insert("NVreg_EnableMSI".into(), live.into());
    }
    let plan = plan(&with_parameter("535", wanted), &facts, &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    assert_eq!(!plan.replaces.is_empty(), changes, "{:?}", plan.replaces);
}

#[test]
fn only_the_module_that_differs_goes_and_what_holds_it() {
    let (facts, catalog) = ours("");
    let mut config = config("535", "auto");
    config.driver.parameters.insert("nvidia_uvm".into(), "uvm_debug=1".into());
    let plan = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(replaced(&plan), ["nvidia_uvm"]);
}

#[test]
fn a_module_that_is_no_longer_wanted_goes() {
    let (mut facts, catalog) = ours("");
    let drm = facts.loaded["nvidia_uvm"].clone();
    facts.loaded.insert("nvidia_drm".into(), drm);
    facts.ours.insert("nvidia_drm".into(), String::new());
    let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert_eq!(replaced(&plan), ["nvidia_drm"]);
}

#[test]
fn somebody_elses_driver_is_adopted_or_refused_and_never_changed() {
    let (mut facts, catalog) = ours("");
    facts.ours.clear();
    let adopted = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(adopted.refusal().is_none() && adopted.replaces.is_empty());
    let nvidia = facts.loaded.get_mut("nvidia").unwrap();
    nvidia.parameters.insert("NVreg_EnableMSI".into(), "1".into());
    let refused = plan(&with_parameter("535", "NVreg_EnableMSI=0"), &facts, &catalog).unwrap();
    assert_eq!(codes(&refused, Severity::Refusal), ["other-driver-live"]);
    assert!(refused.findings[0].detail.contains("NVreg_EnableMSI is \"1\", wanted is \"0\""));
    assert!(refused.replaces.is_empty());
}

#[test]
fn of_two_sets_the_one_that_is_live_is_taken() {
    let (facts, mut catalog) = ours("");
    let mut another = catalog.sets[0].clone();
    another.set.key.compiler = "gcc-13".into();
    for module in &mut another.set.modules {
        module.srcversion = Some("ANOTHER".into());
    }
    catalog.sets.insert(0, another);
    let plan = plan(&config("535", "auto"), &facts, &catalog).unwrap();
    assert!(plan.replaces.is_empty(), "{:?}", plan.replaces);
    let loads = plan.install.iter().filter_map(LoadModule::from_step);
    let wanted = loads.filter(|it| it.version.is_some()).find_map(|it| it.srcversion.clone());
    assert_eq!(wanted.as_deref(), Some("SRCnvidia"));
}

#[rstest]
#[case("535", Reaction::Warn, Some(Severity::Warning))]
#[case("535", Reaction::Refuse, Some(Severity::Refusal))]
// Nothing is known yet of the new driver.
#[case("550", Reaction::Refuse, None)]
fn a_gpu_that_the_adopted_driver_did_not_take_is_found(
    #[case] driver: &str,
    #[case] missing_gpus: Reaction,
    #[case] severity: Option<Severity>,
) {
    let (mut facts, catalog) = ours("");
    let config = Config { missing_gpus, ..config(driver, "auto") };
    let found = |facts: &HostFacts| {
        let plan = plan(&config, facts, &catalog).unwrap();
        plan.findings.into_iter().find(|found| found.code == Code::GpuMissing)
    };
    assert_eq!(found(&facts), None, "it has the one there is");
    let kernel_message = Some("NVRM: GPU 0000:02:00.0 has fallen off the bus.".to_owned());
    let address = "0000:02:00.0".to_owned();
    facts.gpus.push(Gpu { address, device: 0x1eb8, taken: Taken::Nobody, kernel_message });
    let found = found(&facts);
    assert_eq!(found.as_ref().map(|found| found.severity), severity);
    if let Some(found) = found {
        assert_eq!(found.exit_code(), ExitCode::NoDevice);
        assert!(found.detail.contains("fallen off the bus"), "{}", found.detail);
    }
}
