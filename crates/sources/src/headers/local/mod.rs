//! Headers on the host, or at the paths of the configuration.

use std::fs::{self, File, Metadata};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

use super::Wanted;
use super::kernel_build::KernelBuild;
use super::stated::{Reading, Stated, defined};
use super::trees::Trees;
use super::view::View;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::module_dir::module_dir;
use longshore_core::ownership;
use longshore_core::root::{Root, read_below};
use longshore_core::scratch::{ScratchDir, claim};
use longshore_core::store::Store;
use longshore_debian::compression;
use longshore_debian::deb;
use longshore_debian::faults;
use longshore_debian::tree::Tree;

/// Headers of a kernel that are not packages.
pub(super) struct LocalHeaders {
    pub(super) trees: Trees,
    pub(super) stated: Stated,
    /// The directory that a tar file was unpacked into.
    pub(super) unpacked: Option<Arc<ScratchDir>>,
}

/// Reads the headers at a configured path: a directory or a tar file. The inner error is the reason
/// why they do not fit the kernel.
///
/// # Errors
/// Exit code 11 where the path does not exist, 13 where a tar file is damaged, 15 where the store
/// cannot be written.
pub(super) async fn given(
    path: &Path,
    wanted: Wanted<'_>,
    store: &Store,
) -> Result<Result<LocalHeaders, String>, Failure> {
    let is_dir = metadata(path)?.is_dir();
    if let Err(why) = check_way(Path::new("/"), path) {
        return Ok(Err(why));
    }
    if is_dir {
        return Ok(in_directory(path, wanted).and_then(checked));
    }
    let (from, to) = (path.to_path_buf(), store.clone());
    let unpacked = tokio::task::spawn_blocking(move || unpack(&from, &to))
        .await
        .or_fail(FailureKind::Bug, || reading(path))??;
    let found = in_directory(unpacked.path(), wanted);
    Ok(found.map(|found| LocalHeaders { unpacked: Some(Arc::new(unpacked)), ..found }))
}

/// Returns the metadata of a configured path.
///
/// # Errors
/// Exit code 11 where it does not exist.
pub(super) fn metadata(path: &Path) -> Result<Metadata, Failure> {
    let remedy = "correct `headers`, or leave it out to search the archives and the host";
    let read = fs::metadata(path).or_fail(FailureKind::Toolchain, || reading(path));
    read.map_err(|failure| failure.remedy(remedy))
}

fn reading(path: &Path) -> String {
    format!("reading the headers in {}", path.display())
}

/// Like [`given`], without unpacking: returns the required compiler, or the reason why they do not
/// fit.
pub(super) fn look(path: &Path, wanted: Wanted<'_>) -> Result<String, String> {
    match fs::metadata(path) {
        Ok(meta) => {
            check_way(Path::new("/"), path)?;
            match meta.is_dir() {
                true => Ok(in_directory(path, wanted).and_then(checked)?.stated.compiler),
                false => Ok("the compiler it names".to_owned()),
            }
        }
        Err(e) => Err(e.to_string()),
    }
}

/// Returns headers that nobody but root may write to.
fn checked(found: LocalHeaders) -> Result<LocalHeaders, String> {
    found.trees.check_owners().map_err(refused).map(|()| found)
}

/// Checks that nobody but root may write to a file or on the way to it.
fn check_way(root: &Path, path: &Path) -> Result<(), String> {
    ownership::way(root, path).map(drop).map_err(refused)
}

/// The reason why headers are passed over, with the remedy for those of others.
fn refused(error: io::Error) -> String {
    match ownership::untrusted(&error) {
        Some(untrusted) => format!("{untrusted}: {}", untrusted.remedy()),
        None => error.to_string(),
    }
}

/// Reads the headers below the host's /lib/modules.
pub(super) fn of_host(root: &Path, wanted: Wanted<'_>) -> Result<LocalHeaders, String> {
    let host = Root::open(root).map_err(|e| e.to_string())?;
    let modules = Path::new("/").join(module_dir(&host, wanted.release));
    let (build, source) = (modules.join("build"), modules.join("source"));
    let found = follow(View::new("/", root), wanted, &build, Some(&source))?;
    check_way(root, &build)?;
    checked(found)
}

