//! Directories that would get in each other's way, or in the way of the whole system.

use std::path::{Component, Path, PathBuf};

use super::Paths;
use crate::failure::{ExitCode, Failure};

/// Checks where things are to lie.
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
            return Err(Failure::new(ExitCode::Usage, cause)
                .remedy(format!("give {setting} a directory of its own")));
        }
        if setting != "driver-root" && place.starts_with(&driver_root) {
            let cause = format!(
                "{setting} ({}) lies in driver-root ({}): what is mounted there would cover it",
                path.display(),
                paths.driver_root.display()
            );
            return Err(Failure::new(ExitCode::Usage, cause)
                .remedy(format!("give {setting} a directory outside driver-root")));
        }
    }
    Ok(())
}

/// An absolute path without its `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
            root: "/".into(),
            host_root: "/".into(),
        };
        let cause = check(&paths).err().map(|failure| failure.to_string());
        let matches = match (&cause, refused) {
            (Some(cause), Some(words)) => cause.starts_with(words),
            (cause, refused) => cause.is_none() && refused.is_none(),
        };
        assert!(matches, "{cause:?}");
    }
}
