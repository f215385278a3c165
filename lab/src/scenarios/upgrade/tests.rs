use super::*;

const MODULES: [&str; 3] = ["nvidia", "nvidia_uvm", "nvidia_modeset"];

fn expected() -> Expected {
    let of = |version: &str| Expected {
        version: version.into(),
        modules: MODULES.map(|name| (name.to_owned(), format!("SRC{version}"))).to_vec(),
        next: None,
    };
    Expected { next: Some(Box::new(of("550.2"))), ..of("535.1") }
}

fn put(records: &mut Records, section: String, text: &str) {
    records.sections.insert(section, text.lines().map(str::to_owned).collect());
}

fn state(phase: &str, version: &str) -> String {
    let load = |name: &str, version: &str, state: &str| {
        format!(
            "{{\"step\": {{\"do\": \"load-module\", \"name\": \"{name}\", \"version\": \"{version}\", \
             \"origin\": {{\"driver\": {{\"sha256\": \"ab\"}}}}}}, \"state\": \"{state}\"}}"
        )
    };
    let mut entries: Vec<String> = MODULES.map(|name| load(name, version, "done")).to_vec();
    entries.push(load("nvidia", "999", "undone"));
    format!(
        "{{\"phase\": \"{phase}\", \"whole\": true, \"plan\": {{\"driver_version\": \"{version}\"}}, \
         \"entries\": [{}]}}",
        entries.join(", ")
    )
}

/// Sections that the checks of a Ready host read.
fn live(records: &mut Records, act: &str, version: &str) {
    let nodes = |dir: &str| {
        [
            "nvidiactl 195:255",
            "nvidia0 195:0",
            "nvidia-modeset 195:254",
            "nvidia-uvm 511:0",
            "nvidia-uvm-tools 511:1",
        ]
        .map(|node| format!("{dir}/{node} 666"))
        .join("\n")
    };
    let lib = "usr/lib/x86_64-linux-gnu";
    let files = format!(
        "f {lib}/libcuda.so.{version} \nl {lib}/libcuda.so.1 x\nf {lib}/libnvidia-ml.so.{version} \n\
         l {lib}/libnvidia-ml.so.1 x\nf usr/bin/nvidia-smi \nf etc/ld.so.cache \n\
         f lib/firmware/nvidia/{version}/gsp_tu10x.bin "
    );
    let versions = MODULES.map(|name| format!("{name} SRC{version} {version}")).join("\n");
    for (name, text) in [
        ("driver", format!("NVRM version: {version} Release")),
        ("versions", versions),
        ("host-nodes", nodes("/dev")),
        ("root-nodes", nodes("/run/nvidia/driver/dev")),
        ("root-files", files),
        ("root-kernel", "/run/nvidia/driver/sys/bus/pci/devices/0000:00:02.0/vendor".into()),
        ("consumer", format!("dev/nvidiactl\n{lib}/libcuda.so.{version}")),
        ("spec", format!("libcuda.so.{version}")),
        ("smi", "No devices were found\nrc 6".into()),
    ] {
        put(records, format!("{act}.{name}"), &text);
    }
    crate::judge::testing::report_scene(records, act);
    for (aspect, text) in [
        ("majors", "195 nvidia\n511 nvidia-uvm"),
        ("firmware-path", "/run/nvidia/driver/lib/firmware"),
        ("modules", "nvidia 1 0 - Live 0x0"),
    ] {
        put(records, format!("{act}.{aspect}"), text);
    }
}

