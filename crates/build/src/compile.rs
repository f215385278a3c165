//! Compiles a driver's kernel sources in the sandbox and strips the modules.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::diagnose::{Class, Diagnosis, Subject};
use super::driver_sources::INSIDE;
use super::outputs::OutputDir;
use super::reuse::{Purpose, Reuse};
use super::sandbox::{self, Bind, Bound, Held, Log, Outcome, Spec};
use super::{make_progress, user};
use crate::BuildUser;
use longshore_core::driver_modules;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::machine::Machine;
use longshore_core::progress::{Progress, Unit};
use longshore_core::scratch::claim;
use longshore_core::store::Store;
use longshore_modules::artifact::{HeadersFrom, ModuleEntry};
use longshore_modules::layout::MAX_MODULE;
use longshore_sources::headers::{KernelDirs, dirs_in};

/// Time limit of the programs beside the compile itself: querying the compiler's version,
/// stripping.
const SHORT: Duration = Duration::from_secs(300);
/// Bound of the sources, everything that make writes beside them, and the cache of objects: a driver in the open
/// flavour takes 0.7 GiB and 3000 files, twice as much with the debug information of some kernels, and the cache
/// has 0.5 GiB.
const BOUND: Bound = Bound { bytes: 8 << 30, entries: 250_000 };

/// One compile.
#[derive(Debug)]
pub struct Compile<'a> {
    /// The store, with the results of earlier builds.
    pub store: &'a Store,
    /// The sandbox's helper program.
    pub helper: &'a Path,
    /// The hermetic root.
    pub root: &'a Path,
    /// The kernel's source and output directories inside it.
    pub kernel_dirs: &'a (PathBuf, PathBuf),
    /// True if it may have the headers of several kernels.
    pub has_many_kernels: bool,
    /// Scratch directory with the sources in `driver` and an empty `tmp`. Handed over to the
    /// compiling user for the compile.
    pub work: &'a Path,
    /// Kept alive until no started program writes to `work` any more.
    pub held: Held,
    /// The user that compiles.
    pub user: BuildUser,
    /// Origin of the kernel's headers.
    pub headers_from: HeadersFrom,
    /// Driver version.
    pub driver: &'a str,
    /// Flavour.
    pub flavour: Flavour,
    /// `uname -r`.
    pub release: &'a str,
    /// The compiler's program; None leaves the choice to the driver's Makefile. That of drivers
    /// until 470 uses `cc`, regardless of the kernel's compiler.
    pub compiler: Option<&'a str>,
    /// Stems of the wanted modules.
    pub modules: &'a [&'static str],
    /// Arguments for make that change the result.
    pub options: &'a [String],
    /// Parallel jobs.
    pub jobs: usize,
    /// Time limit of make.
    pub limit: Duration,
    /// Log file for the whole output.
    pub log: &'a Path,
}

/// Reads the version of the compiler in `root`: the first line of `--version`. It runs in an empty
/// directory of its own.
///
/// # Errors
/// Exit code 11 where there is no such compiler, or it does not run; 15 where its directory cannot
/// be created, or cannot be given to `user`.
pub(crate) async fn compiler_version(
    helper: &Path,
    root: &Path,
    store: &Store,
    program: &str,
    user: BuildUser,
) -> Result<String, Failure> {
    let scratch = Arc::new(claim(store, "compiler")?);
    let (held, work): (Held, _) = (Some(Arc::clone(&scratch) as _), scratch.path().join("build"));
    fs::create_dir_all(work.join("tmp")).map_err(|e| write_failure(&work, e))?;
    user::hand_over(work.clone(), user, held.clone()).await?;
    let command = vec![format!("/usr/bin/{program}"), "--version".to_owned()];
    let place = WorkingDirectory { root, work: &work, user, held };
    let mut spec = place.spec(command, "/", "compiler")?;
    spec.binds.push(fresh_tmp(&work));
    let mut first = None;
    let mut note = |line: &str| {
        first.get_or_insert_with(|| line.trim().to_owned());
    };
    let outcome = sandbox::run(helper, &spec, SHORT, &mut note).await?;
    match (outcome, first) {
        (Outcome::Exited(0), Some(text)) if !text.is_empty() => Ok(text),
        (outcome, text) => Err(Failure::new(
            FailureKind::Toolchain,
            format!("{program} does not run in {}: {outcome:?}, {text:?}", root.display()),
        )
        .remedy("check the build root's compiler; of one that longshore made, remove that directory and build again")),
    }
}

