//! The kernel's rules for loading modules.

use crate::facts::{ModuleLoading, Probe, Security, keys, selinux};
use longshore_core::root::{Root, is_absent};

/// The EFI variable, with the GUID of EFI's global variables (UEFI specification, 3.3).
const SECURE_BOOT: &str =
    "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// File that every kernel has among its sysctls.
const RELEASE: &str = "proc/sys/kernel/osrelease";

/// Reads the rules; from `host` if a mount is missing in the container's own /sys.
pub(super) fn read(root: &Root, host: &Root) -> Security {
    Security {
        secure_boot: secure_boot(root, host),
        lockdown: lockdown(root, host),
        sig_enforce: sig_enforce(root),
        module_loading: module_loading(root),
        load_pin: load_pin(root),
        keys: keys::read(root),
        only_platform_keys: keys::has_only_platform(root),
        selinux: selinux::read(root, host),
    }
}

fn secure_boot(root: &Root, host: &Root) -> Probe<bool> {
    match root.read(SECURE_BOOT).or_else(|e| host.read(SECURE_BOOT).map_err(|_| e)) {
        // Four bytes of attributes, then the value (Documentation/filesystems/efivarfs.rst).
        Ok(bytes) => match bytes.get(4) {
            Some(value) => Probe::Read(*value == 1),
            None => Probe::Unreadable(format!("/{SECURE_BOOT} is {} bytes short", 5 - bytes.len())),
        },
        Err(e) if is_absent(&e) => secure_boot_without_variable(root, &e.to_string()),
        Err(e) => Probe::Unreadable(e.to_string()),
    }
}

/// Secure Boot without its variable: off without EFI; with EFI, efivarfs may merely not be mounted
/// here.
fn secure_boot_without_variable(root: &Root, error: &str) -> Probe<bool> {
    match (root.exists("sys/firmware"), root.exists("sys/firmware/efi")) {
        (Ok(true), Ok(false)) => Probe::Read(false),
        _ => match root.read_dir("sys/firmware/efi/efivars") {
            Ok(names) if !names.is_empty() => Probe::Read(false),
            _ => Probe::Unreadable(format!("{error} (is efivarfs mounted?)")),
        },
    }
}

fn lockdown(root: &Root, host: &Root) -> Probe<String> {
    const FILE: &str = "sys/kernel/security/lockdown";
    match root.read_to_string(FILE).or_else(|e| host.read_to_string(FILE).map_err(|_| e)) {
        Ok(text) => match chosen(&text) {
            Some(mode) => Probe::Read(mode.to_owned()),
            None => Probe::Unreadable(format!("/{FILE} says `{}`", text.trim())),
        },
        Err(e) if is_absent(&e) => match root.read_dir("sys/kernel/security") {
            // securityfs is mounted and has no lockdown file: the kernel was built without it.
            Ok(names) if !names.is_empty() => Probe::Read("none".to_owned()),
            _ => Probe::Unreadable(format!("{e} (is securityfs mounted?)")),
        },
        Err(e) => Probe::Unreadable(e.to_string()),
    }
}

/// The word in brackets: `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word)
}

/// Reads a setting of the kernel; it is `absent` where its file is not there, and `beside` is.
fn setting<T>(
    root: &Root,
    file: &str,
    beside: &str,
    absent: T,
    parse: impl FnOnce(&str) -> T,
) -> Probe<T> {
    match root.read_to_string(file) {
        Ok(text) => Probe::Read(parse(text.trim())),
        Err(e) if is_absent(&e) && root.exists(beside).unwrap_or(false) => Probe::Read(absent),
        Err(e) => Probe::Unreadable(e.to_string()),
    }
}

fn sig_enforce(root: &Root) -> Probe<bool> {
    // Without CONFIG_MODULE_SIG the parameter does not exist (kernel/module/signing.c).
    let file = "sys/module/module/parameters/sig_enforce";
    setting(root, file, "sys/module", false, |text| matches!(text, "Y" | "1"))
}

fn module_loading(root: &Root) -> Probe<ModuleLoading> {
    // The sysctl exists exactly with CONFIG_MODULES (kernel/module/main.c).
    let file = "proc/sys/kernel/modules_disabled";
    setting(root, file, RELEASE, ModuleLoading::Unsupported, |text| match text {
        "0" => ModuleLoading::Allowed,
        _ => ModuleLoading::Disabled,
    })
}

