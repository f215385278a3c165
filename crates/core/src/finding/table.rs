//! Table of finding codes, gravest first. docs/reference/errors.md is generated from it (see `page`); a
//! finding needs a code of this table.

use super::code::{About, Area, FindingCodeEntry, Severities};
use crate::failure::FailureKind;
use crate::source_id::SourceId;

macro_rules! codes {
    ($($variant:ident $name:literal $area:ident $severities:ident $exit:ident
        means $means:literal
        matters $matters:literal
        remedy $remedy:literal
        $([$($about:expr),+])?)+) => {
        /// Code of a finding, gravest first.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = $means] $variant,)+
        }

        impl Code {
            /// All codes, gravest first.
            pub const ALL: &[Code] = &[$(Code::$variant),+];

            /// Returns the code's row of the table.
            pub fn entry(self) -> &'static FindingCodeEntry {
                match self {
                    $(Code::$variant => &FindingCodeEntry {
                        name: $name,
                        area: Area::$area,
                        severities: Severities::$severities,
                        kind: FailureKind::$exit,
                        means: $means,
                        matters: $matters,
                        remedy: $remedy,
                        about: &[$($($about),+)?],
                    },)+
                }
            }
        }
    };
}

codes! {
    ArchUnsupported "arch-unsupported" Devices Refuses HostUnsupported
        means "the machine is neither x86_64 nor aarch64"
        matters "NVIDIA provides data-centre drivers only for these two"
        remedy "run on a node with one of these architectures"
    KernelWithoutModules "kernel-without-modules" Kernel Refuses HostUnsupported
        means "the kernel was built without CONFIG_MODULES"
        matters "the driver is a set of modules, and no module can be loaded"
        remedy "boot a kernel with CONFIG_MODULES"
    NoDevice "no-device" Devices RefusesOrNotes NoDevice
        means "there is no NVIDIA GPU or NVSwitch on the PCI bus; a note with no-gpu = wait"
        matters "the driver's module refuses to load without a device"
        remedy "run on a node that has one, or pass one through to this machine"
    DevicesUnread "devices-unread" Devices Refuses Preflight
        means "the PCI bus could not be read"
        matters "the fitting driver cannot be determined"
        remedy "mount /sys in the container (it is there with --privileged)"
    GpuTooOld "gpu-too-old" Devices Refuses HostUnsupported
        means "a GPU is of the Fermi generation or older"
        matters "no branch that longshore installs supports it"
        remedy "longshore installs branch 470 and newer"
    GpuUnsupported "gpu-unsupported" Devices Refuses Preflight
        means "the selected driver or flavour does not support a GPU of this host"
        matters "the module would load and leave that GPU without a driver, or not load at all"
        remedy "select the branch or flavour that the finding names"
    GpuNeedsDriver "gpu-needs-driver" Devices RefusesOrWarns Preflight
        means "the support table has a GPU of this host with an oldest driver, and the driver is older; a warning where only the drivers' own lists say so, and for a driver that is loaded already"
        matters "the driver may not find the GPU, or drive it with known faults"
        remedy "select the driver that the finding names, or a newer one"
    DriverExcluded "driver-excluded" Devices RefusesOrWarns Preflight
        means "the support table excludes the driver with a GPU, network card, kernel or cloud of this host; a warning where its row only warns, and for a driver that is loaded already"
        matters "it is known not to work in this combination"
        remedy "select another driver, or change the row of the table by one of your own (support-table)"
    VgpuGuest "vgpu-guest" Devices RefusesOrWarns HostUnsupported
        means "a GPU of this virtual machine is a vGPU: NVIDIA's vGPU manager on the hypervisor marks it so in its PCI configuration space; a warning where a .run file is configured or a driver is loaded"
        matters "a vGPU is driven by the guest driver of NVIDIA's vGPU software alone: the kernel module of a data-centre driver refuses it in any version, and without a licence (nvidia-gridd) it serves slowly"
        remedy "give the guest driver that belongs to the hypervisor's vGPU release (--run-file NVIDIA-Linux-...-grid.run) and run nvidia-gridd for its licence beside longshore, or use NVIDIA's image for vGPU guests"
    GpuBoundElsewhere "gpu-bound-elsewhere" OtherDrivers RefusesOrWarns Preflight
        means "a driver that longshore does not unload is bound to a device: vfio-pci or another one, or nouveau or nova while it is in use; a warning where other devices are free"
        matters "a device has one driver at a time, and the kernel never offers a bound device to NVIDIA's"
        remedy "end the users of nouveau, which the finding names; unbind the device from any other driver"
    GpuMissing "gpu-missing" Devices RefusesOrWarns NoDevice
        means "a GPU on the PCI bus is bound to no other driver, and the loaded driver did not take it or the GPU has left the bus since; a refusal with missing-gpus = refuse"
        matters "the driver serves the other GPUs, and programs find fewer GPUs than the host has"
        remedy "see the kernel's line in the finding and PCI errors in its log (dmesg); check power and seating, a cold reboot often brings it back; bind it to vfio-pci where it is to stay out"
    NotRoot "not-root" Privileges Refuses Preflight
        means "the effective user is not root"
        matters "only root may load modules, mount and make device nodes"
        remedy "run the container privileged, as root"
    UserNamespace "user-namespace" Privileges Refuses Preflight
        means "this process is in a user namespace"
        matters "the kernel refuses to load modules or make device nodes there, whatever the capabilities"
        remedy "run the container rootful and without a user namespace"
    MissingCapability "missing-capability" Privileges Refuses Preflight
        means "CAP_SYS_ADMIN, CAP_SYS_MODULE or CAP_MKNOD is missing"
        matters "mounting, loading modules and making device nodes need them"
        remedy "run the container privileged, as root"
    CapabilitiesUnread "capabilities-unread" Privileges Warns Preflight
        means "/proc/self/status could not be read"
        matters "a missing capability would be found only in the middle of the installation, which is then rolled back"
        remedy "mount /proc in the container"
    ModulesDisabled "modules-disabled" Kernel Refuses Preflight
        means "kernel.modules_disabled is 1"
        matters "no module can be loaded before the next boot"
        remedy "remove the setting of kernel.modules_disabled, and reboot"
    HostBringsDriver "host-brings-driver" OtherDrivers Refuses HostUnsupported
        means "the distribution brings NVIDIA's driver by a mechanism of its own (Container-Optimized OS, Bottlerocket, Talos, Flatcar under Secure Boot, Ubuntu Core); no driver is loaded to adopt, and no available set is one that its kernel accepts"
        matters "such kernels accept modules of their own image only, or no compiler and headers for them exist outside of it: a compile could not end with a loaded driver"
        remedy "install the driver by the distribution's mechanism, which the finding names; longshore adopts the driver once it is loaded"
        [About::Set]
    KernelByClang "kernel-by-clang" Kernel Refuses Toolchain
        means "clang built the kernel (/proc/version), and modules for it are to be compiled with gcc"
        matters "modules of another compiler do not fit such a kernel: options, mitigations and link-time optimization differ"
        remedy "give a prebuilt set for this kernel, set build-root to a root with the kernel's own clang and headers, or boot a kernel that was built by gcc"
        [About::Set]
    SignatureRequired "signature-required" Signatures RefusesOrWarns Preflight
        means "lockdown or sig_enforce refuses modules without a trusted signature, and the modules to be loaded have none; a warning where only Secure Boot is known"
        matters "the kernel would refuse the modules (EKEYREJECTED or EPERM)"
        remedy "sign the modules and enrol the signer's certificate (mokutil --import): set module-signing, or use a set signed elsewhere (`longshore sign-modules --export`, then --module-signatures); or switch Secure Boot off, or remove lockdown= and module.sig_enforce from the kernel's command line"
    ModuleKeyUntrusted "module-key-untrusted" Signatures RefusesOrWarns Preflight
        means "the kernel requires signatures and does not have the key of the modules' signer; a warning where its keys (/proc/keys) cannot be read, or where the key may be in the keyring .platform alone, by which the distribution's kernel is not known to verify modules"
        matters "a signature by an unknown key counts as no signature"
        remedy "enrol that certificate on the host (mokutil --import CERTIFICATE, then reboot and confirm), or sign with a key that the kernel has"
    SignFileMissing "sign-file-missing" Signatures RefusesOrWarns Toolchain
        means "a key for module signing is configured, and no archive has sign-file for this kernel, the program that signs with it; a warning where the kernel is not known to require signatures"
        matters "the modules stay unsigned: a kernel that requires signatures would refuse them, another one loads them and is tainted (E)"
        remedy "add an archive with this kernel's headers and their linux-kbuild package, or sign the modules elsewhere and give the signatures (--module-signatures), or use a set that is signed already"
        [About::FailureOf(SourceId::Archives)]
    OtherDriverLive "other-driver-live" OtherDrivers Refuses Preflight
        means "a driver that is in no record of longshore is loaded, in another version, flavour or build than the wanted one, or with other parameters"
        matters "one driver can be loaded at a time, and user-mode files of another version do not work with it"
        remedy "stop the processes that use it and unload it with the program that installed it, or select its version"
    LoadedUnread "loaded-unread" OtherDrivers Warns Preflight
        means "the loaded modules could not be read"
        matters "an already loaded driver would be found only when the kernel refuses the new one"
        remedy "mount /sys and /proc in the container"
    OtherInstallerAlive "other-installer-alive" OtherDrivers Refuses Preflight
        means "NVIDIA's driver container is running on this host: the lock on its PID file is held, or a process has its root in the mount on the driver root"
        matters "two installers would unload each other's driver and mount over each other's files"
        remedy "stop that container (under the GPU operator: its driver DaemonSet), then run again"
    DriverRootTaken "driver-root-taken" OtherDrivers Refuses Preflight
        means "a mount on the driver root, or below it, is neither longshore's nor provably a leftover of NVIDIA's driver container"
        matters "the mount's owner uses it: mounting over it would hide it, and unmounting would break it"
        remedy "find its owner (`findmnt -R` on the driver root) and unmount it, or set driver-root to another directory"
    DriverRootOdd "driver-root-odd" Places Refuses Preflight
        means "the driver root is a symlink, or not a directory"
        matters "the mount behind a symlink would be in an unexpected place, or over the system's own files"
        remedy "remove it (longshore makes the directory), or set driver-root to the intended directory"
    RunNvidiaNotShared "run-nvidia-not-shared" Places RefusesOrWarns Preflight
        means "a mount on the driver root would not propagate to the host; a warning where that is not known"
        matters "the container toolkit and the validator look on the host, and would find an empty directory"
        remedy "start the container with `-v /run/nvidia:/run/nvidia:rshared` (in Kubernetes: mountPropagation: Bidirectional), and make sure that / or /run is a shared mount on the host"
    SpaceShort "space-short" Places RefusesOrWarns Preflight
        means "a file system that longshore writes to is full, or nearly so (bytes or inodes)"
        matters "no step is done without its record on disk; without space in the store nothing can be fetched or compiled"
        remedy "free space on that file system (`longshore gc` for the store), or set --store or --state-dir to another one"
    HostRootHidden "host-root-hidden" Places Warns Preflight
        means "the host's own file system is not accessible"
        matters "the host's /dev gets no device nodes: programs without access to the driver root find none"
        remedy "share the host's PID namespace (--pid host, hostPID: true), or mount the host's / and set host-root"
    LostWithContainer "lost-with-container" Places Warns Preflight
        means "store or state is in the container's own file system"
        matters "built modules, and the record for the uninstall, must outlive the container"
        remedy "mount these directories from the host"
    SignatureMissing "signature-missing" Sources Refuses Verification
        means "signatures are required, and no set for this kernel is signed by a configured key; the finding names the reason for each set"
        matters "modules run with all rights of the kernel, so no unsigned module is loaded where signatures are required"
        remedy "sign the set with a key whose public half is in signature-keys (or in trust, with the role modules), or add the key it is signed with"
        [About::Modules, About::Set, About::LaterSet]
    AttestationMissing "attestation-missing" Sources Refuses Verification
        means "attestations are required (require-attestation), and no signed set for this kernel has one of each type by a configured key; the finding names the reason for each set"
        matters "a signature says who released the modules, and not how they were made or that they were tested"
        remedy "attest the set with a key that has that role (signature-keys, trust; `longshore attest`, `longshore push --attest`), or do not require it"
        [About::Modules, About::Set, About::LaterSet]
    IndexRefused "index-refused" Sources Refuses Verification
        means "an index is required (require-index), and none that counts lists a set for this kernel; the finding names the reason for each set: the index is missing, unreadable, not signed by a key with that role, expired, or older than one seen before, or it does not list the set"
        matters "a signature stays true when a set is outdated: a registry or a mirror could show old sets alone"
        remedy "make a new index of the registry (`longshore index REPOSITORY --sign-key`) by a key that has that role, bring outdated mirrors up to date, or do not require it"
        [About::Modules, About::Set, About::LaterSet]
    SetDenied "set-denied" Sources RefusesOrWarns Verification
        means "a set of modules for this kernel is in denied-sets, and is not used; a warning where there are other modules"
        matters "a set that was signed and tested once stays so: only this list takes it back"
        remedy "make another set available, or let the modules be compiled; a driver that was loaded from the set stays until it is changed"
        [About::Modules, About::Set]
    DriverBelowMinimum "driver-below-minimum" Sources Refuses Verification
        means "the drivers that match `driver` are below driver-minimum; the finding lists those that are available"
        matters "a mirror or registry that hides newer drivers could have an old one with known faults installed, signed as it is"
        remedy "make a source available that has a newer driver, select a newer version or branch, or lower driver-minimum"
        [About::Modules, About::Set]
    DriverVulnerable "driver-vulnerable" Sources RefusesOrWarns Verification
        means "a security bulletin of the support table concerns the driver, and this version does not have its fix; a refusal with vulnerable-driver = refuse, but not for a driver that is loaded already"
        matters "programs on this host, and containers with a GPU, may use the vulnerability"
        remedy "select a fixed version"
    DriverEnded "driver-ended" Sources RefusesOrWarns Verification
        means "the support of the driver's branch has ended, by the support table; a refusal with ended-driver = refuse, but not for a driver that is loaded already"
        matters "the branch gets no more fixes, neither of vulnerabilities nor for newer kernels"
        remedy "select a supported branch"
    DriverNotOffered "driver-not-offered" Sources Refuses Download
        means "no source has the selected version and flavour; the finding lists the available ones"
        matters "there is nothing to install"
        remedy "select one of those, or add an archive, suite or component that has it"
        [About::Modules]
    ArchivesUnread "archives-unread" Sources RefusesOrWarns Download
        means "no archive could be read"
        matters "driver, headers and user-mode files come from archives"
        remedy "make an archive reachable, or give a prebuilt set for this kernel"
        [About::Modules, About::Query, About::Archives, About::FailureOf(SourceId::Archives)]
    RegistryUnread "registry-unread" Sources RefusesOrWarns Download
        means "a registry that may have a set could not be read; a refusal only where compiling is not allowed either"
        matters "modules that are built there already would have to be compiled here"
        remedy "make the registry or a mirror of it reachable, and check the login"
        [About::Modules, About::LaterSet, About::Query]
    RunFileUnread "run-file-unread" Sources Refuses Download
        means "no mirror of a .run file could be read, and the store does not have it"
        matters "driver and user-mode files come from it"
        remedy "make one of its mirrors reachable, or give a prebuilt set for this kernel"
        [About::Modules, About::Query, About::FailureOf(SourceId::RunFiles)]
    SourcesUnread "sources-unread" Sources Refuses Download
        means "a configured prebuilt directory, key or certificate cannot be read, or a source served damaged data"
        matters "`run` would fail at it, with exit code 2, 12, 13 or 15 depending on the cause"
        remedy "correct or remove what the finding names"
    NothingBuilt "nothing-built" Sources Refuses Download
        means "no built set for this kernel is available, and compiling is not allowed here"
        matters "there is nothing to load"
        remedy "give a prebuilt set, or allow compiling"
        [About::Modules, About::Set, About::LaterSet]
    UserspaceNotOffered "userspace-not-offered" Sources RefusesOrWarns Download
        means "modules are available, and no archive is known to have this version's user-mode files; a refusal where there is no source at all"
        matters "modules and user-mode files must be of the same version"
        remedy "add an archive, suite or component that has this version, name its .run file, or import a bundle that has it"
        [About::Archives]
    UserModeDiffers "user-mode-differs" OtherDrivers RefusesOrWarns Preflight
        means "with modules-only, all of the host's libraries whose version is known are of another version than the selected driver; a warning for a driver that is loaded already"
        matters "modules and user-mode files must be of the same version: programs would fail at their first call"
        remedy "select the driver of the host's libraries, or install libraries of the selected one"
    HeadersMissing "headers-missing" Sources Refuses Toolchain
        means "neither an archive nor the host has this kernel's headers; the nearest are named"
        matters "modules are compiled against the headers of exactly this kernel"
        remedy "boot one of those kernels, add an archive or suite that still has this one, give its headers with --headers, or give a prebuilt set"
    HeadersUnknown "headers-unknown" Sources RefusesOrWarns Toolchain
        means "the search for kernel headers failed; a refusal where there is no source at all"
        matters "without them nothing can be compiled for this kernel"
        remedy "make an archive reachable that has this kernel"
        [About::Query, About::Archives]
    StateUnreadable "state-unreadable" Agent Refuses Verification
        means "the record of the changes to this host (state.json) cannot be parsed, or others may have written it"
        matters "it is the only list of changes to undo, so it is not overwritten"
        remedy "look at what is loaded and mounted, unload and unmount it by hand, move the file away and start again; a reboot clears it, too"
    StateOutOfReach "state-out-of-reach" Agent Refuses Preflight
        means "the record of the changes to this host cannot be read, or was written by a newer longshore"
        matters "no host is changed whose record is unknown"
        remedy "mount the host's /run/longshore and /run/nvidia into the container, and use the newest longshore that ran here"
    StoreUnusable "store-unusable" Agent Refuses Preflight
        means "the store's directory cannot be read, or is not a directory"
        matters "everything that is fetched or built goes through the store"
        remedy "set --store to a directory that this process can write to"
    KernelUnknown "kernel-unknown" Kernel RefusesOrWarns Preflight
        means "the host's /lib/modules is not visible; a refusal where a module is known to need another one"
        matters "the dependencies of the driver's modules can be neither found nor loaded"
        remedy "share the host's PID namespace (--pid host, hostPID: true), or mount the host's /lib/modules, or set host-root"
    DependencyMissing "dependency-missing" Kernel Refuses Preflight
        means "a module needs another module that the kernel has neither built in nor as a file"
        matters "the kernel would refuse it: unknown symbol"
        remedy "install the package with the kernel's additional modules, or use modules that do not need it"
    SymbolsDiffer "symbols-differ" Kernel Refuses Preflight
        means "modules that were compiled elsewhere have another vermagic than the kernel's, or import symbols with other CRCs; at most 18 are named, each with module, required CRC and the kernel's; or they are a package's for an unknown build of this kernel, and could not be compared"
        matters "the kernel would refuse them (`disagrees about version of symbol`, `version magic`), or they would use its structures with another layout"
        remedy "use modules that were compiled with the headers of exactly this kernel (release and `uname -v`), boot the kernel that they are for, or remove the set from the store (its file below `sets/`) so that they are compiled here"
    ModuleNotBuilt "module-not-built" Sources Refuses Preflight
        means "the available set, or NVIDIA's driver, lacks a requested module"
        matters "the requested module cannot be loaded"
        remedy "use a set that has it, or remove it from extra-modules"
        [About::Modules]
    HostDriverInstalled "host-driver-installed" OtherDrivers Warns Preflight
        means "a driver is installed on the host itself: modules below /lib/modules, libraries, or its services"
        matters "at the next boot it is loaded before longshore's, in its version and with its parameters, and programs of the host find its libraries instead of the driver root's"
        remedy "uninstall it (apt purge 'nvidia-*', or nvidia-uninstall), renew the initramfs and reboot; or leave the driver to it and do not run longshore on this node"
    DriverAutoloads "driver-autoloads" OtherDrivers Warns Preflight
        means "the host loads its own driver by itself: at boot, or when udev sees the device"
        matters "it can be loaded before longshore's, or between the check and the load, with other parameters than the configured ones"
        remedy "prevent it: blacklist its modules in /etc/modprobe.d and name none of them in /etc/modules-load.d, then renew the initramfs"
    DriverVersionUnknown "driver-version-unknown" Configuration Refuses Preflight
        means "no setting names the driver under the GPU operator, and the tag of the pod's image does not either, or cannot be read: the API server refuses the request, has no such pod, or the image is named by its digest alone"
        matters "the newest driver would be another one than the operator's configuration means"
        remedy "name the driver: DRIVER_VERSION in the pod's variables (driver.env in the operator's configuration), or `driver` in longshore.toml"
    DriverSourcesMissing "driver-sources-missing" Configuration Refuses Preflight
        means "GPUDirect Storage or GDRCopy is on, and no source has the kernel sources of exactly this driver and flavour"
        matters "the operator's containers for them compile against `usr/src` of the driver root, and would wait for it for ever"
        remedy "add an archive with the driver's kernel-source package, or its .run file; or set gds.enabled and gdrcopy.enabled to false in the operator's configuration (GDS_ENABLED, GDRCOPY_ENABLED)"
    DriverRulesConflict "driver-rules-conflict" Configuration Refuses Preflight
        means "GPUs of this host have [[driver-for]] rules that want different drivers"
        matters "a host runs one driver"
        remedy "write the rules so that those for the GPUs of one host want the same driver: of the rules for one GPU the first counts"
    VgpuUnsupported "vgpu-unsupported" Configuration Warns HostUnsupported
        means "settings of a vGPU guest are there (gridd.conf beside the operator's parameter files)"
        matters "longshore installs neither a vGPU guest driver nor nvidia-gridd: they have no effect"
        remedy "remove licensingConfig from the operator's configuration, or use NVIDIA's image for vGPU guests"
    DrmUnderOperator "drm-under-operator" Configuration Warns InUse
        means "nvidia_drm is among the modules to load under the GPU operator"
        matters "the operator's driver manager does not unload it: while it is loaded, the driver is not changed for another"
        remedy "remove nvidia-drm from extra-modules, or change drivers by `longshore unload`"
    ParametersUnused "parameters-unused" Configuration Warns Usage
        means "parameters are given for a module that is not loaded"
        matters "they have no effect"
        remedy "add the module to extra-modules, or remove its parameters"
    PeermemMissing "peermem-missing" OtherDrivers Warns KernelRefused
        means "nvidia_peermem is wanted and not loaded: the kernel refused it"
        matters "GPUDirect RDMA does not work; everything else does, and the agent is Ready"
        remedy "install the network driver (MOFED), or wait for its container: once mlx5_core, ib_core or ib_uverbs is loaded the agent tries again, every minute at least; where MOFED's container became ready after the compile, restart the agent, which compiles nvidia_peermem against MOFED's headers"
    MofedLeftOut "mofed-left-out" OtherDrivers Warns KernelRefused
        means "MOFED's headers are on the host, and nvidia_peermem is compiled without them: the set of modules was made without, a compile with them failed, or they are unusable: damaged, or not root's alone"
        matters "such an nvidia_peermem has the kernel's own InfiniBand symbols: where only MOFED has those for peer memory, the kernel refuses to load it, and GPUDirect RDMA does not work"
        remedy "let this host compile with MOFED's headers (`longshore build` with the same settings, then restart the agent), or provide a prebuilt set that was made with them; repair MOFED's installation where they are unusable; where others than root may write to them, look at who does, then give them to root (`chown -R root:root`, `chmod -R go-w`)"
    PreemptRt "preempt-rt" Kernel Warns HostUnsupported
        means "the kernel is PREEMPT_RT"
        matters "NVIDIA does not support it; the modules are built for it nevertheless"
        remedy "expect longer latencies, or boot a kernel without PREEMPT_RT"
    GpuUnknown "gpu-unknown" Devices Warns Preflight
        means "a GPU is not in longshore's table"
        matters "it is taken for newer than longshore: the newest driver and open modules are chosen for it, without knowing that they support it"
        remedy "set driver and flavour to those that support it, add the GPU to a table of your own (a [[gpu]] row of support-table), or use a newer longshore"
    AgentFailed "agent-failed" Agent Warns Preflight
        means "the last agent failed, or left the driver in use"
        matters "what it could not uninstall is still on the host"
        remedy "see `longshore status` for what is left; start longshore again, or run `longshore unload`"
    CompileFailedBefore "compile-failed-before" Agent Warns Compile
        means "a compile failed here a short while ago, and is not retried yet"
        matters "the same inputs fail the same way; an agent that needs them ends at once"
        remedy "see its cause; `longshore build --retry` retries at once"
    NextKernelUnprepared "next-kernel-unprepared" Agent WarnsOrNotes Download
        means "a newer kernel is installed, and its modules could not be fetched or compiled, or were not yet"
        matters "after the reboot into it the node waits for the modules to be compiled, or has no driver where that fails; the driver of the running kernel is not concerned"
        remedy "see the agent's log for the cause, and try it with `longshore fetch --kernel RELEASE`; a running agent tries again by itself"
    DriverRefusedBefore "driver-refused-before" Agent Warns KernelRefused
        means "since the host was booted, the kernel refused a driver that was to replace the loaded one"
        matters "an agent that wants it again ends at once, and the loaded driver stays"
        remedy "select another version, flavour or parameters; to retry the same, run `longshore unload` and start again"
    StoreDamaged "store-damaged" Agent Warns Verification
        means "descriptions in the store cannot be read, or name modules that do not exist"
        matters "damaged entries are fetched or built again, which takes time and a network"
        remedy "`longshore store verify` reads all of it and names what to remove; if the damage recurs, check the disk"
    ClockWrong "clock-wrong" Devices Warns Verification
        means "the clock is earlier than the day this longshore was released"
        matters "certificates and archive signatures appear not to be valid yet"
        remedy "set the clock (timedatectl, chronyc makestep)"
    DeviceAccessDenied "device-access-denied" Privileges Warns Preflight
        means "the container's cgroup prevents this process from opening devices"
        matters "the kernel's log cannot be read when it refuses a module, and device nodes cannot be tested"
        remedy "run the container privileged, or allow its cgroup all devices (--device-cgroup-rule 'a *:* rwm')"
    DaemonMissing "daemon-missing" Sources Refuses Download
        means "a daemon that is to run, or that another daemon needs, is not among the driver's user-mode files"
        matters "the driver would not be ready without it"
        remedy "add a source that has it (NVIDIA's own Debian-format archive has nvidia-fabricmanager and nvlsm), or switch it off: [daemons] in the configuration"
    FabricManagerMissing "fabric-manager-missing" Sources RefusesOrWarns Preflight
        means "the host has NVSwitches, and no source has a fabric manager of the driver's version; a warning with fabric-manager-missing = warn, where the switches connect no GPU that this driver would drive, where the host's own fabric manager is enabled, and for a driver that is loaded already"
        matters "the driver loads, and CUDA programs fail with `system not yet initialized` until nv-fabricmanager of exactly the driver's version runs"
        remedy "add an archive that has nvidia-fabricmanager of this version, or run it on the host yourself and set fabricmanager to off; fabric-manager-missing = warn installs the driver without one"
    DaemonForeign "daemon-foreign" OtherDrivers Notes Preflight
        means "a daemon of the driver that longshore did not start answers on the host"
        matters "two would conflict over the same devices: longshore starts none of its own, and does not stop the other"
        remedy "nothing, or stop it on the host if longshore is to run it; a daemon that holds the driver prevents an unload"
    CannotUnload "cannot-unload" Kernel Warns Preflight
        means "the kernel was built without CONFIG_MODULE_UNLOAD"
        matters "the driver can be loaded, but neither changed nor unloaded before the next boot"
        remedy "boot a kernel with CONFIG_MODULE_UNLOAD, or reboot for each change"
    LayoutRandomized "layout-randomized" Kernel Warns Preflight
        means "the kernel was built with a random layout of its structures (CONFIG_RANDSTRUCT)"
        matters "the proprietary part of the driver, and modules compiled without the kernel's seed, use another layout: memory gets corrupted"
        remedy "boot a kernel without CONFIG_RANDSTRUCT, or use the open flavour compiled with this kernel's own headers"
    ModulesPinned "modules-pinned" Kernel Warns KernelRefused
        means "the kernel was built to accept modules only from one file system (LoadPin), or only with an IMA signature"
        matters "modules from another file system or without that signature, and all that are loaded from memory, are refused"
        remedy "switch it off (loadpin.enforce=0, ima_appraise=off), or put the modules into the pinned image"
    NouveauAtBoot "nouveau-at-boot" OtherDrivers Notes Preflight
        means "the kernel has nouveau, and nothing prevents its automatic loading"
        matters "at the next boot udev loads it, and it takes the GPU before longshore starts"
        remedy "prevent it: `blacklist nouveau` in /etc/modprobe.d, then renew the initramfs"
    Leftovers "leftovers" OtherDrivers Notes Preflight
        means "NVIDIA's driver container, which no longer runs, left a mount, a PID file, a state file or the firmware path behind"
        matters "a stale mount would lie below longshore's, and stale files describe a driver that is gone"
        remedy "nothing: `run` removes them before it installs"
    AptSourcesLeftOut "apt-sources-left-out" Sources Notes Preflight
        means "apt of the host has sources that longshore does not use: of another distribution or architecture, or by a transport that it does not have (cdrom, mirror, tor)"
        matters "a driver, headers or a compiler that only these have are not found"
        remedy "nothing where the driver comes from elsewhere; else name the archive as [[archive]] in the configuration, or its suite in archive-suites"
    AptProxy "apt-proxy" Sources Notes Preflight
        means "apt of the host has settings of a proxy (Acquire::http::Proxy in apt.conf.d), which are used for its sources, or cannot be known: a program that apt asks (Proxy-Auto-Detect) is not run"
        matters "requests to the host's apt sources go another way than others; where a setting is not known, the proxy variables alone count"
        remedy "nothing where the proxy is the right one; else name it by http_proxy and https_proxy, or the host by no_proxy"
    NodesStale "nodes-stale" OtherDrivers Notes Preflight
        means "device nodes of an NVIDIA driver exist, and no driver is loaded"
        matters "their numbers may belong to another driver by now; nodes that differ are replaced when the driver is loaded"
        remedy "nothing, or remove them"
    DevCharLinksMissing "dev-char-links-missing" Places Notes Preflight
        means "/dev/char has no links to the driver's device nodes"
        matters "with cgroups made by systemd, containers can lose access to their GPUs when systemd reloads its units"
        remedy "let longshore make the nodes, which makes the links, too (not where NVreg_ModifyDeviceFiles is set, or another program loaded the driver); else `nvidia-ctk system create-dev-char-symlinks --create-all` on the host"
    DriverInUse "driver-in-use" Agent Notes InUse
        means "processes or modules hold the driver"
        matters "it cannot be unloaded or changed while they do"
        remedy "nothing while the driver is to stay; stop them before you change or unload it"
    AgentAlive "agent-alive" Agent Notes Preflight
        means "an agent is running on this host"
        matters "only one agent runs at a time: another would end with exit code 15"
        remedy "nothing: see `longshore status` for what it is doing"
    ModuleReplaced "module-replaced" OtherDrivers Warns KernelRefused
        means "a module of the driver was unloaded, or unloaded and loaded again, by another program while the agent was Ready"
        matters "nodes and user-mode files may not fit the loaded modules, and longshore no longer owns these"
        remedy "find the program that loads and unloads modules on this host and stop it, then restart the agent: it adopts what is loaded and loads what is missing, or reports why it cannot"
    ExposureLost "exposure-lost" Places Warns Expose
        means "a mount, a directory, a device node or the firmware path that the agent had made disappeared or changed while the agent was Ready"
        matters "containers that start now do not get the driver; it is restored where nothing else has taken its place"
        remedy "find what removes it (another installer, a clean-up job, udev rules); where it was not restored, remove what is there in its place"
    FilesUnlabelled "files-unlabelled" Places WarnsOrNotes Expose
        means "the host has SELinux, and the driver's files, nodes or modules cannot be given the labels by which containers and the kernel may read them"
        matters "containers that SELinux confines get `Permission denied` from the driver root; others, and containers that get the driver by other mounts, work, and modules are loaded from memory"
        remedy "install the policy for containers of the host's distribution (container-selinux; the module container of the reference policy), and keep the store on a file system that stores labels"
    CdiUnpublished "cdi-unpublished" Places WarnsOrNotes Expose
        means "the driver's CDI spec is not in the host's /var/run/cdi, or is not the present driver's"
        matters "containers that ask for nvidia.com/gpu by CDI do not get the driver; everything else works, and the agent is Ready"
        remedy "make /var/run/cdi writable on the host (space, a mount that is not read-only), or set cdi-spec to off; the agent publishes it as soon as it can"
    CdiConflict "cdi-conflict" Places WarnsOrNotes Expose
        means "another program's CDI spec has devices of nvidia.com/gpu, too, or the specs of other programs are too many to be compared"
        matters "a device that two files of one directory have is unresolvable for container runtimes; one in /etc/cdi gives way to that of /var/run/cdi"
        remedy "remove the other file and stop the program that writes it (NVIDIA's toolkit: nvidia-cdi-refresh), or set cdi-spec to off"
    OperatorFileUnwritten "operator-file-unwritten" Places Warns Expose
        means "a file by which the GPU operator follows the driver, in /run/nvidia or its directory validations, could not be written"
        matters "the operator takes the driver for not ready, or its driver manager unloads the driver before the next agent; everything else works, and the agent is Ready"
        remedy "remove what is in the file's place (`ls -la /run/nvidia/validations`: a mount, a link or a file instead of the directory), and make /run/nvidia writable; the agent tries again within a minute"
    FeaturesUnwritten "features-unwritten" Places Warns Expose
        means "the features file of Node Feature Discovery, /etc/kubernetes/node-feature-discovery/features.d/longshore of the host, could not be written"
        matters "the node gets no labels by Node Feature Discovery; everything else works, and the agent is Ready"
        remedy "install Node Feature Discovery, which makes the directory, and let the container write to it; or set features-file of the cluster to false"
    WatchLimited "watch-limited" Agent Notes Preflight
        means "some of the kernel's events about changes to the driver cannot be received, or the host could not be probed"
        matters "such a change is found only with the next event of another kind, and not within a second"
        remedy "allow the container netlink sockets, inotify and /proc/self/mountinfo; raise fs.inotify.max_user_instances where it is exhausted"
}
