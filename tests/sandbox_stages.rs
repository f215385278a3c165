//! Helper program of the build sandbox, for tests, which cannot name longshore's own binary.

fn main() {
    std::process::exit(longshore_build::sandbox::sandbox_main(std::env::args_os().skip(1)).into());
}
