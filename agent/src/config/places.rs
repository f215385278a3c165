//! Directories of longshore and of the host, and a check that they do not conflict.

use std::path::{Path, PathBuf};

use super::Fragment;
use super::fragment::MOST_BYTES;
use super::layer::{FromEnv, Over};
use super::plain_path::plain;
use super::record_place::RecordPlace;
use longshore_core::bounded_read;
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::paths::{DRIVER_ROOT, Paths, STORE};
use longshore_core::value::AbsolutePath;
use longshore_host::facts::process::{FirstProcess, first_process};

/// Directories of the settings, with the defaults for those that are not set.
pub(super) fn paths(all: &Fragment) -> Paths {
    let or = |path: &Option<AbsolutePath>, default: &str| {
        path.as_ref().map_or_else(|| PathBuf::from(default), |p| p.as_path().to_path_buf())
    };
    let root = or(&all.root, "/");
    let host_root = match &all.host_root {
        Some(path) => path.as_path().to_path_buf(),
        None if root == Path::new("/") => own_host_root(Path::new("/")),
        None => root.clone(),
    };
    let driver_root = or(&all.driver_root, DRIVER_ROOT);
    let state = all.state_dir.as_ref().map(AbsolutePath::as_path);
    let record = RecordPlace::find(state, &root, &driver_root);
    Paths {
        store: or(&all.store, STORE),
        state: record.dir,
        sealed: record.sealed,
        earlier_state: record.earlier,
        driver_root,
        ..Paths::new(&root, &host_root)
    }
}

/// Directories of the settings alone, for a probe: `usual` is the file where none is named.
///
/// Of the file nothing else is read, and one that cannot be read or parsed has none of them: it was changed since the
/// agent took it, which is no reason to end that agent.
///
/// # Errors
/// Exit code 2 for variables that are not valid, or directories that conflict with each other.
pub fn probed(flags: Fragment, env: Env<'_>, usual: &Path) -> Result<Paths, Failure> {
    let above = flags.over(Fragment::from_env(env, &[])?);
    let below = places_of(above.config.as_deref().unwrap_or(usual));
    let paths = paths(&above.over(below));
    check(&paths)?;
    Ok(paths)
}

/// Reads the directories in a configuration file.
fn places_of(file: &Path) -> Fragment {
    let text = bounded_read::read_text(file, MOST_BYTES).unwrap_or_default();
    let table: toml::Table = toml::from_str(&text).unwrap_or_default();
    let of = |key: &str| AbsolutePath::strict(table.get(key)?.as_str()?).ok();
    Fragment {
        store: of("store"),
        state_dir: of("state-dir"),
        driver_root: of("driver-root"),
        root: of("root"),
        host_root: of("host-root"),
        ..Fragment::default()
    }
}

/// Returns `/proc/1/root` where process 1 is the host's: in a container that shares the host's PID
/// namespace.
fn own_host_root(root: &Path) -> PathBuf {
    match first_process(root) {
        FirstProcess::Hosts => root.join("proc/1/root"),
        FirstProcess::Own | FirstProcess::Foreign => root.to_path_buf(),
    }
}

/// Checks that the directories do not conflict with each other or with the system.
///
/// # Errors
/// Exit code 2 where one is `/`, or where the driver root would cover store or state.
pub(super) fn check(paths: &Paths) -> Result<(), Failure> {
    let driver_root = plain(&paths.driver_root);
    for (setting, path) in
        [("driver-root", &paths.driver_root), ("store", &paths.store), ("state-dir", &paths.state)]
    {
        let place = plain(path);
        if place == Path::new("/") {
            let cause = format!("{setting} is {}, the root of the system", path.display());
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy(format!("give {setting} a directory of its own")));
        }
        if setting != "driver-root" && place.starts_with(&driver_root) {
            let cause = format!(
                "{setting} ({}) lies in driver-root ({}): what is mounted there would cover it",
                path.display(),
                paths.driver_root.display()
            );
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy(format!("give {setting} a directory outside driver-root")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    #[test]
    fn the_root_of_a_process_1_that_is_the_hosts_is_the_hosts() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("proc/1/root/lib/modules")).unwrap();
        assert_eq!(own_host_root(dir.path()), dir.path(), "it may be a pause container's");
        fs::create_dir_all(dir.path().join("proc/1/root/etc")).unwrap();
        fs::write(dir.path().join("proc/1/root/etc/os-release"), "ID=debian").unwrap();
        assert_eq!(own_host_root(dir.path()), dir.path().join("proc/1/root"));
    }

    /// A ConfigMap that is wrong: the kubelet would end each agent that runs.
    #[rstest]
    #[case::none("", "/run/flag", "/run/flag")]
    #[case::whole("driver = '535'\nstate-dir = '/run/file'\n", "", "/run/file")]
    #[case::over_it("state-dir = '/run/file'\n", "/run/flag", "/run/flag")]
    #[case::unknown_key("drivr = '535'\nstate-dir = '/run/file'\n", "", "/run/file")]
    #[case::bad_value("listen = 1\nstate-dir = '/run/file'\nroot = 2\n", "", "/run/file")]
    #[case::conflict("require-signature = true\nstate-dir = '/run/file'\n", "", "/run/file")]
    #[case::no_toml("= {\n", "/run/flag", "/run/flag")]
    fn a_probe_needs_the_directories_alone(
        #[case] text: &str,
        #[case] flag: &str,
        #[case] wanted: &str,
    ) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let state_dir = AbsolutePath::strict(flag).ok();
        let flags = Fragment { state_dir, ..Fragment::default() };
        let paths = probed(flags, &|_| None, file.path()).unwrap();
        assert_eq!(paths.state, Path::new(wanted));
    }

    #[rstest]
    #[case("/var/lib/longshore", "/run/nvidia/longshore", "/run/nvidia/driver", None)]
    #[case("/a", "/run/b", "/run/bc", None)]
    #[case("/", "/run/a", "/run/b", Some("store is /"))]
    #[case("/a/..", "/run/a", "/run/b", Some("store is /a/.."))]
    #[case("/a", "/", "/run/b", Some("state-dir is /"))]
    #[case("/a", "/run/a", "/../.", Some("driver-root is /"))]
    #[case("/a", "/run/nvidia/longshore", "/run/nvidia", Some("state-dir (/run/nvidia/longshore)"))]
    #[case("/a", "/run/a", "/b/../a", Some("store (/a) lies in"))]
    fn places(
        #[case] store: &str,
        #[case] state: &str,
        #[case] driver_root: &str,
        #[case] refused: Option<&str>,
    ) {
        let paths = Paths {
            store: store.into(),
            state: state.into(),
            driver_root: driver_root.into(),
            ..Paths::below(Path::new("/"))
        };
        let cause = check(&paths).err().map(|failure| failure.to_string());
        let matches = match (&cause, refused) {
            (Some(cause), Some(expected)) => cause.starts_with(expected),
            (cause, refused) => cause.is_none() && refused.is_none(),
        };
        assert!(matches, "{cause:?}");
    }
}
