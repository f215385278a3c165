//! Log of a run: one JSON line a verdict, on disk before the next cell begins. A run that was killed at
//! any moment is resumed from it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::error::{At, Error};
use crate::results::{CellResult, Line, Run};

/// Version of the log's format.
const FORMAT: u32 = 1;
/// Maximum size of a log: a thousand cells with 40 lines of a log each need a tenth.
const MOST_BYTES: u64 = 256 << 20;

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
pub struct RunLog {
    file: Flock<File>,
    path: PathBuf,
}

impl RunLog {
    /// Begins the log of a run over these cells, in place of an earlier one.
    ///
    /// # Errors
    /// Another process has it, or it cannot be written.
    pub fn begin(path: &Path, run: &Run, cells: Vec<Line>) -> Result<Self, Error> {
        let mut log = Self::open(path)?;
        log.file.set_len(0).at("empty", path)?;
        log.line(&Head { format: FORMAT, run: run.clone(), cells })?;
        Ok(log)
    }

    /// Opens the log of a run that ended early, and returns it with that run and its results so far. A
    /// verdict that was being written is removed.
    ///
    /// # Errors
    /// There is none, another process has it, it is damaged, or of a run over other packages, another
    /// shard, program or cells.
    pub fn resume(
        path: &Path,
        like: &Run,
        cells: &[Line],
    ) -> Result<(Self, Run, Vec<CellResult>), Error> {
        if !path.exists() {
            let why = format!("there is no run to resume: {} is missing", path.display());
            return Err(Error::Matrix(why));
        }
        let log = Self::open(path)?;
        let mut bytes = Vec::new();
        (&*log.file).take(MOST_BYTES + 1).read_to_end(&mut bytes).at("read", path)?;
        let damaged = |why: &str| Error::Matrix(format!("{}: {why}", path.display()));
        if bytes.len() as u64 > MOST_BYTES {
            return Err(damaged("it is too large for a log"));
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        log.file.set_len(whole as u64).at("shorten", path)?;
        let (run, results) = parse(&bytes[..whole], like, cells).map_err(|why| damaged(&why))?;
        Ok((log, run, results))
    }

    /// Adds the result of a cell, and returns when it is on disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn add(&mut self, result: &CellResult) -> Result<(), Error> {
        self.line(result)
    }

    fn open(path: &Path) -> Result<Self, Error> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).at("make", dir)?;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).mode(0o600).open(path);
        let file = file.at("open", path)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Self { file, path: path.to_path_buf() }),
            Err((_, error)) => Err(error).at("lock (another run has it)", path),
        }
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let mut line = serde_json::to_vec(value)
            .map_err(|e| Error::Unexpected(format!("a result as JSON: {e}")))?;
        line.push(b'\n');
        self.file.write_all(&line).at("write", &self.path)?;
        self.file.sync_data().at("flush", &self.path)
    }
}

fn parse(bytes: &[u8], like: &Run, cells: &[Line]) -> Result<(Run, Vec<CellResult>), String> {
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head = lines.next().ok_or("the run ended before its first line; begin anew")?;
    let head: Head = serde_json::from_slice(head).map_err(|e| format!("line 1: {e}"))?;
    let run = head.run;
    let anew = "begin anew, without --resume";
    for (is_same, what) in [
        (head.format == FORMAT, "written by another version"),
        (run.lock == like.lock, "of other packages than the lock has"),
        (run.shard == like.shard, "of another shard"),
        (run.agent == like.agent, "of another longshore"),
        (head.cells == cells, "of other cells"),
    ] {
        if !is_same {
            return Err(format!("the run is {what}; {anew}"));
        }
    }
    let mut results: Vec<CellResult> = Vec::new();
    for (index, line) in lines.enumerate() {
        let number = index + 2;
        let result: CellResult =
            serde_json::from_slice(line).map_err(|e| format!("line {number}: {e}; {anew}"))?;
        if !cells.contains(&result.name) || results.iter().any(|r| r.name == result.name) {
            let name = &result.name;
            return Err(format!("line {number}: {name} is no cell that is to come; {anew}"));
        }
        results.push(result);
    }
    Ok((run, results))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::sample;

    fn sample_of() -> (Run, Vec<Line>, Vec<CellResult>) {
        let results = sample::results();
        let names = results.cells.iter().map(|cell| cell.name.clone()).collect();
        (results.run, names, results.cells)
    }

    #[test]
    fn a_log_cut_off_at_any_byte_is_resumed_with_every_whole_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let (run, names, cells) = sample_of();
        let mut log = RunLog::begin(&path, &run, names.clone()).unwrap();
        for cell in &cells[..2] {
            log.add(cell).unwrap();
        }
        drop(log);
        let bytes = fs::read(&path).unwrap();
        let ends: Vec<usize> =
            bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1).collect();
        for length in (0..=bytes.len()).rev().step_by(7).chain(ends.iter().copied()) {
            fs::write(&path, &bytes[..length]).unwrap();
            let resumed = RunLog::resume(&path, &run, &names);
            let whole = ends.iter().filter(|end| **end <= length).count();
            if whole == 0 {
                assert!(resumed.is_err());
                continue;
            }
            let (mut log, same, results) = resumed.unwrap();
            assert_eq!((same.id, results.as_slice()), (run.id.clone(), &cells[..whole - 1]));
            log.add(&cells[2]).unwrap();
            drop(log);
            let (_, _, results) = RunLog::resume(&path, &run, &names).unwrap();
            assert_eq!(results.last(), Some(&cells[2]));
        }
    }

    #[test]
    fn a_log_of_something_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.jsonl");
        let (run, names, cells) = sample_of();
        let resume = |like: &Run, names: &[Line]| {
            RunLog::resume(&path, like, names).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(resume(&run, &names).contains("no run to resume"));
        let mut log = RunLog::begin(&path, &run, names.clone()).unwrap();
        log.add(&cells[0]).unwrap();
        assert!(resume(&run, &names).contains("another run has it"));
        drop(log);
        let other = Run { lock: None, ..run.clone() };
        assert!(resume(&other, &names).contains("other packages"));
        assert!(resume(&run, &names[1..]).contains("other cells"));
        let mut text = fs::read_to_string(&path).unwrap();
        let first = text.lines().nth(1).unwrap().to_owned();
        text.push_str(&format!("{first}\n"));
        fs::write(&path, &text).unwrap();
        assert!(resume(&run, &names).contains("line 3: "));
        fs::write(&path, text.replace("\"verdict\":", "\"verdikt\":")).unwrap();
        assert!(resume(&run, &names).contains("line 2: "));
    }
}