/// Reads LoadPin's sysctl, which exists where LoadPin is active (security/loadpin/loadpin.c).
fn load_pin(root: &Root) -> Probe<bool> {
    setting(root, "proc/sys/kernel/loadpin/enforce", RELEASE, false, |text| text != "0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::path::Path;

    fn tree(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, bytes) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    fn known<T>(fact: Probe<T>) -> Option<T> {
        match fact {
            Probe::Read(value) => Some(value),
            Probe::Unreadable(_) => None,
        }
    }

    #[rstest]
    #[case(&[(SECURE_BOOT, b"\x06\0\0\0\x01".as_slice())], Some(true))]
    #[case(&[(SECURE_BOOT, b"\x06\0\0\0\0".as_slice())], Some(false))]
    #[case(&[(SECURE_BOOT, b"\x06".as_slice())], None)]
    #[case(&[("sys/firmware/acpi/x", b"".as_slice())], Some(false))]
    #[case(&[("sys/firmware/efi/x", b"".as_slice())], None)]
    #[case(&[("sys/firmware/efi/efivars/Other", b"".as_slice())], Some(false))]
    #[case(&[], None)]
    fn secure_boots(#[case] files: &[(&str, &[u8])], #[case] wanted: Option<bool>) {
        let (_dir, root) = tree(files);
        assert_eq!(known(secure_boot(&root, &root)), wanted);
    }

    #[rstest]
    #[case(&[("sys/kernel/security/lockdown", b"[none] integrity confidentiality\n".as_slice())], Some("none"))]
    #[case(&[("sys/kernel/security/lockdown", b"none [integrity] confidentiality\n".as_slice())], Some("integrity"))]
    #[case(&[("sys/kernel/security/lockdown", b"?".as_slice())], None)]
    #[case(&[("sys/kernel/security/lsm", b"bpf".as_slice())], Some("none"))]
    #[case(&[], None)]
    fn lockdowns(#[case] files: &[(&str, &[u8])], #[case] wanted: Option<&str>) {
        let (_dir, root) = tree(files);
        assert_eq!(known(lockdown(&root, &root)).as_deref(), wanted);
    }

    #[rstest]
    #[case(&[("sys/module/module/parameters/sig_enforce", b"Y\n".as_slice())], Some(true))]
    #[case(&[("sys/module/module/parameters/sig_enforce", b"N\n".as_slice())], Some(false))]
    #[case(&[("sys/module/x/refcnt", b"0".as_slice())], Some(false))]
    #[case(&[], None)]
    fn sig_enforces(#[case] files: &[(&str, &[u8])], #[case] wanted: Option<bool>) {
        let (_dir, root) = tree(files);
        assert_eq!(known(sig_enforce(&root)), wanted);
    }

    #[rstest]
    #[case(&[("proc/sys/kernel/loadpin/enforce", b"1\n".as_slice())], Some(true))]
    #[case(&[("proc/sys/kernel/loadpin/enforce", b"0\n".as_slice())], Some(false))]
    #[case(&[("proc/sys/kernel/osrelease", b"6".as_slice())], Some(false))]
    #[case(&[], None)]
    fn load_pins(#[case] files: &[(&str, &[u8])], #[case] wanted: Option<bool>) {
        let (_dir, root) = tree(files);
        assert_eq!(known(load_pin(&root)), wanted);
    }

    #[rstest]
    #[case(&[("proc/sys/kernel/modules_disabled", b"0\n".as_slice())], Some(ModuleLoading::Allowed))]
    #[case(&[("proc/sys/kernel/modules_disabled", b"1\n".as_slice())], Some(ModuleLoading::Disabled))]
    #[case(&[("proc/sys/kernel/osrelease", b"6".as_slice())], Some(ModuleLoading::Unsupported))]
    #[case(&[], None)]
    fn module_loadings(#[case] files: &[(&str, &[u8])], #[case] wanted: Option<ModuleLoading>) {
        let (_dir, root) = tree(files);
        assert_eq!(known(module_loading(&root)), wanted);
    }
}
