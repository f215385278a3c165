//! An archive with this machine's sign-file in a package, as Debian's has.

use longshore_tests::archive::{ARCH, Suite};
use longshore_tests::packages::{Item, KERNEL, deb};
use longshore_tests::signer;

/// Makes headers with the hash that the kernel signs with, and the kbuild package they depend on,
/// with sign-file and its libraries.
pub(crate) fn archive() -> Suite {
    suite(signer::kbuild())
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
