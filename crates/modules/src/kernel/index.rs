//! Lookup of module names and aliases in the index of a kernel's own modules, through libkmod.
//!
//! libkmod is used for lookups only, and loads nothing: the kmod crate (0.5) reports the thread's
//! errno instead of libkmod's answer, and a load needs the exact one.

use std::path::{Path, PathBuf};

use longshore_core::failure::{Failure, FailureKind, OrFail};

/// The index of one /lib/modules/RELEASE. Not Send: libkmod's context is bound to its thread.
#[derive(Debug)]
pub struct KernelIndex {
    context: kmod::Context,
    dir: PathBuf,
}

impl KernelIndex {
    /// Opens the index in `dir`, for example `/lib/modules/6.1.0-50-amd64`.
    ///
    /// # Errors
    /// 10 where libkmod cannot be set up.
    pub fn open(dir: &Path) -> Result<Self, Failure> {
        let context = kmod::Context::new_with_dirname(dir)
            .or_fail(FailureKind::HostUnsupported, || format!("opening {}", dir.display()))?;
        Ok(Self { context, dir: dir.to_path_buf() })
    }

    /// Returns the file of a module name or alias; None if the kernel does not have it, or has it
    /// built in.
    ///
    /// # Errors
    /// 10 where the index cannot be read.
    pub fn file(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
        let found = self.lookup(name)?;
        Ok(found.iter().find_map(|module| module.path()).map(|path| self.dir.join(path)))
    }

    /// Returns the files to load before the one of `name`, in load order.
    ///
    /// # Errors
    /// 10 where the index cannot be read.
    pub fn dependencies(&self, name: &str) -> Result<Vec<PathBuf>, Failure> {
        let found = self.lookup(name)?;
        let Some(module) = found.iter().find(|module| module.path().is_some()) else {
            return Ok(Vec::new());
        };
        let paths = module.dependencies().filter_map(|m| m.path().map(|path| self.dir.join(path)));
        Ok(paths.collect())
    }

    fn lookup(&self, name: &str) -> Result<Vec<kmod::Module>, Failure> {
        let found = self
            .context
            .module_new_from_lookup(name)
            .or_fail(FailureKind::HostUnsupported, || {
                format!("looking {name} up in {}", self.dir.display())
            })?;
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::index::write_index;
    use longshore_core::failure::ExitCode;

    #[test]
    fn names_are_looked_up_as_the_kernel_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let dep = "kernel/b-top.ko.xz: kernel/a-mid.ko kernel/a-base.ko\n\
                   kernel/a-mid.ko: kernel/a-base.ko\nkernel/a-base.ko:\n";
        write_index(dir.path(), dep);
        let index = KernelIndex::open(dir.path()).unwrap();
        let at = |file: &str| dir.path().join(file);
        assert_eq!(index.file("b_top").unwrap(), Some(at("kernel/b-top.ko.xz")));
        assert_eq!(index.file("b-top").unwrap(), Some(at("kernel/b-top.ko.xz")));
        assert_eq!(
            index.dependencies("b_top").unwrap(),
            [at("kernel/a-base.ko"), at("kernel/a-mid.ko")]
        );
        assert_eq!(index.file("absent").unwrap(), None);
        assert!(index.dependencies("absent").unwrap().is_empty());
    }

    #[test]
    fn a_name_that_is_no_name_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let index = KernelIndex::open(dir.path()).unwrap();
        assert_eq!(index.file("a\0b").unwrap_err().code(), ExitCode::HostUnsupported);
    }
}
