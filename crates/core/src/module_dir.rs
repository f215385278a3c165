//! Directory of a kernel's modules below a host's root.

use std::path::{Path, PathBuf};

use crate::root::Root;

/// Directories with modules of kernels: the usual one, through any links (merged /usr, ostree); /usr alone, as in
/// a container with the host's /usr; NixOS', of the booted system (its kmod's MODULE_DIR).
const DIRS: [&str; 3] =
    ["lib/modules", "usr/lib/modules", "run/booted-system/kernel-modules/lib/modules"];

/// Returns the directory of a release's modules inside `host`; the usual one where none exists.
pub fn module_dir(host: &Root, release: &str) -> PathBuf {
    let [usual, others @ ..] = DIRS.map(|dir| Path::new(dir).join(release));
    let exists = |dir: &PathBuf| host.exists(dir).unwrap_or(false);
    if exists(&usual) {
        return usual;
    }
    others.into_iter().find(exists).unwrap_or(usual)
}

/// True if `host` has modules of any kernel.
pub fn has_modules(host: &Root) -> bool {
    DIRS.iter().any(|dir| host.exists(dir).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[rstest]
    #[case::split("lib/modules/r", None, "lib/modules/r")]
    #[case::merged("usr/lib/modules/r", Some(("usr/lib", "lib")), "lib/modules/r")]
    #[case::absolute("usr/lib/modules/r", Some(("/usr/lib", "lib")), "lib/modules/r")]
    #[case::modules_linked("opt/modules/r", Some(("/opt/modules", "lib/modules")), "lib/modules/r")]
    #[case::usr_alone("usr/lib/modules/r", None, "usr/lib/modules/r")]
    #[case::nixos(
        "nix/store/modules/r",
        Some(("/nix/store/modules", "run/booted-system/kernel-modules/lib/modules")),
        "run/booted-system/kernel-modules/lib/modules/r"
    )]
    #[case::other_release("lib/modules/s", None, "lib/modules/r")]
    fn layouts(#[case] dir: &str, #[case] link: Option<(&str, &str)>, #[case] wanted: &str) {
        let root = tempfile::tempdir().expect("temporary directory");
        fs::create_dir_all(root.path().join(dir)).expect("made");
        if let Some((target, name)) = link {
            let link = root.path().join(name);
            fs::create_dir_all(link.parent().expect("a parent")).expect("made");
            symlink(target, link).expect("link");
        }
        let host = Root::open(root.path()).expect("root");
        assert_eq!(module_dir(&host, "r"), Path::new(wanted));
    }
}
