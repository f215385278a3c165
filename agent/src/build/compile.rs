//! Compiles a driver's kernel sources in the sandbox and strips what comes out.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::diagnose::{Class, Diagnosis, Subject};
use super::reuse::Reuse;
use super::sandbox::{self, Bind, Log, Outcome, Spec};
use super::steps;
use crate::artifact::{Flavour, ModuleEntry};
use crate::failure::{ExitCode, Failure, OrFail};
use crate::progress::{Progress, Unit};
use crate::store::{Store, write_failure};

/// NVIDIA's modules by the directory of their sources, in load order.
pub const MODULES: [&str; 5] =
    ["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"];
/// How many of [`MODULES`] are always built.
pub const ALWAYS: usize = 3;

/// Where the sources lie inside: always the same place, since the compiler writes it into modules.
pub(super) const INSIDE: &str = "/build/driver";
/// Nobody, on every distribution: a compiler needs no rights.
pub(crate) const NOBODY: u32 = 65534;
/// For what is not the compile itself: asking the compiler its name, stripping.
const SHORT: Duration = Duration::from_secs(300);

/// One compile.
#[derive(Debug)]
pub struct Compile<'a> {
    /// Where what earlier builds found out is kept.
    pub store: &'a Store,
    /// The sandbox's helper program.
    pub helper: &'a Path,
    /// The hermetic root.
    pub root: &'a Path,
    /// A directory of its own, with the sources in `driver`.
    pub work: &'a Path,
    /// Driver version.
    pub driver: &'a str,
    /// Flavour.
    pub flavour: Flavour,
    /// `uname -r`.
    pub release: &'a str,
    /// The compiler's program, where the kernel's Makefile would take another.
    pub compiler: Option<&'a str>,
    /// Modules wanted, of [`MODULES`].
    pub modules: &'a [&'static str],
    /// Arguments for make that change the result.
    pub options: &'a [String],
    /// Parallel jobs.
    pub jobs: usize,
    /// How long make may take.
    pub limit: Duration,
    /// Gets the whole output.
    pub log: &'a Path,
}

/// Asks the compiler in `root` what it calls itself: the first line of `--version`.
///
/// # Errors
/// Exit code 11 where there is no such compiler, or it does not run; 15 where `work` cannot be
/// given to who runs it.
pub async fn compiler_version(
    helper: &Path,
    root: &Path,
    work: &Path,
    program: &str,
) -> Result<String, Failure> {
    hand_over(work).map_err(|e| write_failure(work, e))?;
    let command = vec![format!("/usr/bin/{program}"), "--version".to_owned()];
    let spec = spec(root, work, command, "/", "compiler");
    let mut first = None;
    let mut note = |line: &str| {
        first.get_or_insert_with(|| line.trim().to_owned());
    };
    let outcome = sandbox::run(helper, &spec, SHORT, &mut note).await?;
    match (outcome, first) {
        (Outcome::Exited(0), Some(text)) if !text.is_empty() => Ok(text),
        (outcome, text) => Err(Failure::new(
            ExitCode::Toolchain,
            format!("{program} does not run in {}: {outcome:?}, {text:?}", root.display()),
        )
        .remedy("remove that directory and build again")),
    }
}

