//! Configuration: fragments from file, environment and flags, merged and validated into [`Config`].

mod builder;
mod cdi;
mod cluster;
mod daemons;
mod deadlines;
mod downloads;
mod driver_rules;
mod environment;
mod fragment;
mod freshness;
mod layer;
mod listen;
mod malformed;
mod module_signing;
mod next_kernel;
mod operator;
mod own_signature;
#[cfg(test)]
mod page;
pub mod parameters;
mod patches;
mod places;
mod plain_path;
mod publish;
mod record_place;
mod run_file;
mod second_or_more;
mod serving;
pub mod settings;
mod signatures;
mod source_tree;
mod sources;
mod store_place;
mod support;
mod support_table_source;
mod table;
mod termination_message;
mod values;
mod variables;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use builder::{BuilderConfig, BuilderFragment};
pub use cdi::{CdiSpecs, DriverCapability};
pub use cluster::{ClusterConfig, ClusterFragment};
pub use daemons::{DaemonConfig, DaemonFragment, Mode};
pub use downloads::DownloadFragment;
pub use driver_rules::{Above, DriverRule, DriverRules, RulesConflict};
pub use environment::is_of_service;
pub use freshness::{DriverMinimum, LongSpan, SetDigest};
pub use listen::Listen;
pub use module_signing::{ModuleSigning, ModuleSigningFragment, SignBy};
pub use next_kernel::NextKernelMode;
pub use operator::{
    ConfigDigest, FABRIC_VARIABLES, OPERATOR_FILE, OPERATOR_VARIABLES, OperatorConfig,
    OperatorFragment, unknown_fabric_variable, usual_file,
};
pub use own_signature::{ATTESTED, OwnSignature};
pub use patches::PatchFragment;
pub use places::probed;
pub use publish::{PublishConfig, PublishFragment};
pub use second_or_more::SecondOrMore;
pub use serving::{SOCKET, ServingConfig, TlsFiles};
pub use signatures::SignatureConfig;
pub use store_place::{StoreChoice, StorePlace};
pub use support::SupportConfig;
pub use support_table_source::{SCHEME as SUPPORT_TABLE_SCHEME, SupportTableSource};
pub use table::Fragment;
pub use termination_message::TerminationMessage;
pub use values::{
    BoundedDuration, CompileJobs, ConflictingDrivers, DriverSelector, FlavourSelector, ModuleName,
    ModuleParameter, NoGpu, OnBusy, Reaction, SizeBound,
};

use self::layer::{FromEnv, Over};
use longshore_build::BuildUser;
use longshore_build::build_root::BuildRootSource;
use longshore_build::patches::PatchConfig;
use longshore_core::deadlines::Deadlines;
use longshore_core::disk::Disk;
use longshore_core::driver_modules;
use longshore_core::driver_version::DriverVersion;
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::paths::Paths;
use longshore_core::value::{AbsolutePath, Uri};
use longshore_debian::settings::ArchiveConfig;
use longshore_fetch::http::Downloads;
use longshore_modules::registry::{LoginRules, RegistrySource};
use longshore_sources::headers::HeaderPlaces;
use longshore_sources::runfile::RunFileSource;
use longshore_sources::source_tree::SourceTree;

/// Path of the default configuration file, which may be absent.
pub const DEFAULT_FILE: &str = "/etc/longshore/config.toml";

/// Archive components with NVIDIA's drivers, firmware and daemons: Debian's, and Ubuntu's `restricted` and
/// `multiverse`. A host's apt sources seldom name them all.
pub const DRIVER_COMPONENTS: [&str; 5] =
    ["contrib", "non-free", "non-free-firmware", "restricted", "multiverse"];

