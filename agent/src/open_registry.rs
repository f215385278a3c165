//! Registries of files and images that the configuration names by repository.

use crate::config::Config;
use longshore_core::failure::Failure;
use longshore_core::image_reference::Repository;
use longshore_fetch::http::{Policy, UnreachableHosts};
use longshore_modules::registry::{Registry, RegistrySource};

/// Opens the registry of a repository, with the mirrors that are configured for it.
///
/// # Errors
/// As [`Registry::open_with`].
pub(crate) fn open_registry(
    config: &Config,
    away: &UnreachableHosts,
    repository: &Repository,
) -> Result<Registry, Failure> {
    let source = registry_source(config, repository);
    let policy = Policy { away: away.clone(), ..Policy::from_config(&config.downloads) };
    let env = |name: &str| std::env::var(name).ok();
    let registry = Registry::open_with(policy, &source, &config.paths.host_root, &env)?;
    Ok(registry.with_login_rules(&config.logins))
}

/// Returns a repository with the mirrors that are configured for it.
pub(crate) fn registry_source(config: &Config, repository: &Repository) -> RegistrySource {
    let configured = config.registries.iter().find(|one| one.reference == *repository);
    let alone = || RegistrySource { reference: repository.clone(), mirrors: Vec::new() };
    configured.cloned().unwrap_or_else(alone)
}
