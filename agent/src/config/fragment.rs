//! A part of the configuration as one place says it: a file, the environment or the flags.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::daemons::{DaemonFragment, Wish};
use super::malformed::Malformed;
use super::module_signing::ModuleSigningFragment;
use super::parameters::{self, Parameters};
use super::patches::PatchFragment;
use super::publish::{self, PublishFragment};
use super::run_file::{RunFileSource, absolute_place, from_parts};
use super::values::{
    AbsolutePath, DriverWish, FlavourWish, ModuleName, ModuleParameter, OnBusy, SizeBound, Span,
    parse_bool,
};
use super::{ArchiveSource, Listen, RegistrySource, TerminationMessage};
use crate::artifact::Flavour;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::input;
use crate::module_signing::Hash;
use crate::registry::reference::Repository;

/// No configuration is larger; what is, is something else.
const MOST_BYTES: u64 = 1 << 20;

/// Looks up an environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Settings that may each be absent. See docs/configuration.md.
#[derive(Debug, Clone, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Settings (also in the environment and the configuration file)")]
pub struct Fragment {
    /// Configuration file; without it /etc/longshore/config.toml, where there is one
    #[serde(skip)]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Driver version, branch, or newest
    #[arg(long, global = true, value_name = "VERSION")]
    pub driver: Option<DriverWish>,
    /// Flavour of the kernel modules: auto, open or proprietary
    #[arg(long, global = true, value_name = "FLAVOUR")]
    pub flavour: Option<FlavourWish>,
    /// Load this module too, for example nvidia-drm (repeatable)
    #[arg(long = "extra-module", global = true, value_name = "MODULE")]
    pub extra_modules: Option<Vec<ModuleName>>,
    /// Set a module parameter, for example nvidia.NVreg_EnableMSI=1 (repeatable)
    #[serde(skip)]
    #[arg(long = "parameter", global = true, value_name = "MODULE.NAME=VALUE")]
    pub parameter: Vec<ModuleParameter>,
    /// Module -> parameters as on insmod's command line.
    #[arg(skip)]
    pub parameters: BTreeMap<ModuleName, String>,
    /// Directory with nvidia.conf, nvidia-uvm.conf, nvidia-modeset.conf, nvidia-peermem.conf
    #[arg(long, global = true, value_name = "DIR")]
    pub parameters_dir: Option<AbsolutePath>,
    /// Archives.
    #[arg(skip)]
    #[serde(rename = "archive")]
    pub archives: Option<Vec<ArchiveSource>>,
    /// Also read the host's own apt sources
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub host_apt: Option<bool>,
    /// Component to look for in the host's apt sources beyond those they name, instead of those that drivers live in (repeatable)
    #[arg(long = "archive-component", global = true, value_name = "COMPONENT")]
    pub archive_components: Option<Vec<String>>,
    /// Suite wanted of the host's apt sources beyond those they name (repeatable)
    #[arg(long = "archive-suite", global = true, value_name = "SUITE")]
    pub archive_suites: Option<Vec<String>>,
    /// Accept archive metadata past its Valid-Until: a frozen mirror
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub archive_frozen: Option<bool>,
    /// NVIDIA .run files.
    #[arg(skip)]
    #[serde(rename = "run-file")]
    pub run_files: Option<Vec<RunFileSource>>,
    /// NVIDIA .run file to take the driver from: URL or path (repeatable: mirrors of one file)
    #[serde(skip)]
    #[arg(long = "run-file", global = true, value_name = "URL|PATH", value_parser = absolute_place)]
    pub run_file: Option<Vec<String>>,
    /// sha256 of the .run file
    #[serde(skip)]
    #[arg(long, global = true, value_name = "HEX")]
    pub run_file_sha256: Option<String>,
    /// Where the sha256 of the .run file is written: https or file URL, or path
    #[serde(skip)]
    #[arg(long, global = true, value_name = "URL|PATH", value_parser = absolute_place)]
    pub run_file_checksum: Option<String>,
    /// Directory with prebuilt module sets, an OCI image layout (repeatable)
    #[arg(long, global = true, value_name = "DIR")]
    pub prebuilt: Option<Vec<AbsolutePath>>,
    /// Repository of an OCI registry with prebuilt module sets; http:// in front for no TLS (repeatable)
    #[serde(rename = "registry")]
    #[arg(long = "registry", global = true, value_name = "REFERENCE")]
    pub registries: Option<Vec<RegistrySource>>,
    /// The registry that what is compiled here is pushed to.
    #[command(flatten)]
    pub publish: PublishFragment,
    /// Load no module that is not signed by one of the signature keys
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub require_signature: Option<bool>,
    /// Public key that may sign sets, a cosign.pub (repeatable)
    #[arg(long = "signature-key", global = true, value_name = "FILE")]
    pub signature_keys: Option<Vec<AbsolutePath>>,
    /// Signatures for the kernel.
    #[command(flatten)]
    pub module_signing: ModuleSigningFragment,
    /// Kernel headers, looked at before the archives: directory or tar file (repeatable)
    #[arg(long, global = true, value_name = "PATH")]
    pub headers: Option<Vec<AbsolutePath>>,
    /// Compile where nothing built is at hand
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub compile: Option<bool>,
    /// Never compile; the same as --compile=false
    #[serde(skip)]
    #[arg(long, global = true, conflicts_with = "compile")]
    pub no_compile: bool,
    /// Parallel compile jobs
    #[arg(long, global = true, value_name = "N")]
    pub jobs: Option<NonZeroU16>,
    /// Compatibility patches.
    #[command(flatten)]
    pub patches: PatchFragment,
    /// The driver's daemons.
    #[command(flatten)]
    pub daemons: DaemonFragment,
    /// Store, on the host's disk
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<AbsolutePath>,
    /// Bytes the store may have once the driver is installed, for example 5GiB; or none
    #[arg(long, global = true, value_name = "SIZE")]
    pub store_max_size: Option<SizeBound>,
    /// Lock, state and journal
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<AbsolutePath>,
    /// Where the driver root is shown to the host
    #[arg(long, global = true, value_name = "DIR")]
    pub driver_root: Option<AbsolutePath>,
    /// Read /proc and /sys below this directory (a captured tree)
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<AbsolutePath>,
    /// Root of the host's own file system
    #[arg(long, global = true, value_name = "DIR")]
    pub host_root: Option<AbsolutePath>,
    /// What SIGTERM does about a driver in use: leave, wait, or wait:SPAN
    #[arg(long, global = true, value_name = "leave|wait[:SPAN]")]
    pub on_busy: Option<OnBusy>,
    /// How long a module may take to be taken off, and its users are waited for
    #[arg(long, global = true, value_name = "SPAN")]
    pub unload_deadline: Option<Span>,
    /// Where run serves health, metrics and status: ADDRESS:PORT, unix:PATH, or off
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub listen: Option<Listen>,
    /// File that says why run ended, where it failed; or off
    #[arg(long, global = true, value_name = "FILE")]
    pub termination_message: Option<TerminationMessage>,
    /// How long a module may take to load until it counts as hanging
    #[arg(long, global = true, value_name = "SPAN")]
    pub load_deadline: Option<Span>,
    /// How long another agent on this host is waited for
    #[arg(long, global = true, value_name = "SPAN")]
    pub lock_deadline: Option<Span>,
    /// How long looking for the processes that hold the driver may take
    #[arg(long, global = true, value_name = "SPAN")]
    pub look_deadline: Option<Span>,
}

