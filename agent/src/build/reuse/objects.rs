//! Objects, kept by ccache.
//!
//! Its cache lies in the store as `objects`, and is never larger than [`LARGEST`]. An object is found
//! by the contents of its source and of every header that went into it, by the command line, and by
//! what stands for the compiler: the build root, which is named after all that is in it, and the
//! names of the driver's headers, because a header that was not there before could be found first.

use std::fs;
use std::io;
use std::path::Path;

use crate::build::compile::give;
use crate::build::sandbox::Bind;
use crate::store::Store;

/// Inside the sandbox.
const PROGRAM: &str = "usr/bin/ccache";
const INSIDE: &str = "/build/objects";
/// What became of each object, for the log.
const EVENTS: &str = "tmp/objects.log";
/// A driver in one flavour takes 10 MB of it.
const LARGEST: &str = "500M";

/// Whether the build root has what keeps objects.
pub(super) fn are_kept(root: &Path) -> bool {
    root.join(PROGRAM).is_file()
}

/// Makes the directory in the store, and where it is seen inside.
pub(super) fn make_dir(store: &Store, work: &Path) -> io::Result<()> {
    let dir = store.dir("objects");
    fs::create_dir_all(&dir)?;
    give(&dir).map(drop)?;
    fs::create_dir_all(work.join("objects"))
}

pub(super) fn bind(store: &Store) -> Bind {
    Bind::new(store.dir("objects"), INSIDE)
}

/// ccache's settings; `context` is a digest of what stands for the compiler.
pub(super) fn environment(context: &str) -> Vec<(String, String)> {
    let set = |name: &str, value: &str| (format!("CCACHE_{name}"), value.to_owned());
    vec![
        set("DIR", INSIDE),
        set("COMPILERCHECK", &format!("string:{context}")),
        // The headers are those that the compiler itself says it read: no preprocessing first.
        set("DEPEND", "1"),
        set("MAXSIZE", LARGEST),
        set("STATSLOG", &format!("/{EVENTS}")),
    ]
}

/// How many objects of a build were taken from earlier ones, and how many were not.
pub(super) fn used(work: &Path) -> (usize, usize) {
    let events = fs::read_to_string(work.join(EVENTS)).unwrap_or_default();
    let count = |event: &str| events.lines().filter(|line| *line == event).count();
    (count("direct_cache_hit"), count("cache_miss"))
}
