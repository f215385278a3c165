//! `push`: module sets in registries and layouts, and the keys that sign them.

use std::path::{Path, PathBuf};

use super::{env, print};
use crate::config::Config;
use crate::supplier::{CorePush, attest_compiled};
use crate::terminal;
use longshore_core::digest::is_sha256;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::image_reference::{Reference, Repository};
use longshore_core::paths::Paths;
use longshore_core::store::Store;
use longshore_fetch::http::Policy;
use longshore_host::HostFacts;
use longshore_modules::artifact::image::Described;
use longshore_modules::artifact::{HeadersFrom, ModuleKey, ModuleSet};
use longshore_modules::layout::elsewhere::CompiledElsewhere;
use longshore_modules::registry::{Registry, RegistrySource};
use longshore_modules::sets::SetStore;
use longshore_modules::signature::Evidence;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::key::SecretKey;

/// Arguments of `push`.
#[derive(Debug, clap::Args)]
pub(super) struct Push {
    /// Repository (HOST/REPOSITORY), with a tag made of driver, flavour, kernel and architecture;
    /// or with a tag of your own
    #[arg(value_name = "REFERENCE")]
    reference: Reference,
    /// Kernel release as uname -r gives it; by default this host's
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Push the driver's modules in this directory, compiled elsewhere, instead of a set of the
    /// store
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Version of the kernel that --modules are for, as uname -v gives it; by default this host's,
    /// where it runs that release
    #[arg(long, value_name = "VERSION", requires = "modules", value_parser = kernel_version)]
    kernel_version: Option<String>,
    /// Push only the set whose key has this sha256, as `list` and the kernel matrix' results give it
    #[arg(long, value_name = "SHA256", conflicts_with = "modules", value_parser = set_key)]
    set: Option<String>,
    /// Sign with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Attest the set, too: provenance and a bill of materials, signed with the same key. Only for
    /// sets that were compiled into this store
    #[arg(long, requires = "sign_key")]
    attest: bool,
}

/// Parses the digest of a set's key.
fn set_key(text: &str) -> Result<String, &'static str> {
    is_sha256(text).then(|| text.to_owned()).ok_or("not a sha256 of 64 lower-case hex digits")
}

/// Parses a kernel's version: what uname(2) can hold.
fn kernel_version(text: &str) -> Result<String, &'static str> {
    let valid = text.starts_with('#') && text.len() < 65 && !text.contains(char::is_control);
    valid.then(|| text.to_owned()).ok_or("not a kernel version as uname -v gives it: #1 SMP ...")
}

/// Reads a secret key; its password comes from the environment, as with cosign.
pub(super) fn secret_key(path: &Path) -> Result<SecretKey, Failure> {
    SecretKey::read(path, env("COSIGN_PASSWORD").as_deref())
}

/// Opens a repository to push to it.
pub(super) fn to_push(config: &Config, repository: &Repository) -> Result<Registry, Failure> {
    let (policy, host_root) = (Policy::from_config(&config.downloads), &config.paths.host_root);
    let registry = Registry::open_to_push_with(policy, repository, host_root, &env)?;
    Ok(registry.with_login_rules(&config.logins))
}

/// Opens a repository to read from it.
pub(super) fn to_read(config: &Config, repository: &Repository) -> Result<Registry, Failure> {
    let policy = Policy::from_config(&config.downloads).for_registry();
    let source = RegistrySource { reference: repository.clone(), mirrors: Vec::new() };
    let registry = Registry::open_with(policy, &source, &config.paths.host_root, &env)?;
    Ok(registry.with_login_rules(&config.logins))
}

pub(super) async fn push(config: &Config, push: Push) -> Result<ExitCode, Failure> {
    if push.reference.digest.is_some() {
        return Err(Failure::new(FailureKind::Usage, format!("{} has a digest", push.reference))
            .remedy("leave the digest out: it follows from the content"));
    }
    let key = push.sign_key.as_deref().map(secret_key).transpose()?;
    let store = Store::open(&config.paths.store, config.disk())?;
    let _shared = store.lock_shared(config.deadlines.lock).await?;
    let sets = match &push.modules {
        Some(dir) => vec![compiled_elsewhere(config, &store, dir, &push).await?],
        None => chosen(config, &store, push.kernel.as_deref(), push.set.as_deref())?,
    };
    if let (Some(tag), true) = (&push.reference.tag, sets.len() > 1) {
        return Err(ambiguous(&sets, tag));
    }
    let registry = to_push(config, &push.reference.repository)?;
    let progress = terminal::progress();
    let as_kept = sets.iter().map(|set| describe(set, &store, key.is_some()));
    let described = as_kept.collect::<Result<Vec<_>, _>>()?;
    // Before anything is sent: a set of unknown origin is not attested.
    let mut attestations = described
        .iter()
        .map(|(set, _)| attestations_of(config, &push, set, &store, key.as_ref()))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter();
    let denied = &config.signatures.denied;
    let core = CorePush { registry: &registry, key: key.as_ref(), denied, store: &store };
    for (described, kept) in &described {
        let set = &described.set;
        let tag = push.reference.tag.clone().unwrap_or_else(|| set.key.tag());
        core.push_of(set, progress.as_ref()).await;
        // Signed and attested, by its digest, before any host can find it by its tag.
        let mut beside = String::new();
        if let Some(kept) = kept {
            beside.push_str(&push_kept(&registry, described, kept).await?);
        }
        if let Some(key) = &key {
            let new = registry.sign(&described.digest(), key).await?;
            beside.push_str(if new { ", signed" } else { ", was signed already" });
        }
        if let Some(attestations) = attestations.next().filter(|all| !all.is_empty()) {
            let new = registry.attest(&described.descriptor(), &attestations).await?;
            beside.push_str(if new { ", attested" } else { ", was attested already" });
        }
        let pushed = registry.push_described(described, &tag, &store, progress.as_ref()).await?;
        let mut line = format!("{}:{tag}@{}", push.reference.repository, pushed.digest);
        line.push_str(if pushed.was_there { " was there already" } else { " pushed" });
        line.push_str(&beside);
        if !set.has_signed_headers() {
            let from = set.headers_origin();
            line.push_str(&format!("; compiled with unsigned headers from {from}"));
        }
        print(&format!("{line}\n"))?;
    }
    Ok(ExitCode::Done)
}

