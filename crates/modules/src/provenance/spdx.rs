//! Bill of materials by SPDX 2.3 (spdx.github.io/spdx-spec/v2.3), as JSON.

use serde_json::{Value, json};

use super::{Compiled, Material, Role};

/// Id of the document itself.
const DOCUMENT: &str = "SPDXRef-DOCUMENT";
/// Id of the set of modules.
const SET: &str = "SPDXRef-set";
/// Value of fields about which nothing is stated.
const UNSTATED: &str = "NOASSERTION";

/// Returns the document: the set contains its modules, is generated from sources, headers and
/// patches, and has compiler and tools as build tools.
pub(super) fn document(of: &Compiled<'_>) -> Value {
    let materials = of.materials();
    let mut packages = vec![set(of)];
    packages.extend(materials.iter().enumerate().map(|(at, material)| package(at, material)));
    let mut relationships = vec![relationship(DOCUMENT, "DESCRIBES", SET)];
    for (at, material) in materials.iter().enumerate() {
        relationships.push(match material.role {
            Role::Compiler | Role::Tool => relationship(&id(at), "BUILD_TOOL_OF", SET),
            Role::Driver | Role::CoreObjects | Role::Headers => {
                relationship(SET, "GENERATED_FROM", &id(at))
            }
            Role::Patch | Role::PackagingPatches => relationship(&id(at), "PATCH_APPLIED", &id(0)),
        });
    }
    let files: Vec<_> = of
        .set
        .modules
        .iter()
        .enumerate()
        .map(|(at, module)| {
            json!({
                "SPDXID": file_id(at),
                "fileName": format!("./{}", module.file),
                "fileTypes": ["BINARY"],
                "checksums": [checksum(&module.sha256)],
                "licenseConcluded": UNSTATED,
                "copyrightText": UNSTATED,
            })
        })
        .collect();
    relationships.extend((0..files.len()).map(|at| relationship(SET, "CONTAINS", &file_id(at))));
    let key = &of.set.key;
    json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": key.file_stem(),
        // Unique for each set, as the specification demands.
        "documentNamespace": format!("https://longshore.dev/spdx/{}", key.digest()),
        "creationInfo": {
            // Of the compile: the same set gives the same document.
            "created": of.record.finished,
            "creators": [format!("Tool: longshore-{}", of.record.longshore)],
        },
        "packages": packages,
        "files": files,
        "relationships": relationships,
    })
}

fn set(of: &Compiled<'_>) -> Value {
    let key = &of.set.key;
    let summary = format!(
        "NVIDIA kernel modules {} ({}) for Linux {} ({}), {}",
        key.driver_version, key.flavour, key.kernel_release, key.kernel_version, key.arch
    );
    json!({
        "SPDXID": SET,
        "name": key.tag(),
        "versionInfo": key.driver_version,
        "summary": summary,
        "downloadLocation": UNSTATED,
        "filesAnalyzed": false,
        "licenseConcluded": UNSTATED,
        "licenseDeclared": UNSTATED,
        "copyrightText": UNSTATED,
        "primaryPackagePurpose": "DEVICE-DRIVER",
    })
}

fn package(at: usize, material: &Material) -> Value {
    let mut package = json!({
        "SPDXID": id(at),
        "name": material.name,
        "downloadLocation": UNSTATED,
        "filesAnalyzed": false,
        "licenseConcluded": UNSTATED,
        "licenseDeclared": UNSTATED,
        "copyrightText": UNSTATED,
        "checksums": [checksum(&material.sha256)],
        "comment": material.role.to_string(),
    });
    let Some(fields) = package.as_object_mut() else { return package };
    if !material.version.is_empty() {
        fields.insert("versionInfo".to_owned(), material.version.as_str().into());
    }
    if let Some(uri) = &material.uri {
        let reference = json!([{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": uri,
        }]);
        fields.insert("externalRefs".to_owned(), reference);
    }
    package
}

fn checksum(sha256: &str) -> Value {
    json!({"algorithm": "SHA256", "checksumValue": sha256})
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

fn id(at: usize) -> String {
    format!("SPDXRef-material-{at}")
}

fn file_id(at: usize) -> String {
    format!("SPDXRef-module-{at}")
}
