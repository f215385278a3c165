//! Acquisitions and steps, in order.

use super::*;
use crate::steps::{LoadModule, MakeNodes, WriteParameter};
use longshore_core::disk::Disk;

#[test]
fn a_stocked_store_gives_an_exact_plan_in_load_order() {
    let facts = facts("bookworm-t4");
    let mut config = config("535.261.03", "proprietary");
    config.driver.parameters.insert("nvidia".into(), "NVreg_EnableMSI=1".into());
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    assert!(plan.exact && plan.acquire.is_empty() && plan.findings.is_empty());
    let order =
        ["ipmi_msghandler", "drm", "wmi", "video", "nvidia", "nvidia_uvm", "nvidia_modeset"];
    assert_eq!(loads(&plan), order);
    let nvidia = plan
        .install
        .iter()
        .find(|s| matches!(s, Step::LoadModule(LoadModule { name, .. }) if name == "nvidia"));
    let Some(Step::LoadModule(LoadModule { origin, parameters, version, srcversion, .. })) = nvidia
    else {
        panic!("nvidia is loaded");
    };
    assert!(matches!(origin, ModuleOrigin::Driver { .. }));
    assert_eq!(parameters, "NVreg_EnableMSI=1");
    assert_eq!(version.as_deref(), Some("535.261.03"));
    assert_eq!(srcversion.as_deref(), Some("SRCnvidia"));
    assert!(matches!(plan.install[0], Step::MakeDir(_)));
    let Step::WriteParameter(WriteParameter { value, .. }) = &plan.install[1] else {
        panic!("firmware path")
    };
    assert_eq!(value, "/run/nvidia/driver/lib/firmware");
    let Some(MakeNodes { dirs, .. }) = plan.install.iter().find_map(MakeNodes::from_step) else {
        panic!("nodes")
    };
    assert_eq!(dirs, &[PathBuf::from("/dev"), PathBuf::from("/run/nvidia/driver/dev")]);
}

#[test]
fn what_a_host_keeps_out_is_loaded_only_where_a_module_needs_it() {
    let mut facts = facts("bookworm-t4");
    facts.autoload.kept_out.extend(["ipmi_msghandler".to_owned(), "drm".to_owned()]);
    let config = config("535.261.03", "proprietary");
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    assert_eq!(loads(&plan), ["drm", "wmi", "video", "nvidia", "nvidia_uvm", "nvidia_modeset"]);
}

#[test]
fn the_plan_names_the_patches_of_the_modules_it_uses() {
    let facts = facts("bookworm-t4");
    let config = config("535.261.03", "proprietary");
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    catalog.sets[0].set.key.patches.insert("a-patch".into(), "1".repeat(64));
    let patched = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(why(&patched, "patches"), "patches: the modules are compiled with a-patch");
    catalog.sets[0].set.key.patches.insert("packaging-patches".into(), "2".repeat(64));
    let patched = plan(&config, &facts, &catalog).unwrap();
    assert_eq!(
        why(&patched, "patches"),
        "patches: the modules are compiled with a-patch, the patches of the driver's package (debian/patches/series)"
    );
    catalog.sets[0].set.key.patches.clear();
    let plain = plan(&config, &facts, &catalog).unwrap();
    assert!(plain.reasons.iter().all(|reason| reason.heading() != "patches"));
}