/// Returns a set as it was signed, with what the store keeps of that; as it is described here where there is none. What
/// gets a signature here (`is_signed`) is never the bytes of others, which have fields that nothing verifies.
fn describe(
    set: &ModuleSet,
    store: &Store,
    is_signed: bool,
) -> Result<(Described, Option<Evidence>), Failure> {
    let own = Described::from_set(set)?;
    let Some(kept) = store.evidence(set) else { return Ok((own, None)) };
    let Some(signed) = kept.described(set)? else { return Ok((own, None)) };
    if is_signed && signed.digest() != own.digest() {
        return Ok((own, None));
    }
    Ok((signed, Some(kept)))
}

/// Pushes the signatures and attestations that the store keeps of a set, which came with it from a bundle or a
/// registry; returns what is said of them.
async fn push_kept(
    registry: &Registry,
    set: &Described,
    kept: &Evidence,
) -> Result<String, Failure> {
    for signature in kept.signatures() {
        registry.add_signature(&set.digest(), signature).await?;
    }
    if !kept.attestations().is_empty() {
        registry.attest(&set.descriptor(), kept.attestations()).await?;
    }
    Ok(match kept.signatures().len() {
        0 => String::new(),
        1 => ", with the signature that it came with".to_owned(),
        count => format!(", with the {count} signatures that it came with"),
    })
}

/// Returns the attestations to push with a set; none unless they are asked for.
fn attestations_of(
    config: &Config,
    push: &Push,
    set: &Described,
    store: &Store,
    key: Option<&SecretKey>,
) -> Result<Vec<Attestation>, Failure> {
    let Some(key) = key.filter(|_| push.attest) else { return Ok(Vec::new()) };
    let name = push.reference.repository.name();
    attest_compiled(&set.set, set, store, &config.builder_id, &name, key)
}

/// Imports the modules of a directory into the store, as a set.
async fn compiled_elsewhere(
    config: &Config,
    store: &Store,
    dir: &Path,
    push: &Push,
) -> Result<ModuleSet, Failure> {
    let (dir, release) = (dir.to_path_buf(), push.kernel.clone());
    let modules = CompiledElsewhere { dir, release, package: None };
    let (given, paths, store) = (push.kernel_version.clone(), config.paths.clone(), store.clone());
    let import = move || {
        let examined = modules.examine()?;
        let version = match given {
            Some(version) => version,
            None => version_of(examined.release(), &paths)?,
        };
        examined.import(&version, &store)
    };
    tokio::task::spawn_blocking(import).await.or_fail(FailureKind::Bug, || "reading modules")?
}

/// Returns `uname -v` of this host, where it runs this release.
fn version_of(release: &str, paths: &Paths) -> Result<String, Failure> {
    let kernel = HostFacts::read(&paths.root, &paths.host_root)?.kernel;
    if kernel.release == release {
        return Ok(kernel.version);
    }
    let cause = format!(
        "the modules are for the kernel {release}, this host runs {}, and a release has several builds",
        kernel.release
    );
    Err(Failure::new(FailureKind::Usage, cause)
        .remedy("give --kernel-version what `uname -v` prints where the modules are to be loaded"))
}

/// Returns the store's sets for the selected kernel and driver; one for each tag.
fn chosen(
    config: &Config,
    store: &Store,
    kernel: Option<&str>,
    key: Option<&str>,
) -> Result<Vec<ModuleSet>, Failure> {
    let mut sets = matching(config, store, kernel)?;
    if let Some(key) = key {
        sets.retain(|set| set.key.digest() == key);
        if sets.is_empty() {
            return Err(no_set_of_key(store, key));
        }
    }
    leave_out_packages(&mut sets)?;
    // A signed set fits every kernel that the unsigned one fits.
    let signed: Vec<ModuleKey> =
        sets.iter().filter(|s| s.key.signed_by.is_some()).map(|s| s.key.unsigned()).collect();
    sets.retain(|set| !signed.contains(&set.key));
    for set in &sets {
        let tag = set.key.tag();
        let same: Vec<ModuleSet> = sets.iter().filter(|s| s.key.tag() == tag).cloned().collect();
        if same.len() > 1 {
            return Err(ambiguous(&same, &tag));
        }
    }
    Ok(sets)
}

