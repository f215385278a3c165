//! Helpers of the tests of several crates: a set, and files as the kernel has them.

pub mod index;
pub mod modinfo;
pub mod symbols;

use std::collections::BTreeMap;

use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use serde_json::{Value, json};

use crate::artifact::core_objects::{CORE_PATHS, CoreObject, CoreQuery, CoreRecord};
use crate::artifact::{BuildRecord, HeadersFrom, InputPackage, ModuleEntry, ModuleKey, ModuleSet};
use crate::module_signing::{Hash, SignedBy, appended};
pub use crate::registry::stand_in::StandIn;

/// A signature that sign-file made with sha512, by `Example: Module signing`.
pub const SIGNATURE: &[u8] = include_bytes!("../module_signing/testdata/sign-file.p7s");

/// Returns the realm of each challenge of a `WWW-Authenticate` header that is understood; None for Basic.
pub fn challenges(header: &str) -> Vec<Option<String>> {
    crate::registry::realms(header)
}

/// Returns the least predicate of a type that counts: `provenance`, `spdx`, or else `test-result`.
pub fn predicate(name: &str) -> Value {
    match name {
        "provenance" => json!({
            "buildDefinition": {"buildType": "https://example.com/t", "externalParameters": {}},
            "runDetails": {"builder": {"id": "https://example.com/builder"}},
        }),
        "spdx" => json!({
            "spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT", "name": "a",
            "dataLicense": "CC0-1.0", "documentNamespace": "https://example.com/a",
            "creationInfo": {"created": "2026-11-20T14:04:11Z", "creators": ["Tool: a"]},
        }),
        _ => json!({"result": "PASSED", "configuration": []}),
    }
}

/// A set of one module that is not in any store.
pub fn set() -> ModuleSet {
    ModuleSet {
        key: ModuleKey {
            driver_version: "535.261.03".into(),
            flavour: Flavour::Open,
            driver_digest: "1".repeat(64),
            kernel_release: "6.12.117+deb13-amd64".into(),
            kernel_version: "#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1 (2026-11-12)".into(),
            arch: "x86_64".into(),
            headers: BTreeMap::from([("linux-headers_1_amd64".into(), "2".repeat(64))]),
            compiler: "gcc-14 (Debian 14.2.0-19) 14.2.0".into(),
            options: vec!["KCFLAGS=-g0".into()],
            patches: BTreeMap::new(),
            signed_by: None,
        },
        headers_from: HeadersFrom::Archive,
        modules: vec![ModuleEntry {
            name: "nvidia".into(),
            file: "nvidia.ko".into(),
            sha256: "3".repeat(64),
            size: 1,
            vermagic: "6.12.117+deb13-amd64 SMP preempt mod_unload modversions ".into(),
            version: Some("535.261.03".into()),
            srcversion: None,
            depends: vec!["drm".into()],
        }],
    }
}

/// `set` as after its modules were signed for the kernel, with `more` bytes before each signature. Its modules are in
/// `store`, itself it is not.
///
/// # Panics
/// `store` does not have the modules of `set`, or cannot be written to.
pub fn signed_for_the_kernel(set: &ModuleSet, more: &[u8], store: &Store) -> ModuleSet {
    let mut signed = set.clone();
    signed.key.signed_by = Some(SignedBy {
        certificate: "1".repeat(64),
        name: "Example".into(),
        key_ids: vec!["2".repeat(40)],
        hash: Hash::Sha256,
    });
    for module in &mut signed.modules {
        let mut image = store.read_blob(&module.sha256).expect("a module");
        image.extend(more);
        let image = appended::append(&image, b"a message");
        store.put(&image).expect("put");
        let release = &set.key.kernel_release;
        *module = ModuleEntry::describe(&module.file, &image, release).expect("a module");
    }
    signed
}

/// The record of the compile of [`set`].
pub fn build_record() -> BuildRecord {
    let package = |name: &str, arch: &str, digit: &str| InputPackage {
        name: name.into(),
        version: "1:2.0-3~deb13u1".into(),
        arch: arch.into(),
        sha256: digit.repeat(64),
    };
    BuildRecord {
        modules: set().modules.into_iter().map(|module| module.sha256).collect(),
        driver: "nvidia-open-kernel-source 535.261.03-1".into(),
        compiler: "gcc-14".into(),
        packages: vec![
            package("linux-headers-6.12.117+deb13-amd64", "amd64", "2"),
            package("gcc-14", "amd64", "4"),
            package("make", "all", "5"),
        ],
        core: None,
        longshore: "0.1.0".into(),
        started: "2026-11-20T14:03:05Z".into(),
        finished: "2026-11-20T14:04:11Z".into(),
    }
}

/// A record of core objects that are in no store.
pub fn core_record() -> CoreRecord {
    let asked = CoreQuery { key: "6".repeat(64), version: "580.142".into(), tree: "7".repeat(64) };
    let object = |digit: &str, size| CoreObject { sha256: digit.repeat(64), size };
    let objects = CORE_PATHS.map(str::to_owned).into_iter().zip([object("8", 3), object("9", 5)]);
    let packages = build_record().packages;
    CoreRecord::new(asked, "gcc-14 (Debian 14.2.0-19) 14.2.0", objects.collect(), packages)
}