#[test]
fn what_is_loaded_already_is_no_step() {
    let facts = facts("bookworm-h100-nvswitch");
    let mut config = config("535.261.03", "proprietary");
    config.driver.extra_modules.push("nvidia_drm".into());
    let plan = plan(&config, &facts, &stocked(&facts, Flavour::Proprietary)).unwrap();
    // ipmi_msghandler, drm, drm_kms_helper, wmi and video are built into the host's kernel or
    // loaded.
    assert_eq!(loads(&plan), ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"]);
}

#[test]
fn a_needed_module_that_the_kernel_lacks_is_a_refusal() {
    let facts = facts("bookworm-cloud-t4");
    let plan =
        plan(&config("535.261.03", "proprietary"), &facts, &stocked(&facts, Flavour::Proprietary))
            .unwrap();
    assert_eq!(codes(&plan, Severity::Refusal), ["dependency-missing", "dependency-missing"]);
    assert!(plan.findings[0].detail.contains("nvidia needs drm"), "{:?}", plan.findings);
}

#[test]
fn an_unreadable_module_tree_is_not_taken_for_an_empty_one() {
    let mut facts = facts("bookworm-t4");
    facts.available = Default::default();
    facts.builtin.clear();
    facts.unread.available = Some("lib/modules/x/modules.dep: ENOENT".into());
    let catalog = stocked(&facts, Flavour::Proprietary);
    let plan = plan(&config("535.261.03", "proprietary"), &facts, &catalog).unwrap();
    assert!(codes(&plan, Severity::Refusal).iter().all(|code| *code == "kernel-unknown"));
    assert!(plan.findings[0].remedy.contains("hostPID"));
}

#[test]
fn a_prebuilt_set_is_imported_and_another_kernels_is_not() {
    let facts = facts("bookworm-t4");
    let place = SetPlace::layout(Path::new("/srv/modules"), "sha256:1");
    let mut catalog = archives();
    catalog.sets.push(set(&facts, Flavour::Proprietary, place));
    let config = config("535.261.03", "auto");
    let imported = plan(&config, &facts, &catalog).unwrap();
    assert!(matches!(imported.acquire[0], Acquire::Fetch(Item::Set(_))));
    catalog.sets[0].set.key.kernel_version = "#1 SMP another build".into();
    let compiled = plan(&config, &facts, &catalog).unwrap();
    assert!(matches!(compiled.acquire[0], Acquire::BuildSet { .. }));
}

#[test]
fn the_live_driver_is_adopted_without_a_load() {
    let plan = plan(&config("newest", "auto"), &facts("bookworm-t4-live"), &archives()).unwrap();
    assert_eq!(plan.driver_version, "535.261.03");
    let why = why(&plan, "driver");
    assert!(why.contains("adopted") && why.contains("570.133.20 is available"), "{why}");
    assert!(loads(&plan).is_empty());
    let tree = Acquire::AssembleUserspace {
        driver_version: "535.261.03".into(),
        run_file: None,
        sources: None,
    };
    assert_eq!(plan.acquire, [tree]);
    assert!(plan.refusal().is_none(), "{:?}", plan.findings);
}

#[rstest]
fn every_kernel_module_is_loaded_after_what_it_needs(
    #[values("bookworm-t4", "bookworm-rt-t4", "bookworm-v100", "bookworm-h100-nvswitch")]
    tree: &str,
    #[values("drm_display_helper", "mlx5_ib", "nouveau", "ast")] need: &str,
) {
    let facts = facts(tree);
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    catalog.sets[0].set.modules[0].depends.push(need.into());
    let plan = plan(&config("535.261.03", "proprietary"), &facts, &catalog).unwrap();
    let order = loads(&plan);
    for (at, name) in order.iter().enumerate() {
        for need in &facts.needs_of(name) {
            let loaded_before = facts.loaded.contains_key(need) || order[..at].contains(need);
            assert!(loaded_before, "{name} needs {need}: {order:?}");
        }
        assert!(!order[..at].contains(name), "{name} is loaded twice: {order:?}");
    }
}

/// Checks that the table of entries (journal/table/mod.rs) accepts exactly what a plan can have.
#[rstest]
#[case("bookworm-t4")]
#[case("bookworm-h100-nvswitch")]
fn what_a_plan_does_is_believed_and_undone_by_the_next_agent(#[case] tree: &str) {
    use crate::engine::fake_images::FakeImages;
    use crate::engine::{Engine, InUseWait};
    use crate::journal::Journal;
    use crate::telemetry::Telemetry;
    use longshore_core::cancel::CancelFlag;
    use longshore_host::facts::SwitchManager;
    use longshore_host::fake::{FakeHost, FakeModule};
    use longshore_host::values::{Node, Owner};

    let mut facts = facts(tree);
    facts.switch_managers.push(SwitchManager { name: "mlx5_4".into(), port: "0xb83f".into() });
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    catalog.userspace[0].tools =
        ["nvidia-persistenced", "nvlsm", "nv-fabricmanager"].map(str::to_owned).to_vec();
    let mut config = config("535.261.03", "proprietary");
    config.driver.extra_modules.push("nvidia_drm".into());
    config.paths.state = longshore_core::paths::STATE.into();
    config.paths.sealed = false;
    let plan = plan(&config, &facts, &catalog).unwrap();
    assert!(plan.install.iter().filter(|s| matches!(s, Step::StartDaemon(_))).count() == 3);

    let tree = "/var/lib/longshore/userspace/x/root";
    let host = FakeHost::with_dirs([
        "/dev",
        "/run",
        "/run/nvidia",
        "/usr/share",
        &format!("{tree}/usr"),
        &format!("{tree}/lib"),
        &format!("{tree}/etc"),
        // Of the tree that is mounted on it: a mount on this host does not show what is in it.
        "/run/nvidia/driver/usr/share/nvidia/nvlsm",
    ]);
    for name in loads(&plan) {
        let driver = name.starts_with("nvidia");
        let node = |path: &str, minor| {
            (path.into(), Node { major: 195, minor, mode: 0o666, owner: Owner::default() })
        };
        let nodes = [node("nvidiactl", 255), node("nvidia-caps/nvidia-cap1", 1)];
        host.knows(
            &name.clone(),
            FakeModule {
                version: driver.then(|| "535.261.03".into()),
                srcversion: driver.then(|| format!("SRC{name}")),
                nodes: if name == "nvidia" { nodes.into() } else { Vec::new() },
                ..FakeModule::default()
            },
        );
    }
    host.change(|state| {
        state.parameters.insert(longshore_host::facts::places::FIRMWARE_PATH.into(), String::new());
    });
    let before = host.state();

    let dir = tempfile::tempdir().unwrap();
    let paths = longshore_core::paths::Paths {
        state: dir.path().join("run"),
        any_entry: false,
        sealed: false,
        earlier_state: None,
        ..config.paths.clone()
    };
    let (in_use_wait, telemetry) =
        (InUseWait::with_deadline(std::time::Duration::ZERO), Telemetry::default());
    let engine = Engine {
        host: &host,
        images: &FakeImages,
        in_use_wait,
        telemetry: &telemetry,
        refuses_missing_gpus: false,
    };
    let mut journal = Journal::open(&paths, Disk::default()).unwrap();
    engine.apply(&plan.install, &mut journal, &CancelFlag::default()).unwrap();
    drop(journal);
    let mut journal = Journal::open(&paths, Disk::default()).unwrap();
    // No files are exposed on this host, which a spec could name.
    assert!(journal.live().count() >= plan.install.len() - 2);
    engine.undo(&mut journal).unwrap();
    assert_eq!(host.state().whichever_loading(), before.whichever_loading());
}
