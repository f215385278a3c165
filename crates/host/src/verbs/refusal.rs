//! Reasons why the kernel refused a module, from its errno and its log messages.

use nix::errno::Errno;

use crate::VerbError;
use crate::facts::kmsg::unwrapped;
use longshore_core::failure::{Failure, FailureKind};

/// Maximum number of kernel log lines in a failure.
const LINES: usize = 6;

/// Cause and remedy where the kernel's integrity policy refuses a module (security/integrity/ima/ima_main.c: from
/// memory, and ima_appraise.c: as a file).
const APPRAISED: &str = "the kernel's integrity policy (IMA) loads modules only from files with their digest or \
                         signature in the attribute security.ima";
const APPRAISE: &str = "give the store's modules that attribute (evmctl ima_sign, or ima_hash where the policy \
                        takes digests) and start again, or exempt the store's file system in the policy";

/// Kernel log patterns, each with its exit code, meaning and remedy. The first match wins, so the
/// more specific come first. Sources: nv-pci.c, nv.c and os-interface of 535 and 550, and
/// kernel/module/main.c, version.c and signing.c of Linux 6.1.
const LOGGED: &[(&str, FailureKind, &str, &str)] = &[
    (
        "not supported by open nvidia.ko",
        FailureKind::KernelRefused,
        "the GPU has no System Processor, which the open kernel modules need",
        "set the flavour to proprietary",
    ),
    (
        "Legacy drivers",
        FailureKind::KernelRefused,
        "the GPU is too old for this driver version",
        "set the driver version to the legacy branch that the kernel log names",
    ),
    (
        "is not supported by the NVIDIA",
        FailureKind::KernelRefused,
        "this driver version does not know the GPU",
        "set a newer driver version; a vGPU of a virtual machine needs the guest driver of NVIDIA's vGPU software, \
         whatever the version (`longshore doctor` tells a vGPU)",
    ),
    (
        "fallen off the bus",
        FailureKind::NoDevice,
        "the GPU does not answer on the PCI bus",
        "check power, seating and PCI errors (dmesg); a cold reboot often brings it back",
    ),
    (
        "Can't find an IRQ",
        FailureKind::NoDevice,
        "the GPU got no interrupt",
        "check the firmware's settings, or the hypervisor's passthrough of the device",
    ),
    (
        "PCI I/O region",
        FailureKind::NoDevice,
        "the firmware assigned the GPU no memory region",
        "enable Above 4G Decoding in the firmware, or boot with pci=realloc",
    ),
    (
        "probe routine was not called",
        FailureKind::Preflight,
        "another kernel driver holds the GPU",
        "unbind the GPU from the driver that holds it (nouveau, vfio-pci, pci-stub)",
    ),
    (
        "No NVIDIA GPU found",
        FailureKind::NoDevice,
        "the kernel finds no NVIDIA GPU",
        "check that the GPU is in this machine, or passed through to it",
    ),
    (
        "unsigned module is rejected",
        FailureKind::KernelRefused,
        "the kernel requires signed modules, and this one is not signed",
        "sign the modules (`longshore explain signature-required`), or turn Secure Boot off",
    ),
    (
        "unavailable key is rejected",
        FailureKind::KernelRefused,
        "the kernel requires signed modules, and does not have the key that signed this one",
        "enrol the signer's certificate in the firmware (mokutil --import), or sign with a key that \
         the kernel has",
    ),
    (
        "unsupported crypto is rejected",
        FailureKind::KernelRefused,
        "the kernel does not have the hash or the algorithm that the module is signed with",
        "sign with the hash of the kernel's own modules (leave module-signing.hash unset), or load \
         the module that has it (sha512_generic)",
    ),
    ("impossible to appraise a module", FailureKind::KernelRefused, APPRAISED, APPRAISE),
    ("op=appraise_data", FailureKind::KernelRefused, APPRAISED, APPRAISE),
    (
        "disagrees about version of symbol",
        FailureKind::KernelRefused,
        "the module was built for another build of this kernel",
        "remove the prebuilt set and let longshore compile, or build the set for this kernel",
    ),
    (
        "version magic",
        FailureKind::KernelRefused,
        "the module was built for another kernel",
        "remove the prebuilt set and let longshore compile, or build the set for this kernel",
    ),
    (
        "exports duplicate symbol",
        FailureKind::KernelRefused,
        "another module, or the kernel, already has its symbols",
        "unload the other module first",
    ),
    (
        "Unknown symbol",
        FailureKind::KernelRefused,
        "a module that it depends on is not loaded, or this kernel lacks what it needs",
        "see the symbols in the kernel log; the kernel may have been built without that subsystem",
    ),
];