/// Failure of a compile.
#[derive(Debug)]
pub struct Failed {
    /// Class of the compile's failure; None where it failed before or after the compile itself.
    pub class: Option<Class>,
    /// The failure as it is reported.
    pub failure: Failure,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { class: None, failure }
    }
}

impl Compile<'_> {
    /// Runs make and strip; returns the modules' files in the order of `modules`.
    ///
    /// # Errors
    /// Exit code 14 where it does not compile, with the compiler's first error; 15 without space.
    pub async fn run(&self, progress: &dyn Progress) -> Result<Vec<PathBuf>, Failed> {
        let mut reuse = Reuse::prepare(self.purpose());
        let make = self.make_spec(&reuse)?;
        let total = make_progress::total(&self.work.join("driver"), self.modules);
        // From here on root writes nothing there, and reads nothing without checks.
        user::hand_over(self.work.to_path_buf(), self.user, self.held.clone()).await?;
        let mut log = Log::create(self.log)?;
        self.make(make, total, &mut reuse, &mut log, progress).await?;
        let names = self.modules.iter().map(|m| PathBuf::from(format!("driver/{m}.ko")));
        let files: Vec<PathBuf> = names.collect();
        let left = OutputDir::open(self.work)
            .or_fail(FailureKind::Compile, || format!("reading {}", self.work.display()))?;
        for file in &files {
            if let Err(error) = left.file(file) {
                let cause = format!("make left no module in {}: {error}", file.display());
                return Err(self.failure(cause).into());
            }
        }
        self.strip(&mut log).await?;
        super::user::still_unused(self.user).await?;
        reuse.keep(self.store, progress);
        Ok(files)
    }

    fn purpose(&self) -> Purpose<'_> {
        let Self { store, root, work, modules, user, headers_from, .. } = *self;
        let release = self.has_many_kernels.then_some(self.release);
        Purpose { store, root, release, work, modules, user, headers_from }
    }

    fn place(&self) -> WorkingDirectory<'_> {
        WorkingDirectory {
            root: self.root,
            work: self.work,
            user: self.user,
            held: self.held.clone(),
        }
    }

    /// Specification of the sandbox that make runs in.
    fn make_spec(&self, reuse: &Reuse) -> Result<Spec, Failure> {
        let sources = self.work.join("driver");
        let mut spec = self.place().spec(self.command(&sources), INSIDE, "make")?;
        spec.environment.extend(self.dated(&sources)?.into_iter().chain(reuse.environment()));
        spec.binds.push(fresh_tmp(self.work));
        spec.binds.extend(reuse.binds());
        Ok(spec)
    }

    async fn make(
        &self,
        spec: Spec,
        total: Option<u64>,
        reuse: &mut Reuse,
        log: &mut Log,
        progress: &dyn Progress,
    ) -> Result<(), Failed> {
        let what = format!("compiling {} {} for {}", self.driver, self.flavour, self.release);
        let task = progress.begin(&what, total, Unit::Items);
        let mut diagnosis = Diagnosis::default();
        let mut note = |line: &str| {
            log.line(line);
            diagnosis.line(line);
            reuse.line(line);
            make_progress::report(line, task.as_ref());
        };
        note(&spec.command.join(" "));
        let outcome = sandbox::run(self.helper, &spec, self.limit, &mut note).await?;
        match outcome {
            Outcome::Exited(0) => return Ok(()),
            Outcome::Outgrown | Outcome::NoSpace => reuse.drop_objects(),
            _ => {}
        }
        let subject = Subject {
            driver: self.driver,
            flavour: self.flavour,
            release: self.release,
            log: self.log,
            limit: self.limit,
        };
        let (class, failure) = diagnosis.failure(outcome, subject);
        Err(Failed { class: Some(class), failure })
    }

    /// Returns make's command line.
    fn command(&self, sources: &Path) -> Vec<String> {
        let stems = driver_modules::ALL.map(|module| module.stem);
        let is_excluded = |stem: &&str| sources.join(stem).is_dir() && !self.modules.contains(stem);
        let excluded: Vec<&str> = stems.into_iter().filter(is_excluded).collect();
        let (source, output) = self.kernel_dirs;
        let mut command = vec![
            "/usr/bin/make".to_owned(),
            format!("-j{}", self.jobs),
            format!("SYSSRC={}", source.display()),
            format!("SYSOUT={}", output.display()),
            format!("KERNEL_UNAME={}", self.release),
            format!("NV_EXCLUDE_KERNEL_MODULES={}", excluded.join(" ")),
        ];
        command.extend(self.options.iter().cloned());
        command.extend(self.compiler.map(|program| format!("CC={program}")));
        command.push("modules".to_owned());
        command
    }

    /// Environment with the time of the driver's sources, for everything that records a build time.
    fn dated(&self, sources: &Path) -> Result<[(String, String); 2], Failure> {
        let path = sources.join("conftest.sh");
        let date = fs::metadata(&path)
            .or_fail(FailureKind::Verification, || format!("reading {}", path.display()))?
            .mtime()
            .max(0);
        Ok([
            ("SOURCE_DATE_EPOCH".to_owned(), date.to_string()),
            ("KBUILD_BUILD_TIMESTAMP".to_owned(), format!("@{date}")),
        ])
    }

    fn strip_spec(&self) -> Result<Spec, Failure> {
        let mut command = vec!["/usr/bin/strip".to_owned(), "--strip-debug".to_owned()];
        command.extend(self.modules.iter().map(|m| format!("{m}.ko")));
        self.place().spec(command, INSIDE, "strip")
    }

    /// Strips debug information: nine tenths of a module, which the kernel loads and discards.
    async fn strip(&self, log: &mut Log) -> Result<(), Failure> {
        let spec = self.strip_spec()?;
        let mut last = String::new();
        let mut note = |line: &str| {
            log.line(line);
            line.clone_into(&mut last);
        };
        match sandbox::run(self.helper, &spec, SHORT, &mut note).await? {
            Outcome::Exited(0) => Ok(()),
            outcome => Err(self.failure(format!("strip: {outcome:?}, {last}"))),
        }
    }

    fn failure(&self, what: String) -> Failure {
        Failure::new(
            FailureKind::Compile,
            format!(
                "compiling {} {} for {}: {what} (log: {})",
                self.driver,
                self.flavour,
                self.release,
                self.log.display()
            ),
        )
    }
}

