//! Table of the settings that belong to no section of the file. docs/reference/configuration.md is generated
//! from it and from those of the sections (see `page`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::builder::BuilderFragment;
use super::cdi::{CdiSpecs, DriverCapability};
use super::cluster::ClusterFragment;
use super::daemons::DaemonFragment;
use super::downloads::DownloadFragment;
use super::driver_rules::DriverRule;
use super::freshness::{DriverMinimum, LongSpan, SetDigest};
use super::layer::settings;
use super::listen::Listen;
use super::module_signing::ModuleSigningFragment;
use super::next_kernel::NextKernelMode;
use super::operator::OperatorFragment;
use super::patches::PatchFragment;
use super::publish::PublishFragment;
use super::run_file::absolute_place;
use super::support_table_source::SupportTableSource;
use super::termination_message::TerminationMessage;
use super::values::{
    BoundedDuration, CompileJobs, ConflictingDrivers, DriverSelector, FlavourSelector, ModuleName,
    ModuleParameter, NoGpu, OnBusy, Reaction, SizeBound,
};
use longshore_build::BuildUser;
use longshore_build::build_root::BuildRootSource;
use longshore_core::image_reference::Host;
use longshore_core::value::{AbsolutePath, Uri};
use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::ArchiveSource;
use longshore_modules::registry::RegistrySource;
use longshore_modules::signature::TrustEntry;
use longshore_modules::signature::statement::PredicateType;
use longshore_sources::runfile::RunFileSource;
use longshore_sources::source_tree::SourceTrees;

