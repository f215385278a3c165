//! Log of a run: one JSON line a verdict, on disk before the next cell begins. A run that was killed at
//! any moment is resumed from it.
//!
//! Each line has an HMAC by the key that seals the results, over the run's nonce and the line's number: a verdict
//! that another program wrote into the log, or that is of another run, is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::results::{CellResult, Digest, Key, Line, Run};
use longshore_lab::host::error::{At, Error};

/// Name of the results' file, beside the log.
pub const RESULTS: &str = "results.json";
/// Version of the log's format.
const FORMAT: u32 = 2;
/// Part of the authenticated text that keeps the key's other uses apart.
const PURPOSE: &str = "kernel-matrix run log";
/// Maximum size of a log: a thousand cells with 40 lines of a log each need a tenth.
const MOST_BYTES: u64 = 256 << 20;

/// A line, with its HMAC.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<T> {
    of: T,
    hmac: Digest,
}

/// First line of a log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: u32,
    run: Run,
    /// Names of the cells that the run selected.
    cells: Vec<Line>,
}

/// An open log; no other process has it.
pub struct RunLog<'k> {
    file: Flock<File>,
    path: PathBuf,
    key: &'k Key,
    nonce: Line,
    /// Number of whole lines.
    lines: usize,
}

impl<'k> RunLog<'k> {
    /// Begins the log of a run over these cells, in place of an earlier one, whose results are removed before: a run
    /// that is killed has none.
    ///
    /// # Errors
    /// Another process has it, or it cannot be written.
    pub fn begin(path: &Path, run: &Run, cells: Vec<Line>, key: &'k Key) -> Result<Self, Error> {
        let mut log = Self::open(path, key, &run.nonce)?;
        log.remove_results()?;
        log.file.set_len(0).at("empty", path)?;
        log.line(&Head { format: FORMAT, run: run.clone(), cells })?;
        Ok(log)
    }

    /// Opens the log of a run that ended early, and returns it with that run and its results so far. A
    /// verdict that was being written is removed. Verdicts that the machine may be the reason of are left out: these
    /// cells are run again.
    ///
    /// # Errors
    /// There is none, another process has it, it is damaged, forged, or of a run over other packages, another
    /// shard, program or cells.
    pub fn resume(
        path: &Path,
        like: &Run,
        cells: &[Line],
        key: &'k Key,
    ) -> Result<(Self, Run, Vec<CellResult>), Error> {
        if !path.exists() {
            let why = format!("there is no run to resume: {} is missing", path.display());
            return Err(Error::Matrix(why));
        }
        let mut log = Self::open(path, key, &like.nonce)?;
        let mut bytes = Vec::new();
        (&*log.file).take(MOST_BYTES + 1).read_to_end(&mut bytes).at("read", path)?;
        let damaged = |why: &str| Error::Matrix(format!("{}: {why}", path.display()));
        if bytes.len() as u64 > MOST_BYTES {
            return Err(damaged("it is too large for a log"));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let read = parse(&bytes[..whole], like, cells, key).map_err(|why| damaged(&why))?;
        log.remove_results()?;
        log.file.set_len(whole as u64).at("shorten", path)?;
        (log.nonce, log.lines) = (read.run.nonce.clone(), read.lines);
        Ok((log, read.run, read.results))
    }

    /// Adds the result of a cell, and returns when it is on disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, result: &CellResult) -> Result<(), Error> {
        self.line(result)
    }

    fn open(path: &Path, key: &'k Key, nonce: &Line) -> Result<Self, Error> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).at("make", dir)?;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path);
        let file = file.at("open", path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => {
                Ok(Self { file, path: path.to_path_buf(), key, nonce: nonce.clone(), lines: 0 })
            }
            Err((_, error)) => Err(error).at("lock (another run has it)", path),
        }
    }

    fn remove_results(&self) -> Result<(), Error> {
        let results = self.path.with_file_name(RESULTS);
        match fs::remove_file(&results) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.at("remove", &results),
        }
    }

    fn line(&mut self, of: &impl Serialize) -> Result<(), Error> {
        let hmac = hmac(self.key, &self.nonce, self.lines, of).map_err(Error::Unexpected)?;
        let mut line = serde_json::to_vec(&Sealed { of, hmac })
            .map_err(|e| Error::Unexpected(format!("a result as JSON: {e}")))?;
        line.push(b'\n');
        let before = self.file.metadata().at("look at", &self.path)?.len();
        if let Err(error) = self.file.write_all(&line) {
            // The next line must not follow a part of this one.
            self.file.set_len(before).at("shorten", &self.path)?;
            return Err(error).at("write", &self.path);
        }
        self.lines += 1;
        self.file.sync_data().at("flush", &self.path)
    }
}

