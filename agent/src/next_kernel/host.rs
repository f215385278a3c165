//! Kernel of the next boot of a host, by the host's files.

use super::NextRelease;
use super::release::next;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_core::root::Root;
use longshore_host::facts::installed_kernels;

/// Reads the kernel of the next boot; None where the host shows no kernels.
///
/// # Errors
/// Exit code 15 where the host cannot be read.
pub fn of_host(paths: &Paths) -> Result<Option<NextRelease>, Failure> {
    let reading = || "reading the kernels of the host";
    let open = |path| Root::open(path).or_fail(FailureKind::Preflight, reading);
    let (root, host) = (open(&paths.root)?, open(&paths.host_root)?);
    let running = root.read_to_string("proc/sys/kernel/osrelease");
    let running = running.or_fail(FailureKind::Preflight, reading)?.trim().to_owned();
    let installed = installed_kernels::read(&host, &running);
    let installed = installed.or_fail(FailureKind::Preflight, reading)?;
    if installed.is_empty() {
        return Ok(None);
    }
    Ok(Some(match next(&running, &installed) {
        Some(release) => NextRelease { release: release.to_owned(), is_running: false },
        None => NextRelease { release: running, is_running: true },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    #[rstest]
    #[case::none(&[], None)]
    #[case::running(&["6.1.0-50-amd64", "6.1.0-49-amd64"], Some(("6.1.0-50-amd64", true)))]
    #[case::newer(&["6.1.0-50-amd64", "6.1.0-51-amd64"], Some(("6.1.0-51-amd64", false)))]
    #[case::other_flavour(&["6.1.0-51-rt-amd64"], Some(("6.1.0-50-amd64", true)))]
    fn the_next_kernel_is_the_newest_installed_one(
        #[case] installed: &[&str],
        #[case] wanted: Option<(&str, bool)>,
    ) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let proc = dir.path().join("proc/sys/kernel");
        fs::create_dir_all(&proc).expect("made");
        fs::write(proc.join("osrelease"), "6.1.0-50-amd64\n").expect("written");
        for release in installed {
            let modules = dir.path().join("lib/modules").join(release);
            fs::create_dir_all(&modules).expect("made");
            fs::write(modules.join("modules.dep"), "").expect("written");
        }
        let mut paths = Paths::below(dir.path());
        (paths.root, paths.host_root) = (dir.path().into(), dir.path().into());
        let next = of_host(&paths).expect("read").map(|next| (next.release, next.is_running));
        assert_eq!(next, wanted.map(|(release, running)| (release.to_owned(), running)));
    }
}
