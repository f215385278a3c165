//! Invalid configurations: the message names the file with line and key, the variable or the flag.

use std::fs;

use longshore_tests::scene::{Ended, Scene, finish};

#[test]
fn a_bad_file_is_named_with_line_and_key() {
    let scene = Scene::new();
    let file = scene.path("config.toml");
    let cases = [
        ("driver = \"535\"\nflavor = \"open\"\n", "line 2, key flavor"),
        ("jobs = \"many\"\n", "line 1, key jobs"),
        ("jobs = 0\n", "line 1, key jobs"),
        ("jobs = 100000000\n", "line 1, key jobs"),
        ("compile = 1\n", "line 1, key compile"),
        ("driver = \"535\n", "line 1, key driver"),
        ("[parameters]\nnvidia = 1\n", "line 2, key nvidia"),
        ("store = \"here\"\n", "line 1, key store"),
        ("unload-deadline = \"2h\"\n", "line 1, key unload-deadline"),
        ("[[archive]]\nurl = \"ftp://archive.example.com\"\n", "line 2, key url"),
        ("[[archive]]\nurl = \"http:///debian\"\n", "line 2, key url"),
        ("= = =\n", "line 1"),
        ("\0", "line 1"),
    ];
    for (text, place) in cases {
        fs::write(&file, text).expect("write");
        let expected = [file.to_str().expect("a path"), place];
        let ended = scene.refuses(scene.agent(&["plan"]), 2, &expected);
        assert_eq!(ended.out, "", "{ended}");
    }
    fs::write(&file, b"driver = \"\xff\"\n").expect("write");
    scene.refuses(scene.agent(&["plan"]), 2, &[file.to_str().expect("a path"), "UTF-8"]);
    fs::remove_file(&file).expect("remove");
    scene.refuses(scene.agent(&["plan"]), 2, &[file.to_str().expect("a path"), "No such file"]);
    fs::create_dir(&file).expect("directory");
    scene.refuses(scene.agent(&["plan"]), 2, &[file.to_str().expect("a path"), "directory"]);
}

#[test]
fn a_bad_variable_is_named() {
    let scene = Scene::new();
    let cases: [(&str, &[u8]); 14] = [
        ("LONGSHORE_DRIVER", b"latest!"),
        ("DRIVER_VERSION", b"535.x"),
        ("LONGSHORE_FLAVOUR", b"closed"),
        ("KERNEL_MODULE_TYPE", b"closed"),
        ("OPEN_KERNEL_MODULES_ENABLED", b"perhaps"),
        ("LONGSHORE_JOBS", b"-1"),
        ("LONGSHORE_STORE", b"relative"),
        ("LONGSHORE_COMPILE", b"maybe"),
        ("LONGSHORE_UNLOAD_DEADLINE", b"for ever"),
        ("LONGSHORE_EXTRA_MODULES", b"nvidia-drm,/etc/passwd"),
        ("LONGSHORE_STORE", b"/\xff"),
        ("LONGSHORE_LOG", b"longshore=loud"),
        // Not a setting: ignoring it would accept unsigned sets.
        ("LONGSHORE_REQUIRE_SIGNATURES", b"true"),
        ("LONGSHORE_SIGNATURE_KEY", b"/cosign.pub"),
    ];
    for (name, value) in cases {
        use std::os::unix::ffi::OsStrExt;
        let mut command = scene.agent(&["plan"]);
        command.env(name, std::ffi::OsStr::from_bytes(value));
        scene.refuses(command, 2, &[name]);
    }
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let scene = Scene::new();
    let tree = longshore_tests::scene::fixture("bookworm-t4-live");
    let mut command = scene.agent(&["plan", "--root", &tree]);
    for name in ["LONGSHORE_DRIVER", "LONGSHORE_LOG", "LONGSHORE_LOG_FORMAT", "LONGSHORE_JOBS"] {
        command.env(name, "");
    }
    finish(&mut command).assert_done();
}

#[test]
fn a_variable_that_is_no_setting_is_told() {
    let scene = Scene::new();
    let mut command = scene.agent(&["status"]);
    command.env("LONGSHORE_FLAVOR", "open").env("LONGSHORE_SERVICE_HOST", "10.96.0.7");
    command.env("LONGSHORE_PORT_80_TCP", "tcp://10.96.0.7:80");
    let ended = finish(&mut command);
    ended.assert_done();
    assert_eq!(ended.err.matches("is not a setting").count(), 1, "{ended}");
    assert!(ended.err.contains("LONGSHORE_FLAVOR "), "{ended}");
}