/// Reads the finished modules below the compile's directory, checks them against the kernel and the
/// driver, and stores them.
///
/// # Errors
/// Exit code 14 where one is not for this kernel or not of this driver, 15 where the store cannot
/// be written.
pub(crate) fn store_modules(
    files: &[PathBuf],
    compile: &Compile<'_>,
    store: &Store,
) -> Result<Vec<ModuleEntry>, Failure> {
    let what = || format!("reading {}", compile.work.display());
    let left = OutputDir::open(compile.work).or_fail(FailureKind::Compile, what)?;
    files
        .iter()
        .map(|path| {
            let what = || format!("checking {}", compile.work.join(path).display());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let image = left.read(path, MAX_MODULE).or_fail(FailureKind::Compile, what)?;
            let entry = ModuleEntry::describe(&name, &image, compile.release)
                .or_fail(FailureKind::Compile, what)?;
            if entry.version.as_deref().is_some_and(|v| v != compile.driver) {
                return Err(compile.failure(format!("{name} is of version {:?}", entry.version)));
            }
            store.put(&image)?;
            Ok(entry)
        })
        .collect()
}

/// Bind mount of /tmp, made before any program ran in the directory: a program could have put a
/// link there, which a mount follows to the outside.
pub(crate) fn fresh_tmp(work: &Path) -> Bind {
    Bind::new(work.join("tmp"), "/tmp")
}

/// A working directory for programs of the root.
pub(crate) struct WorkingDirectory<'a> {
    pub(crate) root: &'a Path,
    /// Directory at /build inside.
    pub(crate) work: &'a Path,
    pub(crate) user: BuildUser,
    pub(crate) held: Held,
}

