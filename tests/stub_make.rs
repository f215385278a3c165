//! Stands in for make in a test's build root: it takes as long as the test wants, and leaves modules.
//!
//! It waits for `/build/go`, which a test makes from outside, or a `go` among the sources, and then
//! copies every `NAME.ko.in` of the directory it runs in to `NAME.ko`. Where something stands in
//! `/build/go` it says that and fails. It has no more of a host than the libraries it is linked to.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // What makes the file is in another mount namespace: there is no event to wait for.
    while !Path::new("/build/go").exists() && !Path::new("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = fs::read("/build/go").unwrap_or_default();
    if !said.is_empty() {
        std::io::stderr().write_all(&said)?;
        return Ok(ExitCode::from(2));
    }
    for entry in fs::read_dir(".")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "in") {
            fs::copy(&path, path.with_extension(""))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
