//! Check of the registries of the configuration.

use super::Config;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::{Host, Repository};
use longshore_modules::registry::RegistrySource;
use longshore_sources::pinned::repository_of;

/// Refuses registries that modules, or files of drivers, would come from without TLS and without a signature, except
/// those on this machine and those in `insecure-registries`.
///
/// # Errors
/// Exit code 2, naming the first one.
pub(super) fn refuse_plain_http(config: &Config) -> Result<(), Failure> {
    let insecure = &config.logins.insecure;
    if let Some(place) = of_sets(&config.registries).find(|place| is_plain(place, insecure)) {
        let cause = format!(
            "the registry {place} is used without TLS, and no signature is required: every host on \
             the way could put its own kernel modules in place of the registry's"
        );
        return Err(refusal(cause, place));
    }
    let files = of_files(config).find(|(_, place)| is_plain(place, insecure));
    let Some((setting, place)) = files else { return Ok(()) };
    let cause = format!(
        "{setting}: the registry {place} is used without TLS, and neither a signature is required nor is it named as \
         one without TLS"
    );
    Err(refusal(cause, &place))
}

fn of_sets(registries: &[RegistrySource]) -> impl Iterator<Item = &Repository> {
    registries.iter().flat_map(|source| source.mirrors.iter().chain([&source.reference]))
}

/// Returns the repositories of .run files and source trees, each with its setting.
fn of_files(config: &Config) -> impl Iterator<Item = (&'static str, Repository)> {
    let run_files = config.run_files.iter().flat_map(|file| &file.urls);
    let trees = config.source_trees.iter().flat_map(|tree| &tree.urls);
    let named = run_files.map(|url| ("run-file", url)).chain(trees.map(|url| ("source-tree", url)));
    named.filter_map(|(setting, url)| Some((setting, repository_of(url)?)))
}

fn is_plain(place: &Repository, insecure: &[Host]) -> bool {
    place.plain_http() && !place.is_loopback() && !insecure.iter().any(|host| host.has(place))
}

fn refusal(cause: String, place: &Repository) -> Failure {
    Failure::new(FailureKind::Usage, cause).remedy(format!(
        "use TLS, or require signatures (signature-keys); where the network is to be trusted, say so: \
         insecure-registries = [\"{}\"], --insecure-registry or LONGSHORE_INSECURE_REGISTRIES",
        place.host()
    ))
}
