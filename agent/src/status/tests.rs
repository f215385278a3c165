//! Tests of the status of made-up hosts, and of every captured tree.

use std::path::Path;

use super::*;
use crate::journal::Journal;
use crate::kept::{assert_kept, tree, trees};
use crate::steps::{Bind, ModuleOrigin, Mounts, Nodes, NotLoaded, Share};
use longshore_host::fake::{FakeHost, FakeModule};
use longshore_host::values::Owner;

fn paths(root: &Path) -> Paths {
    Paths { host_root: PathBuf::from("/host"), ..Paths::below(root) }
}

#[test]
fn a_host_where_no_agent_ran_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let report = look(&paths(dir.path()), &FakeHost::default(), None).unwrap();
    assert_eq!(report.render(), "driver    none\nagent     no agent has run here since boot\n");
}

#[test]
fn what_is_there_is_told_from_what_is_gone_and_ours_from_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("sys/module/nvidia")).unwrap();
    let host = FakeHost::with_dirs(["/host/dev"]);
    let ctl = Node { major: 195, minor: 255, mode: 0o666, owner: Owner::default() };
    let gpu = Node { minor: 0, ..ctl };
    let nodes = vec![("nvidiactl".into(), ctl), ("nvidia0".into(), gpu)];
    let version = Some("535.1".to_owned());
    host.knows("nvidia", FakeModule { version, nodes, ..FakeModule::default() });
    host.change(|state| {
        state.loaded.insert("nvidia".to_owned(), String::new());
        state.loaded.insert("drm".to_owned(), String::new());
        state.nodes.insert("/host/dev/nvidiactl".into(), ctl);
    });
    let mut journal = Journal::in_memory();
    let origin = ModuleOrigin::Kernel { file: "drm.ko".into() };
    let load = LoadModule {
        name: "drm".to_owned(),
        origin,
        parameters: String::new(),
        version: None,
        srcversion: None,
    };
    let seq = journal.intend(load.observed(NotLoaded {})).unwrap();
    journal.mark(seq, EntryState::Done).unwrap();
    let bind = Bind { source: "/tree".into(), target: "/run/nvidia/driver".into() };
    journal.intend(bind.observed(Mounts { count: 0 })).unwrap();
    let share = Share { source: "/run/nvidia/driver/run/d".into(), target: "/run/d".into() };
    journal.intend(share.observed(Mounts { count: 0 })).unwrap();
    let report = look(&paths(dir.path()), &host, Some(journal.state())).unwrap();
    let expected = "\
driver    535.1
phase     removed
agent     none
module    drm, used by 0 (ours)
module    nvidia 535.1, used by 0 (not ours)
mount     /run/nvidia/driver (gone)
mount     /run/d (gone)
node      /host/dev/nvidiactl (not ours)
entry       1 load module drm
entry       2 mount /tree on /run/nvidia/driver (not finished)
entry       3 bind-mount /run/nvidia/driver/run/d on /run/d (not finished)
";
    assert_eq!(report.render(), expected);
    serde_json::to_string(&report).unwrap();
}

#[test]
fn every_tree_gives_its_status() {
    for name in trees() {
        // The trees have none, and every host does.
        let dir = tempfile::tempdir().unwrap();
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg("-a").arg(tree(&name).join(".")).arg(dir.path()).status().unwrap();
        assert!(copied.success(), "{name}");
        fs::write(dir.path().join("proc/devices"), "Character devices:\n195 nvidia\n").unwrap();
        let paths = Paths::below(dir.path());
        let (report, record) = of_host(&paths).unwrap();
        assert!(record.is_ok(), "{name}");
        assert_kept(&format!("status/reports/{name}.txt"), &report.render());
        let json = serde_json::to_string_pretty(&report).unwrap();
        assert_kept(&format!("status/reports/{name}.json"), &format!("{json}\n"));
    }
}

/// A GPU that came after the agent made its nodes is to have one; another program's driver has those that are there.
#[test]
fn only_nodes_that_longshore_makes_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let host = FakeHost::with_dirs(["/host/dev"]);
    let gpu = Node { major: 195, minor: 0, mode: 0o666, owner: Owner::default() };
    let nodes = vec![("nvidia0".into(), gpu), ("nvidia1".into(), Node { minor: 1, ..gpu })];
    host.knows("nvidia", FakeModule { nodes, ..FakeModule::default() });
    host.change(|state| {
        state.loaded.insert("nvidia".to_owned(), String::new());
        state.nodes.insert("/host/dev/nvidia0".into(), gpu);
    });
    let shown = |state: Option<&State>| {
        let text = look(&paths(dir.path()), &host, state).unwrap().render();
        let lines = text.lines().filter(|line| line.starts_with("node"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(shown(None), ["node      /host/dev/nvidia0 (not ours)"]);
    let mut journal = Journal::in_memory();
    let make = MakeNodes { dirs: vec!["/dev".into()], left_to_admin: false };
    let before = Nodes { missing_dirs: Vec::new(), nodes: Vec::new() };
    journal.intend(make.observed(before)).unwrap();
    assert_eq!(
        shown(Some(journal.state())),
        [
            "node      /host/dev/nvidia0 (not ours)",
            "node      /host/dev/nvidia1 (not ours, missing)"
        ]
    );
}