settings! {
    /// Settings that may each be absent. See docs/reference/configuration.md.
    Fragment after Fragment::decided;

    /// Configuration file, TOML
    ///
    /// The flag and the variable name a file that has to exist. It must be
    /// [root's alone](../supply-chain/security.md#files-of-root-alone).
    config: Option<PathBuf>;
        group "Driver"
        attributes #[serde(skip)]
        flag "config" "FILE" env "LONGSHORE_CONFIG"
        default "`/etc/longshore/config.toml` where that exists"
    /// Driver version (`580.178.04`), branch (`580`), `newest`, `auto`
    ///
    /// `auto` chooses by the [support table](support-table.md#the-choice-of-auto).
    driver: Option<DriverSelector>;
        key "driver" flag "driver" "VERSION" env "LONGSHORE_DRIVER" "DRIVER_VERSION"
        default "newest; in a pod, the version in its image's tag"
    /// Driver of the hosts with a GPU
    ///
    /// `gpu` is a generation of the [support table](support-table.md), a PCI id or a part of a name; `driver` and
    /// `flavour` count on the hosts that have one: [rules](support-table.md#rules-by-gpu).
    driver_for: Option<Vec<DriverRule>>;
        attributes #[arg(skip)]
        key "driver-for" written "`[[driver-for]]` `gpu`, `driver`, `flavour`"
        default "none"
    /// Oldest driver that is installed: version or branch
    ///
    /// Sets, packages and .run files below it do not count, also where `driver` selects one
    /// ([freshness](../supply-chain/registry.md#freshness)).
    driver_minimum: Option<DriverMinimum>;
        key "driver-minimum" flag "driver-minimum" "VERSION" env "LONGSHORE_DRIVER_MINIMUM"
        default "none"
    /// Flavour of the kernel modules: `auto`, `open`, `proprietary`
    ///
    /// `OPEN_KERNEL_MODULES_ENABLED=true` is `open`.
    flavour: Option<FlavourSelector>;
        key "flavour" flag "flavour" "FLAVOUR"
        env "LONGSHORE_FLAVOUR" "KERNEL_MODULE_TYPE" "OPEN_KERNEL_MODULES_ENABLED"
        default "`auto`"
    /// Module to load, too, such as nvidia-drm
    ///
    /// Modules beyond nvidia, nvidia-uvm and nvidia-modeset.
    extra_modules: Option<Vec<ModuleName>>;
        key "extra-modules" flag "extra-module" "MODULE" env "LONGSHORE_EXTRA_MODULES"
        default "none"
    /// Module parameter, such as `nvidia.NVreg_EnableMSI=1`
    parameter: Vec<ModuleParameter>;
        attributes #[serde(skip)]
        flag "parameter" "MODULE.NAME=VALUE"
        default "none"
    /// Module parameters, one line or variable for each module
    ///
    /// A line is as on insmod's command line. Layers are merged by the parameter's name.
    parameters: BTreeMap<ModuleName, String>;
        attributes #[arg(skip)]
        key "parameters" written "`[parameters]` `MODULE = \"A=1 B=2\"`"
        env "LONGSHORE_PARAMETERS_NVIDIA" "LONGSHORE_PARAMETERS_NVIDIA_UVM"
            "LONGSHORE_PARAMETERS_NVIDIA_MODESET" "LONGSHORE_PARAMETERS_NVIDIA_DRM"
            "LONGSHORE_PARAMETERS_NVIDIA_PEERMEM"
        default "none"
    /// Directory with the GPU operator's parameter files
    ///
    /// They are `nvidia.conf`, `nvidia-uvm.conf`, `nvidia-modeset.conf` and `nvidia-peermem.conf`;
    /// they override the file, and the environment overrides them.
    parameters_dir: Option<AbsolutePath>;
        key "parameters-dir" flag "parameters-dir" "DIR" env "LONGSHORE_PARAMETERS_DIR"
        default "`/drivers`"
    /// Debian-format archive, in order of preference
    ///
    /// Its URL (http, https or file), its suites and components, and the OpenPGP keyring that may
    /// sign it. A flat archive has `suites = ["/"]` (or a directory, `dir/`) and no components. `max-age`
    /// is its own `archive-max-age`.
    archives: Option<Vec<ArchiveSource>>;
        group "Archives and .run files"
        attributes #[arg(skip)]
        key "archive" written "`[[archive]]` `url`, `suites`, `components`, `keyring`, `max-age`"
        default "none"
    /// Read the host's own apt sources as well
    host_apt: Option<bool>;
        key "host-apt" flag "host-apt" "BOOL" alone "true" env "LONGSHORE_HOST_APT"
        default "`true`"
    /// Component to look for in the host's apt sources
    ///
    /// Beyond those they name; replaces the default, the components with drivers.
    archive_components: Option<Vec<String>>;
        key "archive-components" flag "archive-component" "COMPONENT" env "LONGSHORE_ARCHIVE_COMPONENTS"
        default "`contrib`, `non-free`, `non-free-firmware`, `restricted`, `multiverse`"
    /// Suite to look for in the host's apt sources
    ///
    /// Beyond those they name.
    archive_suites: Option<Vec<String>>;
        key "archive-suites" flag "archive-suite" "SUITE" env "LONGSHORE_ARCHIVE_SUITES"
        default "none"
    /// Accept outdated archive metadata, for a frozen mirror
    ///
    /// Metadata past its Valid-Until or its limit of age, or [older than what was read
    /// before](../supply-chain/downloads.md#outdated-metadata).
    archive_frozen: Option<bool>;
        key "archive-frozen" flag "archive-frozen" "BOOL" alone "true" env "LONGSHORE_ARCHIVE_FROZEN"
        default "`false`"
    /// Limit of the age of archive metadata: `14d`, `36h`, `none`
    ///
    /// Counted from its Date, `1h` to `3650d`, for the host's apt sources, and each `[[archive]]` without its own
    /// `max-age`. [A suite whose Date never changes](../supply-chain/downloads.md#a-limit-of-age), as that of a
    /// release, needs `none`.
    archive_max_age: Option<MaxAge>;
        key "archive-max-age" flag "archive-max-age" "SPAN" env "LONGSHORE_ARCHIVE_MAX_AGE"
        default "`none`"
    /// NVIDIA's .run file to take the driver from, per version
    ///
    /// Instead of the archives: URLs, repositories (`oci://HOST/REPOSITORY`) or absolute paths of one file, and their
    /// checksum ([run-files.md](../supply-chain/run-files.md)).
    run_files: Option<Vec<RunFileSource>>;
        attributes #[arg(skip)]
        key "run-file" written "`[[run-file]]` `urls`, and `sha256` or `checksum`"
        default "none"
    /// URL or path of one .run file instead; repeat for mirrors
    ///
    /// `oci://HOST/REPOSITORY` is a [repository that has the file](../supply-chain/run-files.md#a-registry-as-the-place)
    /// as a blob.
    run_file: Option<Vec<String>>;
        attributes #[serde(skip)] #[arg(value_parser = absolute_place)]
        flag "run-file" "URL|PATH" env "LONGSHORE_RUN_FILE"
        default "none"
    /// sha256 of that .run file
    run_file_sha256: Option<String>;
        attributes #[serde(skip)]
        flag "run-file-sha256" "HEX" env "LONGSHORE_RUN_FILE_SHA256"
        default "none"
    /// File with the sha256 of that .run file
    ///
    /// An https or file URL, or a path.
    run_file_checksum: Option<String>;
        attributes #[serde(skip)] #[arg(value_parser = absolute_place)]
        flag "run-file-checksum" "URL|PATH" env "LONGSHORE_RUN_FILE_CHECKSUM"
        default "none"
    /// NVIDIA's open kernel modules as published, per place
    ///
    /// A tarball of a tag, or a directory, of each version with its sha256, at URLs, in repositories
    /// (`oci://HOST/REPOSITORY`) or at absolute paths; drivers beside those of the archives or .run files
    /// ([source-trees.md](../supply-chain/source-trees.md)).
    source_trees: Option<Vec<SourceTrees>>;
        attributes #[arg(skip)]
        key "source-tree" written "`[[source-tree]]` `urls`, `sha256`"
        default "none"
    /// URL or path of one source tree instead; repeat for mirrors
    ///
    /// `{version}` stands for each version of `--source-tree-sha256`.
    source_tree: Option<Vec<String>>;
        attributes #[serde(skip)] #[arg(value_parser = absolute_place)]
        flag "source-tree" "URL|PATH" env "LONGSHORE_SOURCE_TREE"
        default "none"
    /// Version and sha256 of that source tree; repeat for more versions
    source_tree_sha256: Option<Vec<String>>;
        attributes #[serde(skip)]
        flag "source-tree-sha256" "VERSION=HEX" env "LONGSHORE_SOURCE_TREE_SHA256"
        default "none"
    /// Directory with prebuilt module sets (OCI image layout)
    ///
    /// Without required signatures it must be [root's alone](../supply-chain/security.md#files-of-root-alone).
    prebuilt: Option<Vec<AbsolutePath>>;
        group "Prebuilt modules"
        key "prebuilt" flag "prebuilt" "DIR" env "LONGSHORE_PREBUILT"
        default "none"
    /// Repository of an OCI registry with prebuilt module sets
    ///
    /// `HOST/REPOSITORY`, in order of preference; prefix `http://` for no TLS. Only the file names
    /// mirrors: [registry.md](../supply-chain/registry.md).
    registries: Option<Vec<RegistrySource>>;
        key "registry" written "`[[registry]]` `reference`, `mirrors`, `plain-http`"
        flag "registry" "REFERENCE" env "LONGSHORE_REGISTRIES"
        default "none"
    /// Registry that needs neither TLS nor a signature
    ///
    /// `HOST` or `HOST:PORT` of a registry or mirror that modules may come from [without TLS and
    /// without a signature](../supply-chain/registry.md#without-tls), and that a login is sent to
    /// without TLS.
    insecure_registries: Option<Vec<Host>>;
        key "insecure-registries" flag "insecure-registry" "HOST" env "LONGSHORE_INSECURE_REGISTRIES"
        default "none"
    /// Host that issues tokens for the registries
    ///
    /// `HOST` or `HOST:PORT` of a [token server](../supply-chain/registry.md#logging-in) on another
    /// domain than the registry's.
    registry_realms: Option<Vec<Host>>;
        key "registry-realms" flag "registry-realm" "HOST" env "LONGSHORE_REGISTRY_REALMS"
        default "none"
    /// Time limit for waiting on modules that no registry has
    ///
    /// An agent that compiles nothing asks the registries again for so long before it ends, for a
    /// [builder](../supply-chain/builder.md) that makes them meanwhile; `0s` to `1h`.
    registry_wait: Option<BoundedDuration>;
        key "registry-wait" flag "registry-wait" "SPAN" env "LONGSHORE_REGISTRY_WAIT"
        default "`0s`"
    /// Registry to push compiled modules to.
    publish: PublishFragment; section "publish" group "Publishing"
    /// Drivers and flavours of `longshore builder`.
    builder: BuilderFragment; section "builder" group "Builder"
    /// Load only modules signed by one of the signature keys
    ///
    /// Nothing is compiled to be loaded then, unless `publish-key` is one of them.
    require_signature: Option<bool>;
        group "Signatures of module sets"
        key "require-signature" flag "require-signature" "BOOL" alone "true" env "LONGSHORE_REQUIRE_SIGNATURE"
        default "`true` where there are `signature-keys`, or `trust` with a role other than `support-table`; else `false`"
        is "restart"
    /// Public key (cosign.pub) that may sign module sets
    ///
    /// An ECDSA P-256 key in cosign's format.
    signature_keys: Option<Vec<AbsolutePath>>;
        key "signature-keys" flag "signature-key" "FILE" env "LONGSHORE_SIGNATURE_KEYS"
        default "none"
    /// Public key with roles, and the builder of its provenance
    ///
    /// Roles are `modules`, `index`, `support-table`, `provenance`, `spdx`, `test-result` and URIs of predicates' types
    /// ([roles](../supply-chain/registry.md#roles-of-keys)). As a flag or variable
    /// `ROLE+ROLE=FILE`, or `ROLE=FILE=BUILDER-ID`. Beside it, `signature-keys` sign modules alone.
    trust: Option<Vec<TrustEntry>>;
        key "trust" written "`[[trust]]` `key`, `roles`, `builder-id`"
        flag "trust" "ROLES=FILE" env "LONGSHORE_TRUST"
        default "none"
    /// Attestation that a module set has to have, too
    ///
    /// Beside the signature, by a key with that role: `provenance`, `spdx`, `test-result`, or the URI of
    /// a predicate's type ([attestations](../supply-chain/registry.md#attestations)).
    require_attestation: Option<Vec<PredicateType>>;
        key "require-attestation" flag "require-attestation" "TYPE" env "LONGSHORE_REQUIRE_ATTESTATION"
        default "none"
    /// Greatest age of a required attestation
    ///
    /// By the [time that it states](../supply-chain/registry.md#age-of-attestations), from `1h` to `10y`; one without a
    /// time does not count then.
    attestation_max_age: Option<LongSpan>;
        key "attestation-max-age" flag "attestation-max-age" "SPAN" env "LONGSHORE_ATTESTATION_MAX_AGE"
        default "none"
    /// Count only sets of registries that a signed index lists
    ///
    /// By a key with the role `index` ([index](../supply-chain/registry.md#index-of-a-repository)).
    require_index: Option<bool>;
        key "require-index" flag "require-index" "BOOL" alone "true" env "LONGSHORE_REQUIRE_INDEX"
        default "`false`"
    /// Lowest version of the index of a registry's sets
    ///
    /// For hosts whose store has seen none yet; `longshore index` prints it.
    index_minimum: Option<u64>;
        key "index-minimum" flag "index-minimum" "VERSION" env "LONGSHORE_INDEX_MINIMUM"
        default "none"
    /// File with the lowest version of each registry's index
    ///
    /// Lines `HOST/REPOSITORY VERSION`, read whenever an index is judged; without the file any version counts. In a
    /// cluster the [builder](../supply-chain/builder.md#highest-index-of-the-cluster) writes it. It must be
    /// [root's alone](../supply-chain/security.md#files-of-root-alone).
    index_minimum_file: Option<AbsolutePath>;
        key "index-minimum-file" flag "index-minimum-file" "FILE" env "LONGSHORE_INDEX_MINIMUM_FILE"
        default "none"
    /// Module set that is taken back, by the digest of its manifest
    ///
    /// `sha256:HEX`: it is refused in every source and in the store, whatever signs it
    /// ([freshness](../supply-chain/registry.md#freshness)).
    denied_sets: Option<Vec<SetDigest>>;
        key "denied-sets" flag "denied-set" "DIGEST" env "LONGSHORE_DENIED_SETS"
        default "none"
    /// URI of this host in the provenance of what it compiles
    ///
    /// Consumers compare it ([provenance](../supply-chain/registry.md#attestations)).
    builder_id: Option<Uri>;
        key "builder-id" flag "builder-id" "URI" env "LONGSHORE_BUILDER_ID"
        default "`https://longshore.dev/builders/unnamed`"
    /// Module signatures for the kernel.
    module_signing: ModuleSigningFragment; section "module-signing" group "Signatures for the kernel (Secure Boot)"
    /// Kernel headers before the archives': directory or tar file
    ///
    /// They must be [root's alone](../supply-chain/security.md#files-of-root-alone). See
    /// [building.md](../supply-chain/building.md).
    headers: Option<Vec<AbsolutePath>>;
        group "Compiling"
        key "headers" flag "headers" "PATH" env "LONGSHORE_HEADERS"
        default "none"
    /// Build root with headers and compiler
    ///
    /// It takes the place of `headers` and the archives
    /// ([build-roots.md](../supply-chain/build-roots.md)): an image by its digest
    /// (`oci://HOST/REPOSITORY@sha256:...`), a directory, an OCI image layout or a tar file; all but an image
    /// must be [root's alone](../supply-chain/security.md#files-of-root-alone).
    build_root: Option<BuildRootSource>;
        key "build-root" flag "build-root" "PLACE" env "LONGSHORE_BUILD_ROOT"
        default "none"
    /// Compile modules where no built ones are available
    compile: Option<bool>;
        key "compile" flag "compile" "BOOL" alone "true" env "LONGSHORE_COMPILE"
        default "`true`"
    /// Use finished modules of packages in the archives
    ///
    /// [Such packages](../supply-chain/building.md#finished-modules) as Ubuntu's
    /// `linux-modules-nvidia-*`, before anything is compiled.
    module_packages: Option<bool>;
        key "module-packages" flag "module-packages" "BOOL" alone "true" env "LONGSHORE_MODULE_PACKAGES"
        default "`true`"
    /// Load the kernel modules alone, for a host that has its own user-mode files
    ///
    /// Of the same version: no driver root, CDI spec or daemon is made
    /// ([source-trees.md](../supply-chain/source-trees.md#modules-alone)).
    modules_only: Option<bool>;
        key "modules-only" flag "modules-only" "BOOL" alone "true" env "LONGSHORE_MODULES_ONLY"
        default "`false`"
    /// Never compile; the same as `--compile=false`
    no_compile: bool;
        attributes #[serde(skip)] #[arg(conflicts_with = "compile")]
        flag "no-compile"
        default "`false`"
    /// Number of parallel compile jobs
    jobs: Option<CompileJobs>;
        key "jobs" flag "jobs" "N" env "LONGSHORE_JOBS"
        default "all cores"
    /// User id, and group id, that compilers run as
    ///
    /// [No other program may use it](../supply-chain/building.md#the-user-that-compiles); `0`,
    /// `65534` and `65535` are refused.
    build_uid: Option<BuildUser>;
        key "build-uid" flag "build-uid" "UID" env "LONGSHORE_BUILD_UID"
        default "`2104104104`"
    /// Compatibility patches.
    patches: PatchFragment; section "patches" group "Compatibility patches"
    /// The driver's daemons.
    daemons: DaemonFragment; section "daemons" group "Daemons of the driver"
    /// The GPU operator.
    operator: OperatorFragment; section "operator" group "GPU operator"
    /// The cluster.
    cluster: ClusterFragment; section "cluster" group "Cluster"
    /// Part of the driver that CDI specs give to containers
    ///
    /// [Named](../operate/containers.md#libraries-and-tools) as in `NVIDIA_DRIVER_CAPABILITIES`:
    /// `compute`, `utility`, `video`, `graphics`.
    cdi_capabilities: Option<Vec<DriverCapability>>;
        group "Containers (CDI)"
        key "cdi-capabilities" flag "cdi-capability" "NAME" env "LONGSHORE_CDI_CAPABILITIES"
        default "`compute`, `utility`, `video`"
    /// Publication of the CDI spec in the host's /var/run/cdi
    ///
    /// [The spec](../operate/containers.md#the-published-spec) of the driver: `auto` publishes it
    /// where the directory can be reached, and goes on without it where not; `off` leaves the
    /// directory alone.
    cdi_spec: Option<CdiSpecs>;
        key "cdi-spec" flag "cdi-spec" "auto|off" env "LONGSHORE_CDI_SPEC"
        default "`auto`"
    /// Time limits of downloads.
    downloads: DownloadFragment; section "downloads" group "Downloads"
    /// Store, on the host's disk
    store: Option<AbsolutePath>;
        group "Directories and their size"
        key "store" flag "store" "DIR" env "LONGSHORE_STORE"
        default "`/var/lib/longshore`"
        is "restart"
    /// Size limit of the store: `500MiB`, `10GiB`, `none`
    ///
    /// It applies once the driver is installed; above it, the least recently used entries are
    /// removed, but never what the host runs or ran before: [store.md](../operate/store.md).
    store_max_size: Option<SizeBound>;
        key "store-max-size" flag "store-max-size" "SIZE" env "LONGSHORE_STORE_MAX_SIZE"
        default "`5GiB`"
    /// Directory of the lock, state and journal
    ///
    /// Accessible to root only.
    state_dir: Option<AbsolutePath>;
        key "state-dir" flag "state-dir" "DIR" env "LONGSHORE_STATE_DIR"
        default "the host's `/run/longshore`; `/run/nvidia/longshore` where only that is shared ([why](../internals/decisions/record-place.md))"
        is "restart"
    /// Directory that the driver root is mounted on
    ///
    /// The driver root has the user-mode files.
    driver_root: Option<AbsolutePath>;
        key "driver-root" flag "driver-root" "DIR" env "LONGSHORE_DRIVER_ROOT"
        default "`/run/nvidia/driver`"
        is "restart"
    /// Read /proc and /sys below this directory: a captured tree
    root: Option<AbsolutePath>;
        key "root" flag "root" "DIR" env "LONGSHORE_ROOT"
        default "`/`"
        is "restart"
    /// Root of the host's own file system
    host_root: Option<AbsolutePath>;
        key "host-root" flag "host-root" "DIR" env "LONGSHORE_HOST_ROOT"
        default "the root of process 1 where that is the host's, else `/`"
        is "restart"
    /// Reaction to a GPU that the driver did not take
    ///
    /// A GPU on the PCI bus ([gpu-missing](errors.md#gpu-missing)): `warn` logs it and continues
    /// with the others; `refuse` rolls the installation back with exit code 17, and makes a driver
    /// that is already ready not ready:
    /// [lifecycle.md](../operate/lifecycle.md#every-gpu-or-a-finding).
    missing_gpus: Option<Reaction>;
        group "Conduct"
        key "missing-gpus" flag "missing-gpus" "warn|refuse" env "LONGSHORE_MISSING_GPUS"
        default "`warn`"
    /// File or artifact (oci://HOST/REPOSITORY:TAG) with a support table
    ///
    /// It replaces or extends the [built-in one](support-table.md#a-table-of-your-own), signed by a trusted key.
    support_table: Option<SupportTableSource>;
        key "support-table" flag "support-table" "PLACE" env "LONGSHORE_SUPPORT_TABLE"
        default "none"
    /// Reaction to a driver with an open security bulletin
    ///
    /// By the [support table](support-table.md): `warn`, or `refuse` to install it ([driver-vulnerable](errors.md#driver-vulnerable)).
    vulnerable_driver: Option<Reaction>;
        key "vulnerable-driver" flag "vulnerable-driver" "warn|refuse" env "LONGSHORE_VULNERABLE_DRIVER"
        default "`warn`"
    /// Reaction to a driver whose branch has ended
    ///
    /// By the [support table](support-table.md): `warn`, or `refuse` to install it ([driver-ended](errors.md#driver-ended)).
    ended_driver: Option<Reaction>;
        key "ended-driver" flag "ended-driver" "warn|refuse" env "LONGSHORE_ENDED_DRIVER"
        default "`warn`"
    /// Conduct on a host without a GPU
    ///
    /// No NVIDIA GPU or NVSwitch on the PCI bus: `exit` ends `run` with exit code 17; `wait`
    /// changes nothing, queries no source, is Ready in phase `idle`, and installs the driver once a
    /// GPU appears: [lifecycle.md](../operate/lifecycle.md#no-gpu).
    no_gpu: Option<NoGpu>;
        key "no-gpu" flag "no-gpu" "exit|wait" env "LONGSHORE_NO_GPU"
        default "`exit`"
    /// Reaction to nouveau or nova_core: `unload-idle`, `refuse`
    ///
    /// The kernel's own driver of a GPU: `unload-idle` unloads it if no process, module or console
    /// uses it, and loads it again on removal; `refuse` leaves it and ends with exit code 15. Other
    /// drivers, as vfio-pci, are never unbound:
    /// [lifecycle.md](../operate/lifecycle.md#nouveau-bound-to-a-gpu).
    conflicting_drivers: Option<ConflictingDrivers>;
        key "conflicting-drivers" flag "conflicting-drivers" "REACTION"
        env "LONGSHORE_CONFLICTING_DRIVERS"
        default "`unload-idle`"
    /// Conduct towards a newer kernel that is not booted yet
    ///
    /// A kernel that is installed on the host: `prepare` fetches or compiles its modules into the
    /// store at low priority while the driver is ready, `report` only reports whether the store has
    /// them, `off` does not look for it: [next-kernel.md](../operate/next-kernel.md).
    next_kernel: Option<NextKernelMode>;
        key "next-kernel" flag "next-kernel" "prepare|report|off" env "LONGSHORE_NEXT_KERNEL"
        default "`prepare` where anything may be compiled or a registry or prebuilt directory is named, else `report`"
    /// Reaction of SIGTERM to a driver in use
    ///
    /// `leave` leaves it installed at once, `wait` waits on its users for `unload-deadline`,
    /// `wait:SPAN` for that span (`0s` to `1h`); then it stays installed and the exit code is 20
    /// ([deadlines.md](deadlines.md)).
    on_busy: Option<OnBusy>;
        key "on-busy" flag "on-busy" "leave|wait[:SPAN]" env "LONGSHORE_ON_BUSY"
        default "`wait`"
    /// Address of the metrics
    ///
    /// `run` [serves](../operate/observability.md#metrics-over-tcp) them on `ADDRESS:PORT`, `unix:PATH` or `off`.
    /// Health, readiness and status are on the agent's own socket alone.
    listen: Option<Listen>;
        group "Health, metrics and failures"
        key "listen" flag "listen" "ADDRESS" env "LONGSHORE_LISTEN"
        default "`127.0.0.1:9470`"
        is "restart"
    /// Certificate of the metrics' address
    ///
    /// File in PEM, with the authorities' certificates between it and the root. It is served by TLS then, and read
    /// again where it changes.
    listen_certificate: Option<AbsolutePath>;
        key "listen-certificate" flag "listen-certificate" "FILE" env "LONGSHORE_LISTEN_CERTIFICATE"
        default "none"
        is "restart"
    /// Key of that certificate, a file in PEM
    listen_key: Option<AbsolutePath>;
        key "listen-key" flag "listen-key" "FILE" env "LONGSHORE_LISTEN_KEY"
        default "none"
        is "restart"
    /// Let the cluster review the tokens of clients that read metrics
    ///
    /// A client needs a bearer token of a user who may `get` the nonResourceURL `/metrics`.
    listen_token_review: Option<bool>;
        key "listen-token-review" flag "listen-token-review" "BOOL" alone "true"
        env "LONGSHORE_LISTEN_TOKEN_REVIEW"
        default "`false`"
        is "restart"
    /// File that `run` writes its failure to, or `off`
    ///
    /// One line with the reason, which Kubernetes shows.
    termination_message: Option<TerminationMessage>;
        key "termination-message" flag "termination-message" "FILE" env "LONGSHORE_TERMINATION_MESSAGE"
        default "`/dev/termination-log` where it exists"
        is "restart"
    /// Time limit for users of the driver, and for each unload
    ///
    /// Processes that use the driver are waited on for it, unless `on-busy` sets another; each
    /// module or mount has it (5 s at least) before it counts as hung; `0s` to `1h`.
    unload_deadline: Option<BoundedDuration>;
        group "Time limits"
        key "unload-deadline" flag "unload-deadline" "SPAN" env "LONGSHORE_UNLOAD_DEADLINE"
        default "`20s`"
    /// Time limit for loading each module
    ///
    /// Also for each mount and device node, before it counts as hung; 5 s at least.
    load_deadline: Option<BoundedDuration>;
        key "load-deadline" flag "load-deadline" "SPAN" env "LONGSHORE_LOAD_DEADLINE"
        default "`2m`"
    /// Time limit for waiting on another agent on this host
    lock_deadline: Option<BoundedDuration>;
        key "lock-deadline" flag "lock-deadline" "SPAN" env "LONGSHORE_LOCK_DEADLINE"
        default "`1m`"
    /// Time limit for finding the processes that hold the driver
    look_deadline: Option<BoundedDuration>;
        key "look-deadline" flag "look-deadline" "SPAN" env "LONGSHORE_LOOK_DEADLINE"
        default "`3s`"
    /// Time limit for each build program
    ///
    /// Also for waiting on another process that builds the same modules; 5 s at least.
    build_deadline: Option<BoundedDuration>;
        key "build-deadline" flag "build-deadline" "SPAN" env "LONGSHORE_BUILD_DEADLINE"
        default "`1h`"
    /// Time limit for the disk to write buffered data (fsync)
    ///
    /// The disk under the store or the record; 5 s at least.
    disk_deadline: Option<BoundedDuration>;
        key "disk-deadline" flag "disk-deadline" "SPAN" env "LONGSHORE_DISK_DEADLINE"
        default "`2m`"
    /// Time limit for probing the host, and for each install step
    ///
    /// Of a step, the agent's own part; 5 s at least.
    step_deadline: Option<BoundedDuration>;
        key "step-deadline" flag "step-deadline" "SPAN" env "LONGSHORE_STEP_DEADLINE"
        default "`5m`"
}