/// The failure of a verb on module `name`: exit code 16, or 17 if there is no device to drive.
pub fn explain(name: &str, error: &VerbError) -> Failure {
    let (code, cause, remedy) = logged(error).unwrap_or_else(|| by_errno(error.errno));
    let mut text = format!("{name}: {cause}");
    let logged = relevant(name, &error.kernel_log);
    if !logged.is_empty() {
        text.push_str("; the kernel says: ");
        text.push_str(&logged.join(" | "));
    }
    let error = VerbError::new(error.verb, error.subject.clone(), error.errno);
    Failure::new(code, text).with_source(error).remedy(remedy)
}

fn logged(error: &VerbError) -> Option<(FailureKind, &'static str, &'static str)> {
    // The driver wraps its messages, over lines of one record or over several records.
    let logged: Vec<String> = error.kernel_log.iter().map(|record| unwrapped(record)).collect();
    let logged = logged.join(" ").replace("NVRM: ", "");
    let (_, code, cause, remedy) = LOGGED.iter().find(|(text, ..)| logged.contains(text))?;
    Some((*code, cause, remedy))
}

fn by_errno(errno: Errno) -> (FailureKind, &'static str, &'static str) {
    // An errno with a cause of its own below; a kind other than KernelRefused stands here.
    let kind = match errno {
        Errno::ENODEV => FailureKind::NoDevice,
        Errno::ENOSYS => FailureKind::HostUnsupported,
        _ => FailureKind::KernelRefused,
    };
    let (cause, remedy) = match errno {
        Errno::ENODEV => (
            "the driver finds no device that it supports",
            "check that a supported GPU is in this machine and bound to no other driver",
        ),
        Errno::ENOEXEC => (
            "the kernel does not accept the module's format or version magic",
            "the module is for another kernel or architecture: build it for this one",
        ),
        Errno::EKEYREJECTED | Errno::ENOKEY | Errno::EBADMSG => (
            "the kernel enforces module signatures, and knows no key that signed this one",
            "sign the modules with a key enrolled in the firmware (mokutil), or turn Secure Boot off",
        ),
        Errno::EPERM => (
            "loading modules is not permitted: no CAP_SYS_MODULE, kernel.modules_disabled=1, or \
             lockdown",
            "run the container privileged; see kernel.modules_disabled and \
             /sys/kernel/security/lockdown on the host",
        ),
        Errno::ENOENT => (
            "the module needs symbols that the running kernel does not have",
            "a module that it depends on is not loaded, or was left out of this kernel",
        ),
        Errno::EINVAL => (
            "the kernel does not accept the module or one of its parameters",
            "check the module's parameters, and that it was built for this very kernel",
        ),
        Errno::ENOMEM => ("the kernel has no memory for the module", "free memory on the host"),
        Errno::EEXIST => (
            "a module of that name is already loaded",
            "another program loaded it just now, or it is built in: run again",
        ),
        Errno::ENOSYS => {
            ("this kernel was built without loadable modules", "use a kernel that can load modules")
        }
        _ => ("the kernel refused the request", "see the kernel's log (dmesg) for the reason"),
    };
    (kind, cause, remedy)
}

/// The records about a module: its own, the driver's, the module loader's, and the integrity policy's.
fn relevant(name: &str, logged: &[String]) -> Vec<String> {
    let dashed = name.replace('_', "-");
    let about = |record: &&String| {
        let about_nvidia = name.starts_with("nvidia") && record.contains("NVRM");
        about_nvidia
            || record.contains(name)
            || record.contains(dashed.as_str())
            || record.contains("appraise")
            || ["Invalid ELF", "Loading of ", "Lockdown: "].iter().any(|s| record.starts_with(s))
    };
    let records = logged.iter().filter(about).map(|record| unwrapped(record));
    records.filter(|record| !is_noise(record)).take(LINES).collect()
}

