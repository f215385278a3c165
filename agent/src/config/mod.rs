//! Configuration: fragments from file, environment and flags, merged and validated into [`Config`].

mod build_user;
mod daemons;
mod deadlines;
mod downloads;
mod environment;
mod fragment;
mod headers;
mod malformed;
mod module_signing;
pub mod parameters;
mod patches;
mod places;
mod publish;
mod record_place;
mod run_file;
mod serving;
mod sources;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use build_user::BuildUser;
pub use daemons::{DaemonConfig, DaemonFragment, Wish};
#[cfg(test)]
pub(crate) use deadlines::assert_in_page;
pub use downloads::{DownloadFragment, Downloads};
pub use environment::Env;
pub use fragment::Fragment;
pub use headers::HeaderPlaces;
pub use module_signing::{ModuleSigning, ModuleSigningFragment, SignBy};
pub use patches::{PatchConfig, PatchFragment};
pub use publish::{PublishConfig, PublishFragment};
pub use run_file::{Pin, RunFileSource};
pub use serving::{Listen, TerminationMessage};
pub use sources::{ArchiveSource, RegistrySource};
pub use values::{
    AbsolutePath, BadValue, DriverWish, FlavourWish, MissingGpus, ModuleName, ModuleParameter,
    OnBusy, SizeBound, Span,
};

use crate::deadlines::Deadlines;
use crate::failure::{ExitCode, Failure};
use crate::flavour::Flavour;
use crate::paths::Paths;

/// The configuration file that is read where none is named; it may be absent.
pub const DEFAULT_FILE: &str = "/etc/longshore/config.toml";

/// The components that distributions keep NVIDIA's drivers and their firmware in: Debian's, and
/// Ubuntu's `restricted`. A host's apt seldom names them all.
pub const DRIVER_COMPONENTS: [&str; 4] = ["contrib", "non-free", "non-free-firmware", "restricted"];

/// A validated configuration; every path is absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The driver wanted.
    pub driver: DriverConfig,
    /// Debian-format archives, in order of preference.
    pub archives: ArchiveConfig,
    /// NVIDIA .run files; where any is named, drivers come from these and not from archives.
    pub run_files: Vec<RunFileSource>,
    /// Directories holding prebuilt module sets (OCI image layouts).
    pub prebuilt: Vec<PathBuf>,
    /// Registries with prebuilt module sets, in order of preference.
    pub registries: Vec<RegistrySource>,
    /// The registry that what is compiled here is pushed to; it is among `registries`.
    pub publish: Option<PublishConfig>,
    /// Whose signatures count, and whether one is needed.
    pub signatures: SignatureConfig,
    /// How modules are signed for the kernel, where they are.
    pub module_signing: Option<ModuleSigning>,
    /// Kernel headers: directories and tar files looked at before the archives.
    pub headers: Vec<PathBuf>,
    /// Whether compiling is allowed when nothing built is at hand.
    pub compile: bool,
    /// Number of parallel compile jobs; all cores where None.
    pub jobs: Option<usize>,
    /// The user that compilers run as.
    pub build_user: BuildUser,
    /// Which compatibility patches a compile may apply.
    pub patches: PatchConfig,
    /// Which daemons of the driver run.
    pub daemons: DaemonConfig,
    /// What follows from a GPU that the driver did not take.
    pub missing_gpus: MissingGpus,
    /// Where things lie.
    pub paths: Paths,
    /// Bytes the store may have once the driver is installed; None is no bound.
    pub store_max_size: Option<u64>,
    /// Where health, metrics and status are served.
    pub listen: Listen,
    /// The file that says why `run` ended, where it failed.
    pub termination_message: Option<PathBuf>,
    /// How long servers are waited for.
    pub downloads: Downloads,
    /// How long each thing may take that is waited for.
    pub deadlines: Deadlines,
}

/// What the store may have where nothing is said of it: about five drivers with what they were
/// compiled with.
const STORE_MAX_SIZE: u64 = 5 << 30;

impl Config {
    /// Where kernel headers are looked for beside the archives.
    pub fn header_places(&self) -> HeaderPlaces {
        HeaderPlaces { given: self.headers.clone(), host_root: Some(self.paths.host_root.clone()) }
    }

    /// Whether compiling may give a set to load: what is compiled here has no signature.
    pub fn may_compile(&self) -> bool {
        self.compile && !self.signatures.required
    }
}

/// The driver wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverConfig {
    /// Upstream version (`535.261.03`), a branch (`535`), or None for the newest the sources have.
    pub version: Option<String>,
    /// Flavour; None is auto.
    pub flavour: Option<Flavour>,
    /// Modules to load beyond nvidia, nvidia_uvm and nvidia_modeset, in kernel names.
    pub extra_modules: Vec<String>,
    /// Kernel name -> parameters as on insmod's command line.
    pub parameters: BTreeMap<String, String>,
}

/// Debian-format archives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveConfig {
    /// Archives named in the configuration.
    pub sources: Vec<ArchiveSource>,
    /// Whether the host's own apt sources are read too.
    pub use_host_apt: bool,
    /// Components looked for in the host's apt sources beyond those they name; default
    /// [`DRIVER_COMPONENTS`].
    pub host_components: Vec<String>,
    /// Suites wanted of the host's apt sources beyond those they name, for example `trixie-security`.
    pub host_suites: Vec<String>,
    /// Accept metadata past its Valid-Until, or older than was seen before: the archive is a frozen
    /// mirror on purpose.
    pub frozen: bool,
}

