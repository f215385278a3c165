//! GPUs on the PCI bus, and which of them the loaded driver claimed.
//!
//! nvidia.ko loads as long as it can drive one device. For each device that it drives it makes a
//! directory in /proc/driver/nvidia/gpus, named by the PCI address (kernel-open/nvidia/nv-procfs.c,
//! `nv_procfs_add_gpu`); for the others it gives the reason in the kernel log only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::DeviceKind;
use crate::facts::kmsg::{KernelLog, unwrapped};
use crate::facts::pci;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::root::{Root, is_absent};
use longshore_core::sanitize::in_line;

const TAKEN: &str = "proc/driver/nvidia/gpus";
/// Maximum number of kernel log records over which one message of the driver is wrapped.
const RECORDS: usize = 3;
/// Maximum bytes of a kernel message that go into a finding.
const LONGEST_MESSAGE: usize = 400;

/// One GPU of the PCI bus that nvidia.ko may drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its address, for example `0000:01:00.0`.
    pub address: String,
    /// PCI device id, for example 0x1eb8 (T4).
    pub device: u16,
    /// The driver bound to it.
    pub taken: Taken,
    /// The kernel's last message about it, if no driver is bound to it while nvidia.ko is loaded.
    #[serde(rename = "said", default, skip_serializing_if = "Option::is_none")]
    pub kernel_message: Option<String>,
}

/// The driver bound to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Taken {
    /// NVIDIA's driver.
    Driver,
    /// No driver.
    Nobody,
    /// Another driver, for example vfio-pci: reserved on purpose, or reported as
    /// `gpu-bound-elsewhere`.
    Other,
    /// It was bound to NVIDIA's driver, and is no longer on the bus.
    Gone,
}

impl Gpu {
    /// True if the driver should claim it.
    pub fn is_expected(&self) -> bool {
        self.taken != Taken::Other
    }

    /// True if the driver should have claimed it and did not.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.taken, Taken::Nobody | Taken::Gone)
    }

    fn finding(&self, severity: Severity) -> Finding {
        let Self { address, device, .. } = self;
        let what = match (self.taken, &self.kernel_message) {
            (Taken::Gone, _) => "was driven, and is no longer on the PCI bus".to_owned(),
            (_, Some(message)) => {
                let message = in_line(message);
                format!(
                    "is on the PCI bus, but the driver did not claim it; the kernel says: {message}"
                )
            }
            (_, None) => {
                "is on the PCI bus, but the driver did not claim it; no line about it was found \
                          in the kernel's log"
                    .to_owned()
            }
        };
        let detail = format!("{address} (10de:{device:04x}) {what}");
        Finding::new(severity, Code::GpuMissing, detail)
    }
}

/// Returns a finding for each GPU that the driver should have claimed and did not.
pub fn missing(gpus: &[Gpu], refuse: bool) -> Vec<Finding> {
    let severity = if refuse { Severity::Refusal } else { Severity::Warning };
    gpus.iter().filter(|gpu| gpu.is_missing()).map(|gpu| gpu.finding(severity)).collect()
}

/// Leaves out the GPUs that the module is configured not to drive: with `NVreg_AssignGpus` among
/// its `parameters` it claims only those that are listed there, as `bus:slot`, `domain:bus:slot` or
/// `domain:bus:slot.func` (kernel-open/nvidia/os-registry.c, `parse_assign_gpus_string`).
pub fn assigned(mut gpus: Vec<Gpu>, parameters: &str) -> Vec<Gpu> {
    let list =
        parameters.split_whitespace().find_map(|word| word.strip_prefix("NVreg_AssignGpus="));
    let named: BTreeSet<_> = list
        .unwrap_or_default()
        .trim_matches('"')
        .split(',')
        .filter_map(|token| numbers(token.trim()))
        .collect();
    if !named.is_empty() {
        gpus.retain(|gpu| numbers(&gpu.address).is_some_and(|numbers| named.contains(&numbers)));
    }
    gpus
}

/// Domain, bus and slot of an address.
fn numbers(address: &str) -> Option<(u32, u32, u32)> {
    let without_function = address.split('.').next()?;
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    match without_function.split(':').collect::<Vec<_>>()[..] {
        [bus, slot] => Some((0, hex(bus)?, hex(slot)?)),
        [domain, bus, slot] => Some((hex(domain)?, hex(bus)?, hex(slot)?)),
        _ => None,
    }
}

