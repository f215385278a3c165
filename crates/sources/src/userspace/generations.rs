//! Generations: several trees of the same name. A tree may be mounted as a driver root, and must
//! then not be changed: if the existing tree of a name is unusable, the next one is stored beside
//! it.
//!
//! ```text
//! userspace/NAME/      the first
//! userspace/NAME.2/    its replacement, where the first is damaged or another tree
//! ```
//!
//! `upkeep::gc` removes unused generations.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::tree_entries::is_taken;
use longshore_core::disk::Disk;
use longshore_core::durable::write_failure;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::scratch::ScratchDir;
use longshore_core::store::Store;

/// Attempts to rename a tree into place: each failure means that another process took the name.
const TRIES: usize = 64;

/// File beside a tree's root that marks it as damaged, for damage that a quick comparison does not
/// find.
const DAMAGED: &str = "damaged";

/// Returns the name shared by all generations, and the number of this one.
fn split(name: &str) -> (&str, u32) {
    let generation = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().ok().filter(|number| *number > 1),
        false => None,
    };
    // Versions contain dots, too, but a name ends with a digest.
    let parts = name.rsplit_once('.').filter(|(family, _)| !family.is_empty());
    let found = parts.and_then(|(family, last)| Some((family, generation(last)?)));
    found.unwrap_or((name, 1))
}

/// Returns the directories of a name, the newest generation first.
///
/// # Errors
/// Exit code 15 where the store cannot be listed.
pub(super) fn generations_of(store: &Store, name: &str) -> Result<Vec<PathBuf>, Failure> {
    let found = numbered(&store.dir("userspace"), name)?;
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn numbered(trees: &Path, name: &str) -> Result<Vec<(u32, PathBuf)>, Failure> {
    let list = || -> io::Result<Vec<(u32, PathBuf)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(trees)? {
            let entry = entry?;
            let file_name = entry.file_name();
            match file_name.to_str().map(split) {
                Some((family, number)) if family == name => found.push((number, entry.path())),
                _ => {}
            }
        }
        Ok(found)
    };
    let mut found =
        list().or_fail(FailureKind::Preflight, || format!("listing {}", trees.display()))?;
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    Ok(found)
}

