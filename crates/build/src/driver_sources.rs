//! Sources of a driver that is compiled: their place in the sandbox, and the files among them.

use std::fs;
use std::io;
use std::path::Path;

/// Path of the sources inside the sandbox: constant, because the compiler writes it into modules.
pub(crate) const INSIDE: &str = "/build/driver";

/// Visits `path` and, if it is a directory, everything below. No other user may write to it.
pub(crate) fn walk(path: &Path, visit: &mut dyn FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    visit(path)?;
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path)? {
            walk(&entry?.path(), visit)?;
        }
    }
    Ok(())
}
