//! `longshore build` and `longshore fetch`: the store is filled, the host stays unchanged.

use std::path::PathBuf;

use super::{print, print_json, registry};
use crate::build_lease::Claims;
use crate::config::Config;
use crate::supplier::{OfferWait, Provisioner, attest_compiled};
use crate::telemetry::Awaited;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::layout::{self, destination};
use longshore_sources::userspace::AvailableUserspace;

/// Image layout to write compiled modules to.
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    /// Key that signs them in it.
    pub(super) sign_key: Option<PathBuf>,
    /// True to attest them, too.
    pub(super) attest: bool,
}

pub(super) async fn build(
    config: &Config,
    provisioner: &Provisioner<'_>,
    kernel: Option<String>,
    layout: Option<Layout>,
) -> Result<ExitCode, Failure> {
    if let Some(Layout { dir, .. }) = &layout {
        destination::check(dir)?;
    }
    let sign_key = layout.as_ref().and_then(|layout| layout.sign_key.as_deref());
    let key = sign_key.map(registry::secret_key).transpose()?;
    let set = provisioner.build(kernel.as_deref()).await?;
    if let Some(Layout { dir, attest, .. }) = layout {
        let (of, store, into) = (set.clone(), provisioner.store()?, dir.clone());
        let (wait, builder) = (config.deadlines.lock, config.builder_id.clone());
        let write = move || -> Result<String, Failure> {
            let attested = match key.as_ref().filter(|_| attest) {
                // A layout has no name in a registry; verification ignores it.
                Some(key) => attest_compiled(
                    &of,
                    &Described::from_set(&of)?,
                    &store,
                    &builder,
                    "layout",
                    key,
                )?,
                None => Vec::new(),
            };
            let manifest = layout::export(&of, &store, &into, wait)?;
            if let Some(key) = &key {
                // A layout has no name in a registry; verification ignores it.
                layout::sign(&into, &manifest, "layout", key, wait, store.disk())?;
            }
            if !attested.is_empty() {
                let disk = store.disk();
                layout::add_attestations(&into, &manifest, &attested, wait, disk)?;
            }
            Ok(manifest)
        };
        let written = tokio::task::spawn_blocking(write).await;
        let manifest = written.or_fail(FailureKind::Bug, || "writing an image layout")??;
        // Standard output holds only the set's JSON.
        tracing::info!(layout = %dir.display(), %manifest, "the image layout is written");
    }
    print_json(&set)?;
    Ok(ExitCode::Done)
}

/// Prints the digest of everything that the outcome of a build depends on.
pub(super) async fn print_inputs(
    provisioner: &Provisioner<'_>,
    kernel: Option<String>,
) -> Result<ExitCode, Failure> {
    let inputs = provisioner.inputs(kernel.as_deref()).await?;
    print_json(&serde_json::json!({ "inputs": inputs }))?;
    Ok(ExitCode::Done)
}

/// Fetches; where no registry has the modules yet, again until `registry-wait` is over.
pub(super) async fn fetch(
    config: &Config,
    claims: &Claims,
    kernels: &[String],
) -> Result<ExitCode, Failure> {
    let mut waits: Option<OfferWait> = None;
    let fetched = loop {
        // A new one for each try: it reads each source once.
        let provisioner = Provisioner::new(config).claiming(claims);
        match fetched(&provisioner, kernels).await {
            Ok(fetched) => break fetched,
            Err(failure) => {
                let Some(awaited) = provisioner.missing() else { return Err(failure) };
                if waits.is_none() {
                    let limit = config.registry_wait.as_secs();
                    tracing::info!(
                        driver = awaited.driver,
                        kernel = awaited.kernel,
                        "waiting for {awaited}, for {limit} s at most: {}",
                        failure.one_line()
                    );
                }
                let wait = waits.get_or_insert_with(|| OfferWait::begin(config.registry_wait));
                until_offered(&provisioner, &awaited, wait).await.map_err(|()| failure)?;
            }
        }
    };
    for (set, tree) in fetched {
        let of_build = match set.key.kernel_build() {
            Some(_) => "",
            None => " (a package's modules; its build is not known, and is compared before a load)",
        };
        print(&format!(
            "driver {} ({}) for {}{of_build}: {} modules, set {}, {}\n",
            set.key.driver_version,
            set.key.flavour,
            set.key.kernel_release,
            set.modules.len(),
            set.key.file_stem(),
            tree.map_or("no user-mode tree (modules-only)".to_owned(), |tree| format!(
                "user-mode tree {}",
                tree.root.display()
            ))
        ))?;
    }
    Ok(ExitCode::Done)
}

/// Waits until a registry has another set for the kernel than at the last try.
///
/// # Errors
/// The time is over.
async fn until_offered(
    provisioner: &Provisioner<'_>,
    awaited: &Awaited,
    wait: &mut OfferWait,
) -> Result<(), ()> {
    while let Some(pause) = wait.pause() {
        tokio::time::sleep(pause).await;
        if wait.is_new(provisioner.offered_for(Some(&awaited.kernel)).await) {
            return Ok(());
        }
    }
    Err(())
}

/// Fetches what each of these kernels needs into the store; by default, what this host's kernel
/// needs.
pub(super) async fn fetched(
    provisioner: &Provisioner<'_>,
    kernels: &[String],
) -> Result<Vec<(ModuleSet, Option<AvailableUserspace>)>, Failure> {
    if kernels.is_empty() {
        return Ok(vec![provisioner.fetch(None).await?]);
    }
    let mut fetched = Vec::new();
    for kernel in kernels {
        fetched.push(provisioner.fetch(Some(kernel)).await?);
    }
    Ok(fetched)
}
