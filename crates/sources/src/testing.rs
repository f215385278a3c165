//! Helpers of the tests of several crates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::Repository;
use longshore_fetch::http::Fetcher;
use longshore_modules::registry::Registry;

use crate::pinned::PinnedFetcher;
use crate::tree_entries::measure;
use crate::userspace::manifest::Manifest;

/// Returns a client for URLs alone: repositories are refused.
pub fn without_registries(fetcher: &Fetcher) -> PinnedFetcher<'_> {
    PinnedFetcher::new(fetcher, &refuse)
}

fn refuse(repository: &Repository) -> Result<Registry, Failure> {
    Err(Failure::new(FailureKind::Bug, format!("{repository} is asked")))
}

/// True if a library of this file name belongs to a part.
pub fn is_part_library(name: &str) -> bool {
    crate::parts::is_part_library(name)
}

/// The manifest of a tree of 535.261.03 with the files below `root`.
///
/// # Panics
/// If they cannot be read.
pub fn manifest(root: &Path) -> Vec<u8> {
    let entries = measure(root).expect("measured");
    let manifest = Manifest { entries, ..Manifest::new("535.261.03", "x86_64") };
    serde_json::to_vec_pretty(&manifest).expect("json")
}

/// `uname -v` of the headers of [`put_headers`].
pub const UTS_VERSION: &str = "#1 SMP PREEMPT_DYNAMIC Wed Apr 10 10:29:16 EDT 2024";

/// Writes the files that every kernel's build tree has into `dir`: as a single tree, as Red Hat's.
///
/// # Panics
/// If they cannot be written.
pub fn put_headers(dir: &Path, release: &str, compiler: &str) {
    let defined = |name: &str, value: &str| format!("#define {name} \"{value}\"\n");
    let files = [
        ("Makefile", "VERSION = 5\n".to_owned()),
        ("Module.symvers", "0x1\tf\tvmlinux\tEXPORT_SYMBOL\n".to_owned()),
        ("include/generated/autoconf.h", "#define CONFIG_MODULES 1\n".to_owned()),
        ("include/generated/utsversion.h", defined("UTS_VERSION", UTS_VERSION)),
        ("include/generated/utsrelease.h", defined("UTS_RELEASE", release)),
        ("include/config/auto.conf", format!("CONFIG_CC_VERSION_TEXT=\"{compiler}\"\n")),
        ("scripts/mod/modpost", "program".to_owned()),
    ];
    for (path, text) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        fs::write(&path, text).expect("write");
    }
    let program = fs::Permissions::from_mode(0o755);
    fs::set_permissions(dir.join("scripts/mod/modpost"), program).expect("mode");
}