/// Validated configuration; every path is absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Driver selection.
    pub driver: DriverConfig,
    /// Rules of the driver by GPU; `driver` is what they make of it on this host.
    pub driver_rules: DriverRules,
    /// Debian-format archives, in order of preference.
    pub archives: ArchiveConfig,
    /// NVIDIA .run files; where any is named, drivers come from these and not from archives.
    pub run_files: Vec<RunFileSource>,
    /// Trees of NVIDIA's open kernel modules: drivers beside those of archives or .run files.
    pub source_trees: Vec<SourceTree>,
    /// Directories with prebuilt module sets (OCI image layouts).
    pub prebuilt: Vec<PathBuf>,
    /// Registries with prebuilt module sets, in order of preference.
    pub registries: Vec<RegistrySource>,
    /// Rules of where the registries' logins go.
    pub logins: LoginRules,
    /// Registry that compiled modules are pushed to; also part of `registries`.
    pub publish: Option<PublishConfig>,
    /// Drivers and flavours that `longshore builder` builds.
    pub builder: BuilderConfig,
    /// Time limit for waiting on a set that the registries lack.
    pub registry_wait: Duration,
    /// Trusted signature keys, and whether a signature is required.
    pub signatures: SignatureConfig,
    /// Standing of sets that are compiled here among the required signatures.
    pub own_signature: OwnSignature,
    /// Identity of this host in the provenance of the sets that it compiles.
    pub builder_id: Uri,
    /// Signing of modules for the kernel, where configured.
    pub module_signing: Option<ModuleSigning>,
    /// Kernel headers to try before the archives: directories and tar files.
    pub headers: Vec<PathBuf>,
    /// Build root with headers and compiler, instead of those of the archives.
    pub build_root: Option<BuildRootSource>,
    /// True if compiling is allowed where no built modules are available.
    pub compile: bool,
    /// True if finished modules of packages in the archives may be used.
    pub module_packages: bool,
    /// True to load the modules alone: the host has its own user-mode files.
    pub modules_only: bool,
    /// Number of parallel compile jobs; None for all cores.
    pub jobs: Option<usize>,
    /// User that compilers run as.
    pub build_user: BuildUser,
    /// Compatibility patches that a compile may apply.
    pub patches: PatchConfig,
    /// Daemons of the driver to run.
    pub daemons: DaemonConfig,
    /// Settings of the GPU operator.
    pub operator: OperatorConfig,
    /// Uses of the cluster's API server.
    pub cluster: ClusterConfig,
    /// Parts of the driver that CDI specs give to containers.
    pub cdi_capabilities: Vec<DriverCapability>,
    /// Publication of the CDI spec.
    pub cdi_spec: CdiSpecs,
    /// Reaction to a GPU that the driver did not take.
    pub missing_gpus: Reaction,
    /// Support table, and the reactions to what it says about a driver.
    pub support: SupportConfig,
    /// Conduct on a host without a GPU.
    pub no_gpu: NoGpu,
    /// Reaction to a driver of the kernel's own that is bound to a GPU.
    pub conflicting_drivers: ConflictingDrivers,
    /// Conduct towards the kernel of the next boot, where it is set; see [`Config::next_kernel`].
    pub next_kernel: Option<NextKernelMode>,
    /// Directories of longshore and of the host.
    pub paths: Paths,
    /// Place of the store, as found when the program started.
    pub store_place: StorePlace,
    /// Size limit of the store once the driver is installed; None for no limit.
    pub store_max_size: Option<u64>,
    /// Serving of metrics.
    pub serving: ServingConfig,
    /// File that `run` writes the reason of its failure to.
    pub termination_message: Option<PathBuf>,
    /// Time limits of downloads.
    pub downloads: Downloads,
    /// Time limits of everything else that longshore waits for.
    pub deadlines: Deadlines,
}

/// Default of `builder-id`: a host that its operator did not name.
const BUILDER_ID: &str = "https://longshore.dev/builders/unnamed";

/// Default size limit of the store: room for about five drivers with the inputs of their compiles.
const STORE_MAX_SIZE: u64 = 5 << 30;

impl Config {
    /// Returns the locations of kernel headers beside the archives.
    pub fn header_places(&self) -> HeaderPlaces {
        HeaderPlaces { given: self.headers.clone(), host_root: Some(self.paths.host_root.clone()) }
    }

    /// True if nothing is taken from the archives: neither for a compile, nor user-mode files.
    pub fn needs_no_archive(&self) -> bool {
        !self.run_files.is_empty() && self.compiles_without_archive()
    }

    /// True if a compile takes nothing from the archives.
    pub fn compiles_without_archive(&self) -> bool {
        let signs = self.module_signing.as_ref().is_some_and(|signing| signing.key().is_some());
        let has_driver = !self.run_files.is_empty() || !self.source_trees.is_empty();
        self.build_root.is_some() && has_driver && !signs
    }

    /// True if a set compiled here may be loaded: where signatures are required, one by this host's own key counts.
    pub fn may_compile(&self) -> bool {
        self.compile && (!self.signatures.required || self.own_signature.counts())
    }

    /// True if finished modules of packages may be loaded: no signature key signs them.
    pub fn takes_module_packages(&self) -> bool {
        self.module_packages && !self.signatures.required
    }
}

/// Driver selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverConfig {
    /// Upstream version (`535.261.03`), branch (`535`), or None for the newest in the sources.
    pub version: Option<String>,
    /// True if a setting names it, be it as `newest`.
    pub is_named: bool,
    /// True if the support table chooses among the versions in the sources; `version` is None then.
    pub auto: bool,
    /// Oldest version, or branch, that is installed.
    pub minimum: Option<DriverMinimum>,
    /// Flavour; None is auto.
    pub flavour: Option<Flavour>,
    /// Modules to load beyond nvidia, nvidia_uvm and nvidia_modeset, by kernel name.
    pub extra_modules: Vec<String>,
    /// Parameters by the module's kernel name, as on insmod's command line.
    pub parameters: BTreeMap<String, String>,
}

