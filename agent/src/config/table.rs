//! Table of the settings that belong to no section of the file. docs/reference/configuration.md is generated
//! from it and from those of the sections (see `page`).

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::PathBuf;

use super::cdi::{CdiSpecs, DriverCapability};
use super::cluster::ClusterFragment;
use super::daemons::DaemonFragment;
use super::downloads::DownloadFragment;
use super::fragment::decided;
use super::layer::settings;
use super::module_signing::ModuleSigningFragment;
use super::next_kernel::NextKernelMode;
use super::operator::OperatorFragment;
use super::patches::PatchFragment;
use super::publish::PublishFragment;
use super::run_file::absolute_place;
use super::values::{
    BoundedDuration, ConflictingDrivers, DriverSelector, FlavourSelector, ModuleName,
    ModuleParameter, NoGpu, OnBusy, Reaction, SizeBound,
};
use super::{Listen, TerminationMessage};
use longshore_build::build::BuildUser;
use longshore_build::build::build_root::BuildRootSource;
use longshore_build::source::runfile::RunFileSource;
use longshore_core::image_reference::Host;
use longshore_core::value::{AbsolutePath, Uri};
use longshore_debian::settings::ArchiveSource;
use longshore_modules::registry::RegistrySource;
use longshore_modules::signature::statement::PredicateType;

