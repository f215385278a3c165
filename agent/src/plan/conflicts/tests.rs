use rstest::rstest;

use super::*;
use crate::config::{self, Fragment};
use longshore_core::finding::Severity;
use longshore_host::facts::{DriverRootState, LoadRule, PlacedFile};
use longshore_host::values::FileId;

fn facts() -> HostFacts {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4");
    HostFacts::read(&tree, &tree).unwrap()
}

fn config() -> Config {
    config::load(Fragment::default(), &|_| None, None).unwrap()
}

fn with(places: DriverRootState) -> HostFacts {
    HostFacts { places, ..facts() }
}

fn mount(owner: RootMountOwner, source: &str) -> RootMount {
    RootMount {
        target: "/run/nvidia/driver".into(),
        source: source.into(),
        fstype: "overlay".into(),
        owner,
        dir: Some((7, 9)),
    }
}

fn file(path: &str) -> PlacedFile {
    PlacedFile { path: path.into(), id: FileId { device: 7, inode: 11, changed: 13 } }
}

fn found(facts: &HostFacts) -> Vec<(Code, Severity)> {
    findings(&config(), facts, false).iter().map(|f| (f.code, f.severity)).collect()
}

/// Host with a driver of its own under modules-only: its user-mode files stay.
#[rstest]
#[case::libraries_alone(&["/usr/lib/libcuda.so.580.142"], &[], None)]
#[case::dkms(&["/usr/lib/libcuda.so.580.142"], &["nvidia-current"], Some("that of DKMS"))]
fn the_hosts_own_user_mode_is_not_to_be_removed_for_modules_alone(
    #[case] libraries: &[&str],
    #[case] dkms: &[&str],
    #[case] remedy: Option<&str>,
) {
    let mut facts = facts();
    facts.installed.libraries = libraries.iter().map(Into::into).collect();
    facts.installed.dkms = dkms.iter().map(|name| (*name).to_owned()).collect();
    let config = Config { modules_only: true, ..config() };
    let found = findings(&config, &facts, false);
    let found = found.iter().find(|finding| finding.code == Code::HostDriverInstalled);
    assert_eq!(found.is_some(), remedy.is_some(), "{found:?}");
    if let (Some(found), Some(remedy)) = (found, remedy) {
        assert!(found.remedy.contains(remedy) && found.remedy.contains("keep its user-mode files"));
        assert!(!found.remedy.contains("do not run longshore"), "{}", found.remedy);
    }
}

const PID: &str = "/run/nvidia/nvidia-driver.pid";

#[rstest]
#[case(RootKind::Absent, &[])]
#[case(RootKind::Directory, &[])]
#[case(RootKind::Symlink("/etc".into()), &[(Code::DriverRootOdd, Severity::Refusal)])]
#[case(RootKind::Other, &[(Code::DriverRootOdd, Severity::Refusal)])]
fn the_driver_root_must_be_a_directory(
    #[case] kind: RootKind,
    #[case] wanted: &[(Code, Severity)],
) {
    assert_eq!(found(&with(DriverRootState { kind, ..DriverRootState::default() })), wanted);
}

#[rstest]
#[case::nothing(vec![], &[], false, &[])]
#[case::ours(vec![mount(RootMountOwner::Ours, "/dev/vda1")], &[], false, &[])]
#[case::dead(vec![mount(RootMountOwner::Installer, "overlay")], &[PID], false, &[Code::Leftovers])]
#[case::files_alone(vec![], &[PID], false, &[Code::Leftovers])]
#[case::the_probes_file_alone_may_be_ours(
    vec![], &["/run/nvidia/validations/.driver-ctr-ready"], false, &[])]
#[case::alive(
    vec![mount(RootMountOwner::Installer, "overlay")], &[PID], true, &[Code::OtherInstallerAlive])]
#[case::alive_and_compiling(vec![], &[PID], true, &[Code::OtherInstallerAlive])]
#[case::somebodys(vec![mount(RootMountOwner::Unknown, "x")], &[], false, &[Code::DriverRootTaken])]
#[case::somebodys_and_alive(
    vec![mount(RootMountOwner::Unknown, "x")], &[PID], true, &[Code::DriverRootTaken])]