/// A guest in which every act went as expected.
fn good() -> Records {
    let expected = expected();
    let next = expected.next.as_ref().unwrap();
    let mut records = Records::default();
    let mut loading = 0;
    let mut loaded = std::collections::BTreeMap::new();
    for act in ACTS {
        let Act { name, .. } = act;
        records.take(&format!("@phase {name}"));
        let driver = if act.next { next } else { &expected };
        live(&mut records, name, &driver.version);
        for module in act.since.map_or(ALL, |(_, anew)| anew) {
            if *name != "hold" {
                loading += 1;
                loaded.insert(*module, loading);
            }
        }
        let identity: Vec<String> = loaded
            .iter()
            .map(|(module, n)| format!("{module} inode {n} refcount 0 loaded {n}.5"))
            .collect();
        put(&mut records, format!("{name}.identity"), &identity.join("\n"));
        let phase = match act.agent {
            Agent::Ready => "ready",
            Agent::Gone(phase) => phase,
        };
        put(&mut records, format!("{name}.record"), &state(phase, &driver.version));
        let prefetch = if PREFETCH_OFF.contains(name) { "0" } else { "1" };
        put(&mut records, format!("{name}.prefetch"), prefetch);
        if let Some(code) = act.exit {
            records.facts.insert(format!("{name}.exit-code"), code.into());
        }
        let log: Vec<String> = act.says.iter().map(|parts| parts.join(" ")).collect();
        let log = log.join("\n").replace("{first}", "535.1").replace("{next}", "550.2");
        put(
            &mut records,
            format!("{name}.log"),
            &log.replace("{holder}", "pid 77 (sleep) holds /dev/nvidiactl"),
        );
    }
    put(
        &mut records,
        "adopted.log".into(),
        "2026-01-31T23:59:59.500000Z  INFO phase probing\n2026-02-01T00:00:00.400000Z  INFO driver \
         535.1 is ready (adopted; 1 missing step carried out), 912 ms after the start",
    );
    put(
        &mut records,
        "upgraded.log".into(),
        &format!(
            "{}\n2026-01-31T10:00:00.000000Z  INFO phase changing\n2026-01-31T10:00:04.250000Z  INFO \
             driver 550.2 is ready (3 of its modules loaded), 5120 ms after SIGHUP",
            "unloading nvidia: driver 535.1 is loaded, and 550.2 is wanted"
        ),
    );
    records.take("@fact holder 77");
    // The process began 2 s before Ready and was looked at 1 s after it.
    records.take("@fact adopted.started 50.00 53.00 00:00:01.400000000");
    records
}

fn why(change: impl FnOnce(&mut Records)) -> String {
    let mut records = good();
    change(&mut records);
    Upgrade.wrong(&expected(), &records).join("\n")
}

#[test]
fn a_guest_whose_driver_was_changed_and_brought_back_has_nothing_wrong() {
    assert_eq!(why(|_| {}), "");
}

#[test]
fn what_was_measured_is_told_in_milliseconds() {
    let measured = Upgrade.measured(&Expected::default(), &good());
    let of = |what: &str| measured.iter().find(|(w, _)| w == what).map(|(_, v)| v.as_str());
    assert_eq!(of("start to Ready, one node put back"), Some("912 ms"));
    assert_eq!(of("next driver by SIGHUP"), Some("5120 ms"));
    assert_eq!(of("of it with no driver ready"), Some("4250 ms"));
    // An act without a log has no time.
    assert_eq!(of("start to Ready, adopted as it was"), None);
}

#[test]
fn what_is_wrong_with_an_act_is_found_and_named() {
    let one = |section: &'static str, text: &'static str| {
        why(|records| put(records, section.to_owned(), text))
    };
    let cases = [
        // A driver other than the expected one.
        (
            "upgraded.driver",
            "NVRM version: 535.1",
            "upgraded: /proc/driver/nvidia/version is not 550.2",
        ),
        ("back.root-files", "f usr/bin/nvidia-smi ", "back: the driver root has no "),
        ("refused.versions", "nvidia SRC550.2 550.2", "refused: not live: nvidia SRC535.1 535.1"),
        ("adopted.host-nodes", "", "adopted: no node /dev/nvidiactl"),
        ("upgraded.smi", "Driver/library version mismatch\nrc 18", "upgraded: nvidia-smi"),
        ("upgraded.spec", "libcuda.so.535.1", "upgraded: the CDI spec names"),
        ("upgraded.consumer", "/driver/usr/lib/libcuda.so.535", "upgraded: the running consumer"),
        // Modules.
        ("adopted.identity", "nvidia inode 9 refcount 0 loaded 9.5", "has no nvidia_uvm"),
        ("held.identity", "nvidia inode 9", "held: `held.identity` says: nvidia inode 9"),
        // The host.
        ("adopted.mounts", "1 2 3:4 / /other rw - tmpfs x rw", "adopted: not as installed: mounts"),
        (
            "refused.dev",
            "c 666 0:0 1:9 /dev/other\nrc 0",
            "refused: not as left: dev: after c 666 0:0 1:9 /dev/other",
        ),
        // The configuration.
        ("parameter.prefetch", "1", "parameter: uvm_perf_prefetch_enable is \"1\", not 0"),
        ("back.prefetch", "0", "back: uvm_perf_prefetch_enable is \"0\", not 1"),
        // Log and record.
        ("unavailable.log", "nothing", "unavailable: no line of the log says [\"the running"),
        (
            "held.log",
            "error: the driver is in use by pid 78\nremedy: ",
            "held: no line of the log says",
        ),
        ("held.record", "cut off", "held: the agent's record cannot be read: cut off"),
        (
            "upgraded.record",
            "{\"phase\": \"ready\"}",
            "upgraded: the record has whole null, not true",
        ),
    ];
    for (section, text, wanted) in cases {
        let found = one(section, text);
        assert!(found.contains(wanted), "{wanted}: {found}");
    }
}

