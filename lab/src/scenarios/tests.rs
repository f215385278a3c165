//! Tests of the table of scenarios, and of the judgement that all of them share.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::judge::checks::Expected;
use crate::judge::event::Outcome;
use crate::judge::evidence::Evidence;
use crate::judge::records::Records;
use crate::judge::testing::good;

fn refused() -> &'static dyn Scenario {
    named("refused").unwrap()
}

#[test]
fn each_folder_has_a_row_and_each_row_a_script() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scenarios");
    let entries = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let folders = entries.filter(|path| path.is_dir());
    let folders: BTreeSet<String> =
        folders.map(|path| path.file_name().unwrap().to_str().unwrap().replace('_', "-")).collect();
    let names: BTreeSet<String> = SCENARIOS.iter().map(|row| row.name()).collect();
    assert_eq!(folders, names);
    assert_eq!(names.len(), SCENARIOS.len(), "two rows have one name");
    for row in SCENARIOS {
        let script = dir.join(row.name().replace('-', "_")).join("script.sh");
        let text = std::fs::read_to_string(script).ok();
        assert_eq!(row.script(), text.as_deref(), "{}", row.name());
    }
    let without: Vec<String> =
        SCENARIOS.iter().filter(|row| row.script().is_none()).map(|row| row.name()).collect();
    assert_eq!(without, ["build"]);
}

fn cell() -> Cell {
    toml::from_str(
        "name = 'a'\nscenario = 'refused'\nexit = 17\nsays = ['remedy:']\n\
         kernel = { suite = 's', package = 'p' }\ndriver = { branch = '535', flavour = 'open' }",
    )
    .unwrap()
}

#[test]
fn a_guest_that_reported_nothing_is_wrong_in_all_scenarios_but_these() {
    let is_silent = |scenario: &&&dyn Scenario| {
        scenario.wrong_in(&cell(), &Expected::default(), &Records::default()).is_empty()
    };
    let silent: Vec<String> = SCENARIOS.iter().filter(is_silent).map(|row| row.name()).collect();
    // Judged by boot or agent alone.
    assert_eq!(silent, ["build", "deployed", "next-kernel", "power-cut", "refused", "warns"]);
}

