//! Detached signatures made elsewhere: a directory of `*.p7s` files, matched to modules by
//! verification.
//!
//! File names do not matter, so that the signatures for a hundred kernels can be in one place: each
//! is tried against each module.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Certificate, Hash, Message, attach};
use crate::artifact::{ModuleEntry, ModuleSet};
use crate::module_signing::{NotASignature, read_bounded};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// File extension of a detached signature, after the module's name.
pub(crate) const SUFFIX: &str = "p7s";
/// Maximum size; a signature without certificates has 400 to 700 bytes.
const MAX_FILE: u64 = 256 << 10;
/// Maximum number of files; more are taken for a mistake.
const MOST: usize = 10_000;
/// Maximum depth: `DIRECTORY/SET/nvidia.ko.p7s`, and one level to spare.
const DEPTH: usize = 3;

/// The signatures of a directory.
#[derive(Debug)]
pub struct Pile {
    dir: PathBuf,
    files: Vec<(PathBuf, Result<Message, NotASignature>)>,
}

impl Pile {
    /// Reads every `*.p7s` in `dir` and in its directories; names with a leading dot are skipped (a
    /// mounted ConfigMap or Secret has its data twice).
    ///
    /// # Errors
    /// Exit code 2 where the directory cannot be read.
    pub fn read(dir: &Path) -> Result<Self, Failure> {
        let mut paths = Vec::new();
        let what = || format!("reading the signatures in {}", dir.display());
        find(dir, DEPTH, &mut paths).or_fail(FailureKind::Usage, what)?;
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let bytes = read_bounded(&path, MAX_FILE)
                .or_fail(FailureKind::Usage, || format!("reading {}", path.display()))?;
            files.push((path, Message::parse(&bytes)));
        }
        Ok(Self { dir: dir.to_path_buf(), files })
    }

    /// Signs `set` with the matching signatures.
    ///
    /// # Errors
    /// Exit code 15 where one of its modules has no signature, 13 where one of that name exists and
    /// is wrong; as [`attach`].
    pub fn sign(
        &self,
        set: &ModuleSet,
        certificate: &Certificate,
        store: &Store,
    ) -> Result<ModuleSet, Failure> {
        let find = |module: &ModuleEntry| {
            let image = store.read_blob(&module.sha256)?;
            self.over(module, &image, certificate).cloned()
        };
        let messages = set.modules.iter().map(find).collect::<Result<Vec<_>, Failure>>()?;
        attach(set, certificate, &messages, store)
    }

    fn over(
        &self,
        module: &ModuleEntry,
        image: &[u8],
        certificate: &Certificate,
    ) -> Result<&Message, Failure> {
        let mut digests: BTreeMap<Hash, Vec<u8>> = BTreeMap::new();
        let mut of_that_name = None;
        for (path, message) in &self.files {
            let verified = message.as_ref().map_err(Clone::clone).and_then(|message| {
                let hash = message.hash();
                let digest = digests.entry(hash).or_insert_with(|| hash.digest(image));
                message.verify_digest(digest, certificate).map(|()| message)
            });
            match verified {
                Ok(message) => return Ok(message),
                Err(why) if is_for(path, &module.file) => {
                    of_that_name.get_or_insert((path, why));
                }
                Err(_) => {}
            }
        }
        Err(self.none_over(module, of_that_name))
    }

    fn none_over(&self, module: &ModuleEntry, named: Option<(&PathBuf, NotASignature)>) -> Failure {
        let (file, sha256) = (&module.file, &module.sha256);
        let remedy = "sign what `longshore sign-modules --export DIR` writes of this very set: \
                      openssl cms -sign -binary -noattr -nocerts -outform DER, or sign-file -d";
        if let Some((path, why)) = named {
            let cause = format!("{} does not sign {file} (sha256 {sha256})", path.display());
            return Failure::new(FailureKind::Verification, cause).with_source(why).remedy(remedy);
        }
        let cause = format!(
            "none of the {} signatures in {} is over {file} (sha256 {sha256})",
            self.files.len(),
            self.dir.display()
        );
        Failure::new(FailureKind::Preflight, cause).remedy(remedy)
    }
}

