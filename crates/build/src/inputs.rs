//! Inputs of a build, resolved from the archive before anything is unpacked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::build_root::{self, BuildRoot, KEYED};
use super::core_objects;
use super::failure_cache::Attempt;
use super::mofed::Mofed;
use super::patches::{self, Applied, Patch};
use super::root::Parts;
use super::{Request, wanted_modules};
use longshore_core::digest::hex;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::progress::Progress;
use longshore_core::root::Root;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::{
    BuildRecord, HeadersFrom, InputPackage, ModuleKey, ModuleSet, PACKAGING_PATCHES,
};
use longshore_modules::sets::SetStore;
use longshore_modules::sets::core_objects::StoredCore;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::driver_source::DriverSource;
use longshore_sources::headers::{self, Headers, Wanted};
use longshore_sources::packaging_patches::PackagingPatches;

/// The module that is compiled against MOFED's headers, as the sources name it.
const PEERMEM: &str = "nvidia-peermem";

/// The inputs of one build.
pub(super) struct Inputs {
    /// Source of the driver's kernel sources.
    pub(super) driver: DriverSource,
    /// The kernel's headers, and the packages of the build root.
    pub(super) headers: Headers,
    /// Digests of the headers, by package or tree.
    header_digests: BTreeMap<String, String>,
    /// MOFED's headers for nvidia_peermem.
    mofed: Option<Mofed>,
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
    /// Resolves all inputs; fetches only the headers package, which states the exact kernel and
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
        let (places, available) = (&request.headers, request.available_headers.as_ref());
        let given = request.build_root.as_ref();
        let headers = match given {
            Some(root) => build_root::headers(root, wanted)?,
            None => headers::find(wanted, places, available, archive, store, progress).await?,
        };
        for why in &headers.passed_over {
            tracing::info!("not used for headers: {why}");
        }
        Ok(Self {
            driver,
            options: options(
                headers.stated.realtime,
                given.is_some_and(|root| is_llvm(root, &headers)),
            ),
            header_digests: digests(&headers, given).await?,
            // A given root is used as it is, and shared with builds without MOFED.
            mofed: request.mofed.clone().filter(|_| modules.contains(&PEERMEM) && given.is_none()),
            modules,
            candidates,
            headers,
            driver_version,
            flavour,
        })
    }

    /// Returns the contents of the build root.
    pub(super) fn root_parts(&self) -> Parts {
        Parts {
            packages: self.headers.toolchain.clone(),
            trees: self.headers.trees.clone(),
            header_digests: self.header_digests.clone(),
            mofed: self.mofed.clone(),
        }
    }

    /// Returns the origin of the headers: no archive signed MOFED's.
    pub(super) fn headers_from(&self) -> HeadersFrom {
        match (self.headers.from, &self.mofed) {
            (HeadersFrom::Archive, Some(_)) => HeadersFrom::Host,
            (from, _) => from,
        }
    }

    fn keyed_headers(&self) -> BTreeMap<String, String> {
        let mofed = self.mofed.iter().map(Mofed::keyed);
        self.header_digests.clone().into_iter().chain(mofed).collect()
    }

    /// Returns the key of the set that `compiler` builds of this with the patches `applied`.
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
            headers: self.keyed_headers(),
            compiler,
            options,
            patches: applied,
            signed_by: None,
        }
    }

    /// Returns the record of the compile of `set` that began at `started` and ended now, with the packages that its core
    /// objects were compiled with: of those that were pulled, the manifest stands for them.
    pub(super) fn record(
        &self,
        set: &ModuleSet,
        core: Option<&StoredCore>,
        started: Timestamp,
    ) -> BuildRecord {
        let mut packages: Vec<_> = self.headers.toolchain.iter().map(core_objects::input).collect();
        let compiled = core.filter(|core| core.pulled.is_none());
        let of_core = compiled.map(|core| core.record.packages.as_slice()).unwrap_or_default();
        let is_new = |package: &&InputPackage| !packages.contains(package);
        let more: Vec<_> = of_core.iter().filter(is_new).cloned().collect();
        packages.extend(more);
        let is_compiler = |package: &&InputPackage| package.name == self.headers.compiler;
        let compiler = packages.iter().find(is_compiler).map(|package| package.name.clone());
        BuildRecord {
            modules: set.modules.iter().map(|module| module.sha256.clone()).collect(),
            driver: self.driver.describe(),
            compiler: compiler.unwrap_or_default(),
            packages,
            core: core.map(StoredCore::input),
            longshore: env!("CARGO_PKG_VERSION").to_owned(),
            started: in_seconds(started),
            finished: in_seconds(Timestamp::now()),
        }
    }

    /// Digest of everything that decides which candidates are applied.
    pub(super) fn patch_question(&self) -> String {
        let key = self.key(String::new(), patches::named(&self.candidates));
        let about = self.candidates.iter().map(|p| format!("{:?}", p.about));
        let sources = (&key.driver_digest, key.flavour);
        let asked = (sources, &key.headers, &key.patches, about.collect::<Vec<_>>());
        // Strings, maps and lists of strings always serialize.
        hex(&Sha256::digest(serde_json::to_vec(&asked).unwrap_or_default()))
    }

    /// Returns the patches that are applied, where the store knows them without unpacking.
    pub(super) fn applied(&self, store: &Store) -> Option<Applied> {
        let mut applied = match self.packaging_question() {
            Some(question) => patches::memory::recall(store, &question)?,
            None => Applied::new(),
        };
        if !self.candidates.is_empty() {
            applied.extend(patches::memory::recall(store, &self.patch_question())?);
        }
        Some(applied)
    }

    /// Remembers the patches that were `selected` for these inputs, and those of the driver's package; returns all
    /// of them as they stand in the set's key.
    pub(super) fn remember_patches(
        &self,
        selected: &[Patch],
        packaging: Option<&PackagingPatches>,
        store: &Store,
    ) -> Result<Applied, Failure> {
        let selected = patches::named(selected);
        if !self.candidates.is_empty() {
            patches::memory::keep(store, &self.patch_question(), &selected)?;
        }
        let packaging = packaging.map(|own| (PACKAGING_PATCHES.to_owned(), own.sha256.clone()));
        let packaging: Applied = packaging.into_iter().collect();
        if let Some(question) = self.packaging_question() {
            patches::memory::keep(store, &question, &packaging)?;
        }
        Ok(packaging.into_iter().chain(selected).collect())
    }

    /// Returns the name under which the patches of the driver's package are remembered; a .run file has none.
    fn packaging_question(&self) -> Option<String> {
        self.driver.package().map(|package| format!("package-{}", package.sha256))
    }

    /// Returns the identity under which a failure of this build is remembered, the same on every
    /// host. The compiler counts by its packages, so that it need not run, and the patches by
    /// everything that decides on them, so that nothing need be unpacked.
    pub(super) fn attempt(&self, request: &Request) -> Attempt {
        let packages: BTreeSet<&str> =
            self.headers.toolchain.iter().map(|p| p.sha256.as_str()).collect();
        // Another version of longshore may succeed where this one failed, and so may one that applies the patches of
        // the driver's package where an earlier one of the same version did not.
        let made_by = concat!("longshore ", env!("CARGO_PKG_VERSION"), " packaging-patches");
        let packages = packages.into_iter().collect::<Vec<_>>().join(" ");
        let key = self.key(format!("{made_by} {packages}"), Applied::new());
        let all = format!("{} {}", key.digest(), self.patch_question());
        let inputs = hex(&Sha256::digest(all));
        Attempt { tag: key.tag(), inputs, jobs: request.jobs(), limit: request.limit }
    }

    /// Returns the digest (hex) of everything that the outcome of this build depends on: the inputs, and the sources
    /// of longshore that decide how they are compiled (build.rs).
    pub(super) fn identity(&self, request: &Request) -> String {
        let sources = env!("LONGSHORE_BUILD_SOURCES");
        hex(&Sha256::digest(format!("{sources} {}", self.attempt(request).inputs)))
    }

    /// Returns the store's set of exactly this, where its patches are known. The compiler has not
    /// been queried for its version yet, but distributions include the version of its package in
    /// it.
    pub(super) fn stored(
        &self,
        request: &Request,
        store: &Store,
    ) -> Result<Option<ModuleSet>, Failure> {
        let Some(applied) = self.applied(store) else { return Ok(None) };
        let compiler = self.headers.toolchain.iter().find(|p| p.name == self.headers.compiler);
        let version = compiler.map(|p| format!(" {})", p.version)).unwrap_or_default();
        let is_this = |set: &ModuleSet| {
            set.key.compiler.contains(&version)
                && set.key == self.key(set.key.compiler.clone(), applied.clone())
                && request.accepts(set, store)
        };
        Ok(store.sets()?.into_iter().find(|set| is_this(set) && store.holds(set)))
    }

    /// Human-readable name of the set.
    pub(super) fn tag(&self) -> String {
        self.key(String::new(), Applied::new()).tag()
    }

    /// Path of the lock file shared by builds of the same inputs.
    pub(super) fn lock_path(&self, store: &Store) -> PathBuf {
        let key = self.key(String::new(), patches::named(&self.candidates));
        let digest = hex(&Sha256::digest(key.digest()));
        store.dir("sets").join(format!(".{}-{}.lock", key.tag(), &digest[..12]))
    }
}