/// The GPU operator's pods get the variables of every Service of their namespace.
#[test]
fn a_service_named_nvfm_config_is_ignored_with_a_warning() {
    let scene = Scene::new();
    let mut command = scene.agent(&["status"]);
    command.env("NVFM_CONFIG_SERVICE_HOST", "1.1.1.1").env("NVFM_CONFIG_PORT", "tcp://1.1.1.1:4");
    let ended = finish(&mut command);
    ended.assert_done();
    let named = "NVFM_CONFIG_PORT, NVFM_CONFIG_SERVICE_HOST: variables of a Kubernetes Service";
    assert_eq!(ended.err.matches(named).count(), 1, "{ended}");
    let ended = finish(scene.agent(&["status"]).env("NVFM_CONFIG_PORT", "/etc/passwd"));
    assert_eq!(ended.code, Some(2), "{ended}");
}

/// Checks the flag parser's own form of message, in which the usage is the remedy.
fn assert_usage(ended: &Ended, expected: &[&str]) {
    assert_eq!(ended.code, Some(2), "{ended}");
    ended.assert_no_panic();
    for part in expected {
        assert!(ended.err.contains(part), "{part:?}: {ended}");
    }
    assert!(ended.failure().is_some_and(|failure| failure["exit_code"] == 2), "{ended}");
    assert_eq!(ended.out, "");
}

#[test]
fn a_bad_flag_is_named() {
    let scene = Scene::new();
    let cases: [&[&str]; 14] = [
        &["plan", "--jobs", "0"],
        &["plan", "--jobs", "99999999999999999999"],
        &["plan", "--flavour", "closed"],
        &["plan", "--driver", "../535"],
        &["plan", "--driver", ""],
        &["plan", "--unload-deadline", "2h"],
        &["plan", "--extra-module", "a/b"],
        &["plan", "--parameter", "nvidia"],
        &["plan", "--store", ""],
        &["plan", "--no-such-flag"],
        &["plan", "--log-format", "xml"],
        &["build", "--kernel", ""],
        &["fetch", "--kernel", "6.1/../x"],
        &["build", "--kernel", "6.1\n"],
    ];
    for args in cases {
        let ended = finish(&mut scene.agent(args));
        assert_usage(&ended, &[args[1]]);
    }
    assert_usage(&finish(&mut scene.agent(&["install"])), &["install"]);
    let twice = ["plan", "--compile", "--no-compile"];
    assert_usage(&finish(&mut scene.agent(&twice)), &["--no-compile"]);
}

#[test]
fn places_that_would_cover_each_other_are_refused() {
    let scene = Scene::new();
    for args in [["--store", "/"], ["--state-dir", "/.."], ["--driver-root", "/"]] {
        let ended =
            scene.refuses(scene.agent(&["run", args[0], args[1]]), 2, &["root of the system"]);
        assert!(ended.err.contains(args[0].trim_start_matches('-')), "{ended}");
    }
    let whole = scene.path("").display().to_string();
    scene.refuses(scene.agent(&["run", "--driver-root", &whole]), 2, &["driver-root", "lies in"]);
}

#[test]
fn arguments_and_flags_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let scene = Scene::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    for args in [&["plan", "--store"][..], &["build", "--kernel"], &["plan", "--driver"], &[]] {
        let mut command = scene.agent(args);
        let ended = finish(command.arg(odd));
        assert_eq!(ended.code, Some(2), "{ended}");
        ended.assert_no_panic();
    }
}

#[test]
fn module_parameters_that_make_no_sense_are_refused() {
    let scene = Scene::new();
    let asked = scene.agent(&["build", "--kernel", "6.1", "--extra-module", "nouveau"]);
    scene.refuses(asked, 2, &["nouveau"]);
    let tree = longshore_tests::scene::fixture("bookworm-t4");
    let ended = finish(&mut scene.agent(&["plan", "--root", &tree, "--extra-module", "nouveau"]));
    assert!(ended.out.contains("nouveau is no module of NVIDIA's driver"), "{ended}");
    let dir = scene.path("parameters-dir");
    fs::create_dir_all(dir.join("nvidia.conf")).expect("directory");
    let named = dir.join("nvidia.conf");
    scene.refuses(scene.agent(&["plan"]), 2, &[named.to_str().expect("a path")]);
}
