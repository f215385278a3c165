//! `sign-modules`: signs module sets of the store for the kernel, here or elsewhere.

use std::path::PathBuf;

use super::{print, registry};
use crate::config::Config;
use crate::supplier::Provisioner;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout::{self, destination};
use longshore_modules::signed_sets::detached;

/// Arguments of `sign-modules`.
#[derive(Debug, clap::Args)]
pub(super) struct SignModules {
    /// Kernel release as uname -r gives it; by default this host's
    #[arg(long, value_name = "RELEASE", value_parser = super::release)]
    kernel: Option<String>,
    /// Write the modules to this directory to be signed elsewhere, and sign nothing
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    export: Option<PathBuf>,
    /// Also write the signed modules to this directory as an OCI image layout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) async fn sign_modules(config: &Config, asked: SignModules) -> Result<ExitCode, Failure> {
    if let Some(dir) = &asked.out {
        destination::check(dir)?;
    }
    let store = Store::open(&config.paths.store, config.disk())?;
    let _shared = store.lock_shared(config.deadlines.lock).await?;
    let mut sets = registry::matching(config, &store, asked.kernel.as_deref())?;
    sets.retain(|set| set.key.signed_by.is_none());
    if sets.is_empty() {
        return Err(Failure::new(FailureKind::Usage, "all matching sets are signed already")
            .remedy("build the sets again without a signature, and sign those"));
    }
    if let Some(dir) = &asked.export {
        for set in &sets {
            let written = detached::export(set, &store, dir)?;
            print(&format!("{}: {}\n", written.display(), files(set)))?;
        }
        return Ok(ExitCode::Done);
    }
    if config.module_signing.is_none() {
        return Err(Failure::new(FailureKind::Usage, "nothing to sign modules with").remedy(
            "give --module-key and --module-certificate, or --module-signatures with what was \
             signed elsewhere",
        ));
    }
    let provisioner = Provisioner::new(config);
    for set in sets {
        let signed = provisioner.sign(set).await?;
        let by = signed.key.signed_by.as_ref().map(ToString::to_string).unwrap_or_default();
        print(&format!("{}: {}, signed by {by}\n", signed.key.file_stem(), files(&signed)))?;
        if let Some(dir) = &asked.out {
            let (of, store, into) = (signed, store.clone(), dir.clone());
            let wait = config.deadlines.lock;
            let write = move || layout::export(&of, &store, &into, wait);
            let written = tokio::task::spawn_blocking(write).await;
            let manifest = written.or_fail(FailureKind::Bug, || "writing an image layout")??;
            print(&format!("{}@{manifest}\n", dir.display()))?;
        }
    }
    Ok(ExitCode::Done)
}

fn files(set: &ModuleSet) -> String {
    set.modules.iter().map(|module| module.file.as_str()).collect::<Vec<_>>().join(", ")
}