/// Reads the GPUs below `root`, by address.
///
/// # Errors
/// If the bus or the driver's list cannot be read.
pub(crate) fn read(root: &Root) -> io::Result<Vec<Gpu>> {
    let is_loaded = root.exists("sys/module/nvidia/refcnt")?;
    let taken: BTreeSet<String> = match root.read_dir(TAKEN) {
        // A loaded driver has this directory even if it drives no GPU.
        Err(e) if is_absent(&e) && !is_loaded => BTreeSet::new(),
        other => other?.into_iter().collect(),
    };
    let mut gpus = Vec::new();
    for device in pci::read(root)?.into_iter().filter(|d| d.kind == DeviceKind::Gpu) {
        let by = match device.driver.as_deref() {
            _ if taken.contains(&device.address) => Taken::Driver,
            None | Some("nvidia") => Taken::Nobody,
            Some(_) => Taken::Other,
        };
        let (address, device) = (device.address, device.device);
        gpus.push(Gpu { address, device, taken: by, kernel_message: None });
    }
    if is_loaded {
        add_kernel_messages(&mut gpus, &root.display("dev/kmsg"));
    }
    Ok(gpus)
}

/// Adds the kernel's messages about the GPUs that no driver is bound to.
fn add_kernel_messages(gpus: &mut [Gpu], log: &Path) {
    let silent = || gpus.iter().filter(|gpu| gpu.taken == Taken::Nobody);
    if silent().next().is_none() {
        return;
    }
    let mut messages = KernelMessages::about(silent().map(|gpu| gpu.address.as_str()));
    KernelLog::whole(log).each_of_kernel(|message| messages.read(message));
    let mut by_address = messages.last;
    for gpu in gpus.iter_mut().filter(|gpu| gpu.taken == Taken::Nobody) {
        gpu.kernel_message = by_address.remove(&gpu.address).map(|(_, text)| text);
    }
}

/// The last kernel message about each of some addresses.
#[derive(Default)]
struct KernelMessages {
    addresses: Vec<String>,
    /// Address -> true if the driver itself logged it, and the message.
    last: BTreeMap<String, (bool, String)>,
    /// The address whose message may continue in the next record, and the number of records so far.
    open: Option<(String, usize)>,
}

impl KernelMessages {
    fn about<'a>(addresses: impl Iterator<Item = &'a str>) -> Self {
        Self { addresses: addresses.map(str::to_owned).collect(), ..Self::default() }
    }

    /// Takes a kernel message. The driver's own messages (NVRM, with Xid) take precedence over
    /// those of the PCI bus (`nvidia: probe of 0000:02:00.0 failed`), and later ones over earlier.
    fn read(&mut self, message: &str) {
        let text = unwrapped(message);
        let by_driver = text.starts_with("NVRM:");
        if let Some((address, records)) = self.open.take().filter(|_| by_driver)
            && !self.addresses.iter().any(|a| names(&text, a))
            && let Some((_, text_so_far)) = self.last.get_mut(&address)
            && !text_so_far.ends_with('.')
        {
            text_so_far.push_str(text.trim_start_matches("NVRM:"));
            cut(text_so_far);
            if records < RECORDS {
                self.open = Some((address, records + 1));
            }
            return;
        }
        if !by_driver && !text.contains("nvidia") {
            return;
        }
        let Some(address) = self.addresses.iter().find(|a| names(&text, a)).cloned() else {
            return;
        };
        if !by_driver && self.last.get(&address).is_some_and(|(driver, _)| *driver) {
            return;
        }
        let mut text = text;
        cut(&mut text);
        self.last.insert(address.clone(), (by_driver, text));
        self.open = by_driver.then_some((address, 2));
    }
}

/// True if a message is about the device: an Xid names it without its function (`PCI:0000:02:00`).
fn names(text: &str, address: &str) -> bool {
    address.split('.').next().is_some_and(|device| text.contains(device))
}

