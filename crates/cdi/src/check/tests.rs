//! A case for each refusal of readers, and one beside it that they accept.

use super::*;
use rstest::rstest;

/// A spec of one device, with `edits` in it.
fn spec(version: &str, name: &str, edits: &str) -> Spec {
    let text = format!(
        "{{\"cdiVersion\": \"{version}\", \"kind\": \"a.com/b\", \
         \"devices\": [{{\"name\": \"{name}\", \"containerEdits\": {{{edits}}}}}]}}"
    );
    Spec::from_json(text.as_bytes()).expect(&text)
}

/// A spec that every reader accepts.
fn plain() -> Spec {
    spec("0.3.0", "a", "\"env\": [\"A=1\"]")
}

fn refusal(spec: &Spec) -> String {
    spec.check().expect_err("refused").to_string()
}

#[rstest]
#[case::none("", "cdiVersion \"\" is none")]
#[case::future("1.2.0", "cdiVersion \"1.2.0\" is none")]
#[case::no_version("\u{1b}[31m", "cdiVersion \"\\u{1b}[31m\" is none")]
#[case::short("0.5", "cdiVersion \"0.5\" is none")]
#[case::older("0.2.0", "cdiVersion 0.2.0 is lower than 0.3.0")]
fn versions_that_are_refused(#[case] version: &str, #[case] reason: &str) {
    let refusal = refusal(&Spec { cdi_version: version.to_owned(), ..plain() });
    assert!(refusal.starts_with(reason), "{refusal}");
}

#[rstest]
#[case::env("a", "\"env\": [\"A=\"]", "0.3.0")]
#[case::mount_type(
    "a",
    "\"mounts\": [{\"hostPath\": \"/a\", \"containerPath\": \"/b\", \"type\": \"bind\"}]",
    "0.4.0"
)]
#[case::number("0", "\"env\": [\"A=1\"]", "0.5.0")]
#[case::host_path("a", "\"deviceNodes\": [{\"path\": \"/a\", \"hostPath\": \"/b\"}]", "0.5.0")]
#[case::rdt("a", "\"intelRdt\": {\"closID\": \"c\"}", "0.7.0")]
#[case::groups("a", "\"additionalGids\": [1]", "0.7.0")]
#[case::net("a", "\"netDevices\": [{\"hostInterfaceName\": \"e\", \"name\": \"f\"}]", "1.1.0")]
#[case::schemata("a", "\"intelRdt\": {\"schemata\": [\"L2:0=f\"]}", "1.1.0")]
#[case::monitoring("a", "\"intelRdt\": {\"enableMonitoring\": true}", "1.1.0")]
fn a_field_needs_the_version_that_brought_it(
    #[case] name: &str,
    #[case] edits: &str,
    #[case] needed: &str,
) {
    let of = |version: &str| spec(version, name, edits);
    assert_eq!(of("1.1.0").needs_version(), needed);
    let versions = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
    for version in versions {
        assert_eq!(of(version).check().is_ok(), version >= needed, "{version}");
    }
    of(&format!("v{needed}")).check().expect("readers take a v");
    // Edits of all devices need it as well.
    let of_all = of("1.1.0").devices.remove(0).container_edits;
    let for_all = Spec { container_edits: of_all, ..plain() };
    assert_eq!(for_all.needs_version(), if name == "0" { "0.3.0" } else { needed });
}

#[rstest]
#[case::of_spec(Spec { annotations: [("a".into(), "b".into())].into(), ..plain() })]
#[case::dotted_class(Spec { kind: "a.com/b.c".into(), ..plain() })]
#[case::of_device({
    let mut spec = plain();
    spec.devices[0].annotations = [("a".into(), "b".into())].into();
    spec
})]
fn annotations_and_dots_need_0_6_0(#[case] spec: Spec) {
    assert_eq!(spec.needs_version(), "0.6.0");
    assert_eq!(
        refusal(&spec),
        "cdiVersion 0.3.0 is lower than 0.6.0, which its fields or names need"
    );
}

#[rstest]
#[case("")]
#[case("gpu")]
#[case("/gpu")]
#[case("nvidia.com/")]
#[case("0vidia/gpu")]
#[case("nvidia.com/0")]
#[case("nvidia.com/gpu/x")]
#[case("nvidia com/gpu")]
#[case("nvidia.com/gpu-")]
fn kinds_that_are_refused(#[case] kind: &str) {
    let refused = Spec { kind: kind.to_owned(), ..plain() }.check();
    assert_eq!(refused, Err(Refusal::Kind(kind.to_owned())));
}

#[rstest]
#[case("")]
#[case("a b")]
#[case("-a")]
#[case("a:")]
#[case("a/b")]
fn device_names_that_are_refused(#[case] name: &str) {
    let refused = spec("0.5.0", name, "\"env\": [\"A=1\"]").check();
    assert_eq!(refused, Err(Refusal::DeviceName(name.to_owned())));
}

#[test]
fn devices_are_needed_and_each_is_there_once() {
    assert_eq!(refusal(&Spec { devices: Vec::new(), ..plain() }), "it has no devices");
    let mut twice = plain();
    twice.devices.push(twice.devices[0].clone());
    assert_eq!(refusal(&twice), "the device \"a\" is there twice");
}