/// Returns a time by RFC 3339, in whole seconds, as SPDX demands.
fn in_seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// True if a kernel was built with clang and lld, and a build root has both: then make takes all of LLVM's tools
/// (Documentation/kbuild/llvm.rst).
fn is_llvm(root: &BuildRoot, headers: &Headers) -> bool {
    let has_lld =
        || Root::open(&root.path).is_ok_and(|r| r.exists("usr/bin/ld.lld").unwrap_or(false));
    headers.stated.compiler.contains("clang") && has_lld()
}

/// Digests of the headers: of their packages, of the trees that they are, or of the build root that has them.
async fn digests(
    headers: &Headers,
    given: Option<&BuildRoot>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut digests: BTreeMap<String, String> = headers
        .parts
        .iter()
        .map(|p| (format!("{}_{}_{}", p.name, p.version, p.arch), p.sha256.clone()))
        .collect();
    if let Some(trees) = headers.trees.clone() {
        let what = || format!("reading the headers of {}", headers.release);
        let hashed = tokio::task::spawn_blocking(move || trees.digests()).await;
        let hashed =
            hashed.or_fail(FailureKind::Bug, what)?.or_fail(FailureKind::Toolchain, what)?;
        digests.extend(hashed);
    }
    digests.extend(given.map(|root| (KEYED.to_owned(), root.digest.clone())));
    Ok(digests)
}

