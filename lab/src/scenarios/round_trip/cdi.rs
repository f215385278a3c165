//! Judges the containers that got the GPUs by CDI alone (guest/scripts/consumers.sh).

use crate::cell::Cell;
use crate::cell::guests::Consumer;
use crate::judge::answers;
use crate::judge::checks;
use crate::judge::records::Records;
use crate::judge::start_times;
use crate::scenarios::round_trip::reload;
use crate::scenarios::round_trip::roots;

/// Nodes of every container with a GPU.
const CONTROL_NODES: [&str; 4] = ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"];

/// Returns the faults of the containers.
pub(super) fn wrong(cell: &Cell, records: &Records) -> Vec<String> {
    let driven = answers::gpus(cell).1;
    if driven == 0 {
        return Vec::new();
    }
    let faults = |consumer: &Consumer| match consumer {
        Consumer::PodmanRoots | Consumer::DockerRoots => roots::wrong(*consumer, records),
        Consumer::DockerReload | Consumer::DockerOptionsReload => reload::wrong(*consumer, records),
        Consumer::PodmanRounds => start_times::wrong(records),
        _ => container(*consumer, driven, records),
    };
    let mut wrong = published(records);
    wrong.extend(cell.consumers.iter().flat_map(faults));
    if cell.consumers.iter().any(|consumer| consumer.is_configured()) {
        wrong.extend(configured(records));
    }
    wrong
}

/// Returns the faults of the runtime's configuration, which longshore edits and puts back.
fn configured(records: &Records) -> Vec<String> {
    let is_done = |name: &str| records.text(name).ends_with("well");
    let acts = ["runtime.configured", "runtime.reverted"].into_iter().filter(|name| !is_done(name));
    let mut wrong: Vec<String> =
        acts.map(|name| format!("{name}: {}", records.text(name))).collect();
    for (fact, fault) in [("changed", "was not edited"), ("as-before", "is not as before")] {
        if !records.facts.contains_key(&format!("runtime.{fact}")) {
            wrong.push(format!("the runtime's configuration {fault}"));
        }
    }
    wrong
}

/// Returns the faults of the spec in its place, and of the links to nodes.
fn published(records: &Records) -> Vec<String> {
    let links = CONTROL_NODES.into_iter().chain(["nvidia0"]);
    let mut wanted = vec!["published as shown".to_owned(), "ModifyDeviceFiles: 0".to_owned()];
    wanted.extend(links.map(|node| format!("linked /dev/{node}")));
    records.faults("ready.published", |seen| {
        let missing = wanted.into_iter().filter(|line| !seen.contains(line));
        missing.map(|line| format!("the published spec: no `{line}`; it says {seen:?}")).collect()
    })
}

/// Returns the faults of the container of one consumer.
fn container(consumer: Consumer, driven: usize, records: &Records) -> Vec<String> {
    let seen = match records.section(&consumer.section()) {
        Ok(seen) => seen,
        Err(missing) => return vec![missing],
    };
    let has = |line: &str| seen.iter().any(|seen| seen == line);
    let mut wrong = Vec::new();
    for node in CONTROL_NODES {
        if !has(&format!("node /dev/{node}")) {
            wrong.push(format!("no node /dev/{node}"));
        }
    }
    let is_gpu = |line: &&String| {
        let number = line.strip_prefix("node /dev/nvidia");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let gpus = seen.iter().filter(is_gpu).count();
    if gpus != driven {
        wrong.push(format!("{gpus} nodes of GPUs, not {driven}"));
    }
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        if !has(&format!("tried {library}")) || seen.iter().any(|line| is_refusal(line, library)) {
            wrong.push(format!("{library} cannot be loaded"));
        }
    }
    // The answer of a driver without real hardware.
    if !has("No devices were found") || seen.last().map(String::as_str) != Some("rc 6") {
        wrong.push("nvidia-smi does not answer as outside".into());
    }
    if !wrong.is_empty() {
        wrong.extend(seen.iter().map(|line| format!("it says: {line}")));
    }
    checks::under(&format!("container by CDI and {consumer}"), wrong)
}

/// True for the loader's message about a library that it cannot load.
fn is_refusal(line: &str, library: &str) -> bool {
    line.contains("LD_PRELOAD") && line.contains(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: &str = "published as shown\nModifyDeviceFiles: 0\n\
        linked /dev/nvidia-modeset\nlinked /dev/nvidia-uvm\nlinked /dev/nvidia-uvm-tools\n\
        linked /dev/nvidia0\nlinked /dev/nvidiactl\n";
    const GOOD: &str = "node /dev/nvidia-modeset\nnode /dev/nvidia-uvm\nnode /dev/nvidia-uvm-tools\n\
        node /dev/nvidia0\nnode /dev/nvidiactl\ntried libcuda.so.1\ntried libnvidia-ml.so.1\n\
        No devices were found\nrc 6";

    #[test]
    fn a_container_is_judged() {
        let cell: Cell = toml::from_str(
            "name = 'a'\nscenario = 'round-trip'\nkernel = { suite = 's', package = 'p' }\n\
             driver = { branch = '535', flavour = 'open' }\ngpus = ['t4', 't4:off-bus']",
        )
        .unwrap();
        let refused = "ERROR: ld.so: object 'libcuda.so.1' from LD_PRELOAD cannot be preloaded\n\
                       tried libcuda.so.1";
        let cases = [
            ("", "", ""),
            ("published as shown\n", "", "no `published as shown`"),
            ("ModifyDeviceFiles: 0", "ModifyDeviceFiles: 1", "no `ModifyDeviceFiles: 0`"),
            ("linked /dev/nvidia0\n", "", "no `linked /dev/nvidia0`"),
            ("node /dev/nvidiactl\n", "", "no node /dev/nvidiactl"),
            ("node /dev/nvidia0\n", "", "0 nodes of GPUs, not 1"),
            ("node /dev/nvidia0", "node /dev/nvidia0\nnode /dev/nvidia1", "2 nodes of GPUs"),
            ("tried libcuda.so.1\n", "", "libcuda.so.1 cannot be loaded"),
            ("tried libcuda.so.1", refused, "libcuda.so.1 cannot be loaded"),
            ("rc 6", "rc 18", "nvidia-smi does not answer"),
        ];
        for (what, by, reason) in cases {
            let mut records = Records::default();
            for (section, text) in
                [("ready.published".to_owned(), PUBLISHED), (Consumer::Podman.section(), GOOD)]
            {
                let lines = text.replacen(what, by, 1).lines().map(str::to_owned).collect();
                records.sections.insert(section, lines);
            }
            let wrong = wrong(&cell, &records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
        let mut records = Records::default();
        assert_eq!(configured(&records).len(), 4);
        for line in [
            "@fact runtime.changed yes",
            "@fact runtime.as-before yes",
            "@begin runtime.configured",
            "|well",
            "@end runtime.configured",
            "@begin runtime.reverted",
            "|well",
            "@end runtime.reverted",
        ] {
            records.take(line);
        }
        assert!(configured(&records).is_empty());
        assert_eq!(wrong(&cell, &Records::default()).len(), 2, "no spec, no container");
    }
}