/// Finds headers in a directory: a root with /lib/modules or /usr/src in it, a directory of several
/// header trees, or a tree itself.
fn in_directory(dir: &Path, wanted: Wanted<'_>) -> Result<LocalHeaders, String> {
    let dir = dir.canonicalize().map_err(|e| e.to_string())?;
    let release = wanted.release;
    if dir.join("Makefile").is_file() {
        let (parent, name) = (dir.parent().unwrap_or(&dir), dir.file_name().unwrap_or_default());
        let view = View::new("/usr/src", parent);
        return follow(view, wanted, &Path::new("/usr/src").join(name), None);
    }
    let root = View::new("/", &dir);
    for modules in ["/lib/modules", "/usr/lib/modules"].map(|dir| Path::new(dir).join(release)) {
        let build = modules.join("build");
        if root.resolve(&build).is_ok_and(|found| found.is_some()) {
            return follow(root, wanted, &build, Some(&modules.join("source")));
        }
    }
    let names = [format!("linux-headers-{release}"), format!("kernels/{release}")];
    let found = |view: &View| {
        let trees = names.iter().map(|name| Path::new("/usr/src").join(name));
        trees.into_iter().find(|tree| view.resolve(tree).is_ok_and(|found| found.is_some()))
    };
    for view in [root, View::new("/usr/src", &dir)] {
        if let Some(build) = found(&view) {
            return follow(view, wanted, &build, None);
        }
    }
    // A tar file often contains a single directory.
    let mut inside = fs::read_dir(&dir).map_err(|e| e.to_string())?.flatten();
    if let (Some(only), None) = (inside.next(), inside.next())
        && only.file_type().is_ok_and(|kind| kind.is_dir())
    {
        return in_directory(&only.path(), wanted);
    }
    Err(format!(
        "there is neither a Makefile in it, nor lib/modules/{release}/build, nor usr/src/{}",
        names[0]
    ))
}

pub(super) fn follow(
    view: View,
    wanted: Wanted<'_>,
    build: &Path,
    source: Option<&Path>,
) -> Result<LocalHeaders, String> {
    let system = view.clone();
    let trees = Trees::follow(view, wanted.release, build, source)?;
    let read = |path: &str| {
        let what = || format!("reading {path}");
        trees.read(path).or_fail(FailureKind::Verification, what)
    };
    let reading = Reading::read("it", read).map_err(|failure| failure.one_line())?;
    let implied = reading.lacks_version().then(|| implied_version(&system, wanted)).flatten();
    let stated = reading.complete("it", implied).map_err(|failure| failure.one_line())?;
    let release = read("include/generated/utsrelease.h").map_err(|failure| failure.one_line())?;
    let found = defined(&release, "UTS_RELEASE").unwrap_or_default();
    if found != wanted.release {
        return Err(format!("it is for {found:?}, not for {}", wanted.release));
    }
    match wanted.version.filter(|version| *version != stated.kernel_version) {
        Some(version) => {
            let found = &stated.kernel_version;
            Err(format!("it is for {found:?}, and the kernel is {version:?}"))
        }
        None => Ok(LocalHeaders { trees, stated, unpacked: None }),
    }
}

/// Returns the kernel's version for headers that state the release alone: the wanted one, unless dpkg
/// has their package of another build.
fn implied_version(view: &View, wanted: Wanted<'_>) -> Option<String> {
    let is_other = |build: KernelBuild<'_>| {
        let installed = installed_version(view, wanted.release);
        installed.is_some_and(|version| !build.is_of(wanted.release, &version))
    };
    let version = wanted.version?;
    let other = KernelBuild::named(version).is_some_and(is_other);
    (!other).then(|| version.to_owned())
}

/// Returns the version of the headers package of `release` that dpkg installed in a system; None
/// without that list.
fn installed_version(view: &View, release: &str) -> Option<String> {
    let root = view.outside(Path::new("/"))?;
    let list = read_below(&root, Path::new("/var/lib/dpkg/status")).ok()?;
    let list = String::from_utf8_lossy(&list);
    let package = format!("Package: linux-headers-{release}");
    let entry = list.split("\n\n").find(|entry| entry.lines().any(|line| line == package))?;
    entry.lines().find_map(|line| line.strip_prefix("Version: ")).map(str::to_owned)
}

/// Unpacks a tar file into a directory of the store that is removed with the build.
fn unpack(path: &Path, store: &Store) -> Result<ScratchDir, Failure> {
    let name = path.display().to_string();
    let dir = claim(store, "headers")?;
    let damaged = |e| {
        compression::host_failure(&e).unwrap_or_else(|| {
            Failure::new(FailureKind::Verification, format!("{name} is not a readable tar file"))
                .with_source(e)
                .remedy("give a directory, or a tar file (.tar, .tar.gz, .tar.xz, .tar.zst)")
        })
    };
    let file = BufReader::with_capacity(1 << 16, File::open(path).map_err(damaged)?);
    let mut reader = compression::decompressed(&name, file).map_err(damaged)?;
    let reader: &mut dyn std::io::Read = &mut reader;
    let mut tar = tar::Archive::new(reader);
    let mut tree = Tree::open(dir.path())?;
    let mut most = 4u64 << 30;
    for entry in tar.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        most = most.checked_sub(entry.size()).ok_or_else(|| {
            faults::bad(&name, "it unpacks to more than 4 GiB, which no headers do")
        })?;
        tree.add(&name, &mut entry, &mut deb::everything)?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests;
