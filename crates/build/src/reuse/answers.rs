//! Cache of conftest.sh's answers.
//!
//! `conftests/ROOT.json` holds the answers found in one build root, that is for one kernel's
//! headers and compiler. An answer is valid only for the very flags, and the same answers about the
//! presence of headers, under which it was found: the script that replaces conftest.sh compares
//! both at each question.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::script::Script;
use crate::outputs::OutputDir;
use longshore_core::digest::hex;
use longshore_core::store::Store;

/// Maximum number of answer sets of one root: drivers differ in the flags they compile with.
const MOST_SETS: usize = 4;
/// Maximum number of roots with answers.
const MOST_ROOTS: usize = 32;
/// Maximum size of a root's file: a set is 50 kB, so a far larger file is not longshore's.
const MOST_BYTES: u64 = 8 << 20;
/// Maximum size of an answer: most are a few lines; headers.h is 20 kB.
const MOST_TEXT: u64 = 1 << 20;
/// Maximum number of answers in a directory: drivers have some 250.
const MOST_ANSWERS: usize = 10_000;
/// Maximum depth of answers' directories: a header lies three directories deep at most.
const DEEPEST: usize = 16;
/// Prefix of the line by which conftest-verbose prints the flags of all questions.
const FLAGS: &str = "NV_CONFTEST_CFLAGS=";
/// The script that replaces conftest.sh.
const ASK: &str = include_str!("ask.sh");

/// `conftests/ROOT.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    sets: Vec<Set>,
}

/// Answers found under the same circumstances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Set {
    /// The compiler's flags.
    flags: String,
    /// sha256 (hex) of the names of the driver's own headers.
    names: String,
    /// headers.h: the kernel's headers, on which further tests depend.
    headers: String,
    /// Answers about headers, by the header's path.
    presence: BTreeMap<String, ConftestAnswer>,
    /// Answers of tests, by the test's name.
    tests: BTreeMap<String, ConftestAnswer>,
}

/// An answer of conftest.sh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ConftestAnswer {
    /// Digest of everything in the script that decides it.
    question: String,
    text: String,
}

impl Set {
    /// Returns the answers to questions of `script`, as files of a directory.
    fn answered<'a>(&'a self, script: &'a Script) -> impl Iterator<Item = (String, &'a str)> {
        let same = |question: Option<String>, answer: &ConftestAnswer| {
            question == Some(answer.question.clone())
        };
        let tests = self.tests.iter().filter(move |(name, a)| same(script.test(name), a));
        let headers = self.presence.iter().filter(move |(path, a)| same(script.header(path), a));
        let tests = tests.map(|(name, a)| (format!("tests/{name}"), a.text.as_str()));
        tests.chain(headers.map(|(path, a)| (format!("headers/{path}"), a.text.as_str())))
    }
}

/// The cached answers for one build.
#[derive(Debug)]
pub(super) struct Answers {
    script: Script,
    file: PathBuf,
    names: String,
    set: Set,
    known: usize,
    flags: Option<String>,
}

impl Answers {
    /// Loads the store's answers for this root, script and these headers of the driver.
    pub(super) fn recall(store: &Store, root: &str, script: Script, names: &[String]) -> Self {
        let file = Path::new("conftests").join(format!("{root}.json"));
        let names = hex(&Sha256::digest(names.join("\n")));
        let sets = read(&store.root().join(&file)).sets.into_iter();
        // Of several equally good sets the newest, which comes first.
        let set = sets
            .rev()
            .filter(|set| set.names == names)
            .max_by_key(|set| set.answered(&script).count())
            .unwrap_or_default();
        Self { script, file, names, set, known: 0, flags: None }
    }

