//! Places of MOFED's headers.

use std::fs;

use super::*;
use crate::config::{self, Fragment};
use rstest::rstest;

const RELEASE: &str = "6.1.0-50-amd64";

#[rstest]
#[case::of_its_container(&[("GPU_DIRECT_RDMA_ENABLED", "true")], true, Some("run/mellanox/drivers"))]
#[case::of_a_container_that_installs(&[("GPU_DIRECT_RDMA_ENABLED", "true")], false, None)]
#[case::of_the_host(
    &[("GPU_DIRECT_RDMA_ENABLED", "true"), ("USE_HOST_MOFED", "true")],
    false,
    Some("host")
)]
#[case::not_wanted(&[("USE_HOST_MOFED", "true")], true, None)]
fn the_operators_settings_choose_the_place(
    #[case] set: &'static [(&str, &str)],
    #[case] ready: bool,
    #[case] wanted: Option<&str>,
) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let at = |path: &str| dir.path().join(path);
    for root in ["run/mellanox/drivers", "host"] {
        let tree = at(root).join("usr/src/ofa_kernel").join(RELEASE);
        fs::create_dir_all(tree.join("include")).expect("directories");
        fs::write(tree.join("Module.symvers"), "").expect("write");
    }
    if ready {
        fs::write(at("run/mellanox/drivers/.driver-ready"), "").expect("write");
    }
    let get = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let mut config = config::load(Fragment::default(), &get, None).expect("settings");
    (config.paths.root, config.paths.host_root) = (dir.path().into(), at("host"));
    let Probe::Read(found) = look(&config, RELEASE) else { panic!("readable") };
    let wanted = wanted.map(|root| at(root).join("usr/src/ofa_kernel").join(RELEASE));
    assert_eq!(found.map(|mofed| mofed.place()), wanted);
}
