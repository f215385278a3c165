//! State of each driver's branch and version by the support table, on one day.
//!
//! The table is that of the agent ([`longshore_support`]): built in, or of a signed file ([`table`]). Judgements are
//! functions of the table and the day alone, so that the same results give the same page.

pub(crate) mod table;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use longshore_core::day::Day;
use longshore_core::driver_version::DriverVersion;
use longshore_support::{BranchKind, OpenBulletin, SupportTable};

/// Number of bulletins that a state names.
const NAMED: usize = 3;

/// The support table and the day for which drivers are judged.
#[derive(Debug, Clone)]
pub(crate) struct Judge {
    /// The table.
    pub table: SupportTable,
    /// The day.
    pub day: Day,
}

/// Support of a branch, in the order of the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// Supported until this day, which is included.
    Until(Day, BranchKind),
    /// Neither in the table nor older than its newest branch.
    Unknown,
    /// Ended on this day; None for a branch that is older than the newest and not in the table.
    Ended(Option<Day>),
}

/// State of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverState {
    /// Support of its branch.
    pub support: Support,
    /// CVEs of each version's open bulletins, newest first; versions with the same ones stand together.
    pub open: Vec<(Vec<String>, OpenCves)>,
}

/// CVEs of the bulletins that a version has no fix of; those of other branches are among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OpenCves {
    /// Number of them.
    pub count: usize,
    /// Highest CVSS base score among them; empty where there are none.
    pub highest: String,
    /// Numbers of their bulletins, newest first.
    pub bulletins: Vec<String>,
}

impl Judge {
    /// Judges a driver by its branch (`535`; the version itself for a source tree) and the versions that its cells used,
    /// newest first. Bulletins that were published after the day do not count.
    pub(crate) fn state(&self, branch: &str, versions: &[String]) -> DriverState {
        let mut open: Vec<(Vec<String>, OpenCves)> = Vec::new();
        for version in versions {
            let cves = self.open_cves(version);
            match open.iter_mut().find(|(_, other)| *other == cves) {
                Some((versions, _)) => versions.push(version.clone()),
                None => open.push((vec![version.clone()], cves)),
            }
        }
        DriverState { support: self.support(branch), open }
    }

    fn support(&self, branch: &str) -> Support {
        if let Some(ended) = self.table.ended(branch, self.day) {
            return Support::Ended(ended.branch.map(|row| row.last_day));
        }
        let row = DriverVersion::new(branch).branch().and_then(|number| self.table.branch(number));
        row.map_or(Support::Unknown, |row| Support::Until(row.last_day, row.kind))
    }

    fn open_cves(&self, version: &str) -> OpenCves {
        let mut open = self.table.open_bulletins(version);
        open.retain(|of: &OpenBulletin<'_>| of.bulletin.day <= self.day);
        open.sort_by_key(|of| Reverse(of.bulletin.day));
        let cves: BTreeSet<&String> = open.iter().flat_map(|of| &of.bulletin.cves).collect();
        let highest = open.iter().map(|of| of.bulletin.severity).max();
        OpenCves {
            count: cves.len(),
            highest: highest.map(|score| score.to_string()).unwrap_or_default(),
            bulletins: open.iter().map(|of| of.bulletin.id.clone()).collect(),
        }
    }
}

impl Support {
    /// True if the branch has ended.
    pub(crate) fn is_ended(self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// Returns the place of a branch: supported ones first and of these long-support branches first, then unknown
    /// ones, then ended ones; the newest first among equals.
    pub(crate) fn place(self, branch: &str) -> (u8, Reverse<DriverVersion<'_>>) {
        let group = match self {
            Self::Until(_, BranchKind::LongSupport) => 0,
            Self::Until(_, BranchKind::Production | BranchKind::NewFeature) => 1,
            Self::Unknown => 2,
            Self::Ended(_) => 3,
        };
        (group, Reverse(DriverVersion::new(branch)))
    }

    /// Formats the support: `supported until 2028-06-30 (long-support)`.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Until(day, kind) => {
                let kind = kind.to_string();
                let kind = kind.strip_suffix(" branch").unwrap_or(&kind);
                format!("supported until {day} ({kind})")
            }
            Self::Unknown => "support unknown: the table does not have this branch".into(),
            Self::Ended(Some(day)) => format!("ended {day}"),
            Self::Ended(None) => "ended: the table has newer branches alone".into(),
        }
    }
}

impl DriverState {
    /// Formats the CVEs of open bulletins, a text for each group of versions with the same ones; `shown` formats the number of a
    /// bulletin, which is foreign text.
    pub(crate) fn cves(&self, shown: impl Fn(&str) -> String) -> Vec<String> {
        let of = |(versions, cves): &(Vec<String>, OpenCves)| match self.open.len() {
            1 => cves.text("", &shown),
            _ => cves.text(&format!(" in {}", versions.join(", ")), &shown),
        };
        self.open.iter().map(of).collect()
    }
}

impl OpenCves {
    fn text(&self, of: &str, shown: impl Fn(&str) -> String) -> String {
        if self.count == 0 {
            return format!("no known CVE open{of}");
        }
        let more = self.bulletins.len().saturating_sub(NAMED);
        let mut named: Vec<String> =
            self.bulletins.iter().take(NAMED).map(|id| shown(id)).collect();
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let plural = if self.bulletins.len() == 1 { "" } else { "s" };
        let named = named.join(", ");
        // Bulletins name their CVEs for all branches: not each concerns this one.
        let of_open = match of {
            "" => "of open bulletins".to_owned(),
            of => format!("of bulletins open{of}"),
        };
        format!("CVEs {of_open}: {}, up to {} (bulletin{plural} {named})", self.count, self.highest)
    }
}

#[cfg(test)]
mod tests;