impl Fragment {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// Exit code 2 with file, line and key where the file cannot be read or is not valid.
    pub fn from_file(path: &Path) -> Result<Self, Failure> {
        let text = input::read_text(path, MOST_BYTES)
            .or_fail(ExitCode::Usage, || {
                format!("reading the configuration file {}", path.display())
            })
            .map_err(|failure| failure.remedy("name a TOML file with --config"))?;
        Self::from_toml(&text).map_err(|e| e.into_failure(path))
    }

    fn from_toml(text: &str) -> Result<Self, Malformed> {
        toml::from_str(text).map_err(|e| Malformed::new(text, &e))
    }

    /// Reads the environment: `LONGSHORE_*`, and what NVIDIA's containers are given.
    ///
    /// # Errors
    /// Exit code 2 with the variable's name where its value is not valid.
    pub fn from_env(env: Env<'_>) -> Result<Self, Failure> {
        Ok(Self {
            config: get(env, "LONGSHORE_CONFIG", AbsolutePath::strict)?
                .map(|p| p.as_path().to_path_buf()),
            driver: first(
                get(env, "LONGSHORE_DRIVER", DriverWish::from_str)?,
                get(env, "DRIVER_VERSION", DriverWish::from_str),
            )?,
            flavour: flavour_from_env(env)?,
            extra_modules: list(env, "LONGSHORE_EXTRA_MODULES", ModuleName::from_str)?,
            parameter: Vec::new(),
            parameters: parameters_from_env(env)?,
            parameters_dir: get(env, "LONGSHORE_PARAMETERS_DIR", AbsolutePath::strict)?,
            archives: None,
            host_apt: get(env, "LONGSHORE_HOST_APT", parse_bool)?,
            archive_components: list(env, "LONGSHORE_ARCHIVE_COMPONENTS", String::from_str)?,
            archive_suites: list(env, "LONGSHORE_ARCHIVE_SUITES", String::from_str)?,
            archive_frozen: get(env, "LONGSHORE_ARCHIVE_FROZEN", parse_bool)?,
            run_files: None,
            run_file: list(env, "LONGSHORE_RUN_FILE", String::from_str)?,
            run_file_sha256: get(env, "LONGSHORE_RUN_FILE_SHA256", String::from_str)?,
            run_file_checksum: get(env, "LONGSHORE_RUN_FILE_CHECKSUM", String::from_str)?,
            prebuilt: list(env, "LONGSHORE_PREBUILT", AbsolutePath::strict)?,
            registries: list(env, "LONGSHORE_REGISTRIES", RegistrySource::from_str)?,
            publish: PublishFragment {
                reference: get(env, "LONGSHORE_PUBLISH", Repository::from_str)?,
                sign_key: get(env, "LONGSHORE_PUBLISH_KEY", AbsolutePath::strict)?,
                lease: get(env, "LONGSHORE_PUBLISH_LEASE", publish::lease)?,
                wait: get(env, "LONGSHORE_PUBLISH_WAIT", Span::from_str)?,
            },
            require_signature: get(env, "LONGSHORE_REQUIRE_SIGNATURE", parse_bool)?,
            signature_keys: list(env, "LONGSHORE_SIGNATURE_KEYS", AbsolutePath::strict)?,
            module_signing: ModuleSigningFragment {
                key: get(env, "LONGSHORE_MODULE_KEY", AbsolutePath::strict)?,
                certificate: get(env, "LONGSHORE_MODULE_CERTIFICATE", AbsolutePath::strict)?,
                signatures: get(env, "LONGSHORE_MODULE_SIGNATURES", AbsolutePath::strict)?,
                hash: get(env, "LONGSHORE_MODULE_HASH", Hash::from_str)?,
            },
            headers: list(env, "LONGSHORE_HEADERS", AbsolutePath::strict)?,
            compile: get(env, "LONGSHORE_COMPILE", parse_bool)?,
            no_compile: false,
            jobs: get(env, "LONGSHORE_JOBS", NonZeroU16::from_str)?,
            patches: PatchFragment {
                apply: get(env, "LONGSHORE_PATCHES_APPLY", parse_bool)?,
                off: list(env, "LONGSHORE_PATCHES_OFF", String::from_str)?,
                dirs: list(env, "LONGSHORE_PATCHES", AbsolutePath::strict)?,
                none: false,
            },
            daemons: DaemonFragment {
                persistenced: get(env, "LONGSHORE_PERSISTENCED", Wish::from_str)?,
                fabricmanager: get(env, "LONGSHORE_FABRICMANAGER", Wish::from_str)?,
                deadline: get(env, "LONGSHORE_DAEMON_DEADLINE", Span::from_str)?,
            },
            store: get(env, "LONGSHORE_STORE", AbsolutePath::strict)?,
            store_max_size: get(env, "LONGSHORE_STORE_MAX_SIZE", SizeBound::from_str)?,
            state_dir: get(env, "LONGSHORE_STATE_DIR", AbsolutePath::strict)?,
            driver_root: get(env, "LONGSHORE_DRIVER_ROOT", AbsolutePath::strict)?,
            root: get(env, "LONGSHORE_ROOT", AbsolutePath::strict)?,
            host_root: get(env, "LONGSHORE_HOST_ROOT", AbsolutePath::strict)?,
            on_busy: get(env, "LONGSHORE_ON_BUSY", OnBusy::from_str)?,
            unload_deadline: get(env, "LONGSHORE_UNLOAD_DEADLINE", Span::from_str)?,
            listen: get(env, "LONGSHORE_LISTEN", Listen::from_str)?,
            termination_message: get(
                env,
                "LONGSHORE_TERMINATION_MESSAGE",
                TerminationMessage::from_str,
            )?,
            load_deadline: get(env, "LONGSHORE_LOAD_DEADLINE", Span::from_str)?,
            lock_deadline: get(env, "LONGSHORE_LOCK_DEADLINE", Span::from_str)?,
            look_deadline: get(env, "LONGSHORE_LOOK_DEADLINE", Span::from_str)?,
        })
    }

