//! Check of the registries of the configuration.

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::Host;
use longshore_modules::registry::RegistrySource;

/// Refuses registries that modules would come from without TLS and without a signature, except
/// those on this machine and those in `insecure`.
///
/// # Errors
/// Exit code 2, naming the first one.
pub(super) fn refuse_plain_http(
    registries: &[RegistrySource],
    insecure: &[Host],
) -> Result<(), Failure> {
    let places =
        registries.iter().flat_map(|source| source.mirrors.iter().chain([&source.reference]));
    let mut unsafe_ones = places.filter(|place| {
        place.plain_http() && !place.is_loopback() && !insecure.iter().any(|host| host.has(place))
    });
    let Some(place) = unsafe_ones.next() else { return Ok(()) };
    let cause = format!(
        "the registry {place} is used without TLS, and no signature is required: every host on \
         the way could put its own kernel modules in place of the registry's"
    );
    Err(Failure::new(FailureKind::Usage, cause).remedy(format!(
        "use TLS, or require signatures (signature-keys); where the network is to be trusted, say so: \
         insecure-registries = [\"{}\"], --insecure-registry or LONGSHORE_INSECURE_REGISTRIES",
        place.host()
    )))
}
