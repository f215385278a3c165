//! Provenance by SLSA 1.0 (slsa.dev/spec/v1.0/provenance).

use serde_json::{Value, json};

use super::{Compiled, Material};

/// Type of the build, described in docs/supply-chain/registry.md.
const BUILD_TYPE: &str = "https://longshore.dev/build-types/kernel-modules/v1";

/// Returns the predicate.
pub(super) fn predicate(of: &Compiled<'_>) -> Value {
    let (key, record) = (&of.set.key, of.record);
    let byproducts: Vec<_> = of
        .set
        .modules
        .iter()
        .map(|module| json!({"name": module.file, "digest": {"sha256": module.sha256}}))
        .collect();
    json!({
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "kernel": {
                    "release": key.kernel_release,
                    "version": key.kernel_version,
                    "arch": key.arch,
                },
                "driver": key.driver_version,
                "flavour": key.flavour.to_string(),
                "modules": of.set.modules.iter().map(|module| &module.name).collect::<Vec<_>>(),
            },
            "internalParameters": {
                "compiler": key.compiler,
                "options": key.options,
                "headersFrom": of.set.headers_origin(),
            },
            "resolvedDependencies": of.materials().iter().map(descriptor).collect::<Vec<_>>(),
        },
        "runDetails": {
            "builder": {"id": of.builder, "version": {"longshore": record.longshore}},
            "metadata": {"startedOn": record.started, "finishedOn": record.finished},
            "byproducts": byproducts,
        },
    })
}

/// Returns in-toto's descriptor of a resource.
fn descriptor(material: &Material) -> Value {
    let mut found = json!({
        "name": material.name,
        "digest": {"sha256": material.sha256},
        "annotations": {"role": material.role.to_string(), "version": material.version},
    });
    if let (Some(uri), Some(fields)) = (&material.uri, found.as_object_mut()) {
        fields.insert("uri".to_owned(), uri.as_str().into());
    }
    found
}