    /// Writes the replacement script and its answers.
    pub(super) fn write(&mut self, dir: &Path) -> io::Result<()> {
        let set = &self.set;
        fs::create_dir_all(dir)?;
        fs::write(dir.join("ask"), ASK.replace("@FLAGS@", &set.flags))?;
        fs::write(dir.join("headers.h"), &set.headers)?;
        for (name, text) in set.answered(&self.script) {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap_or(dir))?;
            fs::write(path, text)?;
            self.known += 1;
        }
        Ok(())
    }

    /// Number of answers the build was given.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    /// Reads a line of make's output.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(flags) = line.strip_prefix(FLAGS) {
            self.flags.get_or_insert_with(|| flags.to_owned());
        }
    }

    /// Stores the answers in `conftest` after a compile that succeeded; returns the number of
    /// questions that had to be asked.
    pub(super) fn keep(self, store: &Store, conftest: &OutputDir) -> io::Result<usize> {
        // The flags stand in single quotes in a shell script.
        let Some(flags) = self.flags.filter(|flags| !flags.contains('\'')) else {
            return Ok(self.known);
        };
        let headers = conftest.read_text("headers.h", MOST_TEXT)?;
        let answer =
            |question: Option<String>, text| Some(ConftestAnswer { question: question?, text });
        let mut found = Set { flags, names: self.names, headers, ..Set::default() };
        for (name, text) in texts(conftest, "compile-tests", ".h")? {
            found.tests.extend(answer(self.script.test(&name), text).map(|a| (name, a)));
        }
        for (path, text) in texts(conftest, "header_presence", ".part")? {
            found.presence.extend(answer(self.script.header(&path), text).map(|a| (path, a)));
        }
        let asked = found.tests.len() + found.presence.len();
        let known = merged(read(&store.root().join(&self.file)), found);
        let bytes = serde_json::to_vec(&known).map_err(io::Error::other)?;
        let dir = store.dir("conftests");
        fs::create_dir_all(&dir)?;
        store.write_file(&self.file, &bytes).map_err(io::Error::other)?;
        prune(&dir)?;
        Ok(asked)
    }
}

/// Reads a root's file; a foreign or damaged one has no answers.
fn read(path: &Path) -> Known {
    let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= MOST_BYTES);
    let bytes = small.then(|| fs::read(path).ok()).flatten();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Puts `found` first, merged with earlier answers under the same circumstances.
fn merged(known: Known, found: Set) -> Known {
    let like = |set: &Set| {
        (&set.flags, &set.names, &set.headers) == (&found.flags, &found.names, &found.headers)
    };
    let (before, mut others): (Vec<Set>, Vec<Set>) = known.sets.into_iter().partition(like);
    let mut first = before.into_iter().next().unwrap_or_default();
    first.tests.extend(found.tests);
    first.presence.extend(found.presence);
    let Set { tests, presence, .. } = first;
    others.insert(0, Set { tests, presence, ..found });
    others.truncate(MOST_SETS);
    Known { sets: others }
}

/// Reads the files below `dir`, by their paths without `ending`.
fn texts(conftest: &OutputDir, dir: &str, ending: &str) -> io::Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    add_texts(&conftest.below(dir)?, Path::new(""), ending, DEEPEST, &mut texts)?;
    Ok(texts)
}

fn add_texts(
    dir: &OutputDir,
    path: &Path,
    ending: &str,
    deepest: usize,
    texts: &mut Vec<(String, String)>,
) -> io::Result<()> {
    for entry in dir.entries(MOST_ANSWERS)? {
        let path = path.join(&entry.name);
        if entry.is_dir() {
            let left = deepest.checked_sub(1).ok_or_else(|| {
                io::Error::other(format!("answers lie more than {DEEPEST} directories deep"))
            })?;
            add_texts(&dir.below(&entry.name)?, &path, ending, left, texts)?;
        } else if let Some(name) = path.to_string_lossy().strip_suffix(ending)
            && entry.is_file()
        {
            texts.push((name.to_owned(), dir.read_text(&entry.name, MOST_TEXT)?));
        }
    }
    Ok(())
}