/// Why there are no modules.
#[derive(Debug)]
pub struct Failed {
    /// What kind of failure of the compile itself; None where it did not come to that.
    pub class: Option<Class>,
    /// For the person.
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
        let sources = self.work.join("driver");
        let mut reuse = Reuse::prepare(self.store, self.root, self.work, self.modules);
        hand_over(self.work).map_err(|e| write_failure(self.work, e))?;
        let mut log = Log::create(self.log)?;
        self.make(&sources, &mut reuse, &mut log, progress).await?;
        let files: Vec<PathBuf> =
            self.modules.iter().map(|m| sources.join(format!("{m}.ko"))).collect();
        if let Some(absent) = files.iter().find(|file| !file.is_file()) {
            return Err(self.failure(format!("make left no {}", absent.display())).into());
        }
        self.strip(&mut log).await?;
        reuse.keep(self.store, progress);
        Ok(files)
    }

    async fn make(
        &self,
        sources: &Path,
        reuse: &mut Reuse,
        log: &mut Log,
        progress: &dyn Progress,
    ) -> Result<(), Failed> {
        let what = format!("compiling {} {} for {}", self.driver, self.flavour, self.release);
        let task = progress.begin(&what, steps::total(sources, self.modules), Unit::Items);
        let mut diagnosis = Diagnosis::default();
        let mut spec = spec(self.root, self.work, self.command(sources)?, INSIDE, "make");
        spec.environment.extend(self.dated(sources)?.into_iter().chain(reuse.environment()));
        spec.binds.extend(reuse.binds());
        let mut note = |line: &str| {
            log.line(line);
            diagnosis.line(line);
            reuse.line(line);
            steps::report(line, task.as_ref());
        };
        note(&spec.command.join(" "));
        let outcome = sandbox::run(self.helper, &spec, self.limit, &mut note).await?;
        if outcome == Outcome::Exited(0) {
            return Ok(());
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

    /// make and its arguments.
    fn command(&self, sources: &Path) -> Result<Vec<String>, Failure> {
        let excluded: Vec<&str> = MODULES
            .into_iter()
            .filter(|m| sources.join(m).is_dir() && !self.modules.contains(m))
            .collect();
        let (source, output) = kernel_dirs(self.root, self.release)?;
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
        Ok(command)
    }

    /// Whatever asks for the time is told when the driver's sources were made.
    fn dated(&self, sources: &Path) -> Result<[(String, String); 2], Failure> {
        let path = sources.join("conftest.sh");
        let date = fs::metadata(&path)
            .or_fail(ExitCode::Verification, || format!("reading {}", path.display()))?
            .mtime()
            .max(0);
        Ok([
            ("SOURCE_DATE_EPOCH".to_owned(), date.to_string()),
            ("KBUILD_BUILD_TIMESTAMP".to_owned(), format!("@{date}")),
        ])
    }

    /// Debug information is nine tenths of a module; the kernel loads it and throws it away.
    async fn strip(&self, log: &mut Log) -> Result<(), Failure> {
        let mut command = vec!["/usr/bin/strip".to_owned(), "--strip-debug".to_owned()];
        command.extend(self.modules.iter().map(|m| format!("{m}.ko")));
        let spec = spec(self.root, self.work, command, INSIDE, "strip");
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
            ExitCode::Compile,
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

/// Reads the finished modules, checks them against the kernel and the driver, and stores them.
///
/// # Errors
/// Exit code 14 where one is not for this kernel or not of this driver, 15 where the store cannot
/// be written.
pub fn store_modules(
    files: &[PathBuf],
    compile: &Compile<'_>,
    store: &Store,
) -> Result<Vec<ModuleEntry>, Failure> {
    files
        .iter()
        .map(|path| {
            let what = || format!("checking {}", path.display());
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let image = fs::read(path).or_fail(ExitCode::Compile, what)?;
            let entry = ModuleEntry::describe(&name, &image, compile.release)
                .or_fail(ExitCode::Compile, what)?;
            if entry.version.as_deref().is_some_and(|v| v != compile.driver) {
                return Err(compile.failure(format!("{name} says it is {:?}", entry.version)));
            }
            store.put(&image)?;
            Ok(entry)
        })
        .collect()
}

fn spec(root: &Path, work: &Path, command: Vec<String>, directory: &str, name: &str) -> Spec {
    let arch = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let environment = [
        ("PATH", "/usr/bin:/usr/sbin"),
        ("HOME", "/build"),
        ("TMPDIR", "/tmp"),
        ("LC_ALL", "C"),
        ("TZ", "UTC"),
        ("KBUILD_BUILD_USER", "longshore"),
        ("KBUILD_BUILD_HOST", "longshore"),
        // Debian's headers ask dpkg otherwise, which is not in the root.
        ("DEB_BUILD_ARCH", arch),
        ("DEB_HOST_ARCH", arch),
    ];
    let bind = |name: &str, target: &str| Bind::new(work.join(name), target);
    Spec {
        root: root.to_path_buf(),
        binds: vec![bind("", "/build"), bind("tmp", "/tmp")],
        command,
        environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
        handed_on: Vec::new(),
        directory: directory.into(),
        user: fs::metadata(work.join("tmp")).ok().map(|m| m.uid()).filter(|uid| *uid == NOBODY),
        outcome: work.with_extension(name),
    }
}

/// Gives the work directory to nobody, so that the build can run as nobody.
pub(crate) fn hand_over(dir: &Path) -> io::Result<()> {
    if give(&dir.join("tmp"))? {
        walk(dir, &mut |path| give(path).map(drop))?;
    }
    Ok(())
}

/// Gives one path to nobody. Where that is not allowed (a user namespace without that user) builds
/// run as who the agent is; then this is false.
pub(super) fn give(path: &Path) -> io::Result<bool> {
    use nix::errno::Errno;
    const NOT_ALLOWED: [i32; 2] = [Errno::EPERM as i32, Errno::EINVAL as i32];
    match std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)) {
        Err(e) if e.raw_os_error().is_some_and(|n| NOT_ALLOWED.contains(&n)) => Ok(false),
        given => given.map(|()| true),
    }
}

/// Visits `path` and, if it is a directory, everything below.
pub(super) fn walk(path: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    visit(path)?;
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), visit)?;
        }
    }
    Ok(())
}

/// The kernel's source and output directories, as paths inside the root: where the links `source`
/// (Debian's common part) and `build` below /lib/modules/RELEASE lead. They are absolute until
/// Debian 12, relative since.
pub(crate) fn kernel_dirs(root: &Path, release: &str) -> Result<(PathBuf, PathBuf), Failure> {
    // Not /lib: a relative link counts from where the directory really is.
    let modules = Path::new("/usr/lib/modules").join(release);
    let target = |link: &str| {
        let link = modules.join(link);
        let target = match fs::read_link(root.join(link.strip_prefix("/").ok()?)) {
            Ok(target) => resolved(&modules.join(target)),
            Err(_) => link,
        };
        root.join(target.strip_prefix("/").ok()?).is_dir().then_some(target)
    };
    let output = target("build").ok_or_else(|| {
        Failure::new(
            ExitCode::Toolchain,
            format!("{}/build in {} leads to no headers", modules.display(), root.display()),
        )
    })?;
    Ok((target("source").unwrap_or_else(|| output.clone()), output))
}

/// An absolute path without its `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::Normal(name) => plain.push(name),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_page_about_deadlines_has_what_is_short() {
        crate::config::assert_in_page("What else a build calls", SHORT);
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