#[test]
fn modules_are_the_same_or_others_as_the_act_wants() {
    let copied = |from: &str, to: &str| {
        let (from, to) = (format!("{from}.identity"), format!("{to}.identity"));
        why(|records| {
            let lines = records.sections[&from].clone();
            records.sections.insert(to, lines);
        })
    };
    let found = copied("unavailable", "upgraded");
    assert!(found.contains("upgraded: nvidia was not loaded again"), "{found}");
    let found = copied("back", "unavailable");
    assert!(found.contains("unavailable: nvidia is not untouched"), "{found}");
}

#[test]
fn the_record_is_of_the_driver_that_is_live() {
    let record = |act: &'static str, text: String| {
        why(move |records| put(records, format!("{act}.record"), &text))
    };
    let found = record("refused", state("ready", "535.1"));
    assert!(found.contains("refused: the record has phase \"ready\", not \"failed\""), "{found}");
    let found = record("upgraded", state("ready", "535.1"));
    assert!(found.contains("upgraded: the record has driver \"535.1\", not \"550.2\""), "{found}");
    let left = state("ready", "535.1").replace("\"undone\"", "\"done\"");
    let found = record("back", left);
    assert!(found.contains("back: the record has 4 modules of a driver, not 3"), "{found}");
    let going = state("ready", "535.1").replace("\"plan\"", "\"previous\": [1], \"plan\"");
    let found = record("back", going);
    assert!(found.contains("back: the record has something to bring back [1]"), "{found}");
}

#[test]
fn exit_codes_and_acts_have_to_be_there() {
    let found = why(|records| {
        records.facts.insert("refused.exit-code".into(), "21".into());
    });
    assert!(found.contains("refused: exit code Some(\"21\"), not Some(\"16\")"), "{found}");
    let found = why(|records| {
        records.facts.remove("held.exit-code");
    });
    assert!(found.contains("held: exit code None, not Some(\"20\")"), "{found}");
    let found = why(|records| records.phases.retain(|phase| phase != "back-anew"));
    assert!(found.contains("back-anew: the act was never reached"), "{found}");
    let all = Upgrade.wrong(&expected(), &Records::default());
    assert_eq!(all.len(), ACTS.len() + 1, "{all:?}");
}

#[test]
fn what_the_agent_says_of_adopting_is_held_against_the_clocks() {
    assert!((adoption(&good()).unwrap() - 0.912).abs() < 1e-9);
    let says = |ms: &str| {
        let mut records = good();
        for line in records.sections.get_mut("adopted.log").unwrap() {
            *line = line.replace("912 ms", ms);
        }
        adoption(&records).unwrap_err()
    };
    // Its log alone spans 900 ms, and its process had run for 2 s.
    assert!(says("20 ms").contains("says 0.020 s; its log spans 0.900 s"), "{}", says("20 ms"));
    assert!(says("2900 ms").contains("had run for 2.000 s"), "{}", says("2900 ms"));
    assert!(says("soon").contains("does not say how long"), "{}", says("soon"));
    let mut malformed = good();
    malformed.facts.insert("adopted.started".into(), "50.00 53.00".into());
    assert!(adoption(&malformed).unwrap_err().contains("adopted.started"));
}