/// Removes the files of the roots that have been unused longest.
fn prune(dir: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        files.push((entry.metadata()?.modified()?, entry.path()));
    }
    files.sort();
    let surplus = files.len().saturating_sub(MOST_ROOTS);
    files.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::disk::Disk;

    const SCRIPT: &str =
        "compile_test() {\n        one)\n1\n        ;;\n        two)\n2\n        ;;\n}\n";
    const NAMES: [&str; 1] = ["own.h"];

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store opens");
        (dir, store)
    }

    fn recalled(store: &Store, script: &str) -> Answers {
        let names = NAMES.map(str::to_owned);
        let script = Script::parse(script, &names).expect("parses");
        Answers::recall(store, "root", script, &names)
    }

    /// A compile that found `one` present and `linux/a.h` missing.
    fn built(store: &Store, flags: &str) {
        let work = tempfile::tempdir().expect("temporary directory");
        let mut answers = recalled(store, SCRIPT);
        answers.line("KBUILD_CFLAGS=-x");
        answers.line(&format!("NV_CONFTEST_CFLAGS={flags}"));
        for (path, text) in [
            ("headers.h", "#undef A\n"),
            ("compile-tests/one.h", "#define ONE\n"),
            ("header_presence/linux/a.h.part", "#undef A\n"),
        ] {
            let path = work.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("write");
        }
        answers.keep(store, &OutputDir::open(work.path()).expect("opens")).expect("keeps");
    }

    fn written(mut answers: Answers) -> (tempfile::TempDir, usize) {
        let dir = tempfile::tempdir().expect("temporary directory");
        answers.write(dir.path()).expect("writes");
        (dir, answers.known())
    }

    #[test]
    fn what_was_found_out_is_known() {
        let (_dir, store) = store();
        assert_eq!(written(recalled(&store, SCRIPT)).1, 0);
        built(&store, "-O2");
        let (dir, known) = written(recalled(&store, SCRIPT));
        assert_eq!(known, 2);
        let text = |path| fs::read_to_string(dir.path().join(path)).expect("a file");
        assert_eq!(text("tests/one"), "#define ONE\n");
        assert_eq!(text("headers/linux/a.h"), "#undef A\n");
        assert_eq!(text("headers.h"), "#undef A\n");
        assert!(text("ask").contains("'-O2'"), "{}", text("ask"));
    }

    #[test]
    fn another_question_is_not_answered() {
        let (_dir, store) = store();
        built(&store, "-O2");
        let changed = SCRIPT.replace("\n1\n", "\n3\n");
        assert_eq!(written(recalled(&store, &changed)).1, 1, "the header alone");
        let names = ["own.h".to_owned(), "new.h".to_owned()];
        let script = Script::parse(SCRIPT, &names).expect("parses");
        assert_eq!(written(Answers::recall(&store, "root", script, &names)).1, 0);
        let script = Script::parse(SCRIPT, &names[..1]).expect("parses");
        assert_eq!(written(Answers::recall(&store, "other", script, &names[..1])).1, 0);
    }

    #[test]
    fn what_cannot_be_quoted_is_not_kept() {
        let (_dir, store) = store();
        built(&store, "-DA='b'");
        assert_eq!(written(recalled(&store, SCRIPT)).1, 0);
    }

    #[test]
    fn as_many_sets_are_kept_as_are_useful_the_newest_first() {
        let (dir, store) = store();
        for n in 0..=MOST_SETS {
            built(&store, &format!("-O{n}"));
        }
        built(&store, "-O3");
        let known = read(&dir.path().join("conftests/root.json"));
        let flags: Vec<_> = known.sets.iter().map(|set| set.flags.as_str()).collect();
        assert_eq!(flags, ["-O3", "-O4", "-O2", "-O1"]);
    }

    #[test]
    fn a_damaged_file_knows_nothing() {
        let (dir, store) = store();
        built(&store, "-O2");
        fs::write(dir.path().join("conftests/root.json"), "{").expect("write");
        assert_eq!(written(recalled(&store, SCRIPT)).1, 0);
    }
}
