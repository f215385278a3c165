//! One layer of the configuration: the settings of a file, of the environment or of the flags.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::build_user::BuildUser;
use super::daemons::DaemonFragment;
use super::downloads::DownloadFragment;
use super::malformed::Malformed;
use super::module_signing::ModuleSigningFragment;
use super::parameters::{self, Parameters};
use super::patches::PatchFragment;
use super::publish::PublishFragment;
use super::run_file::{RunFileSource, absolute_place, from_parts};
use super::values::{
    AbsolutePath, DriverWish, FlavourWish, MissingGpus, ModuleName, ModuleParameter, OnBusy,
    SizeBound, Span,
};
use super::{ArchiveSource, Listen, RegistrySource, TerminationMessage};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::image_reference::Host;
use crate::input;

/// Upper bound of a configuration file's size: a larger file is not a configuration.
const MOST_BYTES: u64 = 1 << 20;

/// Settings that may each be absent. See docs/configuration.md.
#[derive(Debug, Clone, Default, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Settings (also in the environment and the configuration file)")]
pub struct Fragment {
    /// Configuration file; /etc/longshore/config.toml by default, where that exists
    #[serde(skip)]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Driver version (535.261.03), branch (535), or newest
    #[arg(long, global = true, value_name = "VERSION")]
    pub driver: Option<DriverWish>,
    /// Flavour of the kernel modules: auto, open or proprietary
    #[arg(long, global = true, value_name = "FLAVOUR")]
    pub flavour: Option<FlavourWish>,
    /// Additional module to load, for example nvidia-drm (repeatable)
    #[arg(long = "extra-module", global = true, value_name = "MODULE")]
    pub extra_modules: Option<Vec<ModuleName>>,
    /// Module parameter to set, for example nvidia.NVreg_EnableMSI=1 (repeatable)
    #[serde(skip)]
    #[arg(long = "parameter", global = true, value_name = "MODULE.NAME=VALUE")]
    pub parameter: Vec<ModuleParameter>,
    /// Parameters by module, as on insmod's command line.
    #[arg(skip)]
    pub parameters: BTreeMap<ModuleName, String>,
    /// Directory with nvidia.conf, nvidia-uvm.conf, nvidia-modeset.conf and nvidia-peermem.conf
    #[arg(long, global = true, value_name = "DIR")]
    pub parameters_dir: Option<AbsolutePath>,
    /// Archives.
    #[arg(skip)]
    #[serde(rename = "archive")]
    pub archives: Option<Vec<ArchiveSource>>,
    /// Read the host's own apt sources as well
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub host_apt: Option<bool>,
    /// Component to look for in the host's apt sources beyond those they name; replaces the default,
    /// the components with drivers (repeatable)
    #[arg(long = "archive-component", global = true, value_name = "COMPONENT")]
    pub archive_components: Option<Vec<String>>,
    /// Suite to look for in the host's apt sources beyond those they name (repeatable)
    #[arg(long = "archive-suite", global = true, value_name = "SUITE")]
    pub archive_suites: Option<Vec<String>>,
    /// Accept archive metadata past its Valid-Until, or older than what was read before (for a
    /// frozen mirror)
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
    /// File with the sha256 of the .run file: https or file URL, or path
    #[serde(skip)]
    #[arg(long, global = true, value_name = "URL|PATH", value_parser = absolute_place)]
    pub run_file_checksum: Option<String>,
    /// Directory with prebuilt module sets, an OCI image layout (repeatable)
    #[arg(long, global = true, value_name = "DIR")]
    pub prebuilt: Option<Vec<AbsolutePath>>,
    /// Repository of an OCI registry with prebuilt module sets; prefix http:// for no TLS
    /// (repeatable)
    #[serde(rename = "registry")]
    #[arg(long = "registry", global = true, value_name = "REFERENCE")]
    pub registries: Option<Vec<RegistrySource>>,
    /// Registry (HOST:PORT) that modules may come from without TLS and without a signature
    /// (repeatable)
    #[arg(long = "insecure-registry", global = true, value_name = "HOST")]
    pub insecure_registries: Option<Vec<Host>>,
    /// Registry to push compiled modules to.
    #[command(flatten)]
    pub publish: PublishFragment,
    /// Load no module that is not signed by one of the signature keys; the default where keys are
    /// configured
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub require_signature: Option<bool>,
    /// Public key (a cosign.pub) that module sets may be signed with (repeatable)
    #[arg(long = "signature-key", global = true, value_name = "FILE")]
    pub signature_keys: Option<Vec<AbsolutePath>>,
    /// Module signatures for the kernel.
    #[command(flatten)]
    pub module_signing: ModuleSigningFragment,
    /// Kernel headers to try before the archives: directory or tar file (repeatable)
    #[arg(long, global = true, value_name = "PATH")]
    pub headers: Option<Vec<AbsolutePath>>,
    /// Compile modules where no built ones are available
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub compile: Option<bool>,
    /// Never compile; the same as --compile=false
    #[serde(skip)]
    #[arg(long, global = true, conflicts_with = "compile")]
    pub no_compile: bool,
    /// Parallel compile jobs
    #[arg(long, global = true, value_name = "N")]
    pub jobs: Option<NonZeroU16>,
    /// User id, and group id, that compilers run as; no other program may use it
    #[arg(long, global = true, value_name = "UID")]
    pub build_uid: Option<BuildUser>,
    /// Compatibility patches.
    #[command(flatten)]
    pub patches: PatchFragment,
    /// The driver's daemons.
    #[command(flatten)]
    pub daemons: DaemonFragment,
    /// Time limits of downloads.
    #[command(flatten)]
    pub downloads: DownloadFragment,
    /// Store, on the host's disk
    #[arg(long, global = true, value_name = "DIR")]
    pub store: Option<AbsolutePath>,
    /// Size limit of the store once the driver is installed, for example 5GiB; or none
    #[arg(long, global = true, value_name = "SIZE")]
    pub store_max_size: Option<SizeBound>,
    /// Directory of the lock, state and journal
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<AbsolutePath>,
    /// Directory that the driver root is mounted on
    #[arg(long, global = true, value_name = "DIR")]
    pub driver_root: Option<AbsolutePath>,
    /// Read /proc and /sys below this directory (a captured tree)
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<AbsolutePath>,
    /// Root of the host's own file system
    #[arg(long, global = true, value_name = "DIR")]
    pub host_root: Option<AbsolutePath>,
    /// Reaction to a GPU that the driver did not take: warn or refuse
    #[arg(long, global = true, value_name = "warn|refuse")]
    pub missing_gpus: Option<MissingGpus>,
    /// Reaction of SIGTERM to a driver in use: leave, wait, or wait:SPAN
    #[arg(long, global = true, value_name = "leave|wait[:SPAN]")]
    pub on_busy: Option<OnBusy>,
    /// Time limit for unloading each module, and for waiting on processes that use the driver
    #[arg(long, global = true, value_name = "SPAN")]
    pub unload_deadline: Option<Span>,
    /// Address that run serves health, metrics and status on: ADDRESS:PORT, unix:PATH, or off
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub listen: Option<Listen>,
    /// File that run writes the reason of its failure to (termination message); or off
    #[arg(long, global = true, value_name = "FILE")]
    pub termination_message: Option<TerminationMessage>,
    /// Time limit for loading each module, and for each mount and device node, before it counts as
    /// hung
    #[arg(long, global = true, value_name = "SPAN")]
    pub load_deadline: Option<Span>,
    /// Time limit for waiting on another agent on this host
    #[arg(long, global = true, value_name = "SPAN")]
    pub lock_deadline: Option<Span>,
    /// Time limit for finding the processes that hold the driver
    #[arg(long, global = true, value_name = "SPAN")]
    pub look_deadline: Option<Span>,
    /// Time limit for each build program, and for waiting on another process that builds the same
    /// modules
    #[arg(long, global = true, value_name = "SPAN")]
    pub build_deadline: Option<Span>,
    /// Time limit for the disk to write buffered data (fsync)
    #[arg(long, global = true, value_name = "SPAN")]
    pub disk_deadline: Option<Span>,
    /// Time limit for probing the host, and for the agent's own part of each install step
    #[arg(long, global = true, value_name = "SPAN")]
    pub step_deadline: Option<Span>,
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