/// Merges flags over environment over operator files over configuration file over defaults.
///
/// `file` is read where it exists and neither `--config` nor `LONGSHORE_CONFIG` names another,
/// which must exist then.
///
/// # Errors
/// Exit code 2, naming the file with line and key, the variable, the setting or the path that is
/// wrong.
pub fn load(flags: Fragment, env: Env<'_>, file: Option<&Path>) -> Result<Config, Failure> {
    let variables = Fragment::from_env(env, &[])?;
    let driver_above = Above::from_layers(flags.driver.is_some(), variables.driver.is_some());
    let flavour_above = Above::from_layers(flags.flavour.is_some(), variables.flavour.is_some());
    let above = flags.over(variables);
    let below = match (&above.config, file) {
        (Some(named), _) => Fragment::from_file(named)?,
        (None, Some(usual)) if is_there(usual) => Fragment::from_file(usual)?,
        _ => Fragment::default(),
    };
    let dir = above.parameters_dir.clone().or_else(|| below.parameters_dir.clone());
    let dir = dir.map_or_else(|| PathBuf::from("/drivers"), |d| d.as_path().to_path_buf());
    let mut parameters = below.kernel_parameters();
    parameters::merge(&mut parameters, &parameters::read_operator_files(&dir)?);
    parameters::merge(&mut parameters, &above.kernel_parameters());
    parameters::check(&parameters)?;
    let all = above.over(below);
    let mut config = Config::with_defaults(all, parameters)?;
    if !config.driver_rules.rules.is_empty() {
        let rules = &mut config.driver_rules;
        (rules.driver_above, rules.flavour_above) = (driver_above, flavour_above);
    }
    config.operator = config.operator.with_files(&dir);
    places::check(&config.paths)?;
    check_headers(&config)?;
    config.signatures.check()?;
    check_publish(config.publish.as_ref())?;
    if !config.signatures.required {
        sources::refuse_plain_http(&config)?;
    }
    config.own_signature = OwnSignature::judge(&config, env);
    Ok(config)
}

/// Refuses two places of the headers.
fn check_headers(config: &Config) -> Result<(), Failure> {
    if config.build_root.is_none() || config.headers.is_empty() {
        return Ok(());
    }
    let cause = "both headers and build-root are set, and each names the place of the headers";
    Err(Failure::new(FailureKind::Usage, cause)
        .remedy("leave out headers, or leave out build-root, which has a compiler too"))
}

/// Refuses attestations that no key would sign.
fn check_publish(publish: Option<&PublishConfig>) -> Result<(), Failure> {
    if !publish.is_some_and(|publish| publish.attest && publish.sign_key.is_none()) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "publish-attest is set, and publish-key is not")
        .remedy("name the key that signs attestations (publish-key), or leave out publish-attest"))
}

/// Returns the default of `builder-id`.
fn usual_builder() -> Result<Uri, Failure> {
    BUILDER_ID.parse().or_fail(FailureKind::Bug, || "reading the default of builder-id")
}

/// True if the path exists, even as a dangling link or out of reach: a configuration that was given
/// must not be ignored silently.
fn is_there(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(e) if e.kind() == ErrorKind::NotFound)
}

