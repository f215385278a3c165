//! Unified diffs, parsed and applied strictly: every line of a hunk must match, at one place.
//!
//! A hunk's line numbers are only a hint, because the same lines move between versions of a driver;
//! its text is not. Nothing is guessed: no fuzz, no other white space. Files are changed or made, never
//! removed or renamed.

mod reader;
mod sources;

use std::fmt;
use std::path::{Component, Path};

pub(crate) use sources::check_links;
pub use sources::{Edits, Unfit};

/// A parsed diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff {
    /// The files it changes, each once.
    pub files: Vec<FileDiff>,
}

/// The changes to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDiff {
    /// Path below the driver's sources; plain names only.
    pub path: String,
    /// True if it makes the file, which does not exist before.
    pub makes: bool,
    /// Hunks in the order of the file.
    pub hunks: Vec<Hunk>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk {
    /// Stated first line of the old text; 1 is the first line.
    pub line: usize,
    /// Lines to find, with their line ends.
    pub old: Vec<Vec<u8>>,
    /// Lines to put there instead.
    pub new: Vec<Vec<u8>>,
}

/// Error of a diff that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadDiff {
    line: usize,
    what: String,
}

/// Error of a hunk that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Misfit {
    /// Number of the hunk, from 1.
    pub hunk: usize,
    line: usize,
    matches: usize,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hunk {} (for line {}): ", self.hunk, self.line)?;
        match self.matches {
            0 => f.write_str("its lines are not there"),
            n => write!(f, "its lines are there {n} times, and not at that line"),
        }
    }
}

impl FileDiff {
    /// Returns `content` with every hunk applied; of a file that is made, its content.
    ///
    /// # Errors
    /// The first hunk whose lines are not there, or at several places and not at the stated one.
    pub fn apply(&self, content: &[u8]) -> Result<Vec<u8>, Misfit> {
        if self.makes {
            return Ok(self.hunks.iter().flat_map(|hunk| hunk.new.concat()).collect());
        }
        let lines = split(content);
        let (mut done, mut result) = (0, Vec::with_capacity(content.len() + 1024));
        // Offset between this file's lines and the hunks' line numbers.
        let mut shift: isize = 0;
        for (n, hunk) in self.hunks.iter().enumerate() {
            let stated = (hunk.line - 1).checked_add_signed(shift);
            let at = hunk.place(&lines, done, stated).map_err(|matches| Misfit {
                hunk: n + 1,
                line: hunk.line,
                matches,
            })?;
            shift = at.cast_signed() - (hunk.line - 1).cast_signed();
            result.extend(lines[done..at].concat());
            result.extend(hunk.new.concat());
            done = at + hunk.old.len();
        }
        result.extend(lines[done..].concat());
        Ok(result)
    }
}

impl Hunk {
    /// Returns the index of the hunk's first line, not before `from`; else the number of places
    /// where it would fit.
    fn place(&self, lines: &[&[u8]], from: usize, stated: Option<usize>) -> Result<usize, usize> {
        let last = (lines.len() + 1).saturating_sub(self.old.len());
        let fits = |at: &usize| lines[*at..].iter().zip(&self.old).all(|(a, b)| *a == b.as_slice());
        let places: Vec<usize> = (from..last).filter(fits).collect();
        match (places.as_slice(), stated) {
            ([one], _) => Ok(*one),
            (_, Some(stated)) if places.contains(&stated) => Ok(stated),
            _ => Err(places.len()),
        }
    }
}

/// The lines of a text with their ends.
fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|b| *b == b'\n').collect()
}

/// True if `path` is relative and made of plain names: joined to a directory, it stays inside.
pub fn is_plain(path: &str) -> bool {
    let normal = |part| matches!(part, Component::Normal(_));
    !path.is_empty()
        && !path.contains(['\0', '\n', '\\'])
        && !path.ends_with('/')
        && !path.split('/').any(|part| matches!(part, "" | "." | ".."))
        && Path::new(path).components().all(normal)
}

#[cfg(test)]
mod tests;
