//! `list`: the module sets in a registry.

use super::print_json;
use super::registry::to_read;
use crate::config::Config;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::image_reference::Reference;
use longshore_core::kernel_id::is_release;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::{Judge, SetRequest};
use serde::Serialize;

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Repository (HOST/REPOSITORY), with --kernel; or one set (HOST/REPOSITORY:TAG or @DIGEST)
    #[arg(value_name = "REFERENCE")]
    reference: Reference,
    /// Kernel release as uname -r gives it; --driver and --flavour narrow it further
    #[arg(long, value_name = "RELEASE", value_parser = release)]
    kernel: Option<String>,
    /// Architecture as uname -m gives it
    #[arg(long, value_name = "ARCH", default_value = std::env::consts::ARCH)]
    arch: String,
}

fn release(text: &str) -> Result<String, &'static str> {
    is_release(text).then(|| text.to_owned()).ok_or("not a kernel release as uname -r gives it")
}

/// Accepts every set.
struct Every;

impl Judge for Every {
    type Why = ();

    async fn judge(&self, _: &Described) -> Result<(), ()> {
        Ok(())
    }
}

#[derive(Serialize)]
struct Listed {
    sets: Vec<ListedSet>,
}

#[derive(Serialize)]
struct ListedSet {
    /// HOST/REPOSITORY@DIGEST.
    reference: String,
    /// sha256 of the manifest.
    digest: String,
    /// sha256 of the key.
    key: String,
    set: ModuleSet,
}

/// Prints the sets as JSON. A tag that the repository does not have is an empty list, not a failure.
pub(super) async fn list(config: &Config, list: List) -> Result<ExitCode, Failure> {
    let repository = &list.reference.repository;
    let registry = to_read(config, repository)?;
    let found = match (list.reference.digest.as_ref().or(list.reference.tag.as_ref()), &list.kernel)
    {
        (Some(name), None) => registry.look_up(name).await?.into_iter().collect(),
        (None, Some(release)) => {
            let requested = SetRequest {
                driver: config.driver.version.as_deref(),
                flavour: config.driver.flavour,
                kernel_release: release,
                arch: &list.arch,
            };
            registry.find(requested, &Every).await.into_taken()?
        }
        _ => return Err(one_of_both(&list.reference)),
    };
    let sets = found.into_iter().map(|described: Described| ListedSet {
        reference: format!("{repository}@{}", described.digest()),
        digest: described.digest(),
        key: described.set.key.digest(),
        set: described.set,
    });
    print_json(&Listed { sets: sets.collect() })?;
    Ok(ExitCode::Done)
}

fn one_of_both(reference: &Reference) -> Failure {
    let cause = format!("listing {reference} needs either a tag (or digest) or --kernel");
    Failure::new(FailureKind::Usage, cause)
        .remedy("give HOST/REPOSITORY:TAG alone, or HOST/REPOSITORY with --kernel RELEASE")
}
