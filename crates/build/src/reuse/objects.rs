//! Compiled objects, cached by ccache.
//!
//! The caches lie in the store below `objects`, none larger than [`LARGEST`]: one for compiles with
//! signed headers, and one for those with unsigned headers, whose compile may have put anything
//! into it. Each belongs to the compiling user, below a directory that is root's alone. An object's
//! key is the contents of its source and of every header that went into it, the command line, and a
//! stand-in for the compiler: the build root, which is named after its contents, and the names of
//! the driver's headers, because a new header could be found before another.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::BuildUser;
use crate::outputs::OutputDir;
use crate::sandbox::Bind;
use longshore_core::store::Store;
use longshore_modules::artifact::HeadersFrom;

/// Path inside the sandbox.
const PROGRAM: &str = "usr/bin/ccache";
const INSIDE: &str = "/build/objects";
/// ccache's log: one event for each object.
const EVENTS: &str = "tmp/objects.log";
/// Maximum size of a cache; a driver in one flavour takes 10 MB.
const LARGEST: &str = "500M";
/// Maximum size of the log: a line for each object, of which a driver has some 300.
const MOST_EVENTS: u64 = 16 << 20;

/// True if the build root has ccache.
pub(super) fn are_kept(root: &Path) -> bool {
    root.join(PROGRAM).is_file()
}

/// Creates the cache's directory in the store.
pub(crate) fn make_dir(store: &Store, user: BuildUser, from: HeadersFrom) -> io::Result<PathBuf> {
    let all = store.dir("objects");
    make_owned(&all, geteuid().as_raw())?;
    let own = all.join(if from.are_signed() { "signed" } else { "unsigned" });
    make_owned(&own, user.id())?;
    Ok(own)
}

/// Creates a directory that only `owner` can write to. Another user's directory is removed with its
/// contents: that user could have put anything there.
fn make_owned(dir: &Path, owner: u32) -> io::Result<()> {
    match dir.symlink_metadata() {
        Ok(found) if found.is_dir() && found.uid() == owner && found.mode() & 0o077 == 0 => {
            return Ok(());
        }
        Ok(found) if found.is_dir() => fs::remove_dir_all(dir)?,
        Ok(_) => fs::remove_file(dir)?,
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        // Another build created it first.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| lchown(dir, Some(owner), Some(owner))),
    }
}

pub(super) fn bind(dir: PathBuf) -> Bind {
    Bind::new(dir, INSIDE)
}

/// ccache's settings; `context` is a digest that stands for the compiler.
pub(super) fn environment(context: &str) -> Vec<(String, String)> {
    let set = |name: &str, value: &str| (format!("CCACHE_{name}"), value.to_owned());
    vec![
        set("DIR", INSIDE),
        set("COMPILERCHECK", &format!("string:{context}")),
        // The headers are those that the compiler itself reports to have read: no preprocessing
        // first.
        set("DEPEND", "1"),
        set("MAXSIZE", LARGEST),
        set("STATSLOG", &format!("/{EVENTS}")),
    ]
}

/// Returns the number of a build's objects that were reused, and of those that were compiled.
pub(super) fn used(work: &OutputDir) -> (usize, usize) {
    let events = work.read_text(EVENTS, MOST_EVENTS).unwrap_or_else(|error| {
        // Without ccache there is no such file.
        tracing::debug!("cannot count the reused objects: {EVENTS}: {error}");
        String::new()
    });
    let count = |event: &str| events.lines().filter(|line| *line == event).count();
    (count("direct_cache_hit"), count("cache_miss"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use longshore_core::disk::Disk;

    fn seen(path: &Path) -> (u32, u32) {
        let found = path.symlink_metadata().expect("there");
        (found.uid(), found.mode() & 0o777)
    }

    #[test]
    fn objects_are_apart_and_below_a_directory_of_roots_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let user = BuildUser::default();
        let made = |from| make_dir(&store, user, from).expect("made");
        let signed = made(HeadersFrom::Archive);
        let unsigned = made(HeadersFrom::Host);
        assert_ne!(signed, unsigned);
        assert_eq!(made(HeadersFrom::Named), unsigned);
        assert_eq!(seen(&store.dir("objects")), (0, 0o700));
        for own in [signed, unsigned] {
            assert_eq!(seen(&own), (user.id(), 0o700));
        }
    }

    #[test]
    fn what_another_user_could_write_is_not_used() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        let all = store.dir("objects");
        // As earlier versions of longshore made it, without an owner.
        fs::create_dir(&all).expect("directory");
        fs::set_permissions(&all, fs::Permissions::from_mode(0o755)).expect("mode");
        lchown(&all, Some(65534), Some(65534)).expect("chown");
        fs::write(all.join("planted"), "").expect("write");
        let make = |user: &str| {
            let user = user.parse().expect("a user id");
            make_dir(&store, user, HeadersFrom::Archive).expect("made")
        };
        let own = make("2104104100");
        assert_eq!(fs::read_dir(&all).expect("listed").count(), 1);
        fs::write(own.join("kept"), "").expect("write");
        assert_eq!(fs::read_dir(make("2104104100")).expect("listed").count(), 1);
        assert_eq!(fs::read_dir(make("2104104101")).expect("listed").count(), 0, "another user's");
    }
}