settings! {
    /// Settings that may each be absent. See docs/reference/configuration.md.
    #[command(next_help_heading = "Settings (also in the environment and the configuration file)")]
    Fragment after decided;

    /// Configuration file; /etc/longshore/config.toml by default, where that exists
    #[serde(skip)]
    config: Option<PathBuf>;
        flag "config" "FILE" env "LONGSHORE_CONFIG"
        default "`/etc/longshore/config.toml` where that exists"
        means "the configuration file"
    /// Driver version (535.261.03), branch (535), or newest
    driver: Option<DriverSelector>;
        key "driver" flag "driver" "VERSION" env "LONGSHORE_DRIVER" "DRIVER_VERSION"
        default "newest; in a pod, the version in its image's tag"
        means "version (`535.261.03`), branch (`535`) or `newest`"
    /// Flavour of the kernel modules: auto, open or proprietary
    flavour: Option<FlavourSelector>;
        key "flavour" flag "flavour" "FLAVOUR"
        env "LONGSHORE_FLAVOUR" "KERNEL_MODULE_TYPE" "OPEN_KERNEL_MODULES_ENABLED"
        default "`auto`"
        means "`auto`, `open`, `proprietary`; `OPEN_KERNEL_MODULES_ENABLED=true` is `open`"
    /// Additional module to load, for example nvidia-drm (repeatable)
    extra_modules: Option<Vec<ModuleName>>;
        key "extra-modules" flag "extra-module" "MODULE" env "LONGSHORE_EXTRA_MODULES"
        default "none"
        means "additional modules to load beyond nvidia, nvidia-uvm, nvidia-modeset"
    /// Module parameter to set, for example nvidia.NVreg_EnableMSI=1 (repeatable)
    #[serde(skip)]
    parameter: Vec<ModuleParameter>;
        flag "parameter" "MODULE.NAME=VALUE"
        default "none"
        means "module parameter, for example `nvidia.NVreg_EnableMSI=1`"
    /// Parameters by module, as on insmod's command line.
    #[arg(skip)]
    parameters: BTreeMap<ModuleName, String>;
        key "parameters" written "`[parameters]` `MODULE = \"A=1 B=2\"`"
        env "LONGSHORE_PARAMETERS_NVIDIA" "LONGSHORE_PARAMETERS_NVIDIA_UVM"
            "LONGSHORE_PARAMETERS_NVIDIA_MODESET" "LONGSHORE_PARAMETERS_NVIDIA_DRM"
            "LONGSHORE_PARAMETERS_NVIDIA_PEERMEM"
        default "none"
        means "module parameters, one variable for each module"
    /// Directory with nvidia.conf, nvidia-uvm.conf, nvidia-modeset.conf and nvidia-peermem.conf
    parameters_dir: Option<AbsolutePath>;
        key "parameters-dir" flag "parameters-dir" "DIR" env "LONGSHORE_PARAMETERS_DIR"
        default "`/drivers`"
        means "directory with the GPU operator's `nvidia.conf`, `nvidia-uvm.conf`, `nvidia-modeset.conf`, `nvidia-peermem.conf`; they override the file, and the environment overrides them"
    /// Archives.
    #[arg(skip)]
    archives: Option<Vec<ArchiveSource>>;
        key "archive" written "`[[archive]]` `url`, `suites`, `components`, `keyring`"
        default "none"
        means "a Debian-format archive (http, https or file), its suites and components, and the OpenPGP keyring that may sign it; repeat in order of preference. A flat archive has `suites = [\"/\"]` (or a directory, `dir/`) and no components"
    /// Read the host's own apt sources as well
    host_apt: Option<bool>;
        key "host-apt" flag "host-apt" "BOOL" alone "true" env "LONGSHORE_HOST_APT"
        default "`true`"
        means "read the host's own apt sources as well"
    /// Component to look for in the host's apt sources beyond those they name; replaces the default,
    /// the components with drivers (repeatable)
    archive_components: Option<Vec<String>>;
        key "archive-components" flag "archive-component" "COMPONENT" env "LONGSHORE_ARCHIVE_COMPONENTS"
        default "`contrib`, `non-free`, `non-free-firmware`, `restricted`, `multiverse`"
        means "components to look for in the host's apt sources beyond those they name; by default those with drivers"
    /// Suite to look for in the host's apt sources beyond those they name (repeatable)
    archive_suites: Option<Vec<String>>;
        key "archive-suites" flag "archive-suite" "SUITE" env "LONGSHORE_ARCHIVE_SUITES"
        default "none"
        means "suites to look for in the host's apt sources beyond those they name"
    /// Accept archive metadata past its Valid-Until, or older than what was read before (for a
    /// frozen mirror)
    archive_frozen: Option<bool>;
        key "archive-frozen" flag "archive-frozen" "BOOL" alone "true" env "LONGSHORE_ARCHIVE_FROZEN"
        default "`false`"
        means "accept metadata past its Valid-Until, or [older than what was read before](../supply-chain/downloads.md#outdated-metadata)"
    /// NVIDIA .run files.
    #[arg(skip)]
    run_files: Option<Vec<RunFileSource>>;
        key "run-file" written "`[[run-file]]` `urls`, and `sha256` or `checksum`"
        default "none"
        means "NVIDIA's .run files to take the driver from instead of the archives, one for each version: URLs or absolute paths of one file, and their checksum (see [run-files.md](../supply-chain/run-files.md))"
    /// NVIDIA .run file to take the driver from: URL or path (repeatable: mirrors of one file)
    #[serde(skip)]
    #[arg(value_parser = absolute_place)]
    run_file: Option<Vec<String>>;
        flag "run-file" "URL|PATH" env "LONGSHORE_RUN_FILE"
        default "none"
        means "one .run file instead of those: URL or path, repeat for mirrors"
    /// sha256 of the .run file
    #[serde(skip)]
    run_file_sha256: Option<String>;
        flag "run-file-sha256" "HEX" env "LONGSHORE_RUN_FILE_SHA256"
        default "none"
        means "sha256 of that .run file"
    /// File with the sha256 of the .run file: https or file URL, or path
    #[serde(skip)]
    #[arg(value_parser = absolute_place)]
    run_file_checksum: Option<String>;
        flag "run-file-checksum" "URL|PATH" env "LONGSHORE_RUN_FILE_CHECKSUM"
        default "none"
        means "a file with the sha256 of that .run file: https or file URL, or path"
    /// Directory with prebuilt module sets, an OCI image layout (repeatable)
    prebuilt: Option<Vec<AbsolutePath>>;
        key "prebuilt" flag "prebuilt" "DIR" env "LONGSHORE_PREBUILT"
        default "none"
        means "directories with prebuilt module sets (OCI image layouts)"
    /// Repository of an OCI registry with prebuilt module sets; prefix http:// for no TLS
    /// (repeatable)
    registries: Option<Vec<RegistrySource>>;
        key "registry" written "`[[registry]]` `reference`, `mirrors`, `plain-http`"
        flag "registry" "REFERENCE" env "LONGSHORE_REGISTRIES"
        default "none"
        means "repositories of OCI registries with prebuilt module sets, in order of preference: `HOST/REPOSITORY`, prefix `http://` for no TLS; only the file names mirrors; see [registry.md](../supply-chain/registry.md)"
    /// Registry (HOST:PORT) that modules may come from without TLS and without a signature
    /// (repeatable)
    insecure_registries: Option<Vec<Host>>;
        key "insecure-registries" flag "insecure-registry" "HOST" env "LONGSHORE_INSECURE_REGISTRIES"
        default "none"
        means "hosts (`HOST` or `HOST:PORT`) of registries and mirrors that modules may come from [without TLS and without a signature](../supply-chain/registry.md#without-tls)"
    /// Registry to push compiled modules to.
    publish: PublishFragment; section "publish"
    /// Load no module that is not signed by one of the signature keys; the default where keys are
    /// configured
    require_signature: Option<bool>;
        key "require-signature" flag "require-signature" "BOOL" alone "true" env "LONGSHORE_REQUIRE_SIGNATURE"
        default "`true` where there are `signature-keys`, else `false`"
        means "load no module that is not signed by one of the keys; nothing is compiled to be loaded then"
    /// Public key (a cosign.pub) that module sets may be signed with (repeatable)
    signature_keys: Option<Vec<AbsolutePath>>;
        key "signature-keys" flag "signature-key" "FILE" env "LONGSHORE_SIGNATURE_KEYS"
        default "none"
        means "public keys that module sets may be signed with: cosign.pub files, ECDSA P-256"
    /// Load no module without an attestation of this type by one of the signature keys: provenance,
    /// spdx, test-result, or the URI of a type (repeatable)
    require_attestation: Option<Vec<PredicateType>>;
        key "require-attestation" flag "require-attestation" "TYPE" env "LONGSHORE_REQUIRE_ATTESTATION"
        default "none"
        means "[attestations](../supply-chain/registry.md#attestations) that a set has to have, each signed by one of the keys, beside the signature: `provenance`, `spdx`, `test-result`, or the URI of a predicate's type"
    /// Identity of this host, a URI, in the provenance of the modules that it compiles
    builder_id: Option<Uri>;
        key "builder-id" flag "builder-id" "URI" env "LONGSHORE_BUILDER_ID"
        default "`https://longshore.dev/builders/unnamed`"
        means "identity of this host in the [provenance](../supply-chain/registry.md#attestations) of modules that it compiles: a URI that consumers compare"
    /// Module signatures for the kernel.
    module_signing: ModuleSigningFragment; section "module-signing"
    /// Kernel headers to try before the archives: directory or tar file (repeatable)
    headers: Option<Vec<AbsolutePath>>;
        key "headers" flag "headers" "PATH" env "LONGSHORE_HEADERS"
        default "none"
        means "kernel headers to try before the archives: directories and tar files ([building.md](../supply-chain/building.md))"
    /// Build root with headers and compiler, instead of those of the archives: an image by its digest
    /// (oci://HOST/REPOSITORY@sha256:...), a directory, an image layout or a tar file
    build_root: Option<BuildRootSource>;
        key "build-root" flag "build-root" "PLACE" env "LONGSHORE_BUILD_ROOT"
        default "none"
        means "[build root](../supply-chain/build-roots.md) that has headers and compiler, instead of `headers` and the archives: an image by its digest (`oci://HOST/REPOSITORY@sha256:...`), a directory, an OCI image layout or a tar file"
    /// Compile modules where no built ones are available
    compile: Option<bool>;
        key "compile" flag "compile" "BOOL" alone "true" env "LONGSHORE_COMPILE"
        default "`true`"
        means "compile modules where no built ones are available"
    /// Use finished modules of packages in the archives (Ubuntu's linux-modules-nvidia-*)
    module_packages: Option<bool>;
        key "module-packages" flag "module-packages" "BOOL" alone "true" env "LONGSHORE_MODULE_PACKAGES"
        default "`true`"
        means "use [finished modules of packages in the archives](../supply-chain/building.md#finished-modules), such as Ubuntu's `linux-modules-nvidia-*`, before anything is compiled"
    /// Never compile; the same as --compile=false
    #[serde(skip)]
    #[arg(conflicts_with = "compile")]
    no_compile: bool;
        flag "no-compile"
        default "`false`"
        means "never compile; the same as `--compile=false`"
    /// Parallel compile jobs
    jobs: Option<NonZeroU16>;
        key "jobs" flag "jobs" "N" env "LONGSHORE_JOBS"
        default "all cores"
        means "parallel compile jobs"
    /// User id, and group id, that compilers run as; no other program may use it
    build_uid: Option<BuildUser>;
        key "build-uid" flag "build-uid" "UID" env "LONGSHORE_BUILD_UID"
        default "`2104104104`"
        means "user id, and group id, that compilers run as; [no other program may use it](../supply-chain/building.md#the-user-that-compiles); `0`, `65534` and `65535` are refused"
    /// Compatibility patches.
    patches: PatchFragment; section "patches"
    /// The driver's daemons.
    daemons: DaemonFragment; section "daemons"
    /// The GPU operator.
    operator: OperatorFragment; section "operator"
    /// The cluster.
    cluster: ClusterFragment; section "cluster"
    /// Part of the driver that CDI specs give to containers: compute, utility, video or graphics
    /// (repeatable)
    cdi_capabilities: Option<Vec<DriverCapability>>;
        key "cdi-capabilities" flag "cdi-capability" "NAME" env "LONGSHORE_CDI_CAPABILITIES"
        default "`compute`, `utility`, `video`"
        means "parts of the driver that [CDI specs](../operate/containers.md#libraries-and-tools) give to containers, named as in `NVIDIA_DRIVER_CAPABILITIES`: `compute`, `utility`, `video`, `graphics`"
    /// Publication of the CDI spec in the host's /var/run/cdi: auto or off
    cdi_spec: Option<CdiSpecs>;
        key "cdi-spec" flag "cdi-spec" "auto|off" env "LONGSHORE_CDI_SPEC"
        default "`auto`"
        means "publication of the driver's [CDI spec](../operate/containers.md#the-published-spec) in the host's `/var/run/cdi`: `auto` publishes it where that can be reached, and goes on without it where not; `off` leaves the directory alone"
    /// Time limits of downloads.
    downloads: DownloadFragment; section "downloads"
    /// Store, on the host's disk
    store: Option<AbsolutePath>;
        key "store" flag "store" "DIR" env "LONGSHORE_STORE"
        default "`/var/lib/longshore`"
        means "store, on the host's disk"
    /// Size limit of the store once the driver is installed, for example 5GiB; or none
    store_max_size: Option<SizeBound>;
        key "store-max-size" flag "store-max-size" "SIZE" env "LONGSHORE_STORE_MAX_SIZE"
        default "`5GiB`"
        means "size limit of the store once the driver is installed (`500MiB`, `10GiB`, `none`); above it, the least recently used entries are removed, but never what the host runs or ran before: [store.md](../operate/store.md)"
    /// Directory of the lock, state and journal
    state_dir: Option<AbsolutePath>;
        key "state-dir" flag "state-dir" "DIR" env "LONGSHORE_STATE_DIR"
        default "the host's `/run/longshore`; `/run/nvidia/longshore` where only that is shared ([why](../internals/decisions/record-place.md))"
        means "directory of the lock, state and journal; accessible to root only"
    /// Directory that the driver root is mounted on
    driver_root: Option<AbsolutePath>;
        key "driver-root" flag "driver-root" "DIR" env "LONGSHORE_DRIVER_ROOT"
        default "`/run/nvidia/driver`"
        means "directory that the driver root (user-mode files) is mounted on"
    /// Read /proc and /sys below this directory (a captured tree)
    root: Option<AbsolutePath>;
        key "root" flag "root" "DIR" env "LONGSHORE_ROOT"
        default "`/`"
        means "read /proc and /sys below this directory: a captured tree"
    /// Root of the host's own file system
    host_root: Option<AbsolutePath>;
        key "host-root" flag "host-root" "DIR" env "LONGSHORE_HOST_ROOT"
        default "see below"
        means "root of the host's own file system"
    /// Reaction to a GPU that the driver did not take: warn or refuse
    missing_gpus: Option<Reaction>;
        key "missing-gpus" flag "missing-gpus" "warn|refuse" env "LONGSHORE_MISSING_GPUS"
        default "`warn`"
        means "reaction to a GPU on the PCI bus that the loaded driver did not take ([gpu-missing](errors.md#gpu-missing)): `warn` logs it and continues with the others; `refuse` rolls the installation back with exit code 17, and makes a driver that is already ready not ready: [lifecycle.md](../operate/lifecycle.md#every-gpu-or-a-finding)"
    /// Conduct on a host without a GPU: exit or wait
    no_gpu: Option<NoGpu>;
        key "no-gpu" flag "no-gpu" "exit|wait" env "LONGSHORE_NO_GPU"
        default "`exit`"
        means "conduct of `run` on a host without an NVIDIA GPU or NVSwitch on the PCI bus: `exit` ends with exit code 17; `wait` changes nothing, queries no source, is Ready in phase `idle`, and installs the driver once a GPU appears: [lifecycle.md](../operate/lifecycle.md#no-gpu)"
    /// Reaction to nouveau or nova_core bound to a GPU: unload-idle or refuse
    conflicting_drivers: Option<ConflictingDrivers>;
        key "conflicting-drivers" flag "conflicting-drivers" "unload-idle|refuse"
        env "LONGSHORE_CONFLICTING_DRIVERS"
        default "`unload-idle`"
        means "reaction to the kernel's own driver of a GPU, nouveau or nova_core: `unload-idle` unloads it if no process, module or console uses it, and loads it again on removal; `refuse` leaves it and ends with exit code 15; other drivers, as vfio-pci, are never unbound: [lifecycle.md](../operate/lifecycle.md#nouveau-bound-to-a-gpu)"
    /// Conduct towards a newer kernel that is installed and not booted: prepare, report or off
    next_kernel: Option<NextKernelMode>;
        key "next-kernel" flag "next-kernel" "prepare|report|off" env "LONGSHORE_NEXT_KERNEL"
        default "`prepare` where anything may be compiled or a registry or prebuilt directory is named, else `report`"
        means "conduct towards a newer kernel that is installed on the host and not booted: `prepare` fetches or compiles its modules into the store at low priority while the driver is ready, `report` only reports whether the store has them, `off` does not look for it: [next-kernel.md](../operate/next-kernel.md)"
    /// Reaction of SIGTERM to a driver in use: leave, wait, or wait:SPAN
    on_busy: Option<OnBusy>;
        key "on-busy" flag "on-busy" "leave|wait[:SPAN]" env "LONGSHORE_ON_BUSY"
        default "`wait`"
        means "reaction of SIGTERM to a driver in use: `leave` leaves it installed at once, `wait` waits on its users for `unload-deadline`, `wait:SPAN` for that span (`0s` to `1h`); then it stays installed and the exit code is 20 ([deadlines.md](deadlines.md))"
    /// Time limit for unloading each module, and for waiting on processes that use the driver
    unload_deadline: Option<BoundedDuration>;
        key "unload-deadline" flag "unload-deadline" "SPAN" env "LONGSHORE_UNLOAD_DEADLINE"
        default "`20s`"
        means "time limit for waiting on processes that use the driver, unless `on-busy` sets another, and for unloading each module or mount (5 s at least) before it counts as hung; `0s` to `1h`"
    /// Address that run serves health, metrics and status on: ADDRESS:PORT, unix:PATH, or off
    listen: Option<Listen>;
        key "listen" flag "listen" "ADDRESS" env "LONGSHORE_LISTEN"
        default "`127.0.0.1:9470`"
        means "address that `run` serves [health, metrics and status](../operate/observability.md) on: `ADDRESS:PORT`, `unix:PATH` or `off`"
    /// File that run writes the reason of its failure to (termination message); or off
    termination_message: Option<TerminationMessage>;
        key "termination-message" flag "termination-message" "FILE" env "LONGSHORE_TERMINATION_MESSAGE"
        default "`/dev/termination-log` where it exists"
        means "file that `run` writes the reason of its failure to in one line, which Kubernetes shows; or `off`"
    /// Time limit for loading each module, and for each mount and device node, before it counts as
    /// hung
    load_deadline: Option<BoundedDuration>;
        key "load-deadline" flag "load-deadline" "SPAN" env "LONGSHORE_LOAD_DEADLINE"
        default "`2m`"
        means "time limit for loading each module, and for each mount and device node (5 s at least), before it counts as hung"
    /// Time limit for waiting on another agent on this host
    lock_deadline: Option<BoundedDuration>;
        key "lock-deadline" flag "lock-deadline" "SPAN" env "LONGSHORE_LOCK_DEADLINE"
        default "`1m`"
        means "time limit for waiting on another agent on this host"
    /// Time limit for finding the processes that hold the driver
    look_deadline: Option<BoundedDuration>;
        key "look-deadline" flag "look-deadline" "SPAN" env "LONGSHORE_LOOK_DEADLINE"
        default "`3s`"
        means "time limit for finding the processes that hold the driver"
    /// Time limit for each build program, and for waiting on another process that builds the same
    /// modules
    build_deadline: Option<BoundedDuration>;
        key "build-deadline" flag "build-deadline" "SPAN" env "LONGSHORE_BUILD_DEADLINE"
        default "`1h`"
        means "time limit for each build program, and for waiting on another process that builds the same modules (5 s at least)"
    /// Time limit for the disk to write buffered data (fsync)
    disk_deadline: Option<BoundedDuration>;
        key "disk-deadline" flag "disk-deadline" "SPAN" env "LONGSHORE_DISK_DEADLINE"
        default "`2m`"
        means "time limit for the disk under the store or the record to write buffered data (fsync; 5 s at least)"
    /// Time limit for probing the host, and for the agent's own part of each install step
    step_deadline: Option<BoundedDuration>;
        key "step-deadline" flag "step-deadline" "SPAN" env "LONGSHORE_STEP_DEADLINE"
        default "`5m`"
        means "time limit for probing the host, and for the agent's own part of each install step (5 s at least)"
}
