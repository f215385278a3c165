//! Sets whose modules are signed for the kernel: made of unsigned ones, found in the store.

pub mod detached;

use crate::artifact::{ModuleEntry, ModuleKey, ModuleSet};
use crate::module_signing::{Certificate, Hash, Message, SignedBy, appended};
use crate::sets::SetStore;
use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;

/// Returns the store's copy of `set` signed by the owner of `certificate`, with `hash` if given.
///
/// # Errors
/// As [`Store::sets`].
pub fn stored(
    set: &ModuleSet,
    certificate: &Certificate,
    hash: Option<Hash>,
    store: &Store,
) -> Result<Option<ModuleSet>, Failure> {
    let fingerprint = certificate.fingerprint();
    let is_it = |candidate: &ModuleSet| {
        let Some(by) = &candidate.key.signed_by else { return false };
        by.certificate == fingerprint
            && hash.is_none_or(|hash| hash == by.hash)
            && candidate.key.unsigned() == set.key
    };
    Ok(store.sets()?.into_iter().find(|candidate| is_it(candidate) && store.holds(candidate)))
}

/// Returns the store's unsigned set that `signed` was made from: the same modules, byte for byte,
/// except for the appended signatures. None where the store lacks it, or the modules differ.
///
/// # Errors
/// As [`Store::sets`].
pub fn made_of(signed: &ModuleSet, store: &Store) -> Result<Option<ModuleSet>, Failure> {
    let unsigned = signed.key.unsigned();
    let Some(set) = store.sets()?.into_iter().find(|set| set.key == unsigned) else {
        return Ok(None);
    };
    let is_of = |(module, of): (&ModuleEntry, &ModuleEntry)| {
        let image = store.read_blob(&module.sha256).ok();
        let content = image.as_deref().and_then(|image| Some(appended::split(image).ok()?.0));
        let digest = content.map(|content| hex(&Hash::Sha256.digest(content)));
        module.file == of.file && digest.as_deref() == Some(of.sha256.as_str())
    };
    let same = signed.modules.len() == set.modules.len()
        && signed.modules.iter().zip(&set.modules).all(is_of);
    Ok(same.then_some(set))
}

/// Appends signatures, one for each module of `set` in its order, and stores the signed set.
///
/// # Errors
/// Exit code 13 where one is not a signature of the certificate's owner over exactly that module; 2
/// for a set that is signed already; 15 where the store cannot be written.
pub fn attach(
    set: &ModuleSet,
    certificate: &Certificate,
    messages: &[Message],
    store: &Store,
) -> Result<ModuleSet, Failure> {
    let name = set.key.file_stem();
    if set.key.signed_by.is_some() {
        let cause = format!("the set {name} is signed already");
        return Err(Failure::new(FailureKind::Usage, cause).remedy("sign the set it was made from"));
    }
    let first = messages.first().filter(|_| messages.len() == set.modules.len());
    let first = first.ok_or_else(|| {
        Failure::new(FailureKind::Bug, format!("{} signatures for the set {name}", messages.len()))
    })?;
    let mut modules = Vec::new();
    for (module, message) in set.modules.iter().zip(messages) {
        let what = || format!("signing {} of the set {name}", module.file);
        let image = store.read_blob(&module.sha256)?;
        message.verify(&image, certificate).or_fail(FailureKind::Verification, what)?;
        if message.hash() != first.hash() {
            let cause = format!("{} and {}", first.hash(), message.hash());
            return Err(Failure::new(FailureKind::Verification, what())
                .with_source(format!("the signatures are over different hashes: {cause}"))
                .remedy("sign all modules of a set with one hash"));
        }
        let signed = appended::append(&image, message.der());
        let release = &set.key.kernel_release;
        let entry = ModuleEntry::describe(&module.file, &signed, release)
            .or_fail(FailureKind::Verification, what)?;
        store.put(&signed)?;
        modules.push(entry);
    }
    let signed_by = SignedBy {
        certificate: certificate.fingerprint(),
        name: certificate.name(),
        key_ids: first.key_ids(certificate),
        hash: first.hash(),
    };
    let key = ModuleKey { signed_by: Some(signed_by), ..set.key.clone() };
    let signed = ModuleSet { key, modules, headers_from: set.headers_from };
    store.put_set(&signed)?;
    Ok(signed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module_signing::certificate::tests::certificate;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;

    const MODULE: &[u8] = include_bytes!("../module_signing/testdata/module");
    const SIGNED: &[u8] = include_bytes!("../module_signing/testdata/module.signed");
    const MESSAGE: &[u8] = include_bytes!("../module_signing/testdata/sign-file.p7s");

    /// A store with an unsigned set of the test data's module.
    pub(super) fn stored_set() -> (tempfile::TempDir, Store, ModuleSet) {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let mut set = crate::testing::set();
        set.key.kernel_release = "6.1.0-50-amd64".into();
        store.put(MODULE).expect("put");
        let entry = ModuleEntry::describe("nvidia.ko", MODULE, "6.1.0-50-amd64").expect("module");
        set.modules = vec![entry];
        store.put_set(&set).expect("put_set");
        (dir, store, set)
    }

    #[test]
    fn a_signed_set_is_another_and_holds_what_sign_file_writes() {
        let (_dir, store, set) = stored_set();
        let message = Message::parse(MESSAGE).expect("a message");
        assert_eq!(stored(&set, &certificate(), None, &store).expect("looks"), None);
        let signed = attach(&set, &certificate(), &[message], &store).expect("attaches");
        assert_ne!(signed.key.digest(), set.key.digest());
        assert_eq!(signed.key.unsigned(), set.key);
        assert_eq!(store.read_blob(&signed.modules[0].sha256).expect("there"), SIGNED);
        assert_eq!(store.sets().expect("sets").len(), 2, "the unsigned one is still there");
        let found = |hash| stored(&set, &certificate(), hash, &store).expect("looks");
        assert_eq!(found(None), Some(signed.clone()));
        assert_eq!(found(Some(Hash::Sha512)), Some(signed.clone()));
        assert_eq!(found(Some(Hash::Sha256)), None);
        let again = attach(&signed, &certificate(), &[], &store).expect_err("signed already");
        assert_eq!(again.code(), ExitCode::Usage);
    }

    #[test]
    fn a_signature_over_something_else_makes_no_set() {
        let (_dir, store, mut set) = stored_set();
        let mut other = MODULE.to_vec();
        other.push(0);
        set.modules[0] =
            ModuleEntry::describe("nvidia.ko", &other, "6.1.0-50-amd64").expect("module");
        store.put(&other).expect("put");
        let message = Message::parse(MESSAGE).expect("a message");
        let failure = attach(&set, &certificate(), &[message], &store).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.one_line().contains("over exactly this file"), "{}", failure.one_line());
        assert_eq!(store.sets().expect("sets").len(), 1);
    }
}
