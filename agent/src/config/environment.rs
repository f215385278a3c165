//! Settings from the environment.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::str::FromStr;

use super::build_user::BuildUser;
use super::daemons::{DaemonFragment, Wish};
use super::deadlines::from_a_second;
use super::downloads::DownloadFragment;
use super::fragment::Fragment;
use super::module_signing::ModuleSigningFragment;
use super::patches::PatchFragment;
use super::publish::PublishFragment;
use super::values::{
    AbsolutePath, DriverWish, FlavourWish, MissingGpus, ModuleName, OnBusy, SizeBound, Span,
    parse_bool,
};
use super::{Listen, RegistrySource, TerminationMessage};
use crate::failure::{ExitCode, Failure};
use crate::flavour::Flavour;
use crate::image_reference::{Host, Repository};
use crate::module_signing::Hash;

/// Looks up an environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Fragment {
    /// Reads the environment: `LONGSHORE_*`, and the variables of NVIDIA's driver containers.
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
            insecure_registries: list(env, "LONGSHORE_INSECURE_REGISTRIES", Host::from_str)?,
            publish: PublishFragment {
                reference: get(env, "LONGSHORE_PUBLISH", Repository::from_str)?,
                sign_key: get(env, "LONGSHORE_PUBLISH_KEY", AbsolutePath::strict)?,
                lease: get(env, "LONGSHORE_PUBLISH_LEASE", from_a_second)?,
                wait: get(env, "LONGSHORE_PUBLISH_WAIT", Span::from_str)?,
                unsigned_headers: get(env, "LONGSHORE_PUBLISH_UNSIGNED_HEADERS", parse_bool)?,
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
            build_uid: get(env, "LONGSHORE_BUILD_UID", BuildUser::from_str)?,
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
            downloads: DownloadFragment {
                connect: get(env, "LONGSHORE_DOWNLOAD_CONNECT", from_a_second)?,
                stall: get(env, "LONGSHORE_DOWNLOAD_STALL", from_a_second)?,
                busy: get(env, "LONGSHORE_DOWNLOAD_BUSY", Span::from_str)?,
            },
            store: get(env, "LONGSHORE_STORE", AbsolutePath::strict)?,
            store_max_size: get(env, "LONGSHORE_STORE_MAX_SIZE", SizeBound::from_str)?,
            state_dir: get(env, "LONGSHORE_STATE_DIR", AbsolutePath::strict)?,
            driver_root: get(env, "LONGSHORE_DRIVER_ROOT", AbsolutePath::strict)?,
            root: get(env, "LONGSHORE_ROOT", AbsolutePath::strict)?,
            host_root: get(env, "LONGSHORE_HOST_ROOT", AbsolutePath::strict)?,
            missing_gpus: get(env, "LONGSHORE_MISSING_GPUS", MissingGpus::from_str)?,
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
            build_deadline: get(env, "LONGSHORE_BUILD_DEADLINE", Span::from_str)?,
            disk_deadline: get(env, "LONGSHORE_DISK_DEADLINE", Span::from_str)?,
            step_deadline: get(env, "LONGSHORE_STEP_DEADLINE", Span::from_str)?,
        })
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
    // The GPU operator's older variable; false left the choice to the driver container.
    let open = get(env, "OPEN_KERNEL_MODULES_ENABLED", parse_bool)?;
    Ok((open == Some(true)).then_some(Flavour::Open.into()))
}

/// Modules whose parameters can be set with `LONGSHORE_PARAMETERS_<MODULE>`.
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

/// Reads a variable; an empty one counts as absent, because containers often set it so.
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
    // A list of URLs cannot be split reliably, and they may hold secrets: the error names the wrong
    // one only.
    let value = if text.contains(['@', '?']) { String::new() } else { format!("={text}") };
    Failure::new(ExitCode::Usage, format!("environment variable {name}{value}: {error}"))
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
    #[case(&[("LONGSHORE_FLAVOUR", "closed")], "LONGSHORE_FLAVOUR=closed")]
    #[case(&[("DRIVER_VERSION", "latest!")], "DRIVER_VERSION=latest!")]
    #[case(&[("LONGSHORE_JOBS", "0")], "LONGSHORE_JOBS=0")]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "perhaps")], "OPEN_KERNEL_MODULES_ENABLED=perhaps")]
    #[case(&[("LONGSHORE_PREBUILT", "/a,b")], "LONGSHORE_PREBUILT=/a,b")]
    #[case(&[("LONGSHORE_INSECURE_REGISTRIES", "http://a.b")], "a host is wanted here")]
    fn a_bad_variable_is_named(
        #[case] pairs: &'static [(&'static str, &'static str)],
        #[case] wanted: &str,
    ) {
        let failure = Fragment::from_env(&env_of(pairs)).expect_err("refused");
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert_eq!(failure.code(), ExitCode::Usage);
    }

    #[test]
    fn a_secret_in_a_bad_variable_is_not_shown() {
        const ENV: &[(&str, &str)] =
            &[("LONGSHORE_REGISTRIES", "a.example.com/b https://secret@b.example.com/c")];
        let failure = Fragment::from_env(&env_of(ENV)).expect_err("refused").report();
        assert!(failure.contains("b.example.com") && !failure.contains("secret"), "{failure}");
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
