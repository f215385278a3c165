//! Headers inside a build root that a distribution's own tools filled.
//!
//! Distributions put a kernel's build tree at different paths: `/lib/modules/RELEASE/build` leads to it on most,
//! Red Hat's is `/usr/src/kernels/RELEASE`, Debian's `/usr/src/linux-headers-RELEASE`, and SUSE's
//! `/usr/src/linux-VERSION-obj/ARCH/FLAVOUR` beside `/usr/src/linux-VERSION`. Links lead where they lead in the root.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::stated::Stated;
use super::view::View;
use super::{Headers, Wanted, local};
use longshore_core::root::Root;
use longshore_modules::artifact::HeadersFrom;

/// Maximum number of names in a directory of kernels.
const MOST_NAMES: usize = 4096;

/// Places of a kernel's output directory, and of its sources where they lie elsewhere.
fn places(release: &str) -> Vec<(PathBuf, Option<PathBuf>)> {
    let mut places = Vec::new();
    for modules in ["/lib/modules", "/usr/lib/modules"].map(|dir| Path::new(dir).join(release)) {
        places.push((modules.join("build"), Some(modules.join("source"))));
    }
    let sources = Path::new("/usr/src");
    places.push((sources.join("kernels").join(release), None));
    places.push((sources.join(format!("linux-headers-{release}")), None));
    if let Some((version, flavour)) = release.rsplit_once('-') {
        let object = sources.join(format!("linux-{version}-obj"));
        let source = sources.join(format!("linux-{version}"));
        places.push((object.join(std::env::consts::ARCH).join(flavour), Some(source)));
    }
    places
}

/// Paths, inside a root, of a kernel's sources and output directory.
pub type KernelDirs = (PathBuf, PathBuf);

/// Returns a kernel's directories in a root that was assembled of its headers alone; None where it has none. A root
/// that others filled may have more, of which only some fit: see [`headers_in`].
pub fn dirs_in(root: &Path, release: &str) -> Option<KernelDirs> {
    let view = View::new("/", root);
    let directory = |path: &Path| {
        let found = view.resolve(path).ok().flatten()?;
        view.outside(&found).is_some_and(|outside| outside.is_dir()).then_some(found)
    };
    places(release).into_iter().find_map(|(build, source)| {
        let output = directory(&build)?;
        let source = source.and_then(|source| directory(&source));
        Some((source.unwrap_or_else(|| output.clone()), output))
    })
}

/// Finds the headers of a kernel that fit in a root, which only this process writes to: returns what they state, and
/// their directories, which are the ones to compile against.
///
/// # Errors
/// The reason why there are none that fit.
pub fn headers_in(root: &Path, wanted: Wanted<'_>) -> Result<(Stated, KernelDirs), String> {
    let view = View::new("/", root);
    let mut why = None;
    for (build, source) in places(wanted.release) {
        if !view.resolve(&build).is_ok_and(|found| found.is_some()) {
            continue;
        }
        match local::follow(view.clone(), wanted, &build, source.as_deref()) {
            Ok(found) => return Ok((found.stated, found.trees.dirs())),
            Err(unfit) => drop(why.get_or_insert(unfit)),
        }
    }
    Err(why.unwrap_or_else(|| format!("it has no headers for {}", wanted.release)))
}

/// Lists the releases that a root has headers for, fitting or not.
pub fn releases_in(root: &Path) -> Vec<String> {
    let Ok(root) = Root::open(root) else { return Vec::new() };
    let names = |dir: &str| root.read_small_dir(dir, MOST_NAMES).unwrap_or_default();
    let mut releases: BTreeSet<String> = names("usr/src/kernels").into_iter().collect();
    for dir in ["lib/modules", "usr/lib/modules"] {
        let has_build = |name: &String| root.exists(format!("{dir}/{name}/build")).unwrap_or(false);
        releases.extend(names(dir).into_iter().filter(has_build));
    }
    for name in names("usr/src") {
        if let Some(release) = name.strip_prefix("linux-headers-") {
            releases.insert(release.to_owned());
        }
        if let Some(version) = name.strip_prefix("linux-").and_then(|n| n.strip_suffix("-obj")) {
            let flavours = names(&format!("usr/src/{name}/{}", std::env::consts::ARCH));
            releases.extend(flavours.into_iter().map(|flavour| format!("{version}-{flavour}")));
        }
    }
    releases.into_iter().collect()
}

