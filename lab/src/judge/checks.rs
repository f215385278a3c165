//! Checks of a host on which the driver is Ready, and of the moment of an interruption.

use longshore_modules::artifact::ModuleSet;

use crate::judge::records::Records;

/// Path at which the agent exposes the driver to the host.
const DRIVER_ROOT: &str = "/run/nvidia/driver";

/// Expected state of the driver on the host.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Driver version.
    pub version: String,
    /// Modules that must be live: kernel name and srcversion.
    pub modules: Vec<(String, String)>,
    /// State expected after the change of driver, where the cell changes it.
    pub next: Option<Box<Expected>>,
}

impl Expected {
    /// Returns the expected state for the driver of this set, with these modules beyond the usual ones.
    pub fn from_set(set: &ModuleSet, extra: &[String]) -> Self {
        let always = ["nvidia", "nvidia_uvm", "nvidia_modeset"];
        let is_wanted = |name: &str| {
            always.contains(&name) || extra.iter().any(|extra| extra.replace('-', "_") == name)
        };
        let modules = set.modules.iter().filter(|m| is_wanted(&m.name));
        Self {
            version: set.key.driver_version.clone(),
            modules: modules
                .map(|m| (m.name.clone(), m.srcversion.clone().unwrap_or_default()))
                .collect(),
            next: None,
        }
    }
}

/// Returns these faults with where or when they were found before each.
pub(crate) fn under(found: &str, wrong: impl IntoIterator<Item = String>) -> Vec<String> {
    wrong.into_iter().map(|why| format!("{found}: {why}")).collect()
}

/// Returns the faults of a host whose driver was Ready in the phase `when`, which is the prefix of
/// its sections.
pub(crate) fn ready(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    if !records.phases.iter().any(|phase| phase == when) {
        return vec!["the agent was never Ready".into()];
    }
    let mut wrong = kernel_side(expected, records, when);
    wrong.extend(user_side(expected, records, when));
    wrong.extend(neighbour(records, when));
    wrong
}

/// Returns the faults of modules and nodes of a host that was recorded in the phase `when`.
pub(crate) fn kernel_side(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    wrong.extend(driver(expected, records, when));
    wrong.extend(modules(expected, records, when));
    wrong.extend(nodes(records, when, &[HOST_NODES, ROOT_NODES]));
    wrong
}

/// Returns the faults of modules and of the host's nodes, where there is no driver root.
pub(crate) fn modules_alone(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    let mut wrong: Vec<String> = driver(expected, records, when).into_iter().collect();
    wrong.extend(modules(expected, records, when));
    wrong.extend(nodes(records, when, &[HOST_NODES]));
    wrong
}

/// Returns the faults of the files exposed in the phase `when`, and of the kernel's firmware path.
pub(crate) fn user_side(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    let mut wrong = driver_root(expected, records, when);
    wrong.extend(root_kernel(records, when));
    wrong.extend(tool(records, when));
    wrong
}

fn driver(expected: &Expected, records: &Records, when: &str) -> Option<String> {
    let seen = records.text(&format!("{when}.driver"));
    let found = seen.split_whitespace().any(|word| word == expected.version);
    (!found).then(|| format!("/proc/driver/nvidia/version is not {}: {seen}", expected.version))
}

fn modules(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    let live = records.section(&format!("{when}.versions")).unwrap_or_default();
    expected
        .modules
        .iter()
        .map(|(name, srcversion)| {
            // sysfs has neither for a module without MODULE_VERSION, as nvidia_uvm was until 470.
            let version = if srcversion.is_empty() { "" } else { &expected.version };
            format!("{name} {srcversion} {version}")
        })
        .filter(|wanted| !live.contains(wanted))
        .map(|wanted| format!("not live: {wanted}; live are {live:?}"))
        .collect()
}

/// Sections with nodes, and the directories of these.
const HOST_NODES: (&str, &str) = ("host-nodes", "/dev");
const ROOT_NODES: (&str, &str) = ("root-nodes", "/run/nvidia/driver/dev");