/// Whose signatures count, and whether one is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignatureConfig {
    /// Whether nothing is loaded that is not signed by one of the keys.
    pub required: bool,
    /// Files with public keys, as cosign writes them.
    pub keys: Vec<PathBuf>,
}

impl SignatureConfig {
    /// Keys are given so that they count: only an explicit `false` lets unsigned modules in beside
    /// them.
    fn settle(required: Option<bool>, keys: Option<Vec<AbsolutePath>>) -> Self {
        let keys = keys.unwrap_or_default();
        let keys: Vec<PathBuf> = keys.iter().map(|path| path.as_path().to_path_buf()).collect();
        Self { required: required.unwrap_or(!keys.is_empty()), keys }
    }
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
    let above = flags.over(Fragment::from_env(env)?);
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
    let insecure = all.insecure_registries.clone().unwrap_or_default();
    let config = settle(all, parameters)?;
    places::check(&config.paths)?;
    check_signatures(&config.signatures)?;
    if !config.signatures.required {
        sources::refuse_plain_http(&config.registries, &insecure)?;
    }
    Ok(config)
}

/// Refuses a policy that nothing could meet, and warns of keys that decide nothing.
fn check_signatures(signatures: &SignatureConfig) -> Result<(), Failure> {
    if signatures.required && signatures.keys.is_empty() {
        let cause = "require-signature is set, and no signature-keys are: nothing could be loaded";
        return Err(Failure::new(ExitCode::Usage, cause).remedy(
            "name the public keys (signature-keys, --signature-key, LONGSHORE_SIGNATURE_KEYS)",
        ));
    }
    if !signatures.required && !signatures.keys.is_empty() {
        tracing::warn!(
            "require-signature is false though signature-keys are set: modules that nobody signed are \
             loaded too"
        );
    }
    Ok(())
}

/// Whether there is something under this name, though it be a link to nothing or out of reach: a
/// configuration that somebody gave is not to be passed over in silence.
fn is_there(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(e) if e.kind() == ErrorKind::NotFound)
}

fn settle(all: Fragment, parameters: parameters::Parameters) -> Result<Config, Failure> {
    let run_files = all.all_run_files()?;
    let deadlines = deadlines::deadlines(&all);
    let words = |list: Option<Vec<String>>| list.unwrap_or_default();
    let publish = all.publish.settle();
    let mut registries = all.registries.unwrap_or_default();
    if let Some(PublishConfig { reference, .. }) = &publish
        && !registries.iter().any(|source| source.reference == *reference)
    {
        registries.push(RegistrySource { reference: reference.clone(), mirrors: Vec::new() });
    }
    Ok(Config {
        driver: DriverConfig {
            version: all.driver.as_ref().and_then(|d| d.version().map(str::to_owned)),
            flavour: all.flavour.and_then(FlavourWish::flavour),
            extra_modules: extra_modules(all.extra_modules.as_deref().unwrap_or_default()),
            parameters,
        },
        archives: ArchiveConfig {
            sources: all.archives.unwrap_or_default(),
            use_host_apt: all.host_apt.unwrap_or(true),
            host_components: all
                .archive_components
                .unwrap_or_else(|| DRIVER_COMPONENTS.map(str::to_owned).to_vec()),
            host_suites: words(all.archive_suites),
            frozen: all.archive_frozen.unwrap_or(false),
        },
        run_files,
        prebuilt: all
            .prebuilt
            .unwrap_or_default()
            .iter()
            .map(|path| path.as_path().to_path_buf())
            .collect(),
        registries,
        publish,
        signatures: SignatureConfig::settle(all.require_signature, all.signature_keys),
        module_signing: all.module_signing.settle()?,
        headers: all
            .headers
            .unwrap_or_default()
            .iter()
            .map(|path| path.as_path().to_path_buf())
            .collect(),
        compile: all.compile.unwrap_or(true),
        jobs: all.jobs.map(NonZeroU16::get).map(usize::from),
        build_user: all.build_uid.unwrap_or_default(),
        patches: all.patches.settle(),
        daemons: all.daemons.settle(),
        missing_gpus: all.missing_gpus.unwrap_or_default(),
        paths: places::paths(
            all.store.as_ref(),
            all.state_dir.as_ref(),
            all.driver_root.as_ref(),
            all.root.as_ref(),
            all.host_root.as_ref(),
        ),
        store_max_size: all.store_max_size.map_or(Some(STORE_MAX_SIZE), SizeBound::bytes),
        listen: all.listen.unwrap_or_default(),
        termination_message: TerminationMessage::path_of(all.termination_message.as_ref()),
        downloads: all.downloads.settle(),
        deadlines,
    })
}

impl Config {
    /// How long a step of a change may take, with all that it waits for: whatever takes longer hangs.
    pub fn step_limit(&self) -> Duration {
        let Deadlines { users, unload, load, .. } = self.deadlines;
        users + 2 * unload + 2 * load + self.daemons.deadline + self.task_limit()
    }

    /// How long the agent's own task may be in a call: it reads, and it waits for the disk.
    pub fn task_limit(&self) -> Duration {
        self.deadlines.step + self.deadlines.disk
    }
}

/// Each once, in the order given, without the three that are always loaded.
fn extra_modules(names: &[ModuleName]) -> Vec<String> {
    let mut extra: Vec<String> = Vec::new();
    for name in names.iter().map(ModuleName::as_str) {
        let always = matches!(name, "nvidia" | "nvidia_uvm" | "nvidia_modeset");
        if !always && !extra.iter().any(|e| e == name) {
            extra.push(name.to_owned());
        }
    }
    extra
}

#[cfg(test)]
mod tests;
