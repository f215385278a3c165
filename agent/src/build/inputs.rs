//! Everything a build is made of, known from the archive before anything is unpacked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::patches::{self, Applied, Patch};
use super::remembered::Attempt;
use super::root::Parts;
use super::{Request, wanted_modules};
use crate::artifact::{ModuleKey, ModuleSet};
use crate::digest::hex;
use crate::failure::{ExitCode, Failure, OrFail};
use crate::flavour::Flavour;
use crate::progress::Progress;
use crate::source::archive::Archive;
use crate::source::driver::AvailableDriver;
use crate::source::driver_source::DriverSource;
use crate::source::headers::{self, Headers, Wanted};
use crate::store::Store;

/// The inputs of one build.
pub(super) struct Inputs {
    /// Where the driver's kernel sources are from.
    pub(super) driver: DriverSource,
    /// The kernel's headers, and what the root is made of.
    pub(super) headers: Headers,
    /// Digests of the headers, by package or tree.
    header_digests: BTreeMap<String, String>,
    /// Arguments for make that change the result.
    pub(super) options: Vec<String>,
    /// The modules to build, as the sources name them, in load order.
    pub(super) modules: Vec<&'static str>,
    /// The compatibility patches that may be applied.
    pub(super) candidates: Vec<Patch>,
    driver_version: String,
    flavour: Flavour,
}