#[case::two_containers(
    vec![mount(RootMountOwner::Installer, "a"), mount(RootMountOwner::Installer, "b")], &[PID],
    false, &[Code::DriverRootTaken])]
#[case::twice_the_same(
    vec![mount(RootMountOwner::Installer, "a"), mount(RootMountOwner::Installer, "a")], &[PID],
    false, &[Code::Leftovers])]
#[case::theirs_below_ours(
    vec![mount(RootMountOwner::Installer, "a"), mount(RootMountOwner::Ours, "b")], &[], false,
    &[Code::DriverRootTaken])]
fn whose_the_driver_root_is(
    #[case] mounts: Vec<RootMount>,
    #[case] files: &[&str],
    #[case] alive: bool,
    #[case] wanted: &[Code],
) {
    let installer = if alive { Installer::Alive("process 7".into()) } else { Installer::NotSeen };
    let files = files.iter().copied().map(file).collect();
    let facts = with(DriverRootState { mounts, files, installer, ..DriverRootState::default() });
    let codes: Vec<Code> = found(&facts).into_iter().map(|(code, _)| code).collect();
    assert_eq!(codes, wanted);
    let takes = !leftovers(&config(), &facts).is_empty();
    assert_eq!(takes, wanted == [Code::Leftovers], "only reported leftovers are removed");
}

#[test]
fn leftovers_are_taken_off_in_an_order_that_keeps_their_proof_to_the_end() {
    let facts = with(DriverRootState {
        mounts: vec![mount(RootMountOwner::Installer, "overlay")],
        files: vec![file("/run/nvidia/validations/.driver-ctr-ready"), file(PID)],
        firmware_path: Some("/run/nvidia/driver/lib/firmware".into()),
        ..DriverRootState::default()
    });
    let steps: Vec<String> = take_over(&config(), &facts).map(|s| s.to_string()).collect();
    assert_eq!(
        steps,
        [
            "remove the mount on /run/nvidia/driver (left by NVIDIA's container)",
            "remove /run/nvidia/driver/lib/firmware in /sys/module/firmware_class/parameters/path \
             (left by NVIDIA's container)",
            "remove /run/nvidia/validations/.driver-ctr-ready (left by NVIDIA's container)",
            "remove /run/nvidia/nvidia-driver.pid (left by NVIDIA's container)",
        ]
    );
    let other =
        DriverRootState { firmware_path: Some("/lib/firmware/x".into()), ..facts.places.clone() };
    let steps = take_over(&config(), &with(other)).count();
    assert_eq!(steps, 3, "a foreign firmware path stays");
}

fn available(facts: &mut HostFacts, name: &str, file: &str) {
    facts.available.add(file);
    assert!(facts.available.has(name));
}

#[rstest]
#[case("nvidia_current", "updates/dkms/nvidia-current.ko", true, true)]
#[case("nvidia", "kernel/drivers/video/nvidia.ko", true, true)]
#[case("nvidia_uvm", "updates/dkms/nvidia-uvm.ko", true, false)]
#[case("nvidiafb", "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", false, false)]
#[case(
    "nvidia_wmi_ec_backlight",
    "kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko",
    false,
    false
)]
fn a_driver_of_the_host_is_told_from_the_kernels_own_modules(
    #[case] name: &str,
    #[case] file: &str,
    #[case] installed: bool,
    #[case] autoloads: bool,
) {
    let mut facts = facts();
    available(&mut facts, name, file);
    let mut wanted = Vec::new();
    if installed {
        wanted.push((Code::HostDriverInstalled, Severity::Warning));
    }
    if autoloads {
        wanted.push((Code::DriverAutoloads, Severity::Warning));
    }
    assert_eq!(found(&facts), wanted);
    assert!(findings(&config(), &facts, true).is_empty(), "the container's own files say nothing");
    facts.autoload.kept_out.extend(["nvidia".to_owned(), name.to_owned()]);
    wanted.retain(|(code, _)| *code != Code::DriverAutoloads);
    assert_eq!(found(&facts), wanted, "a blacklisted module does not load by itself");
}

