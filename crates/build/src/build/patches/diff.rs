//! Unified diffs, parsed and applied strictly: every line of a hunk must match, at one place.
//!
//! A hunk's line numbers are only a hint, because the same lines move between versions of a driver;
//! its text is not. Nothing is guessed: no fuzz, no other white space. Files are changed, never
//! created, removed or renamed.

use std::fmt;
use std::path::{Component, Path};

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

impl Diff {
    /// Parses a diff with paths as git writes them: `a/PATH` and `b/PATH`. Text before the first
    /// file is a comment.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &[u8]) -> Result<Self, BadDiff> {
        let mut reader = Reader { lines: split(text), at: 0 };
        let mut files: Vec<FileDiff> = Vec::new();
        while let Some(file) = reader.file(files.is_empty())? {
            if files.iter().any(|f| f.path == file.path) {
                return Err(reader.bad(format!("{} is changed twice", file.path)));
            }
            files.push(file);
        }
        if files.is_empty() {
            return Err(reader.bad("no file is changed"));
        }
        Ok(Self { files })
    }
}

impl FileDiff {
    /// Returns `content` with every hunk applied.
    ///
    /// # Errors
    /// The first hunk whose lines are not there, or at several places and not at the stated one.
    pub fn apply(&self, content: &[u8]) -> Result<Vec<u8>, Misfit> {
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

struct Reader<'a> {
    lines: Vec<&'a [u8]>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.at).copied()
    }

    /// Returns an error for the line just read.
    fn bad(&self, what: impl Into<String>) -> BadDiff {
        BadDiff { line: self.at.max(1), what: what.into() }
    }

    /// Parses the next file; `first` allows a comment before it.
    fn file(&mut self, first: bool) -> Result<Option<FileDiff>, BadDiff> {
        let Some(old) = self.header(first)? else { return Ok(None) };
        let old = self.path(old, "a/")?;
        let new = self.peek().and_then(|line| line.strip_prefix(b"+++ "));
        self.at += 1;
        let new = new.ok_or_else(|| self.bad("`+++ b/PATH` is wanted here"))?;
        if self.path(new, "b/")? != old {
            return Err(self.bad(format!("a patch may not rename {old}")));
        }
        let mut hunks: Vec<Hunk> = Vec::new();
        while self.peek().is_some_and(|line| line.starts_with(b"@@ ")) {
            hunks.push(self.hunk()?);
        }
        if hunks.is_empty() {
            return Err(self.bad(format!("{old} has no hunk")));
        }
        Ok(Some(FileDiff { path: old, hunks }))
    }

    /// Returns the rest of the next line that begins with `--- `.
    fn header(&mut self, first: bool) -> Result<Option<&'a [u8]>, BadDiff> {
        while let Some(line) = self.peek() {
            self.at += 1;
            if let Some(path) = line.strip_prefix(b"--- ") {
                return Ok(Some(path));
            }
            let between = [b"diff ".as_slice(), b"index "].iter().any(|p| line.starts_with(p));
            if !first && !between {
                return Err(self.bad("neither a hunk nor a file begins here"));
            }
        }
        Ok(None)
    }

    fn path(&self, stated: &[u8], prefix: &str) -> Result<String, BadDiff> {
        let text = str::from_utf8(stated).map_err(|_| self.bad("a path is not UTF-8"))?;
        // Some tools put a time after the name, separated by a tab.
        let path = text.trim_end_matches(['\n', '\r']).split('\t').next().unwrap_or_default();
        let path = path
            .strip_prefix(prefix)
            .ok_or_else(|| self.bad(format!("a path begins with {prefix}; this is {path:?}")))?;
        if !is_plain(path) {
            return Err(self.bad(format!("{path:?} is not a path below the sources")));
        }
        Ok(path.to_owned())
    }

    fn hunk(&mut self) -> Result<Hunk, BadDiff> {
        let header = self.peek().unwrap_or_default();
        self.at += 1;
        let Some((line, old_count, new_count)) = ranges(header) else {
            return Err(self.bad("`@@ -LINE,COUNT +LINE,COUNT @@` is wanted here"));
        };
        let mut hunk = Hunk { line, old: Vec::new(), new: Vec::new() };
        while hunk.old.len() < old_count || hunk.new.len() < new_count {
            self.body_line(&mut hunk)?;
        }
        self.no_newline(&mut hunk, true, true);
        if hunk.old.len() != old_count || hunk.new.len() != new_count {
            return Err(self.bad("the hunk's lines differ from the counts in its head"));
        }
        if hunk.old.is_empty() || line == 0 {
            return Err(self.bad("a hunk needs lines to be found by"));
        }
        Ok(hunk)
    }

    fn body_line(&mut self, hunk: &mut Hunk) -> Result<(), BadDiff> {
        let line = self.peek();
        self.at += 1;
        let (old, new) = match line.and_then(<[u8]>::first) {
            Some(b' ') => (true, true),
            Some(b'-') => (true, false),
            Some(b'+') => (false, true),
            Some(_) => return Err(self.bad("a hunk's line begins with a blank, `-` or `+`")),
            None => return Err(self.bad("the hunk ends before the counts in its head")),
        };
        let text = line.unwrap_or_default().get(1..).unwrap_or_default().to_vec();
        if old {
            hunk.old.push(text.clone());
        }
        if new {
            hunk.new.push(text);
        }
        self.no_newline(hunk, old, new);
        Ok(())
    }

    /// Handles `\ No newline at end of file`: the line before has no line end.
    fn no_newline(&mut self, hunk: &mut Hunk, old: bool, new: bool) {
        if !self.peek().is_some_and(|line| line.starts_with(b"\\ ")) {
            return;
        }
        self.at += 1;
        for (lines, wanted) in [(&mut hunk.old, old), (&mut hunk.new, new)] {
            if let Some(line) = lines.last_mut().filter(|_| wanted)
                && line.last() == Some(&b'\n')
            {
                line.pop();
            }
        }
    }
}

/// Parses `-LINE[,COUNT] +LINE[,COUNT]` of a hunk's header: the old line and both counts.
fn ranges(header: &[u8]) -> Option<(usize, usize, usize)> {
    let text = str::from_utf8(header).ok()?.strip_prefix("@@ -")?;
    let (old, rest) = text.split_once(" +")?;
    let (new, _) = rest.split_once(" @@")?;
    let range = |text: &str| -> Option<(usize, usize)> {
        let (line, count) = text.split_once(',').unwrap_or((text, "1"));
        let digits =
            |t: &str| !t.is_empty() && t.len() < 8 && t.bytes().all(|b| b.is_ascii_digit());
        (digits(line) && digits(count)).then_some(())?;
        Some((line.parse().ok()?, count.parse().ok()?))
    };
    let ((line, old), (_, new)) = (range(old)?, range(new)?);
    Some((line, old, new))
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
