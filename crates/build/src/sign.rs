//! Signs a built set with the kernel's own sign-file, in the sandbox.
//!
//! sign-file comes with the kernel's headers, in Debian with its kbuild package, and is unpacked with
//! the libraries it needs (libcrypto) into a root of its own, ten packages small. The secret key's own file is
//! bind-mounted read-only into the sandbox, which has its own mount namespace and no network;
//! sign-file stays root, to read the key, and has no other capability than that. The key is never
//! copied, and its passphrase (KBUILD_SIGN_PIN) is passed in the environment alone. The output is
//! detached signatures, which are verified with the certificate before they are appended.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::outputs::OutputDir;
use super::sandbox::{self, Bind, Bound, Outcome, Spec};
use super::{build_lock, root};
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::{Progress, Unit};
use longshore_core::scratch::claim;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout::MAX_MODULE;
use longshore_modules::module_signing::{Certificate, Hash, Message};
use longshore_modules::signed_sets;
use longshore_sources::headers::{self, InArchive};

/// The environment variable with the key's passphrase for sign-file.
pub(crate) const PASSPHRASE: &str = "KBUILD_SIGN_PIN";
/// Name of the key's file inside.
const KEY: &str = "key.pem";
const CERTIFICATE: &str = "certificate.der";
/// Bound of the modules and their signatures: ten of the largest size that is read.
const BOUND: Bound = Bound { bytes: 10 * MAX_MODULE, entries: 100 };
/// Maximum number of sign-file's output lines in a failure.
const LINES: usize = 6;
/// Maximum size of a signature: some 700 bytes; a few kB with a chain of certificates.
const MOST_SIGNATURE: u64 = 1 << 20;

/// Signer of modules with the kernel's sign-file.
#[derive(Debug, Clone)]
pub struct SignFile {
    /// The sandbox's helper, as in [`super::Request`].
    pub helper: PathBuf,
    /// The secret key: PEM, PKCS#8 or PKCS#1.
    pub key: PathBuf,
    /// Its certificate.
    pub certificate: Certificate,
    /// The hash to sign; None takes that of the kernel's own modules.
    pub hash: Option<Hash>,
    /// Time limit for signing a module, and for waiting on another process that signs the same set.
    pub limit: Duration,
}

impl SignFile {
    /// Reads the certificate and checks that the key can be read.
    ///
    /// # Errors
    /// Exit code 2 where either cannot.
    pub fn new(key: &Path, certificate: &Path, hash: Option<Hash>) -> Result<Self, Failure> {
        let certificate = Certificate::read(certificate)?;
        File::open(key)
            .or_fail(FailureKind::Usage, || format!("reading the key {}", key.display()))
            .map_err(|f| f.remedy("give the secret key that modules are signed with (PEM)"))?;
        let helper = PathBuf::from("/proc/self/exe");
        Ok(Self { helper, key: key.to_path_buf(), certificate, hash, limit: super::LIMIT })
    }

