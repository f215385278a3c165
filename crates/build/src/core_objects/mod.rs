//! Core objects of a source tree: nv-kernel.o and nv-modeset-kernel.o, the parts of NVIDIA's modules that depend on no
//! kernel. A driver package has them compiled; of a tree they are compiled once for a compiler, or fetched where another
//! host has, kept in the store by digest, and linked into the modules of every kernel.

mod source;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::build_lock;
use super::build_root::{BuildRoot, Compiler};
use super::compile::{Failed, WorkingDirectory, fresh_tmp};
use super::diagnose::{Diagnosis, Subject};
use super::outputs::OutputDir;
use super::root::{self, in_thread};
use super::sandbox::{self, Held, Log, Outcome, Spec};
use super::{Request, user};
use longshore_core::bounded_read;
use longshore_core::digest::hex;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::machine::Machine;
use longshore_core::progress::{Progress, Task, Unit};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_modules::artifact::InputPackage;
use longshore_modules::artifact::core_objects::{
    CORE_PATHS, CoreObject, CoreQuery, CoreRecord, MAX_CORE_OBJECT,
};
use longshore_modules::sets::core_objects::{self as stored, StoredCore};
use longshore_sources::headers;
use longshore_sources::source_tree::{self, Part, SourceTree};
pub use source::CoreSource;

/// Version of the compile, changed whenever it changes an object.
const RECIPE: &str = "core 1";
/// Path of the tree inside the sandbox: constant, because the compiler writes it into objects.
const INSIDE: &str = "/build/tree";
/// Objects by their paths in the tree, without the directory of the machine, and among the kernel's sources.
const OBJECTS: [(&str, &str, &str); 2] = [
    ("src/nvidia", "nv-kernel.o", CORE_PATHS[1]),
    ("src/nvidia-modeset", "nv-modeset-kernel.o", CORE_PATHS[0]),
];
/// Words of messages in the place of a kernel.
const EVERY_KERNEL: &str = "every kernel (the parts that depend on none)";

/// Inputs of core objects.
pub(super) struct Core<'a> {
    pub(super) request: &'a Request,
    pub(super) tree: &'a SourceTree,
    pub(super) compiler: &'a Compiler,
    pub(super) tools: Tools<'a>,
    pub(super) archive: &'a Archive,
    pub(super) store: &'a Store,
}

/// Programs that compile core objects.
pub(super) enum Tools<'a> {
    /// A configured build root.
    Root(&'a BuildRoot),
    /// Packages: the compiler's name, and the packages of the kernel's build root.
    Packages { compiler: &'a str, of_kernel: &'a [Package] },
}

