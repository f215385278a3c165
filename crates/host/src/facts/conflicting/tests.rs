use std::fs;
use std::path::Path;

use rstest::rstest;

use super::*;
use crate::facts::DeviceKind;

const GPU: &str = "sys/bus/pci/devices/0000:01:00.0";

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn device(driver: &str) -> PciDevice {
    PciDevice {
        address: "0000:01:00.0".into(),
        kind: DeviceKind::Gpu,
        device: 0x1eb8,
        subsystem_device: 0,
        class: 0x03_0000,
        driver: Some(driver.into()),
        vgpu: false,
    }
}

/// Reads a host whose module of this name has so many references, after `change`.
fn seen(name: &str, references: i64, change: impl FnOnce(&Path)) -> Option<ConflictingModule> {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(root, "proc/devices", "Character devices:\n226 drm\n");
    write(root, &format!("{GPU}/drm/card0/dev"), "226:0\n");
    write(root, "sys/class/vtconsole/vtcon0/name", "(S) dummy device\n");
    write(root, "sys/class/vtconsole/vtcon0/bind", "1\n");
    change(root);
    let module = LoadedModule { refcount: Some(references), ..LoadedModule::default() };
    let loaded = BTreeMap::from([(name.to_owned(), module)]);
    let driver = if name == "nova_core" { "NovaCore" } else { name };
    let root = Root::open(root).unwrap();
    read(&root, &[device(driver)], &loaded).unwrap().remove(name)
}

fn console(root: &Path, bind: &str) {
    write(root, &format!("{GPU}/graphics/fb0/dev"), "29:0\n");
    write(root, "sys/class/vtconsole/vtcon1/name", "(M) frame buffer device\n");
    write(root, "sys/class/vtconsole/vtcon1/bind", bind);
}

#[rstest]
#[case("nouveau", 0, true, "")]
#[case("nova_core", 0, true, "")]
#[case("nouveau", 2, false, "2 references whose holders are unknown")]
fn references_decide(
    #[case] name: &str,
    #[case] references: i64,
    #[case] idle: bool,
    #[case] named: &str,
) {
    let found = seen(name, references, |_| {}).expect("there");
    assert_eq!((found.is_idle(), found.to_string().as_str()), (idle, named));
}

#[rstest]
#[case("1\n", Some("console vtcon1 (frame buffer device) on fb0"))]
#[case("0\n", None)]
fn an_attached_console_uses_the_gpu_with_a_frame_buffer(
    #[case] bind: &str,
    #[case] named: Option<&str>,
) {
    let found = seen("nouveau", 0, |root| console(root, bind)).expect("there");
    assert_eq!(found.is_idle(), named.is_none());
    assert_eq!(found.to_string(), named.unwrap_or_default());
}

#[rstest]
#[case("nouveau", "1\n", 1)]
#[case("nouveau", "0\n", 0)]
#[case("vfio-pci", "1\n", 0)]
fn consoles_are_read_anew(#[case] driver: &str, #[case] bind: &str, #[case] attached: usize) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    assert_eq!(consoles_of(&root.join("none"), "nouveau").unwrap(), [""; 0]);
    assert_eq!(consoles_of(root, "nouveau").unwrap(), [""; 0]);
    for (file, text) in [
        ("vendor", "0x10de\n"),
        ("class", "0x030000\n"),
        ("device", "0x1eb8\n"),
        ("subsystem_device", "0x12a2\n"),
    ] {
        write(root, &format!("{GPU}/{file}"), text);
    }
    std::os::unix::fs::symlink(format!("/drivers/{driver}"), root.join(GPU).join("driver"))
        .unwrap();
    console(root, bind);
    let found = consoles_of(root, "nouveau").unwrap();
    assert_eq!(found.len(), attached, "{found:?}");
    for console in found {
        assert_eq!(detaching(&console), "echo 0 > /sys/class/vtconsole/vtcon1/bind");
    }
}

#[test]
fn a_console_elsewhere_does_not_use_it() {
    let found = seen("nouveau", 0, |root| {
        console(root, "1\n");
        fs::remove_dir_all(root.join(GPU).join("graphics")).unwrap();
    });
    assert!(found.expect("there").is_idle());
}

#[test]
fn a_process_with_its_node_is_named() {
    let found = seen("nouveau", 1, |root| {
        // /dev/null stands for the node: its number is 1:3.
        write(root, &format!("{GPU}/drm/renderD128/dev"), "1:3\n");
        write(root, "proc/41/comm", "Xorg\n");
        fs::create_dir_all(root.join("proc/41/fd")).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.join("proc/41/fd/3")).unwrap();
    });
    let named = found.expect("there").to_string();
    assert!(named.starts_with("pid 41 (Xorg) holds /dev/null (a display server"), "{named}");
}

#[test]
fn parameters_are_those_that_it_can_be_loaded_with_again() {
    let found = seen("nouveau", 0, |root| {
        for (name, value) in [
            ("config", "(null)\n"),
            ("debug", "disp=trace, fifo=trace\n"),
            ("empty", "\n"),
            ("modeset", "-1\n"),
            ("odd", "a\"b\n"),
        ] {
            write(root, &format!("sys/module/nouveau/parameters/{name}"), value);
        }
    });
    assert_eq!(found.expect("there").parameters, "debug=\"disp=trace, fifo=trace\" modeset=-1");
}

#[rstest]
#[case("vfio-pci")]
#[case("nvidia")]
fn other_drivers_are_none_of_them(#[case] driver: &str) {
    assert_eq!(module_of(driver), None);
    assert!(seen(driver, 0, |_| {}).is_none());
}