fn why(change: impl FnOnce(&mut Evidence)) -> String {
    let mut evidence = good();
    change(&mut evidence);
    match refused().judge(&cell(), &Expected::default(), &evidence) {
        Outcome::Failed(why) => why.join("\n"),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_good_cell_passes() {
    assert_eq!(refused().judge(&cell(), &Expected::default(), &good()), Outcome::Passed);
}

#[test]
fn console_results_and_nonce_have_to_agree() {
    assert!(why(|e| e.console_verdict = None).contains("without a verdict"));
    let silent = |e: &mut Evidence| {
        e.console_verdict = None;
        e.tail.push_back("qemu: no such disk".into());
    };
    assert!(why(silent).contains("console: qemu: no such disk"));
    assert!(why(|e| e.records.verdict = None).contains("without a verdict"));
    assert!(why(|e| e.console_verdict = Some(("other".into(), 0))).contains("another nonce"));
    assert!(why(|e| e.records.verdict = Some(("x".into(), 0))).contains("another nonce"));
    assert!(why(|e| e.console_verdict = Some(("n0nce".into(), 1))).contains("console says 1"));
    let both = |e: &mut Evidence| {
        e.console_verdict = Some(("n0nce".into(), 2));
        e.records.verdict = Some(("n0nce".into(), 2));
    };
    assert!(why(both).contains("ended with 2 at `stopped`"));
    let much = |e: &mut Evidence| {
        e.records.take(&"x".repeat(17 << 20));
    };
    assert!(why(much).contains("more than 16 MiB of records"));
    assert!(why(|e| e.overdue = true).contains("still at `stopped` after 600 s"));
}

#[test]
fn a_first_boot_is_judged_when_the_driver_is_ready_and_says_which_it_was() {
    let Outcome::Failed(why) = scenario::first_boot(&cell(), &Expected::default(), &good()) else {
        panic!("passed")
    };
    assert!(why.iter().all(|line| line.starts_with("first boot: ")), "{why:?}");
    assert!(why[0].contains("was never Ready"), "{why:?}");
    assert!(why.iter().any(|line| line.contains("agent: error: no GPU")), "{why:?}");
}

#[test]
fn a_refused_load_of_nvidia_peermem_is_trouble_in_other_scenarios() {
    let line = "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)";
    let mut evidence = good();
    evidence.trouble.push(line.into());
    let faults = |name| {
        let scenario = named(name).unwrap();
        format!("{:?}", scenario.judge(&cell(), &Expected::default(), &evidence))
    };
    assert!(faults("refused").contains(line));
    assert!(!faults("peermem").contains(line));
}

#[test]
fn a_kernel_in_trouble_fails_and_is_shown() {
    assert!(why(|e| e.trouble.push("BUG: bad".into())).contains("kernel: BUG: bad"));
}

#[test]
fn exit_code_and_log_are_held_to_what_was_declared() {
    let code = |e: &mut Evidence| {
        e.records.facts.insert("exit-code".into(), "0".into());
    };
    assert!(why(code).contains("exit code is 0, not 17"));
    assert!(why(code).contains("agent:   remedy: put one in"));
    let log = |e: &mut Evidence| {
        e.records.sections.insert("agent-log".into(), vec!["error".into()]);
    };
    assert!(why(log).contains("does not say `remedy:`"));
    let json = |e: &mut Evidence| {
        for line in [
            "@begin agent-log",
            r#"|{"timestamp":"t","level":"ERROR","message":"m","exit_code":17,"cause":"no GPU","remedy":"r"}"#,
            "@end agent-log",
        ] {
            e.records.take(line);
        }
    };
    assert_eq!(why(json), "Passed");
}

#[test]
fn the_agents_record_may_stay_and_nothing_beside_it() {
    let with = |line: &str| {
        let line = line.to_owned();
        move |e: &mut Evidence| e.records.sections.get_mut("after.run").unwrap().insert(0, line)
    };
    assert_eq!(why(with("f 600 0:0 912 /run/longshore/state.json")), "Passed");
    assert_eq!(why(with(&format!("{}  /run/longshore/state.json", "a".repeat(64)))), "Passed");
    assert_eq!(why(with("f 644 0:0 0 /run/longshore/starts.json")), "Passed");
    for line in [
        "f 600 0:0 912 /run/longshore/other",
        "f 600 9:0 - /run/longshore/state.json",
        "l 777 0:0 - /run/longshore/state.json /etc/passwd",
        "d 755 0:0 - /run/nvidia/driver",
    ] {
        assert!(why(with(line)).contains(line), "{line}: {}", why(with(line)));
    }
    let record = |text: &'static str| {
        move |e: &mut Evidence| {
            e.records.sections.insert("after.record".into(), vec![text.into()]);
        }
    };
    let undone = "{\"entries\": [{\"step\": {\"do\": \"bind\"}, \"state\": \"undone\"}]}";
    assert_eq!(why(record(undone)), "Passed");
    let done = "{\"entries\": [{\"step\": {\"do\": \"bind\"}, \"state\": \"done\"}]}";
    assert!(why(record(done)).contains("leftovers: {\"do\":\"bind\"}"));
    assert!(why(record("cat: no such file")).contains("cannot be read"));
}

#[test]
fn what_is_left_on_the_host_fails() {
    let left = |e: &mut Evidence| {
        let modules = vec!["ext4 1 0 - Live 0x0".into(), "nvidia 9 0 - Live 0x0".into()];
        e.records.sections.insert("after.modules".into(), modules);
    };
    assert!(why(left).contains("modules: after nvidia"));
    let written = |e: &mut Evidence| {
        e.records.sections.insert("after.written".into(), vec!["/etc/x".into()]);
    };
    assert!(why(written).contains("written: /etc/x"));
    let unsaid = |e: &mut Evidence| {
        e.records.sections.remove("after.mounts");
    };
    assert!(why(unsaid).contains("did not report `after.mounts`"));
}