    /// This fragment with what it leaves open taken from `below`. Lists replace each other;
    /// module parameters are merged by name.
    #[must_use]
    pub fn over(self, below: Fragment) -> Fragment {
        let mut parameters = below.kernel_parameters();
        parameters::merge(&mut parameters, &self.kernel_parameters());
        let parameters = parameters
            .into_iter()
            .filter_map(|(module, line)| Some((module.parse().ok()?, line)))
            .collect();
        Fragment {
            config: self.config.or(below.config),
            driver: self.driver.or(below.driver),
            flavour: self.flavour.or(below.flavour),
            extra_modules: self.extra_modules.or(below.extra_modules),
            parameter: Vec::new(),
            parameters,
            parameters_dir: self.parameters_dir.or(below.parameters_dir),
            archives: self.archives.or(below.archives),
            host_apt: self.host_apt.or(below.host_apt),
            archive_components: self.archive_components.or(below.archive_components),
            archive_suites: self.archive_suites.or(below.archive_suites),
            archive_frozen: self.archive_frozen.or(below.archive_frozen),
            // What is said of one file goes together: another file has another digest.
            run_files: if self.run_file.is_some() {
                None
            } else {
                self.run_files.or(below.run_files)
            },
            run_file_sha256: match self.run_file {
                Some(_) => self.run_file_sha256,
                None => self.run_file_sha256.or(below.run_file_sha256),
            },
            run_file_checksum: match self.run_file {
                Some(_) => self.run_file_checksum,
                None => self.run_file_checksum.or(below.run_file_checksum),
            },
            run_file: self.run_file.or(below.run_file),
            prebuilt: self.prebuilt.or(below.prebuilt),
            registries: self.registries.or(below.registries),
            publish: self.publish.over(below.publish),
            require_signature: self.require_signature.or(below.require_signature),
            signature_keys: self.signature_keys.or(below.signature_keys),
            module_signing: self.module_signing.over(below.module_signing),
            headers: self.headers.or(below.headers),
            compile: self.no_compile.then_some(false).or(self.compile).or(below.compile),
            no_compile: false,
            jobs: self.jobs.or(below.jobs),
            patches: self.patches.over(below.patches),
            daemons: self.daemons.over(below.daemons),
            store: self.store.or(below.store),
            store_max_size: self.store_max_size.or(below.store_max_size),
            state_dir: self.state_dir.or(below.state_dir),
            driver_root: self.driver_root.or(below.driver_root),
            root: self.root.or(below.root),
            host_root: self.host_root.or(below.host_root),
            on_busy: self.on_busy.or(below.on_busy),
            unload_deadline: self.unload_deadline.or(below.unload_deadline),
            listen: self.listen.or(below.listen),
            termination_message: self.termination_message.or(below.termination_message),
            load_deadline: self.load_deadline.or(below.load_deadline),
            lock_deadline: self.lock_deadline.or(below.lock_deadline),
            look_deadline: self.look_deadline.or(below.look_deadline),
        }
    }

