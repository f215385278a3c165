//! Results of the runs on this machine, kept in the cache so that later runs reuse them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use crate::results::{Authenticity, Key, Results};
use longshore_lab::host::disk::{self, json_files};
use longshore_lab::host::error::{At, Error};

use super::Earlier;

/// Name of the directory in the cache.
pub const DIRECTORY: &str = "results";
/// Number of runs that are kept.
const RUNS: usize = 40;

/// Keeps the sealed results at `path`, and removes the oldest ones beyond [`RUNS`].
///
/// # Errors
/// The results cannot be read, or the directory cannot be written.
pub fn keep(results: &Results, path: &Path, dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).at("make", dir)?;
    let safe = |c: char| if c.is_ascii_alphanumeric() || "+-_".contains(c) { c } else { '_' };
    // It begins with the time.
    let id: String = results.run.id.as_str().chars().take(100).map(safe).collect();
    let bytes = fs::read(path).at("read", path)?;
    let kept = dir.join(format!("{id}.json"));
    disk::of_this_machine().write_atomically(&kept, &bytes).at("write", &kept)?;
    let files = json_files(dir)?;
    for old in files.iter().take(files.len().saturating_sub(RUNS)) {
        match fs::remove_file(old) {
            // Another run keeps its results at the same time.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other.at("remove", old)?,
        }
    }
    Ok(())
}

/// Adds all kept results that this key sealed; returns the reasons for leaving out the others.
///
/// # Errors
/// The directory cannot be read.
pub fn add_to(earlier: &mut Earlier, dir: &Path, key: &Key) -> Result<Vec<String>, Error> {
    let (mut left_out, mut unproven) = (Vec::new(), BTreeMap::<String, usize>::new());
    for path in json_files(dir)? {
        match Results::read(&path, Some(key)) {
            Ok((results, sealed @ Authenticity::Sealed)) => earlier.add(results, &sealed),
            Ok((_, Authenticity::Unproven(why))) => *unproven.entry(why).or_default() += 1,
            // It may be of another version of this program, or damaged: its cells are compiled.
            Err(error) => left_out.push(format!("{error}; remove the file")),
        }
    }
    let dir = dir.display();
    left_out.extend(
        unproven
            .into_iter()
            .map(|(why, count)| format!("{count} earlier results in {dir} are not reused: {why}")),
    );
    Ok(left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Line, sample};

    /// Keeps the results of a run of this identifier.
    fn kept(id: &str, dir: &Path, key: &Key) {
        let mut results = sample::results();
        results.run.id = Line::new(id);
        let path = dir.join("written.json");
        results.write(&path, key).unwrap();
        keep(&results, &path, &dir.join("results")).unwrap();
    }

    #[test]
    fn the_last_runs_are_kept_and_those_of_this_key_are_reused() {
        let dir = tempfile::tempdir().unwrap();
        let keys = ["a", "b"].map(|name| Key::read_or_make(&dir.path().join(name)).unwrap());
        for run in 0..RUNS + 3 {
            kept(&format!("20261123T0{run:05}Z-0"), dir.path(), &keys[0]);
        }
        let results = dir.path().join("results");
        let names = json_files(&results).unwrap();
        assert_eq!(names.len(), RUNS);
        assert!(names[0].ends_with("20261123T000003Z-0.json"), "{names:?}");
        kept("20261124T000000Z-../0", dir.path(), &keys[1]);
        fs::write(&names[5], "{").unwrap();
        let mut earlier = Earlier::default();
        let left_out = add_to(&mut earlier, &results, &keys[0]).unwrap();
        assert!(!earlier.by_key.is_empty());
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("cut off") && left_out[1].contains("another machine"));
        assert!(left_out[1].starts_with("1 earlier results in "), "{left_out:?}");
    }

    #[test]
    fn a_first_run_has_nothing_to_reuse() {
        let dir = tempfile::tempdir().unwrap();
        let key = Key::read_or_make(&dir.path().join("key")).unwrap();
        let mut earlier = Earlier::default();
        assert!(add_to(&mut earlier, &dir.path().join("none"), &key).unwrap().is_empty());
        assert!(earlier.by_key.is_empty());
    }
}
