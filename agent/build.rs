//! Link options of the program.

use std::process::Command;

/// The first glibc that reads packed relocations; a program with them does not start with an older one.
const SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Tens of thousands of addresses in the program's data are set when it is started, and it is
    // started once more for the kernel's calls. Packed (DT_RELR) their list has some kilobytes that
    // are read, not a megabyte.
    if glibc().is_some_and(|version| version >= SINCE) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// This machine's C library, where it is glibc.
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) =
        std::str::from_utf8(&said).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