impl Headers {
    /// Returns headers that are in the build root already, beside their compiler.
    pub fn in_root(release: &str, stated: Stated, dirs: KernelDirs) -> Self {
        Self { dirs: Some(dirs), ..Self::bare(release, stated, HeadersFrom::Named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    use crate::testing::put_headers;

    const RELEASE: &str = "5.14.0-427.13.1.el9_4.x86_64";
    const SUSE: &str = "6.4.0-150600.23.38-default";

    fn wanted(release: &str) -> Wanted<'_> {
        Wanted { release, version: None }
    }

    /// A root with headers at `place`, and `links` in it.
    fn root(release: &str, place: &str, links: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        put_headers(
            &dir.path().join(place),
            release,
            "gcc (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)",
        );
        for (link, target) in links {
            let link = dir.path().join(link);
            fs::create_dir_all(link.parent().expect("a parent")).expect("directory");
            symlink(target, link).expect("link");
        }
        dir
    }

    #[rstest]
    #[case::red_hat(RELEASE, "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64", &[], None)]
    #[case::red_hat_with_links(
        RELEASE,
        "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64",
        &[
            ("lib", "usr/lib"),
            ("usr/lib/modules/5.14.0-427.13.1.el9_4.x86_64/build", "/usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64"),
            ("usr/lib/modules/5.14.0-427.13.1.el9_4.x86_64/source", "build"),
        ],
        None
    )]
    #[case::split_usr(
        RELEASE,
        "usr/src/kernels/x",
        &[("lib/modules/5.14.0-427.13.1.el9_4.x86_64/build", "../../../usr/src/kernels/x")],
        None
    )]
    #[case::flatcar("6.6.30-flatcar", "usr/lib/modules/6.6.30-flatcar/build", &[], None)]
    #[case::debian("6.1.0-50-amd64", "usr/src/linux-headers-6.1.0-50-amd64", &[], None)]
    #[case::suse(
        SUSE,
        "usr/src/linux-6.4.0-150600.23.38-obj/x86_64/default",
        &[("usr/src/linux-6.4.0-150600.23.38", "linux-6.4.0-150600.23.38-obj/x86_64/default")],
        None
    )]
    #[case::neighbour("6.1.0-51-amd64", "usr/src/linux-headers-6.1.0-50-amd64", &[], Some("no headers for"))]
    #[case::link_to_the_outside(
        "6.1.0-51-amd64",
        "usr/src/linux-headers-6.1.0-50-amd64",
        &[("lib/modules/6.1.0-51-amd64/build", "/usr/src/linux-headers-6.1.0-50-amd64")],
        Some("it is for \"6.1.0-50-amd64\", not for 6.1.0-51-amd64")
    )]
    fn headers_are_found_where_distributions_put_them(
        #[case] release: &str,
        #[case] place: &str,
        #[case] links: &[(&str, &str)],
        #[case] said: Option<&str>,
    ) {
        let made =
            place.rsplit('/').next().unwrap_or_default().trim_start_matches("linux-headers-");
        let of = if said.is_some() { made } else { release };
        let root = root(of, place, links);
        match (headers_in(root.path(), wanted(release)), said) {
            (Ok((stated, dirs)), None) => {
                assert!(stated.compiler.contains("11.4.1"));
                assert_eq!(Some(dirs), dirs_in(root.path(), release));
            }
            (Err(why), Some(said)) => assert!(why.contains(said), "{why}"),
            (found, said) => panic!("{found:?} instead of {said:?}"),
        }
        if said.is_none() {
            let (_, output) = dirs_in(root.path(), release).expect("directories");
            assert!(root.path().join(output.strip_prefix("/").expect("absolute")).is_dir());
            assert!(releases_in(root.path()).contains(&release.to_owned()));
        }
    }

    #[test]
    fn headers_of_another_build_of_the_release_are_refused() {
        let root = root(RELEASE, "usr/src/kernels/5.14.0-427.13.1.el9_4.x86_64", &[]);
        let other = Wanted { release: RELEASE, version: Some("#1 SMP of another day") };
        let why = headers_in(root.path(), other).expect_err("another build");
        assert!(why.contains("of another day"), "{why}");
    }

    #[rstest]
    #[case::of_another_kernel(|root: &Path, place: &str| {
        put_headers(&root.join(place), "5.14.0-1.el9.x86_64", "gcc (GCC) 11.4.1");
    })]
    #[case::empty(|root: &Path, place: &str| {
        fs::create_dir_all(root.join(place)).expect("directory");
    })]
    fn the_directories_are_those_of_the_headers_that_fit(#[case] put: fn(&Path, &str)) {
        let fits = format!("usr/src/kernels/{RELEASE}");
        let root = root(RELEASE, &fits, &[]);
        put(root.path(), &format!("lib/modules/{RELEASE}/build"));
        let (stated, dirs) = headers_in(root.path(), wanted(RELEASE)).expect("fit");
        assert!(stated.compiler.contains("11.4.1-3"), "{stated:?}");
        let fits = Path::new("/").join(fits);
        assert_eq!(dirs, (fits.clone(), fits));
    }
}
