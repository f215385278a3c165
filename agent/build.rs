//! How the program is linked.

fn main() {
    // Tens of thousands of addresses in the program's data are set when it is started, and it is
    // started once more for the kernel's calls. Packed (DT_RELR; the C library has known them since
    // 2.36) their list has some kilobytes that are read, not a megabyte.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    println!("cargo:rerun-if-changed=build.rs");
}