    /// The .run files of the flags or the environment, else those of the file.
    ///
    /// # Errors
    /// Exit code 2 for one without a digest, or a digest without a file.
    pub fn all_run_files(&self) -> Result<Vec<RunFileSource>, Failure> {
        let (sha256, checksum) = (self.run_file_sha256.clone(), self.run_file_checksum.clone());
        let one = from_parts(self.run_file.clone().unwrap_or_default(), sha256, checksum)?;
        Ok(one.map_or_else(|| self.run_files.clone().unwrap_or_default(), |one| vec![one]))
    }

    /// Module parameters by kernel name, from both ways of giving them.
    pub fn kernel_parameters(&self) -> Parameters {
        let mut all: Parameters =
            self.parameters.iter().map(|(m, line)| (m.to_string(), line.clone())).collect();
        for one in &self.parameter {
            let above = Parameters::from([(one.module.to_string(), one.setting.clone())]);
            parameters::merge(&mut all, &above);
        }
        all
    }
}

fn first<T>(own: Option<T>, theirs: Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
    if own.is_some() { Ok(own) } else { theirs }
}

fn flavour_from_env(env: Env<'_>) -> Result<Option<FlavourWish>, Failure> {
    for name in ["LONGSHORE_FLAVOUR", "KERNEL_MODULE_TYPE"] {
        if let Some(flavour) = get(env, name, FlavourWish::from_str)? {
            return Ok(Some(flavour));
        }
    }
    // The GPU operator's older name; false left the choice to the driver container.
    let open = get(env, "OPEN_KERNEL_MODULES_ENABLED", parse_bool)?;
    Ok((open == Some(true)).then_some(Flavour::Open.into()))
}

