//! Confirmation of a driver by the operator's startup probe: three features, each on or off.

/// Features in the order in which the probe writes them.
const FEATURES: [&str; 3] = ["GDRCOPY_ENABLED", "GDS_ENABLED", "GPU_DIRECT_RDMA_ENABLED"];

/// Returns a confirmation in the probe's own form. Containers can write to the file: of its text no
/// more is kept than which features are on.
pub(super) fn reduced(found: &str) -> String {
    let is_on = |feature: &str| {
        let mut pairs = found.lines().filter_map(|line| line.split_once(':'));
        pairs.any(|(name, value)| name.trim() == feature && value.trim() == "true")
    };
    FEATURES.map(|feature| format!("{feature}: {}", is_on(feature))).join("\n")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("GDRCOPY_ENABLED: false\nGDS_ENABLED: false\nGPU_DIRECT_RDMA_ENABLED: true", [false, false, true])]
    #[case("GDS_ENABLED:true\r\n\x1b[2J", [false, true, false])]
    #[case("GDS_ENABLED: TRUE\nGDS_ENABLED: yes", [false; 3])]
    #[case("", [false; 3])]
    fn only_the_features_are_kept(#[case] found: &str, #[case] on: [bool; 3]) {
        let [gdrcopy, gds, rdma] = on;
        let wanted = format!(
            "GDRCOPY_ENABLED: {gdrcopy}\nGDS_ENABLED: {gds}\nGPU_DIRECT_RDMA_ENABLED: {rdma}"
        );
        assert_eq!(reduced(found), wanted);
        assert_eq!(reduced(&wanted), wanted);
    }
}