#[rstest]
#[case::none("", "it has no edits")]
#[case::empty_lists("\"env\": [], \"mounts\": []", "it has no edits")]
#[case::env("\"env\": [\"A\"]", "env \"A\" is not NAME=VALUE")]
#[case::env_without_name("\"env\": [\"A=1\", \"=1\"]", "env \"=1\" is not NAME=VALUE")]
#[case::node_path("\"deviceNodes\": [{}]", "path of a device node is empty")]
#[case::node_type(
    "\"deviceNodes\": [{\"path\": \"/a\", \"type\": \"x\"}]",
    "device node \"/a\" has type \"x\", which is none of b, c, u and p"
)]
#[case::major(
    "\"deviceNodes\": [{\"path\": \"/a\", \"major\": -1}]",
    "device node \"/a\" has a negative number"
)]
#[case::minor(
    "\"deviceNodes\": [{\"path\": \"/a\", \"minor\": -1}]",
    "device node \"/a\" has a negative number"
)]
#[case::permissions(
    "\"deviceNodes\": [{\"path\": \"/a\", \"permissions\": \"rwx\"}]",
    "device node \"/a\" has permissions \"rwx\", which are not of r, w and m"
)]
#[case::hook_name(
    "\"hooks\": [{\"hookName\": \"create\", \"path\": \"/a\"}]",
    "\"create\" is the name of no hook"
)]
#[case::hook_path("\"hooks\": [{\"hookName\": \"poststop\"}]", "path of a hook is empty")]
#[case::relative_hook(
    "\"hooks\": [{\"hookName\": \"poststop\", \"path\": \"a\"}]",
    "the path of hook \"a\" is not absolute"
)]
#[case::hook_env(
    "\"hooks\": [{\"hookName\": \"poststop\", \"path\": \"/a\", \"env\": [\"A\"]}]",
    "env \"A\" is not NAME=VALUE"
)]
#[case::mount_from("\"mounts\": [{\"containerPath\": \"/a\"}]", "hostPath of a mount is empty")]
#[case::mount_to("\"mounts\": [{\"hostPath\": \"/a\"}]", "containerPath of a mount is empty")]
#[case::clos_id(
    "\"intelRdt\": {\"closID\": \"a/b\"}",
    "closID \"a/b\" is not the name of a directory"
)]
#[case::clos_id_above(
    "\"intelRdt\": {\"closID\": \"..\"}",
    "closID \"..\" is not the name of a directory"
)]
#[case::net_from(
    "\"netDevices\": [{\"name\": \"e\"}]",
    "hostInterfaceName of a network device is empty"
)]
#[case::net_to(
    "\"netDevices\": [{\"hostInterfaceName\": \"e\"}]",
    "name of a network device is empty"
)]
#[case::net_twice(
    "\"netDevices\": [{\"hostInterfaceName\": \"e\", \"name\": \"f\"}, {\"hostInterfaceName\": \"e\", \"name\": \"g\"}]",
    "the network device \"e\" is there twice"
)]
#[case::net_twice_inside(
    "\"netDevices\": [{\"hostInterfaceName\": \"e\", \"name\": \"f\"}, {\"hostInterfaceName\": \"g\", \"name\": \"f\"}]",
    "the network device \"f\" is there twice"
)]
fn edits_that_are_refused(#[case] edits: &str, #[case] reason: &str) {
    let spec = spec("1.1.0", "a", edits);
    assert_eq!(refusal(&spec), format!("device \"a\": {reason}"));
    if spec.devices[0].container_edits.is_empty() {
        return;
    }
    let mut of_all = Spec { cdi_version: "1.1.0".to_owned(), ..plain() };
    of_all.container_edits = spec.devices[0].container_edits.clone();
    assert_eq!(refusal(&of_all), reason);
}

#[rstest]
#[case::no_access("\"deviceNodes\": [{\"path\": \"/a\", \"permissions\": \"none\"}]")]
#[case::some_access(
    "\"deviceNodes\": [{\"path\": \"/a\", \"permissions\": \"mr\", \"type\": \"p\"}]"
)]
#[case::relative_node("\"deviceNodes\": [{\"path\": \"a\"}]")]
#[case::root_class("\"intelRdt\": {\"closID\": \"/\"}")]
#[case::empty_value("\"env\": [\"A==\"]")]
fn edits_that_are_accepted(#[case] edits: &str) {
    spec("1.1.0", "a", edits).check().expect("accepted");
}

#[rstest]
#[case::of_spec("a/", "", "the key \"a/\" of an annotation")]
#[case::of_device("", "b c", "device \"a\": the key \"b c\" of an annotation")]
fn annotations_of_specs_and_devices_are_checked(
    #[case] of_spec: &str,
    #[case] of_device: &str,
    #[case] reason: &str,
) {
    let annotations = |key: &str| match key {
        "" => Default::default(),
        key => [(key.to_owned(), String::new())].into(),
    };
    let mut spec = spec("0.6.0", "a", "\"env\": [\"A=1\"]");
    spec.annotations = annotations(of_spec);
    spec.devices[0].annotations = annotations(of_device);
    let refusal = refusal(&spec);
    assert!(refusal.starts_with(reason), "{refusal}");
}