    /// Signs `set`, or returns the store's signed set of the same.
    ///
    /// # Errors
    /// Exit code 2 for a key that sign-file cannot use, or that is not the certificate's; 11 where
    /// there is no sign-file; 12 and 13 for its packages; 15 where the store cannot be written.
    pub async fn sign(
        &self,
        set: &ModuleSet,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failure> {
        let there = || signed_sets::stored(set, &self.certificate, self.hash, store);
        if let Some(signed) = there()? {
            return Ok(signed);
        }
        let what = format!("signing {}", set.key.file_stem());
        let lock = store.dir("sets").join(format!(".{}-signed.lock", set.key.file_stem()));
        let _lock = build_lock::take(&lock, self.limit, &what, progress).await?;
        if let Some(signed) = there()? {
            return Ok(signed);
        }
        let key = &set.key;
        let (headers, packages) = needed(archive, &key.kernel_release, key.kernel_build())?;
        let hash = match self.hash {
            Some(hash) => hash,
            None => kernels_hash(&headers, archive, store, progress).await?,
        };
        let root = root::assemble(&packages, self.limit, archive, store, progress).await?;
        self.sign_in(&root, set, hash, store, progress).await
    }

    /// Signs `set` with the sign-file in `root`.
    ///
    /// # Errors
    /// As [`SignFile::sign`].
    pub(crate) async fn sign_in(
        &self,
        root: &Path,
        set: &ModuleSet,
        hash: Hash,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failure> {
        let program = find_sign_file(root)?;
        let work = Arc::new(claim(store, "sign")?);
        let dir = work.path().join("build");
        let written = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            fs::write(&path, bytes).map_err(|e| write_failure(&path, e))
        };
        fs::create_dir(&dir).map_err(|e| write_failure(&dir, e))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))
            .map_err(|e| write_failure(&dir, e))?;
        // Mount point of the key.
        written(KEY, b"")?;
        written(CERTIFICATE, self.certificate.der())?;
        let task =
            progress.begin("signing the modules", Some(set.modules.len() as u64), Unit::Items);
        let mut messages = Vec::new();
        for module in &set.modules {
            task.note(&module.file);
            written(&module.file, &store.read_blob(&module.sha256)?)?;
            let spec = self.spec(root, &program, &dir, &module.file, hash);
            self.run(Spec { held: Some(Arc::clone(&work) as _), ..spec }).await?;
            let name = format!("{}.p7s", module.file);
            let bytes = OutputDir::open(&dir)
                .and_then(|left| left.read(&name, MOST_SIGNATURE))
                .or_fail(FailureKind::Bug, || format!("reading {}", dir.join(&name).display()))?;
            let message = Message::parse(&bytes).or_fail(FailureKind::Bug, || {
                format!("reading sign-file's output for {}", module.file)
            })?;
            messages.push(message);
            task.advance(1);
        }
        let signed = signed_sets::attach(set, &self.certificate, &messages, store);
        if let Some(work) = Arc::into_inner(work) {
            work.close().map_err(|e| write_failure(&dir, e))?;
        }
        signed
    }

    fn spec(&self, root: &Path, program: &str, dir: &Path, file: &str, hash: Hash) -> Spec {
        let inside = |name: &str| format!("/build/{name}");
        Spec {
            root: root.to_path_buf(),
            binds: vec![Bind::new(dir, "/build"), Bind::read_only(&self.key, inside(KEY))],
            command: [program, "-d", &hash.to_string(), &inside(KEY), &inside(CERTIFICATE)]
                .map(str::to_owned)
                .into_iter()
                .chain([inside(file)])
                .collect(),
            environment: vec![("LC_ALL".into(), "C".into()), ("HOME".into(), "/build".into())],
            handed_on: vec![PASSPHRASE.to_owned()],
            directory: "/build".into(),
            // The key is readable by its owner only, and that is the agent's user.
            user: None,
            bound: BOUND,
            outcome: dir.with_extension(file),
            held: None,
        }
    }

    async fn run(&self, spec: Spec) -> Result<(), Failure> {
        let mut said: Vec<String> = Vec::new();
        let mut note = |line: &str| {
            if said.len() < LINES {
                said.push(line.trim().to_owned());
            }
        };
        match sandbox::run(&self.helper, &spec, self.limit, &mut note).await? {
            Outcome::Exited(0) => Ok(()),
            Outcome::TimedOut => {
                let (key, s) = (self.key.display(), self.limit.as_secs_f64());
                let cause = format!("signing with the key {key} did not end within {s} s");
                Err(Failure::new(FailureKind::Usage, cause)
                    .remedy("see if sign-file waits for a smart card, or raise build-deadline"))
            }
            outcome => Err(self.refused(outcome, &said)),
        }
    }

    fn refused(&self, outcome: Outcome, said: &[String]) -> Failure {
        let cause = format!("signing with the key {}: {outcome:?}", self.key.display());
        Failure::new(FailureKind::Usage, cause).with_source(said.join("; ")).remedy(format!(
            "give the key as PEM (PKCS#8 or PKCS#1), its passphrase, where it has one, in \
             {PASSPHRASE}, and the certificate that belongs to it"
        ))
    }
}

/// Returns the hash of the kernel's own modules, which the kernel is sure to support; sha512 if
/// that is unknown.
async fn kernels_hash(
    headers: &InArchive,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Hash, Failure> {
    archive.fetch(std::slice::from_ref(&headers.package), store, progress).await?;
    let stated = headers::signature_hash(headers, store)?;
    Ok(stated.and_then(|hash| hash.parse().ok()).unwrap_or(Hash::Sha512))
}

/// Checks that the archives have a kernel's sign-file with its libraries; `version` is `uname -v`, None takes the
/// newest build. Fetches nothing: a package that lacks the program is found only when it is unpacked.
///
/// # Errors
/// Exit code 11 where they do not.
pub fn check_archive(
    archive: &Archive,
    release: &str,
    version: Option<&str>,
) -> Result<(), Failure> {
    needed(archive, release, version).map(drop)
}

/// Returns a kernel's headers, and the packages with sign-file and its libraries.
fn needed(
    archive: &Archive,
    release: &str,
    version: Option<&str>,
) -> Result<(InArchive, Vec<Package>), Failure> {
    let found = headers::find_in_archive(archive, release, version)
        .and_then(|headers| headers::programs(archive, &headers).map(|found| (headers, found)));
    found.map_err(|failure| {
        let cause = format!("no sign-file for {release}: {}", failure.one_line());
        let remedy = format!("add an archive that has the package, or {ELSEWHERE}");
        archive.with_unread(Failure::new(failure.kind(), cause).remedy(remedy))
    })
}

const ELSEWHERE: &str = "sign the modules elsewhere and give the signatures (--module-signatures)";

/// Returns sign-file's path inside `root`.
fn find_sign_file(root: &Path) -> Result<String, Failure> {
    for (dir, prefix) in [("usr/lib", "linux-kbuild-"), ("usr/src", "linux-")] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let program = format!("{dir}/{name}/scripts/sign-file");
            if name.starts_with(prefix) && root.join(&program).is_file() {
                return Ok(format!("/{program}"));
            }
        }
    }
    let cause = format!("the kernel's headers have no sign-file ({})", root.display());
    Err(Failure::new(FailureKind::Toolchain, cause).remedy(ELSEWHERE))
}