/// Returns the HMAC of a line.
fn hmac(key: &Key, nonce: &Line, line: usize, of: &impl Serialize) -> Result<Digest, String> {
    let mut text = format!("{PURPOSE}\n{nonce}\n{line}\n").into_bytes();
    serde_json::to_writer(&mut text, of).map_err(|e| format!("a result as JSON: {e}"))?;
    Ok(key.hmac(&text))
}

/// A log that was read.
struct Continued {
    run: Run,
    results: Vec<CellResult>,
    lines: usize,
}

/// Advice for a log that cannot be continued.
const ANEW: &str = "begin anew, without --resume";

fn parse(bytes: &[u8], like: &Run, cells: &[Line], key: &Key) -> Result<Continued, String> {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head = lines.next().ok_or("the run ended before its first line; begin anew")?;
    let head: Sealed<Head> =
        serde_json::from_slice(head).map_err(|e| format!("line 1: {e}; {ANEW}"))?;
    let Sealed { of: head, hmac: found } = head;
    if head.format != FORMAT {
        return Err(format!("the run was written by another version; {ANEW}"));
    }
    if hmac(key, &head.run.nonce, 0, &head)? != found {
        return Err(format!("line 1 was not written with this key (--seal-key); {ANEW}"));
    }
    let run = head.run;
    for (is_same, what) in [
        (run.lock == like.lock, "of other packages than the lock has"),
        (run.shard == like.shard, "of another shard"),
        (run.agent.is_same(&like.agent), "of another longshore"),
        (head.cells == cells, "of other cells"),
    ] {
        if !is_same {
            return Err(format!("the run is {what}; {ANEW}"));
        }
    }
    let mut results: Vec<CellResult> = Vec::new();
    let mut count = 1;
    for (index, line) in lines.enumerate() {
        let number = index + 2;
        let Sealed { of: result, hmac: found } = serde_json::from_slice::<Sealed<CellResult>>(line)
            .map_err(|e| format!("line {number}: {e}; {ANEW}"))?;
        if hmac(key, &run.nonce, index + 1, &result)? != found {
            return Err(format!("line {number} is not one that this run wrote; {ANEW}"));
        }
        if !cells.contains(&result.name) {
            return Err(format!("line {number}: {} is no cell of the run; {ANEW}", result.name));
        }
        // A later verdict is of a resumed run.
        results.retain(|earlier| earlier.name != result.name);
        results.push(result);
        count += 1;
    }
    results.retain(|result| !result.verdict.may_be_of_machine());
    Ok(Continued { run, results, lines: count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Verdict, sample};

    /// A run, the names of its cells, and results of which none may be of the machine.
    fn sample_of() -> (Run, Vec<Line>, Vec<CellResult>) {
        let results = sample::results();
        let names = results.cells.iter().map(|cell| cell.name.clone()).collect();
        let cells = results.cells.into_iter();
        (results.run, names, cells.filter(|cell| !cell.verdict.may_be_of_machine()).collect())
    }

    fn key(dir: &Path) -> Key {
        Key::read_or_make(&dir.join("key")).unwrap()
    }

    #[test]
    fn a_log_cut_off_at_any_byte_is_resumed_with_every_whole_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let ((run, names, cells), key) = (sample_of(), key(dir.path()));
        let mut log = RunLog::begin(&path, &run, names.clone(), &key).unwrap();
        for cell in &cells[..2] {
            log.add(cell).unwrap();
        }
        drop(log);
        let bytes = fs::read(&path).unwrap();
        let ends: Vec<usize> =
            bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1).collect();
        for length in (0..=bytes.len()).rev().step_by(7).chain(ends.iter().copied()) {
            fs::write(&path, &bytes[..length]).unwrap();
            let resumed = RunLog::resume(&path, &run, &names, &key);
            let whole = ends.iter().filter(|end| **end <= length).count();
            if whole == 0 {
                assert!(resumed.is_err());
                continue;
            }
            let (mut log, same, results) = resumed.unwrap();
            assert_eq!((same.id, results.as_slice()), (run.id.clone(), &cells[..whole - 1]));
            log.add(&cells[2]).unwrap();
            drop(log);
            let (_, _, results) = RunLog::resume(&path, &run, &names, &key).unwrap();
            assert_eq!(results.last(), Some(&cells[2]));
        }
    }

    #[test]
    fn a_log_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let ((run, names, cells), key) = (sample_of(), key(dir.path()));
        let resume = |like: &Run, names: &[Line]| {
            let resumed = RunLog::resume(&path, like, names, &key);
            resumed.err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(resume(&run, &names).contains("no run to resume"));
        let mut log = RunLog::begin(&path, &run, names.clone(), &key).unwrap();
        log.add(&cells[0]).unwrap();
        assert!(resume(&run, &names).contains("another run has it"));
        drop(log);
        let other = Run { lock: None, ..run.clone() };
        assert!(resume(&other, &names).contains("other packages"));
        let agent = crate::results::AgentUsed { program: None, ..run.agent.clone() };
        assert!(resume(&Run { agent, ..run.clone() }, &names).contains("another longshore"));
        let agent = crate::results::AgentUsed { commit: None, ..run.agent.clone() };
        assert_eq!(resume(&Run { agent, ..run.clone() }, &names), "", "the same program");
        assert!(resume(&run, &names[1..]).contains("other cells"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"format\":2", "\"format\":1")).unwrap();
        assert!(resume(&run, &names).contains("another version"));
    }

    #[test]
    fn lines_that_the_run_did_not_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let ((run, names, cells), own) = (sample_of(), key(dir.path()));
        let begin = |run: &Run, key| {
            let mut log = RunLog::begin(&path, run, names.clone(), key).unwrap();
            cells[..2].iter().for_each(|cell| log.add(cell).unwrap());
            fs::read_to_string(&path).unwrap()
        };
        let text = begin(&run, &own);
        let [head, first, second] =
            <[&str; 3]>::try_from(text.lines().collect::<Vec<_>>()).unwrap();
        let other_key = Key::read_or_make(&dir.path().join("other")).unwrap();
        let other = begin(&Run { nonce: Line::new(&"f".repeat(32)), ..run.clone() }, &own);
        let of_other_run = other.lines().nth(1).unwrap();
        let changed = first.replacen("\"prepare-ms\":", "\"prepare-ms\":1", 1);
        assert_ne!(changed, first);
        for (lines, expected) in [
            (vec![head, &changed], "line 2 is not one"),
            (vec![head, first, first], "line 3 is not one"),
            (vec![head, second, first], "line 2 is not one"),
            (vec![head, of_other_run], "line 2 is not one"),
            (vec![head, "{\"verdict\":\"works\"}"], "line 2: "),
            (vec![&head.replacen("\"complete\":", "\"complete\": ", 1), first], ""),
            (vec![&head.replacen("\"cores\":", "\"cores\":1", 1), first], "line 1 was not written"),
        ] {
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            let error = RunLog::resume(&path, &run, &names, &own).err().map(|e| e.to_string());
            let error = error.unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{error}");
        }
        begin(&run, &other_key);
        let error = RunLog::resume(&path, &run, &names, &own).err().unwrap().to_string();
        assert!(error.contains("not written with this key"), "{error}");
    }

    #[test]
    fn cells_that_the_machine_may_have_failed_are_run_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let (all, key) = (sample::results(), key(dir.path()));
        let names: Vec<Line> = all.cells.iter().map(|cell| cell.name.clone()).collect();
        let mut log = RunLog::begin(&path, &all.run, names.clone(), &key).unwrap();
        all.cells.iter().for_each(|cell| log.add(cell).unwrap());
        drop(log);
        let (mut log, run, kept) = RunLog::resume(&path, &all.run, &names, &key).unwrap();
        let failed: Vec<&CellResult> =
            all.cells.iter().filter(|cell| cell.verdict.may_be_of_machine()).collect();
        assert!(failed.len() > 1 && kept.len() + failed.len() == all.cells.len());
        let healed = CellResult { verdict: Verdict::Works {}, ..failed[0].clone() };
        log.add(&healed).unwrap();
        drop(log);
        let (_, _, kept) = RunLog::resume(&path, &run, &names, &key).unwrap();
        assert_eq!(kept.last(), Some(&healed));
        assert_eq!(kept.len() + failed.len(), all.cells.len() + 1);
    }
}