/// True for messages about every out-of-tree module, and for the frame that NVRM prints around its
/// messages.
fn is_noise(record: &str) -> bool {
    record.contains("taints kernel")
        || record.contains("tainting kernel")
        || record.starts_with("nvidia-nvlink: ")
        || record.trim_start_matches("NVRM:").trim().is_empty()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use longshore_core::failure::ExitCode;

    fn refused(errno: Errno, logged: &[&str]) -> Failure {
        let mut error = VerbError::new("init_module", "nvidia", errno);
        error.kernel_log = logged.iter().map(|line| (*line).to_owned()).collect();
        explain("nvidia", &error)
    }

    #[rstest]
    #[case(Errno::ENODEV, "NVRM: No NVIDIA GPU found.", 17, "finds no NVIDIA GPU")]
    #[case(Errno::ENODEV, "NVRM: GPU 0000:01:00.0 has fallen off the bus.", 17, "does not answer")]
    #[case(
        Errno::ENODEV,
        "NVRM: installed in this system is not supported by open nvidia.ko because it does not include the required GPU",
        16,
        "System Processor"
    )]
    #[case(Errno::ENODEV, "NVRM: Can't find an IRQ for your NVIDIA card!", 17, "no interrupt")]
    #[case(
        Errno::EACCES,
        "ima: impossible to appraise a module without a file descriptor.",
        16,
        "(IMA)"
    )]
    #[case(Errno::EACCES, "audit: op=appraise_data cause=missing-hash res=0", 16, "(IMA)")]
    #[case(
        Errno::ENODEV,
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        17,
        "no memory region"
    )]
    #[case(
        Errno::ENODEV,
        "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
        15,
        "another kernel driver"
    )]
    #[case(
        Errno::ENODEV,
        "NVRM: supported through the NVIDIA 470.xx Legacy drivers. Please",
        16,
        "too old"
    )]
    #[case(
        Errno::ENOEXEC,
        "nvidia: version magic '6.1.0-1' should be '6.1.0-2'",
        16,
        "another kernel"
    )]
    #[case(
        Errno::EINVAL,
        "nvidia: disagrees about version of symbol module_layout",
        16,
        "another build"
    )]
    #[case(Errno::EKEYREJECTED, "Loading of unsigned module is rejected", 16, "not signed")]
    #[case(
        Errno::EKEYREJECTED,
        "Loading of module with unavailable key is rejected",
        16,
        "does not have the key"
    )]
    #[case(
        Errno::EKEYREJECTED,
        "Loading of module with unsupported crypto is rejected",
        16,
        "the hash or the algorithm"
    )]
    #[case(Errno::ENOENT, "nvidia: Unknown symbol drm_open (err -2)", 16, "depends on")]
    fn the_kernels_words_are_explained(
        #[case] errno: Errno,
        #[case] line: &str,
        #[case] code: u8,
        #[case] cause: &str,
    ) {
        let failure = refused(errno, &["usb 1-1: new device", "NVRM: ", line]);
        let text = failure.to_string();
        assert_eq!(failure.code().number(), code, "{text}");
        assert!(text.contains(cause), "{text}");
        assert!(text.ends_with(&format!("; the kernel says: {line}")), "{text}");
        assert!(failure.remedy_text().is_some());
        assert!(failure.report().contains("caused by: init_module nvidia: E"), "{text}");
    }

    #[rstest]
    #[case(Errno::ENODEV, 17)]
    #[case(Errno::ENOEXEC, 16)]
    #[case(Errno::EKEYREJECTED, 16)]
    #[case(Errno::EPERM, 16)]
    #[case(Errno::ENOENT, 16)]
    #[case(Errno::ENOSYS, 10)]
    #[case(Errno::EIO, 16)]
    fn an_errno_alone_is_explained(#[case] errno: Errno, #[case] code: u8) {
        let failure = refused(errno, &[]);
        assert_eq!(failure.code().number(), code);
        assert!(!failure.to_string().contains("the kernel says"));
    }

    /// As logged by 535.261.03 on Linux 6.1 for a V100.
    #[test]
    fn a_message_that_the_driver_wraps_is_understood_and_shown_as_one_line() {
        let record = "NVRM: The NVIDIA GPU 0000:00:01.0 (PCI ID: 10de:1db4)\nNVRM: installed in \
                      this system is not supported by open\nNVRM: nvidia.ko because it does not \
                      include the required GPU\nNVRM: System Processor (GSP).";
        let noise = "nvidia: loading out-of-tree module taints kernel.";
        let failure = refused(Errno::ENODEV, &[noise, record]);
        let text = failure.to_string();
        assert_eq!(failure.code(), ExitCode::KernelRefused, "{text}");
        assert!(text.contains("not supported by open nvidia.ko because it does not"), "{text}");
        assert!(!text.contains("taints") && !text.contains('\n'), "{text}");
        let records: Vec<&str> = record.lines().collect();
        assert_eq!(refused(Errno::ENODEV, &records).code(), ExitCode::KernelRefused);
    }

    #[test]
    fn a_flood_is_cut() {
        let lines: Vec<String> = (0..100).map(|n| format!("nvidia: Unknown symbol s{n}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let text = refused(Errno::ENOENT, &lines).to_string();
        assert_eq!(text.matches("Unknown symbol").count(), LINES);
    }
}
