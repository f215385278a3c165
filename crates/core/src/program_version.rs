//! Version of a program: of its package, and the commit that it was compiled from.

use std::fmt;

/// Length of a commit in the text of a version.
const SHOWN: usize = 12;

/// Version of a program of this workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramVersion {
    commit: Option<&'static str>,
    date: Option<&'static str>,
}

/// Returns the [`ProgramVersion`](crate::program_version::ProgramVersion) of the crate that it stands in. The commit and
/// its date are LONGSHORE_COMMIT and LONGSHORE_COMMIT_DATE of the compiler's environment.
///
/// It belongs into a program's `main.rs`: another commit then compiles that file anew, and no library.
#[macro_export]
macro_rules! program_version {
    () => {
        $crate::program_version::ProgramVersion::new(
            option_env!("LONGSHORE_COMMIT"),
            option_env!("LONGSHORE_COMMIT_DATE"),
        )
    };
}

impl ProgramVersion {
    /// Returns the version with a commit, in hexadecimal digits, and its date; empty texts count as absent.
    pub fn new(commit: Option<&'static str>, date: Option<&'static str>) -> Self {
        let given = |text: Option<&'static str>| text.filter(|text| !text.is_empty());
        Self { commit: given(commit), date: given(date) }
    }

    /// Returns the package's version: that of the workspace, of which all crates have the same.
    pub fn number(self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Returns the commit, shortened; None where the build recorded none.
    pub fn commit(self) -> Option<&'static str> {
        self.commit.map(|commit| commit.get(..SHOWN).unwrap_or(commit))
    }
}

/// `0.1.0 (a1b2c3d4e5f6 2026-11-27)`, or `0.1.0 (no commit recorded)`.
impl fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.number())?;
        match (self.commit(), self.date) {
            (Some(commit), Some(date)) => write!(f, "{commit} {date})"),
            (Some(commit), None) => write!(f, "{commit})"),
            (None, _) => f.write_str("no commit recorded)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_part_of_the_version() {
        let whole = "a1b2c3d4e5f60718293a4b5c6d7e8f9001122334";
        for (commit, date, wanted) in [
            (Some(whole), Some("2026-11-27"), "(a1b2c3d4e5f6 2026-11-27)"),
            (Some("a1b2c3"), None, "(a1b2c3)"),
            (Some(""), Some(""), "(no commit recorded)"),
            (None, Some("2026-11-27"), "(no commit recorded)"),
        ] {
            let text = ProgramVersion::new(commit, date).to_string();
            assert_eq!(text, format!("{} {wanted}", env!("CARGO_PKG_VERSION")));
        }
    }
}