impl Config {
    /// Returns the configuration of all layers, with the defaults of what none of them sets.
    fn with_defaults(all: Fragment, parameters: parameters::Parameters) -> Result<Self, Failure> {
        let publish = all.publish.clone().with_defaults();
        let signatures = SignatureConfig::with_defaults(&all);
        let paths = places::paths(&all);
        let serving = ServingConfig::from_fragment(&all, &paths.state)?;
        let driver = DriverConfig::with_defaults(&all, parameters);
        let support = SupportConfig::with_defaults(&all)?;
        let driver_rules = DriverRules::new(all.driver_for.clone().unwrap_or_default());
        if support.source.is_none() {
            driver_rules.check(&support.table)?;
        }
        Ok(Self {
            driver_rules,
            support,
            archives: archives(&all),
            run_files: all.all_run_files()?,
            source_trees: all.all_source_trees()?,
            operator: all.operator_config(),
            paths,
            store_place: StorePlace::default(),
            deadlines: deadlines::deadlines(&all),
            prebuilt: AbsolutePath::list(all.prebuilt),
            registries: registries(all.registries, publish.as_ref()),
            logins: LoginRules {
                insecure: all.insecure_registries.unwrap_or_default(),
                realms: all.registry_realms.unwrap_or_default(),
            },
            publish,
            builder: all.builder.clone().with_defaults(&driver),
            driver,
            registry_wait: all.registry_wait.map_or(Duration::ZERO, BoundedDuration::duration),
            signatures,
            own_signature: OwnSignature::default(),
            builder_id: all.builder_id.clone().map_or_else(usual_builder, Ok)?,
            module_signing: all.module_signing.validated()?,
            headers: AbsolutePath::list(all.headers),
            build_root: all.build_root,
            compile: all.compile.unwrap_or(true),
            module_packages: all.module_packages.unwrap_or(true),
            modules_only: all.modules_only.unwrap_or(false),
            jobs: all.jobs.map(CompileJobs::number),
            build_user: all.build_uid.unwrap_or_default(),
            patches: all.patches.with_defaults(),
            daemons: all.daemons.with_defaults(),
            cluster: all.cluster.with_defaults(),
            cdi_capabilities: all.cdi_capabilities.unwrap_or_else(DriverCapability::usual),
            cdi_spec: all.cdi_spec.unwrap_or_default(),
            no_gpu: all.no_gpu.unwrap_or_default(),
            missing_gpus: all.missing_gpus.unwrap_or(Reaction::Warn),
            conflicting_drivers: all.conflicting_drivers.unwrap_or_default(),
            next_kernel: all.next_kernel,
            store_max_size: all.store_max_size.map_or(Some(STORE_MAX_SIZE), SizeBound::bytes),
            serving,
            termination_message: TerminationMessage::path_of(all.termination_message.as_ref()),
            downloads: all.downloads.with_defaults(),
        })
    }
}

impl DriverConfig {
    /// True if a driver of this version may be installed: it is not below the minimum.
    pub fn permits(&self, version: &str) -> bool {
        self.minimum.as_ref().is_none_or(|minimum| {
            DriverVersion::new(version).is_at_least(DriverVersion::new(minimum.as_str()))
        })
    }

    fn with_defaults(all: &Fragment, parameters: parameters::Parameters) -> Self {
        Self {
            version: all.driver.as_ref().and_then(|d| d.version().map(str::to_owned)),
            is_named: all.driver.is_some(),
            auto: all.driver.as_ref().is_some_and(DriverSelector::is_auto),
            minimum: all.driver_minimum.clone(),
            flavour: all.flavour.and_then(FlavourSelector::flavour),
            extra_modules: extra_modules(all),
            parameters,
        }
    }
}

/// Returns the archives of the settings.
fn archives(all: &Fragment) -> ArchiveConfig {
    let components = all.archive_components.clone();
    ArchiveConfig {
        sources: all.archives.clone().unwrap_or_default(),
        use_host_apt: all.host_apt.unwrap_or(true),
        host_components: components
            .unwrap_or_else(|| DRIVER_COMPONENTS.map(str::to_owned).to_vec()),
        host_suites: all.archive_suites.clone().unwrap_or_default(),
        container_lists: all.operator_config().enabled.then(|| PathBuf::from("/")),
        frozen: all.archive_frozen.unwrap_or(false),
        max_age: all.archive_max_age.unwrap_or_default(),
    }
}

/// Returns the registries that sets come from: those given, and the one that they are pushed to.
fn registries(
    given: Option<Vec<RegistrySource>>,
    publish: Option<&PublishConfig>,
) -> Vec<RegistrySource> {
    let mut all = given.unwrap_or_default();
    if let Some(PublishConfig { reference, .. }) = publish
        && !all.iter().any(|source| source.reference == *reference)
    {
        all.push(RegistrySource { reference: reference.clone(), mirrors: Vec::new() });
    }
    all
}

impl Config {
    /// Time limit of an install step, including everything it waits for; a step that exceeds it is
    /// hung.
    pub fn step_limit(&self) -> Duration {
        let Deadlines { users, unload, load, .. } = self.deadlines;
        users + 2 * unload + 2 * load + self.daemons.deadline + self.task_limit()
    }

    /// The disk under the store and the record, with `disk-deadline`.
    pub fn disk(&self) -> Disk {
        Disk::within(self.deadlines.disk)
    }

    /// Time limit of a call of the agent's own task: it reads, and it waits for the disk.
    pub fn task_limit(&self) -> Duration {
        self.deadlines.step + self.deadlines.disk
    }
}

/// Returns each module once, in the order given, without the three that are always loaded.
fn extra_modules(all: &Fragment) -> Vec<String> {
    let named = all.extra_modules.iter().flatten().map(ModuleName::as_str);
    let named = named.chain(all.operator.extra_modules());
    let is_extra = |name: &&str| !driver_modules::always().any(|module| module == *name);
    builder::once(named.filter(is_extra).map(str::to_owned))
}

#[cfg(test)]
mod tests;
