//! Reads [`HostFacts`] from a root directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::daemon;
use crate::facts::places::Recorded;
use crate::facts::process::FirstProcess;
use crate::facts::{DriverRootState, HostFacts, Mount, Probe, Unread};
use crate::facts::{
    cloud, conflicting, fabric, gpus, installed, installed_kernels, kernel, modules, mounts,
    network_cards, pci, places, platform, process, security,
};
use longshore_core::day::Day;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_core::root::Root;

impl HostFacts {
    /// Reads the facts: /proc and /sys below `root`, /etc and /lib/modules below `host_root`.
    ///
    /// # Errors
    /// Exit code 10 where a root cannot be opened, or the kernel's release cannot be read. Anything
    /// else that cannot be read is [`Probe::Unreadable`] or named in [`unread`](HostFacts::unread).
    pub fn read(root: &Path, host_root: &Path) -> Result<Self, Failure> {
        let open = |path: &Path, option: &str| {
            Root::open(path)
                .or_fail(FailureKind::HostUnsupported, || format!("opening {}", path.display()))
                .map_err(|f| f.remedy(format!("give the right directory with {option}")))
        };
        let (root, host) = (open(root, "--root")?, open(host_root, "--host-root")?);
        let kernel = kernel::read(&root)?;
        let process = process::read(&root);
        let mut unread = Unread::default();
        let release = kernel.release.as_str();
        let loaded = known(modules::read_loaded(&root), &mut unread.loaded);
        let mounts = known(mounts::read(&root), &mut unread.mounts);
        let devices = known(pci::read(&root), &mut unread.pci);
        Ok(Self {
            os: known(kernel::read_os_release(&root, &host), &mut unread.os_release),
            platform: platform::read(&root, &host, release),
            cloud: cloud::read(&root).map(str::to_owned),
            today: Some(Day::today()),
            network_cards: known(network_cards::read(&root), &mut unread.network_cards),
            conflicting: known(
                conflicting::read(&root, &devices, &loaded),
                &mut unread.conflicting,
            ),
            devices,
            gpus: known(gpus::read(&root), &mut unread.gpus),
            live_driver: modules::read_live_driver(&root, &loaded),
            loaded,
            ours: BTreeMap::new(),
            builtin: known(modules::read_builtin(&host, release), &mut unread.builtin),
            available: known(modules::read_available(&host, release), &mut unread.available),
            installed_kernels: known(
                installed_kernels::read(&host, release),
                &mut unread.installed_kernels,
            ),
            security: security::read(&root, &host),
            switch_managers: known(fabric::read(&root), &mut unread.switch_managers),
            foreign_daemons: foreign_daemons(&host, &mounts),
            mounts,
            capabilities: process.capabilities,
            euid: process.euid,
            initial_user_namespace: process.initial_user_namespace,
            foreign_first_process: process::first_process(root.path()) == FirstProcess::Foreign,
            host_peer_groups: match mounts::read_host_peer_groups(&root) {
                Ok(groups) => Probe::Read(groups),
                Err(e) => Probe::Unreadable(e.to_string()),
            },
            installed: known(installed::read_driver(&host), &mut unread.installed),
            autoload: known(installed::read_autoload(&root, &host), &mut unread.autoload),
            places: DriverRootState::default(),
            unread,
            kernel,
        })
    }

    /// Kernel names of all modules that an available module needs, in load order (direct and
    /// indirect).
    pub fn needs_of(&self, name: &str) -> Vec<String> {
        self.available.needs_of(name)
    }

    /// Adds the state of the configured paths.
    #[must_use]
    pub fn with_places(mut self, paths: &Paths, recorded: &Recorded) -> Self {
        match places::read(paths, &self.mounts, recorded) {
            Ok(places) => self.places = places,
            Err(e) => self.unread.places = Some(e.to_string()),
        }
        self
    }
}

/// Sockets of running daemons that longshore did not start: longshore's are below the driver root,
/// and elsewhere only through a mount.
fn foreign_daemons(host: &Root, mounts: &[Mount]) -> Vec<PathBuf> {
    let is_ours =
        |socket: &Path| mounts.iter().any(|m| Some(m.target.as_path()) == socket.parent());
    let serves = |socket: &Path| {
        daemon::process::answers(&host.display(socket), &[]) != daemon::Answers::Nobody
            && !is_ours(socket)
    };
    let sockets = [daemon::PERSISTENCED_SOCKET, daemon::FABRICMANAGER_SOCKET].map(PathBuf::from);
    sockets.into_iter().filter(|socket| serves(socket)).collect()
}

