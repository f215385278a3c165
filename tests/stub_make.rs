//! Stands in for make in a test's build root: takes as long as the test wants, and leaves modules.
//!
//! Waits for `/build/go`, which a test makes from outside, or a `go` among the sources, and then
//! copies every `NAME.ko.in` of its working directory to `NAME.ko`, with the release of the headers in `SYSSRC` in the
//! place of the archive's usual one, where it is as long. Core objects that are its targets it makes of their names. If `/build/go` has content, it
//! prints that and fails, as it does with `include/error` of MOFED's headers and an `error` among the sources. From the host it needs only the libraries that it is linked to.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // The file is made in another mount namespace: there is no event to wait for.
    while !Path::new("/build/go").exists() && !Path::new("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = error_of_headers().or_else(|| fs::read("error").ok());
    let said = said.or_else(|| fs::read("/build/go").ok()).unwrap_or_default();
    if !said.is_empty() {
        std::io::stderr().write_all(&said)?;
        return Ok(ExitCode::from(2));
    }
    core_objects()?;
    for entry in fs::read_dir(".")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "in") {
            fs::write(path.with_extension(""), for_headers(fs::read(&path)?))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the core objects that are targets: `DIR/_out/MACHINE/NAME.o`.
fn core_objects() -> std::io::Result<()> {
    for target in std::env::args().filter(|argument| argument.contains("/_out/")) {
        if let Some(dir) = Path::new(&target).parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(&target, format!("core object {target}\n"))?;
    }
    Ok(())
}

/// Release in the modules of the archive.
const USUAL: &[u8] = b"6.1.0-50-amd64";

fn for_headers(mut module: Vec<u8>) -> Vec<u8> {
    let release = std::env::args().find_map(|argument| {
        Some(argument.strip_prefix("SYSSRC=")?.rsplit_once("/linux-headers-")?.1.to_owned())
    });
    let release = release.filter(|release| release.len() == USUAL.len()).unwrap_or_default();
    let places: Vec<usize> =
        (0..module.len()).filter(|at| module[*at..].starts_with(USUAL)).collect();
    for at in places.into_iter().filter(|_| !release.is_empty()) {
        module[at..at + USUAL.len()].copy_from_slice(release.as_bytes());
    }
    module
}

fn error_of_headers() -> Option<Vec<u8>> {
    let mut trees = fs::read_dir("/usr/src/ofa_kernel").ok()?.flatten();
    trees.find_map(|tree| fs::read(tree.path().join("include/error")).ok())
}