/// Checks the nodes of these directories: the right names, and the majors the kernel gave.
fn nodes(records: &Records, when: &str, places: &[(&str, &str)]) -> Vec<String> {
    let majors = records.section(&format!("{when}.majors")).unwrap_or_default();
    let major = |driver: &str| {
        majors.iter().find_map(|line| {
            let (number, name) = line.trim().split_once(' ')?;
            (name == driver).then(|| number.to_owned())
        })
    };
    let wanted = [
        ("nvidiactl", "nvidia-frontend", Some("255")),
        ("nvidia0", "nvidia-frontend", Some("0")),
        ("nvidia-modeset", "nvidia-frontend", Some("254")),
        ("nvidia-uvm", "nvidia-uvm", Some("0")),
        ("nvidia-uvm-tools", "nvidia-uvm", Some("1")),
    ];
    let mut wrong = Vec::new();
    for (section, dir) in places {
        let seen = records.section(&format!("{when}.{section}")).unwrap_or_default();
        for (name, driver, minor) in &wanted {
            // 195 is NVIDIA's own number; 535 registers it as nvidia-frontend, 550 as nvidia.
            let major = match *driver {
                "nvidia-frontend" => Some("195".to_owned()),
                other => major(other),
            };
            let node =
                format!("{dir}/{name} {}:{}", major.unwrap_or_default(), minor.unwrap_or("?"));
            if !seen.iter().any(|line| line.starts_with(&format!("{node} "))) {
                wrong.push(format!("no node {node}; there are {seen:?}"));
            }
        }
    }
    wrong
}

fn driver_root(expected: &Expected, records: &Records, when: &str) -> Vec<String> {
    let files = records.section(&format!("{when}.root-files")).unwrap_or_default();
    let there = |path: &str| files.iter().any(|line| line.split(' ').nth(1) == Some(path));
    let version = &expected.version;
    let lib = "usr/lib/x86_64-linux-gnu";
    let mut wrong: Vec<String> = [
        format!("{lib}/libcuda.so.{version}"),
        format!("{lib}/libcuda.so.1"),
        format!("{lib}/libnvidia-ml.so.{version}"),
        format!("{lib}/libnvidia-ml.so.1"),
        "usr/bin/nvidia-smi".to_owned(),
        "etc/ld.so.cache".to_owned(),
    ]
    .into_iter()
    .filter(|path| !there(path))
    .map(|path| format!("the driver root has no {path}"))
    .collect();
    let firmware = format!("lib/firmware/nvidia/{version}/gsp_");
    let has_firmware = |l: &String| l.contains(&firmware);
    if has_gsp(version) && !files.iter().any(has_firmware) {
        wrong.push(format!("the driver root has no {firmware}*"));
    }
    let path = records.text(&format!("{when}.firmware-path"));
    if path != format!("{DRIVER_ROOT}/lib/firmware") {
        wrong.push(format!("the kernel looks for firmware in `{path}`"));
    }
    wrong
}

/// True of drivers whose packages have firmware for the GPU's System Processor: from branch 515 on.
fn has_gsp(version: &str) -> bool {
    let branch = version.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
    branch.is_some_and(|branch| branch >= 515)
}

/// Checks nvidia-smi on the host.
fn tool(records: &Records, when: &str) -> Option<String> {
    let smi = records.text(&format!("{when}.smi"));
    // A driver without real hardware ends with code 6 and this text; a library that does not fit
    // the kernel module ends with code 18.
    let fits = smi.contains("No devices were found") && smi.ends_with("rc 6");
    (!fits).then(|| format!("nvidia-smi from the driver root: {smi}"))
}

/// Checks the driver root's own sysfs.
fn root_kernel(records: &Records, when: &str) -> Option<String> {
    let seen = records.text(&format!("{when}.root-kernel"));
    let has_gpu = seen.contains("/run/nvidia/driver/sys/bus/pci/devices/");
    (!has_gpu).then(|| format!("the driver root's sysfs has no device of NVIDIA's: {seen}"))
}

