//! Modules that are compiled here where signatures are required.

use super::values::has_headers;
use crate::catalog::Catalog;
use crate::config::Config;
use longshore_host::facts::Probe;
use longshore_sources::headers::AvailableHeaders;

/// True if modules that are compiled here may be loaded. Where signatures are required, this host's own key signs what
/// it would publish: not those of unsigned headers, unless that is configured.
pub(super) fn may_load_own(config: &Config, catalog: &Catalog) -> bool {
    let publishes = || {
        config.publish.as_ref().is_some_and(|publish| publish.unsigned_headers)
            || !has_headers(catalog)
            || matches!(catalog.headers, Probe::Read(AvailableHeaders::Archive { .. }))
    };
    config.may_compile() && (!config.signatures.required || publishes())
}

/// Returns the reason why modules that are compiled here do not count as signed.
pub(super) fn why_not_own(config: &Config, catalog: &Catalog) -> String {
    match config.own_signature.counts() {
        true if !config.compile => "compiling is switched off".to_owned(),
        true if !may_load_own(config, catalog) => {
            "modules compiled here would be of unsigned headers, \
             and are signed only where such are published (publish-unsigned-headers)"
                .to_owned()
        }
        _ => config.own_signature.to_string(),
    }
}