fn is_for(path: &Path, module: &str) -> bool {
    path.file_stem().is_some_and(|stem| stem == module)
}

fn find(dir: &Path, depth: usize, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if path.is_dir() && depth > 1 {
            find(&path, depth - 1, paths)?;
        } else if path.is_file() && path.extension().is_some_and(|e| e == SUFFIX) {
            paths.push(path);
        }
        if paths.len() > MOST {
            return Err(io::Error::other(format!("it holds more than {MOST} signatures")));
        }
    }
    Ok(())
}

/// Writes the modules of `set` to `dir/SET/` for signing elsewhere; returns that directory.
///
/// # Errors
/// Exit code 13 for a damaged module; 2 where the directory cannot be written.
pub fn export(set: &ModuleSet, store: &Store, dir: &Path) -> Result<PathBuf, Failure> {
    let target = dir.join(set.key.file_stem());
    let write = |path: &Path, bytes: &[u8]| {
        store
            .disk()
            .write_atomically(path, bytes)
            .or_fail(FailureKind::Usage, || format!("writing {}", path.display()))
            .map_err(|failure| failure.remedy("name a directory (--export) that can be written"))
    };
    fs::create_dir_all(&target)
        .or_fail(FailureKind::Usage, || format!("making {}", target.display()))
        .map_err(|failure| failure.remedy("name a directory (--export) that can be written"))?;
    for module in &set.modules {
        write(&target.join(&module.file), &store.read_blob(&module.sha256)?)?;
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module_signing::certificate::tests::certificate;
    use crate::signed_sets::tests::stored_set;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const MESSAGE: &[u8] = include_bytes!("../module_signing/testdata/sign-file.p7s");

    fn pile(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Pile) {
        let dir = tempfile::tempdir().expect("dir");
        for (path, bytes) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("dir");
            fs::write(path, bytes).expect("write");
        }
        let pile = Pile::read(dir.path()).expect("reads");
        (dir, pile)
    }

    #[test]
    fn a_signature_is_found_by_what_it_is_over() {
        let (_dir, store, set) = stored_set();
        let (_files, pile) = pile(&[
            ("a/nvidia.ko.p7s", b"of another kernel, and damaged"),
            ("b/anything.p7s", MESSAGE),
            ("c/README", b"no signature"),
        ]);
        let signed = pile.sign(&set, &certificate(), &store).expect("signs");
        assert_eq!(signed.key.unsigned(), set.key);
    }

    #[rstest]
    #[case::none(&[], ExitCode::Preflight, "none of the 0 signatures")]
    #[case::hidden(&[("..data/nvidia.ko.p7s", MESSAGE)], ExitCode::Preflight, "none of the 0")]
    #[case::damaged(&[("nvidia.ko.p7s", b"x".as_slice())], ExitCode::Verification, "not a PKCS#7 message")]
    #[case::of_another(
        &[("nvidia.ko.p7s", include_bytes!("../module_signing/testdata/ec.p7s").as_slice())],
        ExitCode::Verification,
        "the certificate is of Example: Module signing"
    )]
    fn without_one_it_says_why(
        #[case] files: &[(&str, &[u8])],
        #[case] code: ExitCode,
        #[case] wanted: &str,
    ) {
        let (_dir, store, set) = stored_set();
        let (_files, pile) = pile(files);
        let failure = pile.sign(&set, &certificate(), &store).expect_err("refused");
        assert_eq!(failure.code(), code, "{}", failure.one_line());
        assert!(failure.one_line().contains(wanted), "{}", failure.one_line());
        assert!(failure.report().contains("--export"), "{}", failure.report());
    }

    #[test]
    fn what_is_exported_is_what_is_to_be_signed() {
        let (_dir, store, set) = stored_set();
        let out = tempfile::tempdir().expect("dir");
        let dir = export(&set, &store, out.path()).expect("exports");
        assert_eq!(
            fs::read(dir.join("nvidia.ko")).expect("there"),
            include_bytes!("../module_signing/testdata/module")
        );
        fs::write(dir.join("nvidia.ko.p7s"), MESSAGE).expect("write");
        Pile::read(out.path()).expect("reads").sign(&set, &certificate(), &store).expect("signs");
    }
}