fn no_set_of_key(store: &Store, key: &str) -> Failure {
    let cause = format!("{} has no set with the key {key}", store.root().display());
    Failure::new(FailureKind::Download, cause).remedy(
        "build it again (`longshore build`): the store has removed it, or another host built it",
    )
}

/// Leaves out the sets of packages' modules: their archive distributes them, and vouches for them.
fn leave_out_packages(sets: &mut Vec<ModuleSet>) -> Result<(), Failure> {
    let of_package = |set: &ModuleSet| set.headers_origin() == HeadersFrom::Package;
    let named = sets.iter().find(|set| of_package(set)).map(|set| set.key.file_stem());
    sets.retain(|set| !of_package(set));
    let Some(name) = named.filter(|_| sets.is_empty()) else { return Ok(()) };
    let cause = format!("the set {name} is of a package's finished modules, and is not pushed");
    Err(Failure::new(FailureKind::Usage, cause).remedy(
        "configure the archive on the other hosts, or compile a set to push (longshore build)",
    ))
}

/// Returns the store's sets for the selected kernel and driver; at least one.
pub(super) fn matching(
    config: &Config,
    store: &Store,
    kernel: Option<&str>,
) -> Result<Vec<ModuleSet>, Failure> {
    let host = match kernel {
        Some(_) => None,
        None => Some(HostFacts::read(&config.paths.root, &config.paths.host_root)?.kernel),
    };
    // A release that is given may be of any build and of any architecture; their tags differ.
    let is_for_kernel = |key: &ModuleKey| match &host {
        Some(host) => key.is_for(&host.id()),
        None => kernel.is_some_and(|release| key.kernel_release == release),
    };
    let requested = &config.driver;
    let is_chosen = |set: &ModuleSet| {
        is_for_kernel(&set.key)
            && requested
                .version
                .as_ref()
                .is_none_or(|w| DriverVersion::new(&set.key.driver_version).is_within(w))
            && requested.flavour.is_none_or(|f| f == set.key.flavour)
    };
    let mut sets = store.sets()?;
    sets.retain(is_chosen);
    if sets.is_empty() {
        let release = host.as_ref().map_or(kernel.unwrap_or_default(), |host| &host.release);
        return Err(Failure::new(
            FailureKind::Download,
            format!("{} has no such set for the kernel {release}", store.root().display()),
        )
        .remedy(
            "build it first (`longshore build`), or name another --driver, --flavour, --kernel",
        ));
    }
    Ok(sets)
}

fn ambiguous(sets: &[ModuleSet], tag: &str) -> Failure {
    let names: Vec<String> = sets
        .iter()
        .map(|s| format!("{} ({}, {})", s.key.file_stem(), s.key.kernel_version, s.key.compiler))
        .collect();
    Failure::new(
        FailureKind::Usage,
        format!("several sets would get the tag {tag}: {}", names.join("; ")),
    )
    .remedy(
        "narrow it by --driver and --flavour, or remove the one not wanted from the store's sets",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_modules::testing::set;
    use rstest::rstest;

    /// The kernel that this machine runs.
    fn running() -> (String, String) {
        let kernel = HostFacts::read(Path::new("/"), Path::new("/")).expect("facts").kernel;
        (kernel.release, kernel.version)
    }

    #[rstest]
    #[case::this_host(None, 1)]
    #[case::a_release_on_any_architecture(Some(running().0), 2)]
    #[case::another_release(Some("1.2.3-other".to_owned()), 0)]
    fn a_hosts_own_sets_are_of_its_architecture(
        #[case] kernel: Option<String>,
        #[case] found: usize,
    ) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let config = crate::config::load(crate::config::Fragment::default(), &|_| None, None);
        let mut config = config.expect("configuration");
        config.paths.store = dir.path().to_path_buf();
        let store = Store::open(dir.path(), config.disk()).expect("store opens");
        let mut set = set();
        set.modules[0].sha256 = store.put(b"module").expect("put");
        set.modules[0].vermagic = running().0;
        (set.key.kernel_release, set.key.kernel_version) = running();
        let other = if cfg!(target_arch = "aarch64") { "x86_64" } else { "aarch64" };
        for arch in [std::env::consts::ARCH, other] {
            arch.clone_into(&mut set.key.arch);
            store.put_set(&set).expect("a set");
        }
        match matching(&config, &store, kernel.as_deref()) {
            Ok(sets) => assert_eq!(sets.len(), found),
            Err(failure) => {
                assert_eq!((failure.kind(), found), (FailureKind::Download, 0), "{failure}");
            }
        }
    }
}
