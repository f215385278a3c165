//! Loading of modules from files and from memory, over a fake and a real host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use rstest::rstest;

use crate::engine::fake_images::FakeImages;
use crate::engine::image::{Images, ModuleFile};
use crate::engine::tests::{engine_over, failed, gpu_host, load, module};
use crate::engine::*;
use crate::journal::Journal;
use crate::steps::ModuleOrigin;
use longshore_core::cancel::CancelFlag;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use longshore_core::store::Store;
use longshore_host::fake::FakeHost;
use longshore_modules::sets::SetStore;

/// Images whose modules are all files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Images for Files {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        FakeImages.image(name, origin)
    }

    fn file(&self, name: &str, _: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        let path = self.0.path().join(name);
        fs::write(&path, name).unwrap();
        Ok(Some(ModuleFile::Kernel(File::open(path).unwrap())))
    }

    fn check_tree(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }
}

fn loads(host: &FakeHost, images: &dyn Images) -> Result<(), Failure> {
    let mut journal = Journal::in_memory();
    engine_over(host, images)
        .apply(&[load("drm")], &mut journal, &CancelFlag::default())
        .map_err(|stopped| failed(Err(stopped)))
}

#[test]
fn a_module_that_needs_no_look_is_handed_over_as_a_file() {
    let host = gpu_host();
    loads(&host, &Files::new()).unwrap();
    assert_eq!(host.log(), ["finit_module drm"]);
}

#[test]
fn a_module_that_was_not_verified_is_handed_over_from_memory() {
    let host = gpu_host();
    loads(&host, &FakeImages).unwrap();
    assert_eq!(host.log(), ["init_module drm"]);
}

#[rstest]
#[case::label(Errno::EACCES)]
#[case::filter(Errno::EPERM)]
#[case::no_such_call(Errno::ENOSYS)]
#[case::open_for_writing(Errno::ETXTBSY)]
fn where_the_kernel_does_not_take_the_file_it_gets_the_bytes(#[case] errno: Errno) {
    let host = gpu_host();
    host.takes_no_files(errno);
    loads(&host, &Files::new()).unwrap();
    assert_eq!(host.log(), ["finit_module drm", "init_module drm"]);
    assert!(host.state().loaded.contains_key("drm"));
}

#[rstest]
#[case(Errno::ENOEXEC)]
#[case(Errno::EKEYREJECTED)]
#[case(Errno::EBADMSG)]
#[case(Errno::EINVAL)]
#[case(Errno::ENODEV)]
fn where_the_kernel_does_not_take_the_module_it_is_not_asked_again(#[case] errno: Errno) {
    let host = gpu_host();
    host.takes_no_files(errno);
    let failure = loads(&host, &Files::new()).unwrap_err();
    assert_eq!(host.log(), ["finit_module drm"]);
    assert!(failure.report().contains(&format!("finit_module drm: {errno}")), "{failure:?}");
}

#[test]
fn what_is_refused_both_ways_is_told_as_before() {
    let host = gpu_host();
    host.takes_no_files(Errno::EPERM);
    let mut refused = module(&[], &[]);
    refused.refused = Some(Errno::EPERM);
    host.knows("drm", refused);
    let failure = loads(&host, &Files::new()).unwrap_err();
    assert_eq!(failure.code(), ExitCode::KernelRefused);
    assert!(failure.report().contains("init_module drm: EPERM"), "{}", failure.report());
}

/// A store whose module is written to after it was opened.
struct Written {
    store: Store,
    sha256: String,
    path: PathBuf,
    by: fn(&Path),
}

impl Images for Written {
    fn image(&self, name: &str, origin: &ModuleOrigin) -> Result<Vec<u8>, Failure> {
        FakeImages.image(name, origin)
    }

    fn file(&self, _: &str, _: &ModuleOrigin) -> Result<Option<ModuleFile>, Failure> {
        let opened = self.store.verified_module(&self.sha256)?;
        (self.by)(&self.path);
        Ok(opened.map(ModuleFile::Driver))
    }

    fn check_tree(&self, _: &Path) -> Result<(), Failure> {
        Ok(())
    }
}

#[rstest]
#[case::nothing(b"drm", |_: &Path| (), true)]
#[case::name_taken_away(b"drm", |path: &Path| fs::remove_file(path).unwrap(), true)]
#[case::written(b"dry", |path: &Path| fs::write(path, b"drm").unwrap(), false)]
fn what_was_written_to_while_the_kernel_read_it_is_taken_off_again(
    #[case] was: &[u8],
    #[case] by: fn(&Path),
    #[case] good: bool,
) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Disk::default()).unwrap();
    let sha256 = store.put(was).unwrap();
    // A file written a moment ago is not yet a verified one.
    while store.verified_module(&sha256).unwrap().is_none() {
        thread::sleep(Duration::from_millis(100));
        store.read_module(&sha256).unwrap();
    }
    let path = store.blob_path(&sha256);
    let host = gpu_host();
    let loaded = loads(&host, &Written { store, sha256, path, by });
    assert_eq!(host.state().loaded.contains_key("drm"), good);
    match loaded {
        Ok(()) => assert!(good),
        Err(failure) => assert_eq!((failure.code(), good), (ExitCode::Verification, false)),
    }
    assert_eq!(host.log()[0], "finit_module drm");
}
