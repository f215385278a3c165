//! Sources of modules: layers of build roots, and recipes of finished modules.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use longshore_build::testing::unpack_layers;
use longshore_sources::finished::recipe;

use super::beside_nothing;

/// Divides the layers of an input.
const BETWEEN: &[u8] = b"\n-- layer --\n";

/// Reads the layers of an image, one over the other.
pub fn layer(bytes: &[u8]) {
    let mut layers = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(BETWEEN.len()).position(|part| part == BETWEEN) {
        layers.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    layers.push(rest);
    beside_nothing(|inside| {
        fs::create_dir(inside).expect("made");
        let _ = unpack_layers(inside, &layers);
        assert_plain(inside);
    });
}

/// Asserts that a tree has directories, files and links alone, and none with the bits of another user.
fn assert_plain(dir: &Path) {
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("an entry").path();
        let meta = path.symlink_metadata().expect("there");
        let kind = meta.file_type();
        assert!(kind.is_dir() || kind.is_file() || kind.is_symlink(), "{}", path.display());
        if kind.is_symlink() {
            continue;
        }
        let mode = meta.permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{} has {mode:o}", path.display());
        if kind.is_dir() {
            assert_plain(&path);
        }
    }
}

/// Reads the link script and the digests of a package of finished modules.
pub fn recipe(bytes: &[u8]) {
    for command in recipe::commands(bytes).unwrap_or_default() {
        let output = Path::new(&command.output);
        assert!(output.is_relative(), "{}", output.display());
        let above = output.strip_prefix("..").unwrap_or(output);
        let climbs = above.components().any(|part| part.as_os_str() == "..");
        assert!(!climbs, "{} is outside of the objects", output.display());
    }
    for name in recipe::digests(bytes).unwrap_or_default().keys() {
        assert!(!name.contains('/'), "{name}");
    }
}
