//! Parser of unified diffs.

use super::{BadDiff, Diff, FileDiff, Hunk, is_plain, split};

/// First line of the trailer that git adds to a patch sent by mail: a signature, usually git's version.
const TRAILER: [&[u8]; 2] = [b"-- \n", b"--\n"];
/// Longest line of that trailer.
const LONGEST_SIGNATURE: usize = 80;
/// The old file's name where a diff makes the file.
const NO_FILE: &[u8] = b"/dev/null";

impl Diff {
    /// Parses a diff with paths as git writes them: `a/PATH` and `b/PATH`, or `/dev/null` and `b/PATH` for a file
    /// that it makes. Text before the first file is a comment; git's mail trailer may stand at the end.
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
        let old = match named(old) {
            NO_FILE => None,
            old => Some(self.path(old, "a/")?),
        };
        let new = self.peek().and_then(|line| line.strip_prefix(b"+++ "));
        self.at += 1;
        let new = new.ok_or_else(|| self.bad("`+++ b/PATH` is wanted here"))?;
        let path = self.path(named(new), "b/")?;
        if let Some(old) = old.as_ref().filter(|old| **old != path) {
            return Err(self.bad(format!("a patch may not rename {old}")));
        }
        let makes = old.is_none();
        let mut hunks: Vec<Hunk> = Vec::new();
        while self.peek().is_some_and(|line| line.starts_with(b"@@ ")) {
            hunks.push(self.hunk(makes)?);
        }
        match hunks.len() {
            0 => Err(self.bad(format!("{path} has no hunk"))),
            2.. if makes => Err(self.bad(format!("{path} is made by more than one hunk"))),
            _ => Ok(Some(FileDiff { path, makes, hunks })),
        }
    }

    /// Returns the rest of the next line that begins with `--- `.
    fn header(&mut self, first: bool) -> Result<Option<&'a [u8]>, BadDiff> {
        // Between `diff --git` and `--- ` git writes what the hunks do not show.
        let mut is_git = false;
        while let Some(line) = self.peek() {
            if !first && !is_git && TRAILER.contains(&line) {
                return self.trailer().map(|()| None);
            }
            self.at += 1;
            if let Some(path) = line.strip_prefix(b"--- ") {
                return Ok(Some(path));
            }
            let starts = |text: &str| line.starts_with(text.as_bytes());
            if starts("diff --git ") && is_git {
                return Err(self.bad("the file before has no hunk"));
            }
            let known = ["diff ", "index ", "new file mode 100644"].into_iter().any(starts);
            if !known && (is_git || !first) {
                return Err(self.bad("neither a hunk nor a file begins here"));
            }
            is_git |= starts("diff --git ");
        }
        if is_git {
            return Err(self.bad("the file before has no hunk"));
        }
        Ok(None)
    }

    /// Checks that git's mail trailer, which begins here, is the last text: one line, and blank ones.
    fn trailer(&mut self) -> Result<(), BadDiff> {
        self.at += 1;
        let signature = self.at;
        while let Some(line) = self.peek() {
            self.at += 1;
            let is_signature = self.at == signature + 1 && line.len() <= LONGEST_SIGNATURE;
            if !is_signature && !line.trim_ascii().is_empty() {
                return Err(self.bad("text follows git's mail trailer"));
            }
        }
        Ok(())
    }

    fn path(&self, stated: &[u8], prefix: &str) -> Result<String, BadDiff> {
        let path = str::from_utf8(stated).map_err(|_| self.bad("a path is not UTF-8"))?;
        let path = path
            .strip_prefix(prefix)
            .ok_or_else(|| self.bad(format!("a path begins with {prefix}; this is {path:?}")))?;
        if !is_plain(path) {
            return Err(self.bad(format!("{path:?} is not a path below the sources")));
        }
        Ok(path.to_owned())
    }

    /// Parses a hunk; that of a file that is `made` has no old lines, all others have some.
    fn hunk(&mut self, made: bool) -> Result<Hunk, BadDiff> {
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
        if made && (line, old_count) != (0, 0) {
            return Err(self.bad("a file that is made has no old lines"));
        }
        if !made && (hunk.old.is_empty() || line == 0) {
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

/// Returns the name in a `---` or `+++` line; some tools put a time after it, separated by a tab.
fn named(line: &[u8]) -> &[u8] {
    let name = line.split(|byte| *byte == b'\t').next().unwrap_or_default();
    name.strip_suffix(b"\n").map_or(name, |name| name.strip_suffix(b"\r").unwrap_or(name))
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
