//! Builds a driver's kernel modules: from its sources and a kernel's headers to a set in the store.
//!
//! Headers, compiler and tools come from the archive, matched to the kernel, and are unpacked into
//! a hermetic [`root`]; the compiler runs in there, in a [`sandbox`] without network, with the compatibility
//! [`patches`] that the kernel needs. The same inputs give the same set, which is built once.
//! longshore-sources has the inputs; [`builder`] names the builder in records.

mod build_lock;
pub mod build_root;
pub mod build_user;
pub mod builder;
#[cfg(test)]
mod closed_store;
pub mod compile;
mod core_objects;
pub mod diagnose;
mod driver_sources;
pub mod extract;
pub mod failure_cache;
mod inputs;
pub mod linking;
mod make_progress;
pub mod mofed;
mod outputs;
pub mod patches;
mod reuse;
mod revisions;
pub mod root;
pub mod sandbox;
pub mod shared_failure;
pub mod sign;
mod stored_inputs;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod user;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use build_root::{BuildRoot, Compiler, Run};
pub use build_user::BuildUser;
use compile::Compile;
pub use core_objects::CoreSource;
use core_objects::{Core, Tools};
use failure_cache::Attempt;
pub use failure_cache::failed_before;
use inputs::Inputs;
use jiff::Timestamp;
use longshore_core::driver_modules::{self, DriverModule};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Progress;
use longshore_core::space;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_modules::artifact::{ModuleKey, ModuleSet};
use longshore_modules::sets::SetStore;
use longshore_modules::sets::core_objects::StoredCore;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::headers::{self, AvailableHeaders, HeaderPlaces, Headers, KernelDirs};
use mofed::Mofed;
use patches::{Applied, Patch, PatchConfig};
pub use revisions::{build, predict_failure};
pub use shared_failure::KnownFailure;
use work::Work;

/// Default time limit for each program of a build, and for waiting on another process that builds
/// the same.
pub const LIMIT: Duration = Duration::from_secs(60 * 60);
/// Space a build needs on the store's disk: 0.7 GiB of sources, objects and modules (550 open), 0.4
/// GiB of packages and root, and as much again to be safe.
const SPACE: u64 = 2 << 30;

/// Request to build a set of modules.
#[derive(Debug, Clone)]
pub struct Request {
    /// The driver; a .run file is in the store already.
    pub driver: AvailableDriver,
    /// `uname -r` of the kernel.
    pub kernel_release: String,
    /// `uname -v` of the kernel; None takes the newest headers of the release.
    pub kernel_version: Option<String>,
    /// Modules beyond nvidia, nvidia_uvm and nvidia_modeset, in kernel names.
    pub modules: Vec<String>,
    /// Parallel jobs; all processors where None.
    pub jobs: Option<usize>,
    /// The user that compiles.
    pub user: BuildUser,
    /// Time limit of the compile.
    pub limit: Duration,
    /// Compatibility patches that may be applied.
    pub patches: PatchConfig,
    /// Locations searched for headers beside the archives.
    pub headers: HeaderPlaces,
    /// Build root that has headers and compiler; None takes them from those places and the archives.
    pub build_root: Option<BuildRoot>,
    /// Headers that the plan chose, where one was made.
    pub available_headers: Option<AvailableHeaders>,
    /// MOFED's headers for nvidia_peermem.
    pub mofed: Option<Mofed>,
    /// Compile even where the same inputs failed a short while ago.
    pub retry: bool,
    /// Use a stored set only where the record of its compile is beside it: for a set that is signed as
    /// compiled here.
    pub recorded: bool,
    /// Other places that have core objects of source trees; None compiles them here.
    pub core_source: Option<Arc<dyn CoreSource>>,
    /// The sandbox's helper: a program whose main function calls [`sandbox::sandbox_main`] for
    /// [`sandbox::SUBCOMMAND`] and [`sandbox::INIT_SUBCOMMAND`].
    pub helper: PathBuf,
}

impl Request {
    /// A request for the modules that are always built, with this program as helper.
    pub fn new(driver: AvailableDriver, kernel_release: impl Into<String>) -> Self {
        Self {
            driver,
            kernel_release: kernel_release.into(),
            kernel_version: None,
            modules: Vec::new(),
            jobs: None,
            user: BuildUser::default(),
            limit: LIMIT,
            patches: PatchConfig::default(),
            headers: HeaderPlaces::default(),
            build_root: None,
            available_headers: None,
            mofed: None,
            retry: false,
            recorded: false,
            core_source: None,
            helper: PathBuf::from("/proc/self/exe"),
        }
    }

    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// Failure of a build.
#[derive(Debug)]
pub struct Failed {
    /// The failure as it is reported.
    pub failure: Failure,
    /// The record for other hosts, where they would fail alike.
    pub known: Option<Box<KnownFailure>>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { failure, known: None }
    }
}

