//! This machine's sign-file, and an archive with it in a package, as Debian's has.

use std::fs;
use std::path::{Path, PathBuf};

use longshore_tests::archive::{ARCH, Suite};
use longshore_tests::packages::{Item, KERNEL, deb};

/// Returns the path of the kernel's real sign-file; scripts/setup installs it.
pub(crate) fn sign_file() -> PathBuf {
    let kbuild = fs::read_dir("/usr/lib").expect("/usr/lib").flatten().find(|entry| {
        entry.file_name().to_string_lossy().starts_with("linux-kbuild-")
            && entry.path().join("scripts/sign-file").is_file()
    });
    kbuild.expect("no linux-kbuild package: run scripts/setup").path().join("scripts/sign-file")
}

/// Makes headers with the hash that the kernel signs with, and the kbuild package they depend on,
/// with sign-file and its libraries.
pub(crate) fn archive() -> Suite {
    let program = fs::read(sign_file()).expect("sign-file");
    let libraries = libraries();
    let libraries: Vec<(String, Vec<u8>)> = libraries
        .into_iter()
        .map(|path| (format!(".{}", path.display()), fs::read(&path).expect("a library")))
        .collect();
    let mut items = vec![Item::Program("./usr/lib/linux-kbuild-6.1/scripts/sign-file", &program)];
    items.extend(libraries.iter().map(|(path, bytes)| Item::Program(path, bytes)));
    suite(deb(&items))
}

/// Makes the same without sign-file.
pub(crate) fn archive_without_sign_file() -> Suite {
    suite(deb(&[Item::File("./usr/lib/linux-kbuild-6.1/scripts/Makefile", b"")]))
}

fn suite(kbuild: Vec<u8>) -> Suite {
    let headers = format!("linux-headers-{KERNEL}");
    let conf = format!("./usr/src/{headers}/include/config/auto.conf");
    let conf = deb(&[Item::File(&conf, b"CONFIG_MODULE_SIG_HASH=sha256\n")]);
    let depends = "Depends: linux-kbuild-6.1 (>= 6.1.176-1), gcc-12\n";
    let stanza = |name: &str, more: &str| {
        format!("Package: {name}\nVersion: 6.1.176-1\nArchitecture: {ARCH}\n{more}")
    };
    let gcc = deb(&[Item::File("./usr/share/gcc", b"")]);
    let packages = vec![
        (stanza(&headers, depends), conf),
        (stanza("linux-kbuild-6.1", ""), kbuild),
        (stanza("gcc-12", ""), gcc),
    ];
    Suite { packages, ..Suite::usual() }
}

/// Returns the libraries that sign-file is linked with, by their paths in a merged /usr.
fn libraries() -> Vec<PathBuf> {
    let (triplet, loader) = if cfg!(target_arch = "aarch64") {
        ("aarch64-linux-gnu", "/usr/lib/ld-linux-aarch64.so.1")
    } else {
        ("x86_64-linux-gnu", "/usr/lib64/ld-linux-x86-64.so.2")
    };
    let dir = Path::new("/usr/lib").join(triplet);
    vec![dir.join("libcrypto.so.3"), dir.join("libc.so.6"), loader.into()]
}