#[rstest]
#[case::rpm(
    "extra/nvidia/nvidia.ko.xz",
    "rhel",
    "nvidia",
    false,
    Some("dnf remove 'kmod-nvidia*'")
)]
#[case::weak(
    "weak-updates/nvidia/nvidia.ko",
    "rhel",
    "nvidia",
    false,
    Some("dnf remove 'kmod-nvidia*'")
)]
#[case::kmp(
    "updates/nvidia-uvm.ko.zst",
    "sles",
    "nvidia_uvm",
    false,
    Some("zypper remove 'nvidia*-kmp-*'")
)]
#[case::ubuntu(
    "kernel/nvidia-580srv-open/nvidia.ko.zst",
    "rhel",
    "nvidia",
    false,
    Some("apt purge 'linux-modules-nvidia-*'")
)]
#[case::dkms_on_debian("updates/dkms/nvidia.ko.xz", "rhel", "nvidia", false, None)]
#[case::dkms_on_el("extra/nvidia.ko.xz", "rocky", "nvidia", true, None)]
#[case::by_hand_on_debian("extra/nvidia.ko", "debian", "nvidia", false, None)]
#[case::weak_on_suse(
    "weak-updates/updates/nvidia.ko",
    "sles",
    "nvidia",
    false,
    Some("zypper remove 'nvidia*-kmp-*'")
)]
#[case::updates_elsewhere("updates/nvidia.ko", "debian", "nvidia", false, None)]
#[case::unknown("misc/nvidia.ko", "rhel", "nvidia", false, None)]
fn other_installers_are_recognized_by_place(
    #[case] file: &str,
    #[case] os: &str,
    #[case] name: &str,
    #[case] dkms: bool,
    #[case] remove: Option<&str>,
) {
    let mut facts = facts();
    facts.os.id = os.to_owned();
    available(&mut facts, name, file);
    facts.installed.dkms.extend(dkms.then(|| "nvidia-open".to_owned()));
    let finding = host_driver(&config(), &facts).expect("a driver of the host");
    assert!(finding.detail.contains(file), "{}", finding.detail);
    let remove = remove.unwrap_or("apt purge 'nvidia-*', or nvidia-uninstall");
    assert!(finding.remedy.contains(remove), "{}", finding.remedy);
}

#[test]
fn lists_load_what_is_kept_out_and_options_are_shown() {
    let mut facts = facts();
    available(&mut facts, "nvidia", "updates/nvidia.ko");
    facts.autoload.kept_out.insert("nvidia".into());
    let rule = |module: &str, text: &str, file: &str| LoadRule {
        module: module.into(),
        text: text.into(),
        file: file.into(),
    };
    facts.autoload.at_boot.push(rule("nvidia_uvm", "nvidia-uvm", "/etc/modules"));
    facts.autoload.at_boot.push(rule("loop", "loop", "/etc/modules"));
    let text = "options nvidia NVreg_OpenRmEnableUnsupportedGpus=1";
    facts.autoload.options.push(rule("nvidia", text, "/etc/modprobe.d/n.conf"));
    let finding = autoloads(&facts).unwrap();
    assert_eq!(
        finding.detail,
        "/etc/modules names nvidia_uvm; /etc/modprobe.d/n.conf gives `options nvidia \
         NVreg_OpenRmEnableUnsupportedGpus=1`"
    );
}

#[test]
fn libraries_alone_are_a_driver_too_and_the_loaded_one_may_be_of_it() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/bookworm-t4-live");
    let mut facts = HostFacts::read(&tree, &tree).unwrap();
    facts.installed.libraries.push("/usr/lib64/libcuda.so.1".into());
    facts.installed.version = Some("535.261.03".into());
    let finding = host_driver(&config(), &facts).unwrap();
    assert_eq!(
        finding.detail,
        "the host has a driver of its own: libraries 535.261.03: /usr/lib64/libcuda.so.1; the \
         driver loaded now (535.261.03) is of its version"
    );
}