/// Checks a container that was started later.
fn neighbour(records: &Records, when: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let neighbour = records.text(&format!("{when}.neighbour"));
    for path in ["bin/nvidia-smi", "lib/x86_64-linux-gnu/libcuda.so.1"] {
        if !neighbour.contains(&format!("sees {path}")) {
            wrong.push(format!("a later container does not see {path}: {neighbour}"));
        }
    }
    wrong
}

/// Checks a container that has no volume for the store: it verified the host's.
pub(crate) fn store_of_host(records: &Records) -> Option<String> {
    let seen = records.text("ready.store");
    let is_attached = seen.contains("attached through process 1") && seen.ends_with("rc 0");
    (!is_attached).then(|| format!("the host's store is not verified without a volume: {seen}"))
}

/// Checks that the agent's image was named by its digest, and that the guest had no other one.
pub(crate) fn by_digest(records: &Records) -> Option<String> {
    let seen = records.section("image").unwrap_or_default();
    let is_alone = seen.len() == 2 && seen[0] == seen[1] && seen[0].starts_with("sha256:");
    (!is_alone).then(|| format!("the image is not the only one, by its digest: {seen:?}"))
}

/// Checks that TERM came while the agent installed, after the kernel began to load its module.
pub(crate) fn interrupted(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    let log = records.text("agent-log");
    let reached = |phase: &str| log.contains(&format!("phase {phase}"));
    if !reached("installing") || reached("ready") {
        wrong.push("TERM did not come in the middle of installing, by the agent's log".into());
    }
    let undoing = log.find("undoing what was done");
    if undoing.is_none_or(|at| !log[at..].contains("stopping already")) {
        wrong.push("no further TERM came during the rollback, by the agent's log".into());
    }
    let modules = records.section("terminate.modules").unwrap_or_default();
    if !modules.iter().any(|line| line.starts_with("nvidia ")) {
        wrong.push("nvidia was not loaded when TERM was sent".into());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected {
            version: "535.261.03".into(),
            modules: vec![("nvidia".into(), "ABC".into()), ("nvidia_uvm".into(), "DEF".into())],
            next: None,
        }
    }

    fn good() -> Records {
        let mut records = Records::default();
        records.take("@phase ready");
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
        for (name, text) in [
            (
                "driver",
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.261.03  Release"
                    .to_owned(),
            ),
            ("versions", "nvidia ABC 535.261.03\nnvidia_uvm DEF 535.261.03".into()),
            ("majors", "Character devices:\n  1 mem\n195 nvidia-frontend\n511 nvidia-uvm".into()),
            ("host-nodes", nodes("/dev")),
            ("root-nodes", nodes("/run/nvidia/driver/dev")),
            ("firmware-path", "/run/nvidia/driver/lib/firmware".into()),
            (
                "root-files",
                format!(
                    "f {lib}/libcuda.so.535.261.03 \nl {lib}/libcuda.so.1 libcuda.so.535.261.03\n\
                     f {lib}/libnvidia-ml.so.535.261.03 \nl {lib}/libnvidia-ml.so.1 x\n\
                     f usr/bin/nvidia-smi \nf etc/ld.so.cache \n\
                     f lib/firmware/nvidia/535.261.03/gsp_tu10x.bin "
                ),
            ),
            (
                "root-kernel",
                "/run/nvidia/driver/sys/bus/pci/devices/0000:00:02.0/vendor\nNVRM 535.261.03"
                    .into(),
            ),
            ("smi", "No devices were found\nrc 6".into()),
            ("neighbour", "sees bin/nvidia-smi\nsees lib/x86_64-linux-gnu/libcuda.so.1".into()),
        ] {
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("ready.{name}"), lines);
        }
        records
    }

    #[test]
    fn a_good_host_has_nothing_wrong() {
        assert_eq!(ready(&expected(), &good(), "ready"), Vec::<String>::new());
    }

    #[test]
    fn a_store_that_is_not_the_hosts_is_found() {
        let attached = "the store is the host's /store, attached through process 1";
        for (text, is_wrong) in [
            (format!("{attached}\nrc 0"), false),
            (format!("{attached}\nrc 13"), true),
            ("rc 0".into(), true),
        ] {
            let mut records = Records::default();
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert("ready.store".into(), lines);
            assert_eq!(store_of_host(&records).is_some(), is_wrong, "{text}");
        }
    }

    #[test]
    fn each_thing_that_is_wrong_is_found() {
        let cases = [
            ("driver", "NVRM version: 535.261.0", "version is not 535.261.03"),
            ("versions", "nvidia ABC 535.261.03", "not live: nvidia_uvm DEF"),
            ("majors", "510 nvidia-uvm", "no node /dev/nvidia-uvm 510:0"),
            ("host-nodes", "/dev/nvidiactl 195:255 666", "no node /dev/nvidia0 195:0"),
            ("root-nodes", "", "no node /run/nvidia/driver/dev/nvidiactl"),
            ("firmware-path", "", "looks for firmware in ``"),
            ("root-files", "f usr/bin/nvidia-smi ", "no etc/ld.so.cache"),
            ("root-files", "", "gsp_"),
            ("root-kernel", "", "sysfs has no device"),
            ("smi", "Driver/library version mismatch\nrc 18", "mismatch"),
            ("neighbour", "", "later container does not see bin/nvidia-smi"),
        ];
        for (section, text, wanted) in cases {
            let mut records = good();
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert(format!("ready.{section}"), lines);
            let wrong = ready(&expected(), &records, "ready").join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
    }

    #[test]
    fn a_driver_of_470_has_no_firmware_and_a_module_without_a_version() {
        let expected = Expected {
            version: "470.256.02".into(),
            modules: vec![("nvidia".into(), "ABC".into()), ("nvidia_uvm".into(), String::new())],
            next: None,
        };
        let mut records = good();
        for (section, lines) in &mut records.sections {
            let is_firmware = |line: &String| line.contains("gsp_");
            lines.retain(|line| !is_firmware(line));
            for line in lines {
                *line = line.replace("535.261.03", "470.256.02");
                if section.ends_with("versions") && line.starts_with("nvidia_uvm") {
                    "nvidia_uvm  ".clone_into(line);
                }
            }
        }
        assert_eq!(ready(&expected, &records, "ready"), Vec::<String>::new());
    }

    #[test]
    fn an_agent_that_never_was_ready_is_one_finding() {
        assert_eq!(ready(&expected(), &Records::default(), "ready"), ["the agent was never Ready"]);
    }

    #[test]
    fn an_image_by_digest_has_to_be_the_only_one() {
        let fault = |text: &str| {
            let mut records = Records::default();
            let lines = text.lines().map(str::to_owned).collect();
            records.sections.insert("image".into(), lines);
            by_digest(&records)
        };
        assert_eq!(fault("sha256:ab\nsha256:ab"), None);
        for text in
            ["", "sha256:ab", "sha256:ab\nsha256:cd", "sha256:ab\nsha256:ab\nsha256:cd", "dev\ndev"]
        {
            assert!(fault(text).is_some(), "{text}");
        }
    }

    #[test]
    fn an_interruption_has_to_come_in_the_middle() {
        let mut records = Records::default();
        assert_eq!(interrupted(&records).len(), 3);
        let log = [
            "phase planning",
            "phase installing",
            "SIGTERM: stopping",
            "SIGTERM: stopping already",
            "cancelled: undoing what was done",
            "SIGTERM: stopping already",
        ];
        let mut log = log.map(str::to_owned).to_vec();
        records.sections.insert("agent-log".into(), log.clone());
        let modules = vec!["nvidia 9 0 - Loading 0x0".to_owned()];
        records.sections.insert("terminate.modules".into(), modules);
        assert!(interrupted(&records).is_empty());
        log.pop();
        records.sections.insert("agent-log".into(), log);
        assert!(interrupted(&records).join("").contains("during the rollback"));
        records.sections.insert("agent-log".into(), vec!["phase ready".to_owned()]);
        assert_eq!(interrupted(&records).len(), 2);
    }
}