impl Core<'_> {
    /// Returns the core objects: the store's, those of another place, or compiled now.
    ///
    /// # Errors
    /// Exit code 11 where there is no C++ compiler beside the kernel's, 12 and 13 for packages and the tree, 14 where it does
    /// not compile, 15 for the disk.
    pub(super) async fn provide(&self, progress: &dyn Progress) -> Result<StoredCore, Failed> {
        let packages = match self.tools {
            Tools::Root(_) => Vec::new(),
            Tools::Packages { compiler, of_kernel } => {
                headers::core_tools(self.archive, compiler, of_kernel)?
            }
        };
        let SourceTree { version, sha256: tree, .. } = self.tree.clone();
        let asked = CoreQuery { key: self.key(&packages), version, tree };
        if let Some(found) = self.stored(&asked) {
            tracing::info!(driver = asked.version, "linking core objects of an earlier build");
            return Ok(found);
        }
        let what = format!("the core objects of {}", asked.version);
        let dir = self.store.dir("core");
        fs::create_dir_all(&dir).map_err(|e| write_failure(&dir, e))?;
        let lock = dir.join(format!(".{}.lock", asked.key));
        let _lock = build_lock::take(&lock, self.request.limit, &what, progress).await?;
        if let Some(found) = self.stored(&asked) {
            return Ok(found);
        }
        if let Some(source) = &self.request.core_source
            && let Some(fetched) = source.fetch(&asked, self.store, progress).await?
        {
            stored::keep(&fetched, self.store)?;
            return Ok(fetched);
        }
        let root = self.root(&packages, progress).await?;
        let work = Arc::new(claim(self.store, "core")?);
        let objects = self.compile(&asked.key, &root, &work, progress).await?;
        ScratchDir::remove(work);
        let packages = packages.iter().map(input).collect();
        let record = CoreRecord::new(asked, &self.compiler.version, objects, packages);
        let made = StoredCore { record, pulled: None };
        stored::keep(&made, self.store)?;
        Ok(made)
    }

    /// Returns the store's core objects, where they are what is `asked` for and count; they count as used now.
    fn stored(&self, asked: &CoreQuery) -> Option<StoredCore> {
        let found = stored::find(&asked.key, self.store)?;
        let checked =
            found.record.check_asked(asked).and_then(|()| self.request.check_core(&found));
        if let Err(why) = checked {
            tracing::warn!("core objects in the store are not used: {why}");
            return None;
        }
        stored::mark_used(&found, self.store);
        Some(found)
    }

    /// Returns the digest (hex) of everything that decides the objects: the tree, and the compilers by the digest of their
    /// packages, or of the build root that has them.
    fn key(&self, packages: &[Package]) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| hash.update(format!("{text}\n"));
        add(RECIPE);
        add(&self.tree.sha256);
        add(version_text(&self.compiler.version));
        add(std::env::consts::ARCH);
        match self.tools {
            Tools::Root(root) => add(&root.digest),
            Tools::Packages { compiler, .. } => {
                let cxx = headers::cxx_package(compiler);
                let is_compiler =
                    |p: &&Package| p.name == compiler || Some(&p.name) == cxx.as_ref();
                packages.iter().filter(is_compiler).for_each(|package| add(&package.sha256));
            }
        }
        hex(&hash.finalize())
    }

    async fn root(
        &self,
        packages: &[Package],
        progress: &dyn Progress,
    ) -> Result<PathBuf, Failure> {
        let limit = self.request.limit;
        match self.tools {
            Tools::Root(root) => Ok(root.path.clone()),
            Tools::Packages { .. } => {
                root::assemble(packages, limit, self.archive, self.store, progress).await
            }
        }
    }

    /// Compiles in the sandbox; returns the objects' digests by their paths among the kernel's sources.
    async fn compile(
        &self,
        key: &str,
        root: &Path,
        work: &Arc<ScratchDir>,
        progress: &dyn Progress,
    ) -> Result<BTreeMap<String, CoreObject>, Failed> {
        let build = work.path().join("build");
        let tree = self.unpack(&build).await?;
        let date = fs::metadata(tree.join("version.mk"))
            .or_fail(FailureKind::Verification, || format!("reading {}", tree.display()))?
            .mtime()
            .max(0);
        let total = sources_in(&tree);
        let log =
            self.store.dir("logs").join(format!("{}-core-{}.log", self.tree.version, &key[..12]));
        let held: Held = Some(Arc::clone(work) as _);
        user::hand_over(build.clone(), self.request.user, held.clone()).await?;
        let place = WorkingDirectory { root, work: &build, user: self.request.user, held };
        let mut spec = place.spec(self.command(root, date)?, INSIDE, "core")?;
        spec.binds.push(fresh_tmp(&build));
        self.make(&spec, total, &log, progress).await?;
        user::still_unused(self.request.user).await?;
        let (output, store) = (output_name()?, self.store.clone());
        let kept = in_thread("keeping core objects", move || keep(&build, &output, &store)).await;
        kept.map_err(|failure| failure.remedy(format!("read {}", log.display())).into())
    }

    /// Unpacks the whole tree to `build/tree`, with an empty `build/tmp` beside it.
    async fn unpack(&self, build: &Path) -> Result<PathBuf, Failure> {
        let (tree, store, build) = (self.tree.clone(), self.store.clone(), build.to_path_buf());
        let what = format!("unpacking {}", tree.name());
        in_thread(&what, move || {
            let (tmp, raw) = (build.join("tmp"), build.with_extension("raw"));
            for dir in [&tmp, &raw] {
                fs::create_dir_all(dir).map_err(|e| write_failure(dir, e))?;
            }
            let unpacked = source_tree::unpack(&tree, Part::Whole, &store, &raw)?;
            let target = build.join("tree");
            fs::rename(&unpacked.top, &target).map_err(|e| write_failure(&target, e))?;
            Ok(target)
        })
        .await
    }

    /// Returns make's command line: both objects in one run, so that they share its jobs.
    fn command(&self, root: &Path, date: i64) -> Result<Vec<String>, Failure> {
        let program = &self.compiler.program;
        let cxx = cxx_program(program);
        let has = |name: &str| root.join("usr/bin").join(name).symlink_metadata().is_ok();
        if let Some(missing) = [cxx.as_str(), "xz"].into_iter().find(|name| !has(name)) {
            let cause = format!(
                "the build root has no {missing}, which the parts of {} that depend on no kernel are compiled with",
                self.tree.name()
            );
            return Err(Failure::new(FailureKind::Toolchain, cause)
                .remedy("install it in the build root, or build without one, from the archives"));
        }
        let output = output_name()?;
        let mut command = vec![
            "/usr/bin/make".to_owned(),
            format!("-j{}", self.request.jobs()),
            "--no-print-directory".to_owned(),
            format!("CC={program}"),
            format!("CXX={cxx}"),
            format!("TARGET_ARCH={}", std::env::consts::ARCH),
            "TARGET_OS=Linux".to_owned(),
            "NV_BUILD_USER=longshore".to_owned(),
            "NV_BUILD_HOST=longshore".to_owned(),
            // The objects name the time of their compile: that of the tree is the same everywhere.
            format!("DATE=date -u -d @{date}"),
        ];
        command.extend(OBJECTS.map(|(dir, object, _)| format!("{dir}/{output}/{object}")));
        Ok(command)
    }

    async fn make(
        &self,
        spec: &Spec,
        total: Option<u64>,
        log: &Path,
        progress: &dyn Progress,
    ) -> Result<(), Failed> {
        let SourceTree { version, .. } = self.tree;
        let what = format!("compiling {version} for {EVERY_KERNEL}");
        let task = progress.begin(&what, total, Unit::Items);
        let (mut lines, mut diagnosis) = (Log::create(log)?, Diagnosis::default());
        let mut note = |line: &str| {
            lines.line(line);
            diagnosis.line(line);
            report(line, task.as_ref());
        };
        note(&spec.command.join(" "));
        let limit = self.request.limit;
        let outcome = sandbox::run(&self.request.helper, spec, limit, &mut note).await?;
        if outcome == Outcome::Exited(0) {
            return Ok(());
        }
        let flavour = Flavour::Open;
        let subject = Subject { driver: version, flavour, release: EVERY_KERNEL, log, limit };
        let (class, failure) = diagnosis.failure(outcome, subject);
        Err(Failed { class: Some(class), failure })
    }
}

