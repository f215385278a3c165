//! Sets and core objects of the store that a build may use in place of a compile.

use super::Request;
use longshore_core::store::Store;
use longshore_modules::artifact::{CoreInput, ModuleSet};
use longshore_modules::sets::SetStore;
use longshore_modules::sets::core_objects::{self, StoredCore};

impl Request {
    /// True if a stored set may be returned instead of compiling. One with the same key may have been
    /// pulled, or put there by an older longshore: then its origin is not known. One that was linked from pulled core
    /// objects counts while these do.
    pub(super) fn accepts(&self, set: &ModuleSet, store: &Store) -> bool {
        let Some(record) = store.build_record(set) else { return !self.recorded };
        let Some(CoreInput { key, pulled: Some(manifest) }) = &record.core else { return true };
        let stored = core_objects::find(key, store);
        let linked = stored
            .filter(|core| core.pulled.as_ref().is_some_and(|found| found.digest() == *manifest));
        match linked {
            Some(core) => self.check_core(&core).is_ok(),
            None => !self.recorded,
        }
    }

    /// Checks that core objects of the store count: those that were compiled there do, and pulled ones by their source.
    pub(super) fn check_core(&self, core: &StoredCore) -> Result<(), String> {
        match (&core.pulled, &self.core_source) {
            (None, _) => Ok(()),
            (Some(_), Some(source)) => source.check(core),
            (Some(_), None) if self.recorded => {
                Err("they were not compiled here, and the set is to be signed".into())
            }
            (Some(_), None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::BoxFuture;
    use rstest::rstest;

    use super::*;
    use crate::CoreSource;
    use longshore_core::failure::Failure;
    use longshore_core::progress::Progress;
    use longshore_modules::artifact::core_objects::{CoreObject, CoreQuery, DescribedCore};
    use longshore_modules::signature::Evidence;
    use longshore_modules::testing::{build_record, core_record, set};
    use longshore_sources::driver::AvailableDriver;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), longshore_core::disk::Disk::default()).expect("store");
        (dir, store)
    }

    fn request(set: &ModuleSet, recorded: bool) -> Request {
        let driver = AvailableDriver {
            version: set.key.driver_version.clone(),
            flavour: set.key.flavour,
            origin: longshore_sources::driver::DriverOrigin::Package {
                name: "nvidia-open-kernel-source".into(),
                version: "535.261.03-1".into(),
                origin: longshore_core::package_origin::PackageOrigin::named("bookworm"),
            },
            sha256: set.key.driver_digest.clone(),
        };
        Request { recorded, ..Request::new(driver, &set.key.kernel_release) }
    }

    #[rstest]
    #[case::of_this_compile(false, true, true)]
    #[case::compiled_by_an_older_longshore_or_pulled(false, false, false)]
    #[case::pulled_over_the_compiled_one(true, true, false)]
    fn a_set_to_sign_is_taken_from_the_store_only_with_its_record(
        #[case] other_modules: bool,
        #[case] has_record: bool,
        #[case] expected: bool,
    ) {
        let ((_dir, store), mut set) = (store(), set());
        if has_record {
            store.put_build_record(&set, &build_record()).expect("records");
        }
        if other_modules {
            set.modules[0].sha256 = "9".repeat(64);
        }
        assert!(
            request(&set, false).accepts(&set, &store),
            "any set, where it is not to be signed"
        );
        assert_eq!(request(&set, true).accepts(&set, &store), expected);
    }

    /// A source whose core objects count, or do not.
    #[derive(Debug)]
    struct Judge(bool);

    impl CoreSource for Judge {
        fn fetch<'a>(
            &'a self,
            _: &'a CoreQuery,
            _: &'a Store,
            _: &'a dyn Progress,
        ) -> BoxFuture<'a, Result<Option<StoredCore>, Failure>> {
            Box::pin(async { Ok(None) })
        }

        fn check(&self, _: &StoredCore) -> Result<(), String> {
            if self.0 { Ok(()) } else { Err("they do not count".into()) }
        }
    }

    /// Core objects in the store (pulled, or compiled there), and whether pulled ones count by their source.
    #[rstest]
    #[case::compiled_here(Some(false), Some(Judge(false)), true, true)]
    #[case::pulled_and_counting(Some(true), Some(Judge(true)), true, true)]
    #[case::pulled_and_not_counting(Some(true), Some(Judge(false)), false, false)]
    #[case::pulled_without_a_judge(Some(true), None, true, false)]
    #[case::removed_from_the_store(None, Some(Judge(true)), true, false)]
    fn a_set_that_was_linked_from_pulled_core_objects_counts_while_they_do(
        #[case] is_pulled: Option<bool>,
        #[case] judge: Option<Judge>,
        #[case] unsigned: bool,
        #[case] to_sign: bool,
    ) {
        let ((_dir, store), set) = (store(), set());
        let mut record = core_record();
        for object in record.objects.values_mut() {
            *object = CoreObject { sha256: store.put(b"object").expect("put"), size: 6 };
        }
        let DescribedCore { manifest, config, record } =
            DescribedCore::from_record(&record).expect("describes");
        let evidence = Evidence::new(manifest, config, Vec::new()).expect("text");
        let pulled = is_pulled.unwrap_or(true).then_some(evidence);
        let core = StoredCore { record, pulled };
        if is_pulled.is_some() {
            std::fs::create_dir_all(store.dir("core")).expect("directory");
            core_objects::keep(&core, &store).expect("kept");
        }
        let linked =
            longshore_modules::artifact::BuildRecord { core: Some(core.input()), ..build_record() };
        store.put_build_record(&set, &linked).expect("records");
        let source = judge.map(|judge| Arc::new(judge) as Arc<dyn CoreSource>);
        for (recorded, expected) in [(false, unsigned), (true, to_sign)] {
            let request = Request { core_source: source.clone(), ..request(&set, recorded) };
            assert_eq!(request.accepts(&set, &store), expected, "recorded: {recorded}");
        }
    }
}
