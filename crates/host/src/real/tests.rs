use super::*;

fn scene() -> (tempfile::TempDir, RealHost) {
    let dir = tempfile::tempdir().unwrap();
    let host = RealHost::new(dir.path());
    (dir, host)
}

fn write(dir: &tempfile::TempDir, path: &str, text: &str) {
    let path = dir.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_module_is_read_from_sysfs() {
    let (dir, host) = scene();
    write(&dir, "sys/module/nvidia/refcnt", "2\n");
    write(&dir, "sys/module/nvidia/version", "535.261.03\n");
    write(&dir, "sys/module/nvidia/holders/nvidia_uvm/x", "");
    write(&dir, "sys/module/nvidia/holders/nvidia_modeset/x", "");
    let state = host.module("nvidia").unwrap().unwrap();
    let instance = fs::metadata(dir.path().join("sys/module/nvidia")).unwrap().ino();
    let expected = ModuleState {
        refcount: 2,
        holders: vec!["nvidia_modeset".to_owned(), "nvidia_uvm".to_owned()],
        version: Some("535.261.03".to_owned()),
        srcversion: None,
        instance: Some(instance),
        stage: Stage::Live,
    };
    assert_eq!(state, expected);
    for (initstate, stage) in
        [("coming", Stage::Coming), ("live", Stage::Live), ("going", Stage::Going)]
    {
        write(&dir, "sys/module/nvidia/initstate", &format!("{initstate}\n"));
        assert_eq!(host.module("nvidia").unwrap().unwrap().stage, stage);
    }
}

#[test]
fn what_is_built_in_is_not_loaded() {
    let (dir, host) = scene();
    write(&dir, "sys/module/firmware_class/parameters/path", "\n");
    assert_eq!(host.module("firmware_class").unwrap(), None);
    assert_eq!(host.module("absent").unwrap(), None);
}

#[test]
fn parameters_lose_one_newline_only_and_an_absent_file_is_none() {
    let (dir, host) = scene();
    write(&dir, "sys/p", "/lib/firmware\n");
    write(&dir, "sys/newline", "\n\n");
    assert_eq!(host.parameter(Path::new("/sys/p")).unwrap().as_deref(), Some("/lib/firmware"));
    assert_eq!(host.parameter(Path::new("/sys/newline")).unwrap().as_deref(), Some("\n"));
    assert_eq!(host.parameter(Path::new("/sys/absent")).unwrap(), None);
    let error = host.write_parameter(Path::new("/sys/absent"), "x").unwrap_err();
    assert_eq!(error.errno, Errno::ENOENT);
    assert_eq!(error.to_string(), "write /sys/absent: ENOENT: No such file or directory");
}

#[test]
fn the_drivers_registry_stands_in_for_parameters_sysfs_does_not_show() {
    let (dir, host) = scene();
    let params = "ResmanDebugLevel: 4294967295\nEnableMSI: 1\nRegistryDwords: \"a=1;b=2\"\n";
    write(&dir, "proc/driver/nvidia/params", params);
    write(&dir, "sys/module/nvidia_drm/parameters/modeset", "Y\n");
    let cases = [
        ("nvidia", "NVreg_EnableMSI", Some("1")),
        ("nvidia", "NVreg_RegistryDwords", Some("a=1;b=2")),
        ("nvidia", "NVreg_Typo", None),
        ("nvidia", "other", None),
        ("nvidia_drm", "modeset", Some("Y")),
        ("nvidia_drm", "NVreg_EnableMSI", None),
    ];
    for (module, name, value) in cases {
        assert_eq!(host.module_parameter(module, name).unwrap().as_deref(), value, "{name}");
    }
}

#[test]
fn directories_are_made_one_by_one_and_known_by_identity() {
    let (dir, host) = scene();
    let path = Path::new("/a");
    assert_eq!(host.make_dir(Path::new("/a/b")).unwrap_err().errno, Errno::ENOENT);
    host.make_dir(path).unwrap();
    assert_eq!(fs::metadata(dir.path().join("a")).unwrap().mode() & 0o7777, 0o755);
    std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
    assert_eq!(host.dir(path).unwrap(), host.dir(Path::new("/link")).unwrap());
    write(&dir, "a/file", "");
    assert_eq!(host.remove_dir(path).unwrap_err().errno, Errno::ENOTEMPTY);
    assert_eq!(host.dir(Path::new("/a/file")).unwrap(), None);
    assert_eq!(host.dir(Path::new("/a/file/x")).unwrap(), None);
    host.remove_file(Path::new("/a/file")).unwrap();
    host.remove_dir(path).unwrap();
    assert!(!host.has_dir(path).unwrap());
}

#[test]
fn what_is_no_character_device_is_in_the_way_of_a_node() {
    let (dir, host) = scene();
    write(&dir, "dev/nvidia0", "");
    assert_eq!(host.node(Path::new("/dev/nvidia0")).unwrap_err().errno, Errno::EEXIST);
    assert_eq!(host.node(Path::new("/dev/absent")).unwrap(), None);
    let null = RealHost::new(Path::new("/")).node(Path::new("/dev/null")).unwrap().unwrap();
    assert_eq!((null.major, null.minor), (1, 3));
}

#[test]
fn a_name_or_parameter_with_a_nul_never_reaches_the_kernel() {
    let (_dir, host) = scene();
    assert_eq!(host.unload_module("a\0b").unwrap_err().errno, Errno::EINVAL);
    assert_eq!(host.load_module("a", Image::Bytes(b""), "x=\0").unwrap_err().errno, Errno::EINVAL);
}

#[test]
fn mounts_are_counted_on_the_running_host() {
    let host = RealHost::new(Path::new("/"));
    assert!(host.mounts_on(Path::new("/proc")).unwrap() >= 1);
    assert_eq!(host.mounts_on(Path::new("/nonexistent")).unwrap(), 0);
    assert!(host.mount_source(Path::new("/proc")).unwrap().is_some());
    assert_eq!(host.mount_source(Path::new("/nonexistent")).unwrap(), None);
}

#[test]
fn a_file_is_told_from_a_directory_and_a_link_is_not_followed() {
    let (dir, host) = scene();
    write(&dir, "run/file", "");
    std::os::unix::fs::symlink("/nowhere", dir.path().join("run/link")).unwrap();
    for (path, there) in
        [("/run/file", true), ("/run/link", true), ("/run", false), ("/run/none", false)]
    {
        assert_eq!(host.file(Path::new(path)).unwrap().is_some(), there, "{path}");
    }
    host.remove_file(Path::new("/run/link")).unwrap();
    assert!(host.file(Path::new("/run/link")).unwrap().is_none());
}

/// The device of /dev/null, in place of a driver's: any device would do, it is not opened.
const NULL: Node = Node { major: 1, minor: 3, mode: 0o640, owner: Owner { uid: 7, gid: 44 } };

#[test]
fn a_node_is_made_with_its_owner_and_set_to_another_one() {
    let (dir, host) = scene();
    fs::create_dir(dir.path().join("dev")).unwrap();
    let path = Path::new("/dev/nvidia0");
    host.make_nodes(&[(path.into(), NULL)]).unwrap();
    assert_eq!(host.node(path).unwrap(), Some(NULL));
    let other = Node { mode: 0o606, owner: Owner { uid: 0, gid: 0 }, ..NULL };
    host.set_node(path, other).unwrap();
    assert_eq!(host.node(path).unwrap(), Some(other));
    let error = host.set_node(path, Node { minor: 5, ..other }).unwrap_err();
    assert_eq!(error.errno, Errno::ENXIO);
    assert_eq!(host.node(path).unwrap(), Some(other));
}

/// A file that replaces the node keeps its mode and owner, and so does the target of a link.
#[test]
fn what_took_the_place_of_a_node_is_not_changed() {
    let (dir, host) = scene();
    write(&dir, "secret", "");
    let at = |path: &str| dir.path().join(path);
    fs::create_dir(at("dev")).unwrap();
    std::os::unix::fs::symlink(at("secret"), at("dev/link")).unwrap();
    host.make_node(Path::new("/dev/node"), NULL).unwrap();
    std::os::unix::fs::symlink("node", at("dev/to-node")).unwrap();
    write(&dir, "dev/file", "");
    let before = fs::metadata(at("secret")).unwrap();
    for path in ["/dev/link", "/dev/to-node", "/dev/file", "/dev", "/dev/none"] {
        let wide = Node { mode: 0o666, ..NULL };
        let errno = host.set_node(Path::new(path), wide).unwrap_err().errno;
        assert!([Errno::ENXIO, Errno::ENOENT].contains(&errno), "{path}: {errno}");
    }
    let after = fs::metadata(at("secret")).unwrap();
    assert_eq!((before.mode(), before.uid()), (after.mode(), after.uid()));
    assert_eq!(host.node(Path::new("/dev/node")).unwrap(), Some(NULL));
}
