//! Attestations of a set that was compiled into the store.

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::store::Store;
use longshore_core::value::Uri;
use longshore_modules::artifact::image::Described;
use longshore_modules::artifact::{BuildRecord, ModuleSet};
use longshore_modules::provenance::Compiled;
use longshore_modules::sets::SetStore;
use longshore_modules::signature::attestation::Attestation;
use longshore_modules::signature::key::SecretKey;
use longshore_modules::signed_sets;

/// Returns the provenance and the bill of materials of `set`, which `described` describes, signed by
/// `key`, for the repository `name`.
///
/// # Errors
/// Exit code 2 for a set that was not compiled into this store: its origin is not known here.
pub(crate) fn attest_compiled(
    set: &ModuleSet,
    described: &Described,
    store: &Store,
    builder: &Uri,
    name: &str,
    key: &SecretKey,
) -> Result<Vec<Attestation>, Failure> {
    let record = compile_record(set, store)?;
    let compiled = Compiled { set, record: &record, builder };
    let attest =
        |(kind, predicate)| Attestation::make(key, name, &described.digest(), &kind, predicate);
    compiled.predicates().into_iter().map(attest).collect()
}

/// Returns the record of the compile that made exactly the modules of `set`.
///
/// # Errors
/// Exit code 2 for a set that was not compiled into this store: its origin is not known here.
pub(crate) fn compile_record(set: &ModuleSet, store: &Store) -> Result<BuildRecord, Failure> {
    // Modules that were signed for the kernel are of the compile of the unsigned ones.
    let made_of = match set.key.signed_by {
        Some(_) => signed_sets::made_of(set, store)?,
        None => Some(set.clone()),
    };
    let record = made_of.and_then(|compiled| store.build_record(&compiled));
    record.ok_or_else(|| {
        let cause = format!(
            "the set {} was not compiled into {}: its origin is not known",
            set.key.file_stem(),
            store.root().display()
        );
        Failure::new(FailureKind::Usage, cause).remedy(
            "push it with --attest from the store that it was compiled into (longshore build), or \
             push it without",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supplier::test_scene::Scene;
    use longshore_core::failure::ExitCode;
    use longshore_modules::testing::{build_record, signed_for_the_kernel};
    use rstest::rstest;

    fn record_of(set: &ModuleSet) -> BuildRecord {
        let modules = set.modules.iter().map(|module| module.sha256.clone()).collect();
        BuildRecord { modules, ..build_record() }
    }

    #[rstest]
    #[case::compiled(|set, _: &Store| (record_of(&set), set), true)]
    #[case::another_with_the_same_key(
        |mut set, _: &Store| { let record = record_of(&set); set.modules.swap(0, 1); (record, set) },
        false
    )]
    #[case::one_module_less(
        |mut set, _: &Store| { let record = record_of(&set); set.modules.pop(); (record, set) },
        false
    )]
    #[case::signed_for_the_kernel(
        |set, store: &Store| (record_of(&set), signed_for_the_kernel(&set, b"", store)),
        true
    )]
    #[case::changed_before_it_was_signed(
        |set, store: &Store| (record_of(&set), signed_for_the_kernel(&set, b"changed", store)),
        false
    )]
    fn only_a_set_that_its_record_describes_is_signed_as_compiled_here(
        #[case] make: fn(ModuleSet, &Store) -> (BuildRecord, ModuleSet),
        #[case] expected: bool,
    ) {
        let scene = Scene::new("bookworm-t4");
        let store = scene.store();
        let compiled = scene.set_in(&store);
        store.put_set(&compiled).expect("puts");
        let refused = compile_record(&compiled, &store).expect_err("no record yet");
        assert_eq!(refused.code(), ExitCode::Usage);
        let (record, set) = make(compiled.clone(), &store);
        store.put_build_record(&compiled, &record).expect("records");
        let found = compile_record(&set, &store);
        assert_eq!(found.is_ok(), expected, "{found:?}");
    }
}
