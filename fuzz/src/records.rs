//! Records that containers, other nodes, and users of the cluster can write.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use longshore::build_lease::Claim;
use longshore::cdi::listing;
use longshore::journal;
use longshore_cdi::Spec;
use longshore_cluster::{CordonRecord, LeaseVersion, NodeStatus};
use longshore_core::paths::Paths;
use longshore_modules::testing::challenges;

use super::inside;

/// Reads the record of an agent, in a place of its own, and in one where others can write.
pub fn journal(bytes: &[u8]) {
    inside(|dir| {
        let state = dir.join("run");
        fs::create_dir(&state).expect("made");
        fs::set_permissions(&state, Permissions::from_mode(0o700)).expect("set");
        let file = state.join("state.json");
        fs::write(&file, bytes).expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("set");
        let paths = Paths { state, store: dir.join("store"), ..Paths::new(dir, dir) };
        let _ = journal::read_state(&paths);
        let _ = journal::read_state(&Paths { sealed: true, ..paths.clone() });
        let _ = journal::recorded(&paths);
    });
}

/// Reads the claim of another builder, and the version of its object.
pub fn lease(bytes: &[u8]) {
    if let Ok(claim) = serde_json::from_slice::<Claim>(bytes) {
        let text = serde_json::to_vec(&claim).expect("a claim is written");
        let again: Claim = serde_json::from_slice(&text).expect("and read");
        assert_eq!(again, claim);
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = LeaseVersion::from_mark(text).map(|version| version.mark());
    }
}

/// Reads the annotations of a node.
pub fn node_annotation(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = serde_json::from_str::<CordonRecord>(text);
    let Ok(status) = NodeStatus::of_annotation(text) else { return };
    let written = status.to_annotation();
    assert!(!written.contains(char::is_control), "{written:?}");
    NodeStatus::of_annotation(&written).expect("what is written is read");
}

/// Reads what a server answers to a request without a login.
pub fn challenge(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for realm in challenges(text).into_iter().flatten() {
        assert!(text.len() >= realm.len(), "{realm} is longer than the header");
    }
}

/// Reads the specs of other programs in a host's directories.
pub fn cdi(bytes: &[u8]) {
    if let Ok(spec) = Spec::from_json(bytes)
        && spec.check().is_ok()
    {
        let text = spec.to_json().expect("a checked spec is written");
        Spec::from_json(text.as_bytes()).expect("and read").check().expect("and checked");
    }
    inside(|root| {
        for (dir, name) in [("etc/cdi", "a.yaml"), ("var/run/cdi", "b.json")] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).expect("made");
            fs::write(dir.join(name), bytes).expect("written");
        }
        let Ok(files) = listing::read(root) else { return };
        let shown = listing::render(&files);
        let is_foreign = |c: char| c.is_control() && c != '\n';
        assert!(!shown.contains(is_foreign), "{shown:?}");
    });
}
