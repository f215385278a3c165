use rstest::rstest;

use super::*;
use crate::config::{Config, Fragment, load};
use longshore_core::failure::ExitCode;

fn config_of(pairs: &[(&str, &str)]) -> Result<Config, Failure> {
    let env = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    load(Fragment::default(), &env, None)
}

#[rstest]
#[case::nothing(&[], false, None)]
#[case::digest(&[("DRIVER_CONFIG_DIGEST", " 4151234\n")], true, Some("4151234"))]
#[case::empty(&[("DRIVER_CONFIG_DIGEST", "")], false, None)]
#[case::asked(&[("LONGSHORE_GPU_OPERATOR", "true")], true, None)]
#[case::refused(&[("LONGSHORE_GPU_OPERATOR", "false"), ("DRIVER_CONFIG_DIGEST", "1")], false, Some("1"))]
fn the_operator_is_found(
    #[case] pairs: &[(&str, &str)],
    #[case] enabled: bool,
    #[case] digest: Option<&str>,
) {
    let operator = config_of(pairs).expect("valid").operator;
    assert_eq!((operator.enabled, operator.digest.as_deref()), (enabled, digest));
    assert_eq!(operator.wait_to_change, enabled);
}

#[rstest]
#[case::called(None, None, None, true)]
#[case::file(None, None, Some(false), false)]
#[case::variable(None, Some("false"), Some(true), false)]
#[case::flag(Some(false), Some("true"), Some(true), false)]
fn called_as_nvidia_driver_is_a_default_that_all_others_outrank(
    #[case] flag: Option<bool>,
    #[case] variable: Option<&str>,
    #[case] file: Option<bool>,
    #[case] enabled: bool,
) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("longshore.toml");
    let text = file.map(|is| format!("[operator]\nenabled = {is}\n"));
    std::fs::write(&path, text.unwrap_or_default()).expect("written");
    let operator =
        OperatorFragment { enabled: flag, called: Some(true), ..OperatorFragment::default() };
    let flags = Fragment { operator, ..Fragment::default() };
    let env =
        |name: &str| (name == "LONGSHORE_GPU_OPERATOR").then_some(variable)?.map(str::to_owned);
    let config = load(flags, &env, Some(&path)).expect("valid");
    assert_eq!(config.operator.enabled, enabled);
}

#[rstest]
#[case("DRIVER_CONFIG_DIGEST", "1\nReady", "printable")]
#[case("DRIVER_CONFIG_DIGEST", "a b", "printable")]
#[case("DRIVER_CONFIG_DIGEST", &"1".repeat(129), "printable")]
#[case("GPU_DIRECT_RDMA_ENABLED", "perhaps", "true or false")]
#[case("GDS_ENABLED", "2", "true or false")]
#[case("NVFM_CONFIG_FABRIC_MODE", "/etc/passwd", "a number")]
#[case("NVFM_CONFIG_FABRIC_MODE", "1\nDAEMONIZE=1", "a number")]
fn bad_variables_are_named(#[case] name: &str, #[case] value: &str, #[case] wanted: &str) {
    let failure = config_of(&[(name, value)]).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage);
    let text = failure.to_string();
    assert!(text.contains(name) && text.contains(wanted), "{text}");
}

#[test]
fn its_variables_count() {
    let pairs = [
        ("GPU_DIRECT_RDMA_ENABLED", "true"),
        ("LONGSHORE_EXTRA_MODULES", "nvidia-drm,nvidia-peermem"),
        ("GDRCOPY_ENABLED", "true"),
        ("OPENSHIFT_VERSION", "4.19"),
        ("NVFM_CONFIG_FABRIC_MODE", "1"),
    ];
    let config = config_of(&pairs).expect("valid");
    assert_eq!(config.driver.extra_modules, ["nvidia_drm", "nvidia_peermem"], "each once");
    let operator = config.operator;
    assert!(operator.gdrcopy && !operator.gds && !operator.vgpu);
    assert_eq!(operator.openshift.as_deref(), Some("4.19"));
    assert_eq!(operator.fabric["FABRIC_MODE"], "1");
}

#[test]
fn a_driver_in_use_is_left_at_the_end_unless_another_reaction_is_set() {
    let digest = ("DRIVER_CONFIG_DIGEST", "1");
    let users = |pairs: &[(&str, &str)]| config_of(pairs).expect("valid").deadlines.users.as_secs();
    assert_eq!(users(&[]), 20);
    assert_eq!(users(&[digest]), 0);
    assert_eq!(users(&[digest, ("LONGSHORE_ON_BUSY", "wait:7s")]), 7);
}

#[test]
fn settings_of_a_vgpu_guest_are_found() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(!OperatorConfig::default().with_files(dir.path()).vgpu);
    std::fs::write(dir.path().join(VGPU), "").expect("written");
    assert!(OperatorConfig::default().with_files(dir.path()).vgpu);
}

#[test]
fn another_value_of_the_fabric_manager_is_refused_with_the_list() {
    let failure = unknown_fabric_variable("NVFM_CONFIG_LOG_FILE_NAME");
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.remedy_text().is_some_and(|list| list.contains("FABRIC_MODE")), "{failure}");
}
