//! Rules of the kernel matrix over an archive that they name: kernels by name in Ubuntu's layout.

use std::fs;
use std::path::Path;

use kernel_matrix::results::Part;
use kernel_matrix::rules::Rules;
use kernel_matrix::rules::lock::{Lock, LockedKernel};
use kernel_matrix::rules::resolve::Resolver;
use longshore_lab::host::archives::Archives;

use longshore_tests::archive::{ARCH, Suite, certificate, deb, key};

/// Makes an archive in `dir` with the headers of two ABIs, of which the archive has lost one, and with a driver.
fn archive(dir: &Path) {
    let stanza = |name: &str, version: &str, source: &str, depends: &str| {
        format!(
            "Package: {name}\nSource: {source}\nVersion: {version}\nArchitecture: {ARCH}\n\
             Depends: {depends}\n"
        )
    };
    let mut packages = Vec::new();
    for abi in ["6.8.0-45", "6.8.0-48"] {
        let (version, common) = (format!("{abi}.1"), format!("linux-hwe-6.8-headers-{abi}"));
        let depends = format!("{common}, libc6 (>= 2.38)");
        let of_flavour = format!("linux-headers-{abi}-generic");
        for (name, depends) in [(of_flavour, depends.as_str()), (common, "coreutils")] {
            let text = stanza(&name, &version, "linux-hwe-6.8", depends);
            packages.push((text, deb(&[("./file", name.as_bytes())])));
        }
    }
    let driver = "nvidia-kernel-source-580-open";
    let of_driver = stanza(driver, "580.178.04-0ubuntu1", "nvidia-graphics-drivers-580", "make");
    packages.push((of_driver, deb(&[("./usr/src/nvidia-580.178.04/Kbuild", b"x")])));
    let suite = Suite { name: "noble".into(), origin: "Ubuntu".into(), packages, ..Suite::usual() };
    let key = key();
    let mut files = suite.files(&key);
    files.remove(&suite.pool(2)).expect("headers of the second ABI");
    for (path, bytes) in files {
        let path = dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
        fs::write(path, bytes).expect("written");
    }
    fs::write(dir.join("key.asc"), certificate(&key)).expect("written");
}

fn resolved(dir: &Path) -> Lock {
    let text = format!(
        "format = 1\n[[archive]]\nurl = 'file://{0}'\nsuites = ['noble']\ncomponents = ['main']\n\
         keyring = '{0}/key.asc'\n\
         [[kernels]]\nname = 'fleet'\ndistribution = 'ubuntu'\nsuites = ['noble']\n\
         releases = ['6.8.0-45-generic', '6.8.0-46-generic', '6.8.0-48-generic']\n\
         [[kernels]]\nname = 'el9'\nreleases = ['5.14.0-1.el9.x86_64']\nbuild-root = '{0}/root'\n\
         [[drivers]]\nbranches = ['580', '570']\nflavours = ['open']\nsuites = ['noble']\n\
         [[rule]]\nname = 'compile'\n",
        dir.display()
    );
    let rules = Rules::parse(&text).expect("rules");
    let suites = rules.suites().into_iter().map(|suite| (suite, false)).collect();
    let archives =
        Archives::open_with(&dir.join("store"), &suites, &rules.archives).expect("opens");
    Resolver { archives: &archives }.resolve(&rules, &mut |_| {})
}

#[test]
fn kernels_and_drivers_are_resolved_in_an_archive_of_ubuntus_layout() {
    let dir = tempfile::tempdir().expect("dir");
    archive(dir.path());
    fs::create_dir(dir.path().join("root")).expect("directory");
    let lock = resolved(dir.path());

    let found = lock.kernel("fleet-6.8.0-45-generic").expect("a kernel");
    assert_eq!((found.unavailable.as_ref(), found.release.as_str()), (None, "6.8.0-45-generic"));
    let headers: Vec<[&str; 3]> = found
        .headers
        .iter()
        .map(|of| [of.package.as_str(), of.version.as_str(), of.suite.as_str()])
        .collect();
    assert_eq!(
        headers,
        [
            ["linux-headers-6.8.0-45-generic", "6.8.0-45.1", "noble"],
            ["linux-hwe-6.8-headers-6.8.0-45", "6.8.0-45.1", "noble"],
        ]
    );

    for (kernel, expected) in [
        (
            "fleet-6.8.0-46-generic",
            "no headers of 6.8.0-46-generic in noble; the nearest are of 6.8.0-45-generic, 6.8.0-48-generic",
        ),
        ("fleet-6.8.0-48-generic", "pool/noble-2.deb"),
        ("el9-5.14.0-1.el9.x86_64", "it has headers for no kernel"),
    ] {
        let LockedKernel { unavailable, .. } = lock.kernel(kernel).expect("a kernel");
        let missing = unavailable.as_ref().expect("unavailable");
        assert_eq!(missing.part, Part::Headers);
        assert!(missing.why.contains(expected), "{kernel}: {}", missing.why);
    }

    let driver = lock.driver("580-open").expect("a driver");
    let revision = driver.revisions.first().expect("a revision");
    assert_eq!(revision.package, "nvidia-kernel-source-580-open");
    let none = lock.driver("570-open").expect("a driver").unavailable.as_ref();
    assert!(none.is_some_and(|missing| missing.why == "no package of 570-open in noble"));
}