/// Builds the set from the driver that `request` names.
async fn build_from(
    request: &Request,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<ModuleSet, Failed> {
    let inputs = Inputs::resolve(request, archive, store, progress).await?;
    tracing::info!(inputs = inputs.identity(request), "building {}", inputs.tag());
    if let Some(set) = inputs.stored(request, store)? {
        return Ok(set);
    }
    let (path, what) = (inputs.lock_path(store), inputs.tag());
    let _lock = build_lock::take(&path, request.limit, &what, progress).await?;
    if let Some(set) = inputs.stored(request, store)? {
        return Ok(set);
    }
    let attempt = inputs.attempt(request);
    match request.retry {
        true => failure_cache::forget(store, &attempt),
        false => failure_cache::check(store, &attempt)?,
    }
    check_space(store)?;
    let driver: Vec<Package> = inputs.driver.package().cloned().into_iter().collect();
    let driver = archive.fetch(&driver, store, progress);
    let toolchain = inputs.toolchain(request, archive, store, progress);
    let (toolchain, ()) = futures_util::future::try_join(toolchain, driver).await?;
    let work = Work::new(store)?;
    let prepared = Prepared { inputs, attempt, work, toolchain };
    let set = prepared.compile(request, archive, store, progress).await?;
    prepared.work.remove();
    Ok(set)
}

/// Returns the digest (hex) of everything that the outcome of [`build`] depends on, and compiles nothing: the same
/// digest gives the same modules, or the same compile failure. Older revisions of the driver's package, which are tried
/// where this one does not compile, are not part of it.
///
/// # Errors
/// Exit code 11 without headers, 12 for downloads, 13 for damaged packages.
pub async fn identity(
    request: &Request,
    archive: &Archive,
    store: &Store,
    progress: &dyn Progress,
) -> Result<String, Failure> {
    Ok(Inputs::resolve(request, archive, store, progress).await?.identity(request))
}

/// Checks that NVIDIA's driver has these modules.
///
/// # Errors
/// Exit code 2 naming one that it has not.
pub fn check_modules(extra: &[impl AsRef<str>]) -> Result<(), Failure> {
    wanted_modules(extra).map(drop)
}

/// A compile with its inputs and directories ready.
struct Prepared {
    inputs: Inputs,
    attempt: Attempt,
    work: Work,
    toolchain: Toolchain,
}

/// A build root, and the compiler in it.
struct Toolchain {
    root: PathBuf,
    compiler: Compiler,
}

impl Inputs {
    /// Assembles the build root, unless one is given, and checks its compiler.
    async fn toolchain(
        &self,
        request: &Request,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Toolchain, Failure> {
        let (helper, user, stated) = (request.helper.as_path(), request.user, &self.headers.stated);
        if let Some(given) = &request.build_root {
            let run = Run { helper, store, user };
            let compiler = build_root::compiler_for(given, stated, &run).await?;
            return Ok(Toolchain { root: given.path.clone(), compiler });
        }
        let parts = self.root_parts();
        let root = root::assemble_parts(&parts, request.limit, archive, store, progress).await?;
        let program = self.headers.compiler_program(&root);
        let version = compile::compiler_version(helper, &root, store, &program, user).await?;
        headers::check_compiler(&stated.compiler, &version)?;
        Ok(Toolchain { root, compiler: Compiler { program, version } })
    }
}

impl Prepared {
    async fn compile(
        &self,
        request: &Request,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<ModuleSet, Failed> {
        let kernel_dirs = self.kernel_dirs(&request.kernel_release)?;
        let (selected, applied) = self.sources(request, &kernel_dirs, store).await?;
        let key = self.inputs.key(self.toolchain.compiler.version.clone(), applied);
        if let Some(set) = store.find_set(&key)?.filter(|set| request.accepts(set, store)) {
            return Ok(set);
        }
        patches::apply(&selected, &self.work.sources())?;
        let started = Timestamp::now();
        let core = match self.core_objects(request, archive, store, progress).await {
            Ok(core) => core,
            Err(failed) => return Err(self.remember(failed, &key, store)),
        };
        let compile = Compile {
            store,
            helper: &request.helper,
            root: &self.toolchain.root,
            kernel_dirs: &kernel_dirs,
            has_many_kernels: request.build_root.is_some(),
            work: &self.work.dir(),
            held: self.work.held(),
            user: request.user,
            headers_from: self.inputs.headers_from(),
            driver: &request.driver.version,
            flavour: request.driver.flavour,
            release: &request.kernel_release,
            compiler: Some(&self.toolchain.compiler.program),
            modules: &self.inputs.modules,
            options: &self.inputs.options,
            jobs: request.jobs(),
            limit: request.limit,
            log: &store.dir("logs").join(format!("{}.log", key.tag())),
        };
        let since = Instant::now();
        let files = match compile.run(progress).await {
            Ok(files) => files,
            Err(failed) => return Err(self.remember(failed, &key, store)),
        };
        progress.compiled(since.elapsed());
        let modules = compile::store_modules(&files, &compile, store)?;
        let set = ModuleSet { key, modules, headers_from: self.inputs.headers_from() };
        store.put_build_record(&set, &self.inputs.record(&set, core.as_ref(), started))?;
        store.put_set(&set)?;
        store.note_compiled(&set);
        Ok(set)
    }

    /// Puts the core objects of a tree beside its sources; None where the driver's sources have them.
    async fn core_objects(
        &self,
        request: &Request,
        archive: &Archive,
        store: &Store,
        progress: &dyn Progress,
    ) -> Result<Option<StoredCore>, compile::Failed> {
        let Some(tree) = self.inputs.driver.tree() else { return Ok(None) };
        let Headers { compiler, toolchain: of_kernel, .. } = &self.inputs.headers;
        let tools = match &request.build_root {
            Some(root) => Tools::Root(root),
            None => Tools::Packages { compiler, of_kernel },
        };
        let compiler = &self.toolchain.compiler;
        let core = Core { request, tree, compiler, tools, archive, store };
        let core = core.provide(progress).await?;
        core_objects::place(&core, self.work.sources(), store).await?;
        Ok(Some(core))
    }

    /// Remembers the failure of a build of the set `key`.
    fn remember(&self, failed: compile::Failed, key: &ModuleKey, store: &Store) -> Failed {
        let compile::Failed { class, failure } = failed;
        let Some(class) = class else { return failure.into() };
        let kept = failure_cache::keep(store, &self.attempt, key, &class, &failure);
        let known = kept.unwrap_or_else(|unkept| {
            // The compile's own failure is the one to report.
            tracing::warn!("the store did not keep this failure: {}", unkept.one_line());
            None
        });
        Failed { failure, known: known.map(Box::new) }
    }

    /// Returns the directories of the headers: in a given root those that were checked.
    fn kernel_dirs(&self, release: &str) -> Result<KernelDirs, Failure> {
        match &self.inputs.headers.dirs {
            Some(dirs) => Ok(dirs.clone()),
            None => compile::kernel_dirs(&self.toolchain.root, release),
        }
    }

    /// Unpacks the sources and selects the patches they need for this kernel. Returns these, and all that the set's
    /// key names: also those of the driver's package, which unpacking has applied.
    async fn sources(
        &self,
        request: &Request,
        (source, output): &KernelDirs,
        store: &Store,
    ) -> Result<(Vec<Patch>, Applied), Failure> {
        let packaging = self.work.unpack(&self.inputs.driver, &request.driver, store).await?;
        let candidates = &self.inputs.candidates;
        let (root, headers) = (&self.toolchain.root, [source.as_path(), output.as_path()]);
        let selected = patches::select(candidates, root, &headers, &self.work.sources())?;
        let applied = self.inputs.remember_patches(&selected, packaging.as_ref(), store)?;
        for patch in &selected {
            let reason = patch.about.reason.trim();
            tracing::info!(patch = patch.name, reason, "patching the driver's sources");
        }
        Ok((selected, applied))
    }
}

/// The sources' names of the modules to build, in load order.
fn wanted_modules(extra: &[impl AsRef<str>]) -> Result<Vec<&'static str>, Failure> {
    let extra: Vec<String> = extra.iter().map(|name| name.as_ref().replace('_', "-")).collect();
    let stems = driver_modules::ALL.map(|module| module.stem);
    if let Some(unknown) = extra.iter().find(|name| !stems.contains(&name.as_str())) {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("{unknown} is no module of NVIDIA's driver"),
        )
        .remedy(format!("the modules are {}", stems.join(", "))));
    }
    let is_wanted = |module: &DriverModule| module.always || extra.iter().any(|e| e == module.stem);
    Ok(driver_modules::ALL.into_iter().filter(is_wanted).map(|module| module.stem).collect())
}