/// Returns the facts that were read; else none, and the reason in `unread`.
fn known<T: Default>(read: io::Result<T>, unread: &mut Option<String>) -> T {
    read.unwrap_or_else(|e| {
        *unread = Some(e.to_string());
        T::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{DeviceKind, ModuleLoading};
    use longshore_core::failure::ExitCode;
    use longshore_core::flavour::Flavour;
    use rstest::rstest;

    #[test]
    fn this_machine_can_be_read() {
        let facts = HostFacts::read(Path::new("/"), Path::new("/")).unwrap();
        assert!(!facts.kernel.release.is_empty());
        assert!(facts.mounts.iter().any(|m| m.target == Path::new("/")));
        assert!(matches!(facts.euid, Probe::Read(_)));
    }

    #[rstest]
    #[case("bookworm-no-gpu", 0, 0, None)]
    #[case("bookworm-cloud-no-gpu", 0, 0, None)]
    #[case("bookworm-t4", 1, 0, None)]
    #[case("bookworm-cloud-t4", 1, 0, None)]
    #[case("bookworm-rt-t4", 1, 0, None)]
    #[case("bookworm-v100", 1, 0, None)]
    #[case("bookworm-b200", 1, 0, None)]
    #[case("bookworm-unknown-gpu", 1, 0, None)]
    #[case("bookworm-k80", 2, 0, None)]
    #[case("bookworm-h100-nvswitch", 8, 4, None)]
    #[case("bookworm-nouveau", 1, 0, Some("nouveau"))]
    #[case("bookworm-vfio", 1, 0, Some("vfio-pci"))]
    #[case("bookworm-secure-boot", 1, 0, None)]
    #[case("bookworm-t4-live", 1, 0, Some("nvidia"))]
    #[case("bookworm-t4-container", 1, 0, None)]
    fn every_tree_is_read_whole(
        #[case] name: &str,
        #[case] gpus: usize,
        #[case] switches: usize,
        #[case] driver: Option<&str>,
    ) {
        let facts = fixture(name);
        assert_eq!(facts.unread, Unread::default());
        let count = |kind| facts.devices.iter().filter(|d| d.kind == kind).count();
        assert_eq!((count(DeviceKind::Gpu), count(DeviceKind::NvSwitch)), (gpus, switches));
        assert_eq!(facts.devices.first().and_then(|d| d.driver.as_deref()), driver);
        let cards: Vec<String> = facts.network_cards.iter().map(ToString::to_string).collect();
        assert_eq!((cards, facts.cloud), (vec!["1af4:1041".to_owned()], None));
        assert_eq!(facts.os.codename.as_deref(), Some("bookworm"));
        assert_eq!(facts.kernel.arch, "x86_64");
        let compiler = "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0";
        assert_eq!(facts.kernel.compiler.as_deref(), Some(compiler));
        assert!(!facts.builtin.is_empty() && !facts.available.is_empty());
    }

    #[test]
    fn i2c_is_built_in_and_ipmi_a_module_but_on_cloud_kernels_they_are_neither() {
        let generic = fixture("bookworm-t4");
        assert!(generic.builtin.contains("i2c_core"));
        assert!(generic.available.has("ipmi_msghandler"));
        assert_eq!(generic.needs_of("video"), ["wmi"]);
        let cloud = fixture("bookworm-cloud-t4");
        for name in ["i2c_core", "ipmi_msghandler", "drm"] {
            assert!(!cloud.builtin.contains(name) && !cloud.available.has(name), "{name}");
        }
    }

    #[test]
    fn the_load_order_is_modprobes() {
        // Output of `modprobe --show-depends nouveau` for this kernel.
        let modprobe = [
            "i2c_algo_bit",
            "drm",
            "drm_kms_helper",
            "ttm",
            "drm_ttm_helper",
            "rc_core",
            "cec",
            "drm_display_helper",
            "wmi",
            "video",
            "button",
            "mxm_wmi",
        ];
        assert_eq!(fixture("bookworm-t4").needs_of("nouveau"), modprobe);
    }

    #[test]
    fn a_live_driver_and_who_holds_it() {
        let facts = fixture("bookworm-t4-live");
        let live = facts.live_driver.unwrap();
        assert_eq!(
            (live.version.as_str(), live.flavour),
            ("535.261.03", Some(Flavour::Proprietary))
        );
        assert_eq!(facts.loaded["nvidia"].holders, ["nvidia_modeset", "nvidia_uvm"]);
        assert_eq!(facts.loaded["nvidia"].refcount, Some(2));
        assert_eq!(facts.loaded["nvidia"].version.as_deref(), Some("535.261.03"));
    }

    #[test]
    fn a_tree_captured_alive() {
        let facts = fixture("bookworm-vm");
        assert_eq!(facts.unread, Unread::default());
        assert_eq!(facts.devices, []);
        assert_eq!(facts.loaded["drm"].holders, ["drm_kms_helper"]);
        assert_eq!(facts.loaded["wmi"].refcount, Some(1));
        assert_eq!(facts.loaded["video"].state.as_deref(), Some("live"));
        assert_eq!(
            facts.loaded["ipmi_msghandler"].version, None,
            "only the driver's are looked at"
        );
        // Built-in modules have a directory in /sys/module too.
        assert!(!facts.loaded.contains_key("firmware_class"));
        let blank = facts.mounts.iter().find(|m| m.target == Path::new("/run/a b")).unwrap();
        let Probe::Read(groups) = &facts.host_peer_groups else { panic!("unread") };
        assert!(blank.peer_group.is_some_and(|group| groups.contains(&group)));
        assert_eq!(facts.security.secure_boot, Probe::Read(false));
        assert_eq!(facts.security.lockdown, Probe::Read("none".into()));
        assert_eq!(facts.security.sig_enforce, Probe::Read(false));
        assert_eq!(facts.security.module_loading, Probe::Read(ModuleLoading::Allowed));
        assert_eq!((facts.euid, facts.initial_user_namespace), (Probe::Read(0), Probe::Read(true)));
        assert!(matches!(&facts.capabilities, Probe::Read(all) if all.contains("CAP_SYS_MODULE")));
    }

    #[test]
    fn secure_boot_and_lockdown() {
        let facts = fixture("bookworm-secure-boot");
        assert_eq!(facts.security.secure_boot, Probe::Read(true));
        assert_eq!(facts.security.lockdown, Probe::Read("integrity".into()));
        assert_eq!(fixture("bookworm-t4").security.secure_boot, Probe::Read(false));
    }

    fn fixture(name: &str) -> HostFacts {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent/fixtures").join(name);
        HostFacts::read(&path, &path).unwrap()
    }

    #[test]
    fn no_proc_is_a_failure_that_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let failure = HostFacts::read(dir.path(), dir.path()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::HostUnsupported);
        assert!(failure.report().contains("proc/sys/kernel/osrelease"), "{}", failure.report());
    }
}
