//! Evidence and reports of guests for tests.

use crate::judge::evidence::Evidence;
use crate::judge::manifest::CONTROL;
use crate::judge::records::Records;
use crate::judge::scene::{ASPECTS, MANIFESTS, WHOLE};

/// Line of mountinfo.
pub(crate) const MOUNT: &str = "36 35 98:0 /mnt1 /mnt2 rw,noatime shared:1 - ext3 /dev/root rw";

/// Evidence of a host that is untouched and an agent that ended with 17.
pub fn good() -> Evidence {
    let mut records = Records::default();
    for when in ["before", "after"] {
        report_scene(&mut records, when);
    }
    report_unchanged(&mut records);
    for line in [
        "@begin after.record",
        "|{ \"phase\": \"failed\", \"entries\": [] }",
        "@end after.record",
        "@begin agent-log",
        "|error: no GPU",
        "|  remedy: put one in",
        "@end agent-log",
        "@fact exit-code 17",
        "@phase stopped",
        "@verdict n0nce 0",
    ] {
        records.take(line);
    }
    Evidence {
        nonce: "n0nce".into(),
        records,
        console_verdict: Some(("n0nce".into(), 0)),
        ..Evidence::default()
    }
}

/// Adds the report of a state, the same each time.
pub(crate) fn report_scene(records: &mut Records, when: &str) {
    for (aspect, _) in ASPECTS {
        let mut lines = vec!["ext4 1 0 - Live 0x0".to_owned()];
        if aspect == "mounts" {
            MOUNT.clone_into(&mut lines[0]);
        }
        if MANIFESTS.contains(&aspect) {
            lines = vec![format!("d 755 0:0 - /{aspect}"), WHOLE.to_owned()];
        }
        records.sections.insert(format!("{when}.{aspect}"), lines);
    }
}

/// Adds the reports of a root file system that is as before.
pub(crate) fn report_unchanged(records: &mut Records) {
    for line in [
        "@fact before.root 0 9000",
        "@fact after.root 0 8999",
        "@fact after.compared 0",
        "@fact after.tainted 12289",
    ] {
        records.take(line);
    }
    records.sections.insert("after.root".into(), CONTROL.map(str::to_owned).to_vec());
    records.sections.insert("after.written".into(), Vec::new());
}