    /// Returns this fragment, with unset settings taken from `below`. Lists replace each other;
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
            // The settings of one .run file go together: another file has another digest.
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
            insecure_registries: self.insecure_registries.or(below.insecure_registries),
            publish: self.publish.over(below.publish),
            require_signature: self.require_signature.or(below.require_signature),
            signature_keys: self.signature_keys.or(below.signature_keys),
            module_signing: self.module_signing.over(below.module_signing),
            headers: self.headers.or(below.headers),
            compile: self.no_compile.then_some(false).or(self.compile).or(below.compile),
            no_compile: false,
            jobs: self.jobs.or(below.jobs),
            build_uid: self.build_uid.or(below.build_uid),
            patches: self.patches.over(below.patches),
            daemons: self.daemons.over(below.daemons),
            downloads: self.downloads.over(below.downloads),
            store: self.store.or(below.store),
            store_max_size: self.store_max_size.or(below.store_max_size),
            state_dir: self.state_dir.or(below.state_dir),
            driver_root: self.driver_root.or(below.driver_root),
            root: self.root.or(below.root),
            host_root: self.host_root.or(below.host_root),
            missing_gpus: self.missing_gpus.or(below.missing_gpus),
            on_busy: self.on_busy.or(below.on_busy),
            unload_deadline: self.unload_deadline.or(below.unload_deadline),
            listen: self.listen.or(below.listen),
            termination_message: self.termination_message.or(below.termination_message),
            load_deadline: self.load_deadline.or(below.load_deadline),
            lock_deadline: self.lock_deadline.or(below.lock_deadline),
            look_deadline: self.look_deadline.or(below.look_deadline),
            build_deadline: self.build_deadline.or(below.build_deadline),
            disk_deadline: self.disk_deadline.or(below.disk_deadline),
            step_deadline: self.step_deadline.or(below.step_deadline),
        }
    }

    /// Returns the .run files of the flags or the environment, else those of the file.
    ///
    /// # Errors
    /// Exit code 2 for a .run file without a digest, or a digest without a file.
    pub fn all_run_files(&self) -> Result<Vec<RunFileSource>, Failure> {
        let (sha256, checksum) = (self.run_file_sha256.clone(), self.run_file_checksum.clone());
        let one = from_parts(self.run_file.clone().unwrap_or_default(), sha256, checksum)?;
        Ok(one.map_or_else(|| self.run_files.clone().unwrap_or_default(), |one| vec![one]))
    }

    /// Module parameters by the module's kernel name, from `parameter` and `parameters`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("driver = \"535\"\nflavor = \"open\"\n", "line 2, key flavor: unknown field")]
    #[case("flavour = \"closed\"\n", "line 1, key flavour: `closed` is not auto, open")]
    #[case("jobs = 0\n", "line 1, key jobs: invalid value")]
    #[case("build-uid = 65534\n", "line 1, key build-uid: `65534` is not a user id")]
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
}