/// # Errors
/// Exit code 15 where the store's file system has less free space than a build needs.
fn check_space(store: &Store) -> Result<(), Failure> {
    let path = store.root();
    let free = space::free(path).or_fail(FailureKind::Preflight, || {
        format!("asking for the free space of {}", path.display())
    })?;
    if free >= SPACE {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Err(Failure::new(
        FailureKind::Preflight,
        format!(
            "{} has {:.1} GiB free, a build takes {:.1}",
            path.display(),
            gib(free),
            gib(SPACE)
        ),
    )
    .remedy("free space there, or set --store to another file system, or use a prebuilt set"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    #[rstest]
    #[case(&[], &["nvidia", "nvidia-uvm", "nvidia-modeset"])]
    #[case(&["nvidia_peermem"], &["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-peermem"])]
    #[case(&["nvidia-drm", "nvidia_uvm"], &["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm"])]
    fn modules_are_built_in_load_order(#[case] extra: &[&str], #[case] wanted: &[&str]) {
        let extra: Vec<String> = extra.iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(wanted_modules(&extra).expect("known"), wanted);
    }

    #[test]
    fn a_full_disk_is_refused() {
        // A file system that has no blocks at all.
        let store = Store::at(std::path::Path::new("/proc"), longshore_core::disk::Disk::default());
        let failure = check_space(&store).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains("0.0 GiB free"), "{failure}");
    }

    #[test]
    fn an_unknown_module_is_a_mistake_of_the_caller() {
        let failure = wanted_modules(&["nouveau".to_owned()]).expect_err("unknown");
        assert_eq!(failure.code(), ExitCode::Usage);
    }
}