impl WorkingDirectory<'_> {
    /// Returns the sandbox of a command, with the environment of all compiles.
    ///
    /// # Errors
    /// Exit code 10 on a machine that longshore does not support.
    pub(crate) fn spec(
        self,
        command: Vec<String>,
        directory: &str,
        name: &str,
    ) -> Result<Spec, Failure> {
        let Self { root, work, user, held } = self;
        let arch = Machine::this()?.debian;
        let environment = [
            // The last two are others only where /usr is not merged, as in SLES 15.
            ("PATH", "/usr/bin:/usr/sbin:/bin:/sbin"),
            ("HOME", "/build"),
            ("TMPDIR", "/tmp"),
            ("LC_ALL", "C"),
            ("TZ", "UTC"),
            ("KBUILD_BUILD_USER", "longshore"),
            ("KBUILD_BUILD_HOST", "longshore"),
            // Without it Debian's headers query dpkg, which is not in the root.
            ("DEB_BUILD_ARCH", arch),
            ("DEB_HOST_ARCH", arch),
        ];
        Ok(Spec {
            root: root.to_path_buf(),
            binds: vec![Bind::new(work, "/build")],
            command,
            environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            handed_on: Vec::new(),
            directory: directory.into(),
            user: Some(user.id()),
            bound: BOUND,
            outcome: work.with_extension(name),
            held,
        })
    }
}

/// The kernel's source and output directories, as paths inside an assembled root: on Debian the targets of the links
/// `source` (its common part) and `build` below /lib/modules/RELEASE, absolute until Debian 12, relative since.
///
/// # Errors
/// Exit code 11 where the root has no headers for the kernel.
pub fn kernel_dirs(root: &Path, release: &str) -> Result<KernelDirs, Failure> {
    dirs_in(root, release).ok_or_else(|| {
        let cause = format!("no headers for {release} are in {}", root.display());
        Failure::new(FailureKind::Toolchain, cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_page_about_deadlines_has_what_is_short() {
        longshore_core::testing::assert_in_page("Other programs of a build", SHORT);
    }

    #[test]
    fn what_make_could_have_put_a_link_in_the_place_of_is_not_mounted_after_it() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let work = dir.path().join("work");
        let compile = Compile {
            store: &store,
            helper: Path::new("/proc/self/exe"),
            root: dir.path(),
            kernel_dirs: &("/usr/src/common".into(), "/usr/src/flavour".into()),
            has_many_kernels: false,
            work: &work,
            held: None,
            user: BuildUser::default(),
            headers_from: HeadersFrom::Archive,
            driver: "535.261.03",
            flavour: Flavour::Open,
            release: "6.1.0-50-amd64",
            compiler: Some("gcc-12"),
            modules: &["nvidia"],
            options: &[],
            jobs: 1,
            limit: SHORT,
            log: Path::new("/log"),
        };
        let spec = compile.strip_spec().expect("this machine's architecture is known");
        let sources: Vec<_> = spec.binds.into_iter().map(|b| b.source).collect();
        assert_eq!(sources, std::slice::from_ref(&work));
        let command = compile.command(&work);
        let has = |argument: &str| command.iter().any(|one| one == argument);
        assert!(has("SYSSRC=/usr/src/common") && has("SYSOUT=/usr/src/flavour"), "{command:?}");
    }

    #[rstest]
    #[case::debian_12("/usr/src/flavour", "/usr/src/common")]
    #[case::debian_13("../../../src/flavour", "../../../src/common")]
    fn kernel_directories_are_where_the_links_lead(#[case] build: &str, #[case] source: &str) {
        let root = tempfile::tempdir().expect("temporary directory");
        let modules = root.path().join("usr/lib/modules/6.1.0-50-amd64");
        for dir in ["usr/src/flavour", "usr/src/common"].map(|d| root.path().join(d)) {
            fs::create_dir_all(dir).expect("directory");
        }
        fs::create_dir_all(&modules).expect("directory");
        let dirs = || kernel_dirs(root.path(), "6.1.0-50-amd64");
        assert_eq!(dirs().expect_err("no headers").code(), ExitCode::Toolchain);
        symlink(build, modules.join("build")).expect("link");
        let (flavour, common) = ("/usr/src/flavour".into(), "/usr/src/common".into());
        assert_eq!(dirs().expect("headers"), (PathBuf::clone(&flavour), PathBuf::clone(&flavour)));
        symlink(source, modules.join("source")).expect("link");
        assert_eq!(dirs().expect("headers"), (common, flavour));
    }
}