/// Syncs the finished directory, and renames it to its name, or that of the next generation;
/// existing trees stay as they are. Where another process was faster, and `is_it` accepts its tree,
/// that one is used. Returns the directory.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub(super) fn land(
    scratch: ScratchDir,
    name: &str,
    store: &Store,
    is_it: impl Fn(&Path) -> bool,
) -> Result<PathBuf, Failure> {
    let trees = store.dir("userspace");
    let failed = |e| write_failure(&trees.join(name), e);
    make_readable(scratch.path()).map_err(failed)?;
    // One call for hundreds of files; the rename must not reach the disk before their content.
    let opened = File::open(scratch.path()).map_err(failed)?;
    store.disk().sync_whole(&opened).map_err(failed)?;
    for _ in 0..TRIES {
        let there = numbered(&trees, name)?;
        if let Some((_, path)) = there.iter().find(|(_, path)| is_it(path)) {
            scratch.close().map_err(failed)?;
            return Ok(path.clone());
        }
        let target = trees.join(match there.first() {
            None => name.to_owned(),
            Some((last, path)) => {
                let path = path.display();
                tracing::warn!("{path} is unusable but may be in use: storing another beside it");
                format!("{name}.{}", last.saturating_add(1))
            }
        });
        // Replaces nothing but an empty directory (rename(2)): no lock is needed.
        match fs::rename(scratch.path(), &target) {
            Ok(()) => {
                scratch.moved();
                File::open(&trees).and_then(|dir| store.disk().sync(&dir)).map_err(failed)?;
                return Ok(target);
            }
            Err(e) if is_taken(&e) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Err(failed(io::Error::other("other processes took every name that was tried")))
}

/// Makes a temporary directory, which only its owner can access, accessible to all users.
fn make_readable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// Marks a tree as damaged, beside its root: it is never used again.
pub(super) fn condemn(root: &Path, why: &Failure, disk: Disk) {
    let path = root.with_file_name(DAMAGED);
    let text = format!("{}\n", why.one_line());
    if let Err(error) = disk.write_atomically(&path, text.as_bytes()) {
        tracing::warn!("cannot mark {} as damaged: {error}", root.display());
    }
}

/// True if the tree with this root was marked as damaged.
pub(super) fn is_condemned(root: &Path) -> bool {
    root.with_file_name(DAMAGED).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::scratch::claim;
    use rstest::rstest;

    #[rstest]
    #[case("535.261.03-x86_64-0123456789ab", "535.261.03-x86_64-0123456789ab", 1)]
    #[case("535.261.03-x86_64-0123456789ab.2", "535.261.03-x86_64-0123456789ab", 2)]
    #[case("535.261.03-x86_64-0123456789ab.10", "535.261.03-x86_64-0123456789ab", 10)]
    #[case("535.261.03-x86_64-012345678901", "535.261.03-x86_64-012345678901", 1)]
    #[case("tree", "tree", 1)]
    #[case("tree.1", "tree.1", 1)]
    #[case("tree.0", "tree.0", 1)]
    #[case("tree.", "tree.", 1)]
    #[case("tree.+2", "tree.+2", 1)]
    #[case("tree.99999999999", "tree.99999999999", 1)]
    #[case(".2", ".2", 1)]
    fn a_name_has_a_generation(#[case] name: &str, #[case] of: &str, #[case] number: u32) {
        assert_eq!(split(name), (of, number));
    }

    #[test]
    fn many_that_land_at_once_all_get_the_one_that_was_first() {
        let dir = longshore_core::testing::for_all();
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        // A foreign lock on the directory blocks nothing.
        longshore_core::testing::loosen(dir.path(), &store.dir("userspace"));
        let _holder = longshore_core::testing::Holder::start(&store.dir("userspace"));
        let land_one = || {
            let scratch = claim(&store, "userspace").expect("claim");
            fs::write(scratch.path().join("file"), "text").expect("write");
            let is_it = |path: &Path| path.join("file").exists();
            land(scratch, "1.2-x86_64-ab", &store, is_it).expect("landed")
        };
        let landed: Vec<PathBuf> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(land_one)).collect();
            all.into_iter().map(|one| one.join().expect("joins")).collect()
        });
        assert_eq!(landed, vec![store.dir("userspace/1.2-x86_64-ab"); 8]);
        assert_eq!(fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
    }

    #[test]
    fn what_is_there_stays_and_only_what_is_it_is_used_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        let put = |text: &str, is_it: &dyn Fn(&Path) -> bool| {
            let scratch = claim(&store, "userspace").expect("claim");
            fs::write(scratch.path().join("file"), text).expect("write");
            let landed = land(scratch, "1.2-x86_64-ab", &store, is_it).expect("landed");
            let name =
                landed.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
            (name, fs::read_to_string(landed.join("file")).expect("read"))
        };
        let is = |wanted: &'static str| {
            move |path: &Path| fs::read_to_string(path.join("file")).is_ok_and(|t| t == wanted)
        };
        let found = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(put("first", &is("first")), found("1.2-x86_64-ab", "first"));
        assert_eq!(put("slower", &is("first")), found("1.2-x86_64-ab", "first"));
        assert_eq!(put("second", &is("second")), found("1.2-x86_64-ab.2", "second"));
        assert_eq!(put("slower", &is("first")), found("1.2-x86_64-ab", "first"));
        // gc removed the first: its name is free, and the order stays.
        fs::remove_dir_all(store.dir("userspace/1.2-x86_64-ab")).expect("removed");
        assert_eq!(put("third", &is("third")), found("1.2-x86_64-ab.3", "third"));
        let all = generations_of(&store, "1.2-x86_64-ab").expect("listed");
        assert!(all[0].ends_with("1.2-x86_64-ab.3") && all[1].ends_with("1.2-x86_64-ab.2"));
        assert_eq!(fs::read_dir(store.dir("tmp")).expect("listed").count(), 0);
    }
}