/// Puts core objects beside the kernel's sources in `sources`.
///
/// # Errors
/// Exit code 13 for a damaged blob, 15 where they cannot be written.
pub(super) async fn place(
    core: &StoredCore,
    sources: PathBuf,
    store: &Store,
) -> Result<(), Failure> {
    let (objects, store) = (core.record.objects.clone(), store.clone());
    in_thread("copying core objects", move || {
        objects.iter().try_for_each(|(path, object)| {
            let target = sources.join(path);
            let mut from = store.open_blob(&object.sha256)?;
            let copied = File::create(&target).and_then(|mut to| io::copy(&mut from, &mut to));
            copied.map(drop).map_err(|e| write_failure(&target, e))
        })
    })
    .await
}

/// Returns a compiler's version without its name, by which kernels call the same program differently.
fn version_text(line: &str) -> &str {
    line.split_once(' ').map_or(line, |(_, version)| version)
}

/// Returns the name of NVIDIA's output directory, for example `_out/Linux_x86_64`.
fn output_name() -> Result<String, Failure> {
    Ok(format!("_out/Linux_{}", Machine::this()?.uname))
}

/// Returns the C++ compiler's program beside a C compiler's: `g++-12` for `gcc-12`, `clang++` for `clang`.
fn cxx_program(program: &str) -> String {
    match program.rsplit_once("gcc") {
        Some((before, after)) => format!("{before}g++{after}"),
        None => program.replacen("clang", "clang++", 1),
    }
}

/// Reads the objects that a compile left in `build`, and stores them.
fn keep(
    build: &Path,
    output: &str,
    store: &Store,
) -> Result<BTreeMap<String, CoreObject>, Failure> {
    let what = || format!("reading {}", build.display());
    let left = OutputDir::open(build).or_fail(FailureKind::Compile, what)?;
    let mut kept = BTreeMap::new();
    for (dir, object, placed) in OBJECTS {
        let path = format!("tree/{dir}/{output}/{object}");
        let bytes = left
            .read(&path, MAX_CORE_OBJECT)
            .or_fail(FailureKind::Compile, || format!("make left no {path}"))?;
        let object = CoreObject { sha256: store.put(&bytes)?, size: bytes.len() as u64 };
        kept.insert(placed.to_owned(), object);
    }
    Ok(kept)
}

/// Maximum size of a list of sources, in bytes: those of today have less than a tenth.
const MOST_OF_LIST: u64 = 4 << 20;

/// Counts the sources that the tree's lists name.
fn sources_in(tree: &Path) -> Option<u64> {
    let mut count = 0;
    for (dir, ..) in OBJECTS {
        let list = bounded_read::read_text(&tree.join(dir).join("srcs.mk"), MOST_OF_LIST).ok()?;
        let is_source = |line: &&str| line.ends_with(".c") || line.ends_with(".cpp");
        count += list.lines().filter(is_source).count() as u64;
    }
    Some(count)
}

/// Reports a line of make's output, like ` [ nvidia            ]  CC           generated/g_gpu_nvoc.c`, as progress.
fn report(line: &str, task: &dyn Task) {
    let Some((_, rest)) = line.trim_start().strip_prefix("[ ").and_then(|l| l.split_once("] "))
    else {
        return;
    };
    let mut words = rest.split_whitespace();
    if let (Some("CC" | "CXX"), Some(path)) = (words.next(), words.next()) {
        task.note(path);
        task.advance(1);
    }
}

/// Returns a package as records name it.
pub(super) fn input(package: &Package) -> InputPackage {
    InputPackage {
        name: package.name.clone(),
        version: package.version.clone(),
        arch: package.arch.clone(),
        sha256: package.sha256.clone(),
    }
}

#[cfg(test)]
mod tests;
