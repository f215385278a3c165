use super::*;

fn nvidia(parameters: &str) -> LoadModule {
    LoadModule {
        name: "nvidia".to_owned(),
        origin: ModuleOrigin::Driver { sha256: "0".repeat(64) },
        parameters: parameters.to_owned(),
        version: Some("535.1".to_owned()),
        srcversion: None,
    }
}

#[test]
fn nvidia_is_loaded_with_device_files_left_alone_unless_a_setting_has_them() {
    for (parameters, given) in [
        ("", "NVreg_ModifyDeviceFiles=0"),
        ("NVreg_A=1", "NVreg_ModifyDeviceFiles=0 NVreg_A=1"),
        ("NVreg_ModifyDeviceFiles=1", "NVreg_ModifyDeviceFiles=1"),
        ("A=1 NVreg_ModifyDeviceFiles=0", "A=1 NVreg_ModifyDeviceFiles=0"),
    ] {
        assert_eq!(nvidia(parameters).given(), given);
        assert!(nvidia(parameters).planned().ends_with(given));
    }
    assert_eq!(LoadModule { name: "nvidia_uvm".into(), ..nvidia("") }.given(), "");
}