/// Arguments for make beyond the target and the kernel's directories.
fn options(realtime: bool, llvm: bool) -> Vec<String> {
    let mut options = vec![
        // Debug information costs a fifth of the compile time and is stripped afterwards.
        "KCFLAGS=-g0".to_owned(),
        // BTF is generated from that debug information.
        "CONFIG_DEBUG_INFO_BTF_MODULES=".to_owned(),
    ];
    if realtime {
        options.push("IGNORE_PREEMPT_RT_PRESENCE=1".to_owned());
    }
    if llvm {
        options.push("LLVM=1".to_owned());
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn times_are_whole_seconds_in_utc() {
        let time = Timestamp::from_millisecond(1_795_183_385_678).expect("a time");
        assert_eq!(in_seconds(time), "2026-11-20T14:03:05Z");
    }

    #[rstest]
    #[case("PREEMPT_RT", false, false, 0)]
    #[case("PREEMPT_RT", true, false, 1)]
    #[case("LLVM", false, false, 0)]
    #[case("LLVM", false, true, 1)]
    fn options_are_for_the_kernels_that_need_them(
        #[case] option: &str,
        #[case] realtime: bool,
        #[case] llvm: bool,
        #[case] wanted: usize,
    ) {
        let count = options(realtime, llvm).iter().filter(|o| o.contains(option)).count();
        assert_eq!(count, wanted);
    }
}
