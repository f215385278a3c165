//! Directory of a kernel's modules below a host's root.

use std::path::{Path, PathBuf};

use crate::root::Root;

/// Returns the directory of a release's modules inside `host`: `lib/modules/RELEASE`, through any links (merged
/// /usr, ostree), or `usr/lib/modules/RELEASE` where only that exists (a container with the host's /usr alone).
pub fn module_dir(host: &Root, release: &str) -> PathBuf {
    let usual = Path::new("lib/modules").join(release);
    let merged = Path::new("usr").join(&usual);
    let exists = |dir: &Path| host.exists(dir).unwrap_or(false);
    if !exists(&usual) && exists(&merged) { merged } else { usual }
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
