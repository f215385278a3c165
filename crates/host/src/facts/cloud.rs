//! Cloud that the machine is in, by the names that its firmware gives (DMI).

use longshore_core::root::Root;

/// Directory of the firmware's names in sysfs (drivers/firmware/dmi-id.c).
const DMI: &str = "sys/class/dmi/id";

/// Maximum size of a name, in bytes.
const LONGEST: u64 = 1 << 10;

/// File of a name, its text, and the cloud whose machines have it: cloud-init tells them by the same
/// (tools/ds-identify).
const CLOUDS: [(&str, &str, &str); 4] = [
    ("sys_vendor", "Amazon EC2", "aws"),
    ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", "azure"),
    ("product_name", "Google Compute Engine", "gcp"),
    ("chassis_asset_tag", "OracleCloud.com", "oracle"),
];

/// Returns the cloud; None for another machine, and where the firmware's names cannot be read.
pub(super) fn read(root: &Root) -> Option<&'static str> {
    let is_of = |(file, text, _): &&(&str, &str, &str)| {
        let name = root.read_small_text(format!("{DMI}/{file}"), LONGEST);
        name.is_ok_and(|name| name.trim() == *text)
    };
    CLOUDS.iter().find(is_of).map(|(_, _, cloud)| *cloud)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    #[rstest]
    #[case("sys_vendor", "Amazon EC2\n", Some("aws"))]
    #[case("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", Some("azure"))]
    #[case("product_name", "Google Compute Engine\n", Some("gcp"))]
    #[case("chassis_asset_tag", "OracleCloud.com\n", Some("oracle"))]
    #[case("sys_vendor", "QEMU\n", None)]
    #[case("product_name", "Amazon EC2\n", None)]
    fn clouds(#[case] file: &str, #[case] text: &str, #[case] cloud: Option<&str>) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(DMI)).unwrap();
        fs::write(dir.path().join(DMI).join(file), text).unwrap();
        assert_eq!(read(&Root::open(dir.path()).unwrap()), cloud);
    }
}