impl Inputs {
    /// Looks everything up; fetches the headers package alone, which says exactly which kernel and
    /// compiler it belongs to.
    pub(super) async fn resolve(
        request: &Request,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Self, Failure> {
        let modules = wanted_modules(&request.modules)?;
        let AvailableDriver { version: driver_version, flavour, .. } = request.driver.clone();
        let candidates = patches::candidates(&request.patches, &driver_version, flavour)?;
        let driver = DriverSource::locate(&request.driver, archive, store)?;
        let version = request.kernel_version.as_deref();
        let wanted = Wanted { release: &request.kernel_release, version };
        let headers = headers::find(wanted, &request.headers, archive, store, progress).await?;
        for why in &headers.passed_over {
            tracing::info!("passed over for headers: {why}");
        }
        Ok(Self {
            driver,
            options: options(headers.stated.realtime),
            header_digests: digests(&headers).await?,
            modules,
            candidates,
            headers,
            driver_version,
            flavour,
        })
    }

    /// What the build root is made of.
    pub(super) fn root_parts(&self) -> Parts {
        Parts {
            packages: self.headers.toolchain.clone(),
            trees: self.headers.trees.clone(),
            header_digests: self.header_digests.clone(),
        }
    }

    /// The key of the set that `compiler` makes of this with the patches `applied`.
    pub(super) fn key(&self, compiler: String, applied: Applied) -> ModuleKey {
        let mut options = self.options.clone();
        options.push("strip=debug".to_owned());
        options.push(format!("modules={}", self.modules.join(",")));
        ModuleKey {
            driver_version: self.driver_version.clone(),
            flavour: self.flavour,
            driver_digest: self.driver.sha256().to_owned(),
            kernel_release: self.headers.release.clone(),
            kernel_version: self.headers.stated.kernel_version.clone(),
            arch: std::env::consts::ARCH.to_owned(),
            headers: self.header_digests.clone(),
            compiler,
            options,
            patches: applied,
            signed_by: None,
        }
    }

    /// A digest of all that decides which of the candidates are applied.
    pub(super) fn patch_question(&self) -> String {
        let key = self.key(String::new(), patches::named(&self.candidates));
        let about = self.candidates.iter().map(|p| format!("{:?}", p.about));
        let sources = (&key.driver_digest, key.flavour);
        let asked = (sources, &key.headers, &key.patches, about.collect::<Vec<_>>());
        // Strings, maps and lists of strings always serialize.
        hex(&Sha256::digest(serde_json::to_vec(&asked).unwrap_or_default()))
    }

    /// The patches that are applied, as far as that is known without unpacking anything.
    pub(super) fn applied(&self, store: &Store) -> Option<Applied> {
        if self.candidates.is_empty() {
            return Some(Applied::new());
        }
        patches::memory::recall(store, &self.patch_question())
    }

    /// What a failure of this build is remembered by, on every host the same. The compiler counts by
    /// the packages it comes in, so that it needs not be asked, and the patches by what decides which of
    /// them are applied, so that nothing needs to be unpacked.
    pub(super) fn attempt(&self, request: &Request) -> Attempt {
        let packages: BTreeSet<&str> =
            self.headers.toolchain.iter().map(|p| p.sha256.as_str()).collect();
        // Another longshore may build what this one could not.
        let made_by = concat!("longshore ", env!("CARGO_PKG_VERSION"));
        let packages = packages.into_iter().collect::<Vec<_>>().join(" ");
        let key = self.key(format!("{made_by} {packages}"), Applied::new());
        let all = format!("{} {}", key.digest(), self.patch_question());
        let inputs = hex(&Sha256::digest(all));
        Attempt { tag: key.tag(), inputs, jobs: request.jobs(), limit: request.limit }
    }

    /// The set the store has of exactly this, where it is known which patches that takes. The
    /// compiler has not been asked its name yet, but distributions put the version of its package
    /// into it.
    pub(super) fn stored(&self, store: &Store) -> Result<Option<ModuleSet>, Failure> {
        let Some(applied) = self.applied(store) else { return Ok(None) };
        let compiler = self.headers.toolchain.iter().find(|p| p.name == self.headers.compiler);
        let version = compiler.map(|p| format!(" {})", p.version)).unwrap_or_default();
        let is_this = |set: &ModuleSet| {
            set.key.compiler.contains(&version)
                && set.key == self.key(set.key.compiler.clone(), applied.clone())
        };
        Ok(store.sets()?.into_iter().find(|set| is_this(set) && store.holds(set)))
    }

    /// What a person calls the set that this makes.
    pub(super) fn tag(&self) -> String {
        self.key(String::new(), Applied::new()).tag()
    }

    /// The lock file that two builds of the same inputs both want.
    pub(super) fn lock_path(&self, store: &Store) -> PathBuf {
        let key = self.key(String::new(), patches::named(&self.candidates));
        let digest = hex(&Sha256::digest(key.digest()));
        store.dir("sets").join(format!(".{}-{}.lock", key.tag(), &digest[..12]))
    }
}

/// Digests of the headers: of their packages, or of the trees that they are.
async fn digests(headers: &Headers) -> Result<BTreeMap<String, String>, Failure> {
    let packages = headers.toolchain.iter().filter(|p| headers::is_headers(p));
    let mut digests: BTreeMap<String, String> = packages
        .map(|p| (format!("{}_{}_{}", p.name, p.version, p.arch), p.sha256.clone()))
        .collect();
    if let Some(trees) = headers.trees.clone() {
        let what = || format!("reading the headers of {}", headers.release);
        let hashed = tokio::task::spawn_blocking(move || trees.digests()).await;
        let hashed = hashed.or_fail(ExitCode::Bug, what)?.or_fail(ExitCode::Toolchain, what)?;
        digests.extend(hashed);
    }
    Ok(digests)
}

/// What make is told beyond what to build and where the kernel lies.
fn options(realtime: bool) -> Vec<String> {
    let mut options = vec![
        // A fifth of the compile time goes into debug information that is stripped afterwards.
        "KCFLAGS=-g0".to_owned(),
        // BTF is made of that debug information.
        "CONFIG_DEBUG_INFO_BTF_MODULES=".to_owned(),
    ];
    if realtime {
        options.push("IGNORE_PREEMPT_RT_PRESENCE=1".to_owned());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(false, 0)]
    #[case(true, 1)]
    fn only_realtime_kernels_are_told_to_go_on(#[case] realtime: bool, #[case] wanted: usize) {
        let told = options(realtime).iter().filter(|o| o.contains("PREEMPT_RT")).count();
        assert_eq!(told, wanted);
    }
}
