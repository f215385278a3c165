//! Drivers of the kernel's own that are bound to the GPUs.

use super::*;
use crate::config::ConflictingDrivers;
use longshore_host::facts::conflicting::ConflictingModule;

const NAMES: [&str; 3] = ["reserve-device", "unload-conflicting", "load-module"];

/// Returns a host whose nouveau nobody uses.
fn idle() -> HostFacts {
    let mut facts = facts("bookworm-nouveau");
    let parameters = "modeset=1".to_owned();
    let idle = ConflictingModule { parameters, ..ConflictingModule::default() };
    facts.conflicting.insert("nouveau".into(), idle);
    facts
}

fn order(plan: &Plan) -> Vec<&str> {
    let mut kinds: Vec<&str> = plan.install.iter().map(Step::kind).collect();
    kinds.retain(|kind| NAMES.contains(kind));
    kinds
}

#[test]
fn an_idle_one_is_unloaded_right_before_the_load() {
    let facts = idle();
    let catalog = stocked(&facts, Flavour::Open);
    let plan = plan(&config("535.261.03", "open"), &facts, &catalog).unwrap();
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
    let order = order(&plan);
    let at = order.iter().position(|kind| *kind == "reserve-device").unwrap();
    assert_eq!(order[at..at + 3], NAMES);
    let text = render(&plan, &facts);
    for line in [
        "reserve GPU 0000:01:00.0 for nvidia, now bound to nouveau",
        "unload nouveau (loaded again on removal modeset=1)",
        "bound to 0000:01:00.0, and nobody uses it",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// Changes after which it stays, and the reason that the finding gives.
#[rstest]
#[case::holder(|f: &mut HostFacts| nouveau(f).holders.push("nova_drm".into()), "in use: module nova_drm")]
#[case::reference(|f: &mut HostFacts| nouveau(f).references = 2, "2 references whose holders are unknown")]
#[case::console(|f: &mut HostFacts| nouveau(f).consoles.push("vtcon1 (x) on fb0".into()), "console vtcon1")]
#[case::unread(
    |f: &mut HostFacts| {
        f.conflicting.clear();
        f.unread.conflicting = Some("EIO".into());
    },
    "the users of nouveau are unknown: EIO"
)]
#[case::no_file(|f: &mut HostFacts| f.available = Default::default(), "has no file to load it again from")]
#[case::built_in(|f: &mut HostFacts| f.conflicting.clear(), "nouveau is not loaded as a module")]
fn one_that_cannot_be_unloaded_and_brought_back_is_refused(
    #[case] change: fn(&mut HostFacts),
    #[case] why: &str,
) {
    let mut facts = idle();
    change(&mut facts);
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    let found = plan.findings.iter().find(|f| f.code == Code::GpuBoundElsewhere).expect("found");
    assert_eq!(found.severity, Severity::Refusal);
    assert!(found.detail.contains(why), "{}", found.detail);
    assert!(found.remedy.contains("modprobe -r nouveau"), "{}", found.remedy);
    assert!(!order(&plan).contains(&"unload-conflicting"));
}

fn nouveau(facts: &mut HostFacts) -> &mut ConflictingModule {
    facts.conflicting.get_mut("nouveau").expect("there")
}

#[test]
fn the_setting_can_leave_it() {
    let refuse =
        Config { conflicting_drivers: ConflictingDrivers::Refuse, ..config("535", "auto") };
    let plan = plan(&refuse, &idle(), &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["gpu-bound-elsewhere"]);
    assert!(plan.findings[0].remedy.ends_with("or set it to `unload-idle`"));
}

#[rstest]
#[case("vfio-pci")]
#[case("pci-stub")]
fn a_device_set_aside_is_never_touched(#[case] driver: &str) {
    let mut facts = idle();
    facts.devices[0].driver = Some(driver.into());
    let plan = plan(&config("535", "auto"), &facts, &archives()).unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["gpu-bound-elsewhere"]);
    let touched = |kind: &&str| *kind == "reserve-device";
    assert_eq!(order(&plan).iter().filter(|kind| touched(kind)).count(), 0);
}