fn cut(text: &mut String) {
    if let Some((at, _)) = text.char_indices().find(|(at, _)| *at >= LONGEST_MESSAGE) {
        text.truncate(at);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use rstest::rstest;

    const NVRM: &str = "NVRM: The NVIDIA GPU 0000:02:00.0\nNVRM: (PCI ID: 10de:1eb8) installed in \
        this system has\nNVRM: fallen off the bus and is not responding to commands.";
    const SAID: &str = "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:1eb8) installed in this \
        system has fallen off the bus and is not responding to commands.";

    fn device(root: &Path, address: &str, class: &str, driver: Option<&str>) {
        let dir = root.join(pci::DEVICES).join(address);
        fs::create_dir_all(&dir).unwrap();
        for (name, value) in [
            ("vendor", "0x10de"),
            ("device", "0x1eb8"),
            ("class", class),
            ("subsystem_device", "0x12a2"),
        ] {
            fs::write(dir.join(name), format!("{value}\n")).unwrap();
        }
        if let Some(driver) = driver {
            symlink(format!("../../../bus/pci/drivers/{driver}"), dir.join("driver")).unwrap();
        }
    }

    #[test]
    fn each_gpu_is_the_drivers_nobodys_or_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        device(root, "0000:01:00.0", "0x030200", Some("nvidia"));
        device(root, "0000:02:00.0", "0x030000", None);
        device(root, "0000:03:00.0", "0x030200", Some("vfio-pci"));
        // Bound, and released in the middle of the probe.
        device(root, "0000:04:00.0", "0x030200", Some("nvidia"));
        device(root, "0000:05:00.0", "0x068000", None);
        device(root, "0000:06:00.0", "0x040300", None);
        device(root, "0000:07:00.0", "0x030200", None);
        symlink("../0000:01:00.0", root.join(pci::DEVICES).join("0000:07:00.0/physfn")).unwrap();
        fs::create_dir_all(root.join(TAKEN).join("0000:01:00.0")).unwrap();
        fs::create_dir_all(root.join("sys/module/nvidia")).unwrap();
        fs::write(root.join("sys/module/nvidia/refcnt"), "0\n").unwrap();
        let gpus = read(&Root::open(root).unwrap()).unwrap();
        let taken: Vec<_> = gpus.iter().map(|gpu| (gpu.address.as_str(), gpu.taken)).collect();
        assert_eq!(
            taken,
            [
                ("0000:01:00.0", Taken::Driver),
                ("0000:02:00.0", Taken::Nobody),
                ("0000:03:00.0", Taken::Other),
                ("0000:04:00.0", Taken::Nobody),
            ]
        );
        let findings = missing(&gpus, false);
        assert_eq!(findings.len(), 2);
        assert_eq!(findings[0].severity, Severity::Warning);
        assert!(findings[0].detail.starts_with("0000:02:00.0 (10de:1eb8) is on the PCI bus"));
    }

    #[test]
    fn a_list_of_the_drivers_that_is_not_seen_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        device(dir.path(), "0000:01:00.0", "0x030200", Some("nvidia"));
        assert!(read(&Root::open(dir.path()).unwrap()).is_ok(), "nothing is loaded");
        fs::create_dir_all(dir.path().join("sys/module/nvidia")).unwrap();
        fs::write(dir.path().join("sys/module/nvidia/refcnt"), "0\n").unwrap();
        assert!(read(&Root::open(dir.path()).unwrap()).is_err());
    }

    #[rstest]
    #[case::one_record(&[NVRM], Some(SAID))]
    #[case::a_record_a_line(&[
        "NVRM: The NVIDIA GPU 0000:02:00.0",
        "NVRM: (PCI ID: 10de:1eb8) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: loading NVIDIA UNIX Open Kernel Module",
    ], Some(SAID))]
    #[case::the_bus_after_the_driver(
        &[NVRM, "nvidia: probe of 0000:02:00.0 failed with error -1"], Some(SAID))]
    #[case::the_bus_alone(
        &["nvidia 0000:02:00.0: probe with driver nvidia failed with error -1"],
        Some("nvidia 0000:02:00.0: probe with driver nvidia failed with error -1"))]
    #[case::the_last_of_several(
        &[NVRM, "NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."],
        Some("NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."))]
    #[case::another_gpu(&["NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."], None)]
    #[case::another_driver(&["pci 0000:02:00.0: [10de:1eb8] type 00 class 0x030200"], None)]
    fn the_kernels_words_about_a_gpu_are_found(#[case] log: &[&str], #[case] wanted: Option<&str>) {
        let mut messages = KernelMessages::about(["0000:02:00.0"].into_iter());
        log.iter().for_each(|message| messages.read(message));
        let message = messages.last.remove("0000:02:00.0").map(|(_, text)| text);
        assert_eq!(message.as_deref(), wanted);
    }

    #[rstest]
    #[case("", 3)]
    #[case("NVreg_EnableMSI=1", 3)]
    #[case("NVreg_AssignGpus=\"02:00\" NVreg_EnableMSI=1", 1)]
    #[case("NVreg_AssignGpus=0000:01:00,0:02:00.0", 2)]
    #[case("NVreg_AssignGpus=nonsense", 3)]
    fn what_the_module_is_told_not_to_drive_is_not_missing(
        #[case] parameters: &str,
        #[case] count: usize,
    ) {
        let gpu = |bus| Gpu {
            address: format!("0000:0{bus}:00.0"),
            device: 0x1eb8,
            taken: Taken::Nobody,
            kernel_message: None,
        };
        assert_eq!(assigned((1..=3).map(gpu).collect(), parameters).len(), count);
    }

    #[test]
    fn what_the_kernel_says_is_shown_in_one_line_and_cut() {
        let gpu = Gpu {
            address: "0000:02:00.0".into(),
            device: 0x1eb8,
            taken: Taken::Nobody,
            kernel_message: Some("NVRM: \u{1b}[31m".into()),
        };
        let detail = missing(&[gpu], true).remove(0).detail;
        assert!(detail.ends_with("the kernel says: NVRM: \\u{1b}[31m"), "{detail}");
        let mut messages = KernelMessages::about(["0000:02:00.0"].into_iter());
        messages.read(&format!("NVRM: 0000:02:00.0 {}", "é".repeat(1000)));
        assert!(messages.last["0000:02:00.0"].1.len() <= LONGEST_MESSAGE + 2);
    }
}