/// The modules whose parameters can be given as `LONGSHORE_PARAMETERS_<MODULE>`.
const MODULES_IN_ENV: [&str; 5] =
    ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"];

fn parameters_from_env(env: Env<'_>) -> Result<BTreeMap<ModuleName, String>, Failure> {
    let mut parameters = BTreeMap::new();
    for module in MODULES_IN_ENV {
        let name = format!("LONGSHORE_PARAMETERS_{}", module.to_uppercase());
        if let Some(line) = get(env, &name, String::from_str)?
            && let Ok(module) = module.parse()
        {
            parameters.insert(module, line);
        }
    }
    Ok(parameters)
}

/// A variable's value; an empty one counts as absent, as containers often set it so.
fn get<T, E: std::fmt::Display>(
    env: Env<'_>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let Some(text) = env(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    parse(&text).map(Some).map_err(|e| in_env(name, &text, &e))
}

fn list<T, E: std::fmt::Display>(
    env: Env<'_>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<Vec<T>>, Failure> {
    let split = |text: &str| {
        text.split([',', ' '])
            .filter(|part| !part.is_empty())
            .map(&parse)
            .collect::<Result<Vec<T>, E>>()
    };
    get(env, name, split)
}

fn in_env(name: &str, text: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ExitCode::Usage, format!("environment variable {name}={text}: {error}"))
        .remedy("correct or unset it; docs/configuration.md has every setting")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn env_of(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    #[rstest]
    #[case("driver = \"535\"\nflavor = \"open\"\n", "line 2, key flavor: unknown field")]
    #[case("flavour = \"closed\"\n", "line 1, key flavour: `closed` is not auto, open")]
    #[case("jobs = 0\n", "line 1, key jobs: invalid value")]
    #[case("store = \"relative\"\n", "line 1, key store: `relative` is not an absolute path")]
    #[case("unload-deadline = 20\n", "line 1, key unload-deadline: invalid type")]
    #[case("prebuilt = [\n  \"/a\",\n  \"b\",\n]\n", "key prebuilt: `b` is not an absolute path")]
    #[case("driver = \"535\n", "line 1, key driver: ")]
    #[case(
        "[[archive]]\nurl = \"ftp://a\"\nsuites = [\"s\"]\ncomponents = [\"main\"]\nkeyring = \"/k\"\n",
        "line 2, key url: "
    )]
    #[case(
        "jobs = 1\n[[archive]]\nurl = \"https://archive.example.com/debian\"\n",
        "line 2, key archive: missing field `suites`"
    )]
    #[case("jobs = 1\n[archives]\nx = 1\n", "line 2, key archives: unknown field")]
    #[case("[parameters]\n\"a/b\" = \"c=1\"\n", "line 2, key \"a/b\": `a/b` is not the name")]
    #[case("prebuilt = [\n  \"a=b\",\n]\n", "key prebuilt: `a=b` is not an absolute path")]
    fn a_bad_file_names_line_and_key(#[case] text: &str, #[case] wanted: &str) {
        let Err(fault) = Fragment::from_toml(text) else { panic!("accepted: {text}") };
        let failure = fault.into_failure(Path::new("/c.toml"));
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert!(failure.to_string().contains("/c.toml"), "{failure}");
        assert_eq!(failure.code(), ExitCode::Usage);
    }

    #[rstest]
    #[case(&[("LONGSHORE_FLAVOUR", "closed")], "LONGSHORE_FLAVOUR=closed")]
    #[case(&[("DRIVER_VERSION", "latest!")], "DRIVER_VERSION=latest!")]
    #[case(&[("LONGSHORE_JOBS", "0")], "LONGSHORE_JOBS=0")]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "perhaps")], "OPEN_KERNEL_MODULES_ENABLED=perhaps")]
    #[case(&[("LONGSHORE_PREBUILT", "/a,b")], "LONGSHORE_PREBUILT=/a,b")]
    fn a_bad_variable_is_named(
        #[case] pairs: &'static [(&'static str, &'static str)],
        #[case] wanted: &str,
    ) {
        let failure = Fragment::from_env(&env_of(pairs)).expect_err("refused");
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert_eq!(failure.code(), ExitCode::Usage);
    }

    #[rstest]
    #[case(&[("KERNEL_MODULE_TYPE", "open")], Some(Flavour::Open))]
    #[case(&[("KERNEL_MODULE_TYPE", "auto"), ("OPEN_KERNEL_MODULES_ENABLED", "true")], None)]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "true")], Some(Flavour::Open))]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "false")], None)]
    #[case(&[("LONGSHORE_FLAVOUR", "proprietary"), ("KERNEL_MODULE_TYPE", "open")], Some(Flavour::Proprietary))]
    #[case(&[("KERNEL_MODULE_TYPE", "")], None)]
    fn flavours_from_the_environment(
        #[case] pairs: &'static [(&'static str, &'static str)],
        #[case] wanted: Option<Flavour>,
    ) {
        let fragment = Fragment::from_env(&env_of(pairs)).expect("accepted");
        assert_eq!(fragment.flavour.and_then(FlavourWish::flavour), wanted);
    }
}
