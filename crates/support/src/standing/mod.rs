//! Standing of a driver version by the table: ended, vulnerable, below a floor, excluded.

use std::fmt;

use longshore_core::day::Day;
use longshore_core::driver_version::DriverVersion;
use longshore_core::flavour::Flavour;
use longshore_core::pci_id::{PciId, parse_half};

use crate::gpus::Gpu;
use crate::rows::{Action, Branch, Bulletin, Exclusion, Floor};
use crate::table::SupportTable;

/// Traits of a host that exclusions ask for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traits<'a> {
    /// PCI device ids of its GPUs.
    pub gpus: &'a [u16],
    /// Its network cards.
    pub nics: &'a [PciId],
    /// Release of its kernel.
    pub kernel: &'a str,
    /// Cloud that it is in, for example `aws`.
    pub cloud: Option<&'a str>,
}

/// Branch whose support has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended<'a> {
    /// Number of the branch.
    pub number: u64,
    /// Row of the branch; None for one that is older than the newest, and not in the table.
    pub branch: Option<&'a Branch>,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.branch {
            Some(branch) => write!(
                f,
                "support of branch {} ({}) ended on {}",
                self.number, branch.kind, branch.last_day
            ),
            None => write!(
                f,
                "support of branch {} has ended: the table lists newer branches, and not this one",
                self.number
            ),
        }
    }
}

/// Bulletin that a version has no fix of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenBulletin<'a> {
    /// The bulletin.
    pub bulletin: &'a Bulletin,
    /// First fixed version of the version's own branch; None where that branch gets no fix.
    pub fixed_in: Option<&'a str>,
}

impl fmt::Display for OpenBulletin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bulletin { id, day, cves, severity, .. } = self.bulletin;
        let first = cves.first().map_or("", String::as_str);
        let more = match cves.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        write!(f, "bulletin {id} of {day} ({first}{more}, up to {severity}), ")?;
        match self.fixed_in {
            Some(version) => write!(f, "fixed in {version}"),
            None => f.write_str("no fix for this branch"),
        }
    }
}

/// All that the table has against a version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing<'a> {
    /// Its branch has ended.
    pub ended: Option<Ended<'a>>,
    /// Bulletins that it has no fix of, in the order of the table.
    pub open: Vec<OpenBulletin<'a>>,
    /// Floors that it is below, each with the GPU.
    pub floors: Vec<(u16, &'a Floor)>,
    /// Exclusions that apply.
    pub exclusions: Vec<&'a Exclusion>,
    /// GPUs that are listed from a newer branch on, of those whose lists were examined.
    pub unlisted: Vec<(u16, &'a Gpu)>,
}

impl Standing<'_> {
    /// True if the version is refused for this host, whatever the policies are.
    pub fn is_refused(&self) -> bool {
        !self.floors.is_empty() || self.exclusions.iter().any(|row| row.action == Action::Refuse)
    }
}

impl SupportTable {
    /// Returns the branch of a version where its support has ended: its last day is before `today`, or the table lists
    /// newer branches and not this one.
    pub fn ended(&self, version: &str, today: Day) -> Option<Ended<'_>> {
        let number = DriverVersion::new(version).branch()?;
        match self.branch(number) {
            Some(branch) => {
                (branch.last_day < today).then_some(Ended { number, branch: Some(branch) })
            }
            None => {
                let is_newer = |branch: &Branch| branch.number > number;
                self.branches.iter().any(is_newer).then_some(Ended { number, branch: None })
            }
        }
    }

    /// Returns the bulletins that a version has no fix of. A branch for which a bulletin names no fixed version is
    /// affected if it is not newer than the newest affected one, was released before the bulletin, and is none of those
    /// that the bulletin calls not affected.
    pub fn open_bulletins(&self, version: &str) -> Vec<OpenBulletin<'_>> {
        let Some(number) = DriverVersion::new(version).branch() else { return Vec::new() };
        let open = self.bulletins.iter().filter_map(|bulletin| {
            let fixed_in = bulletin.fixed_in(number);
            let is_open = match fixed_in {
                Some(fixed) => !DriverVersion::new(version).is_at_least(DriverVersion::new(fixed)),
                None => self.is_unfixed(bulletin, number),
            };
            is_open.then_some(OpenBulletin { bulletin, fixed_in })
        });
        open.collect()
    }

    /// True if a bulletin concerns the branch, and no version of it has a fix.
    pub fn lacks_a_fix(&self, branch: u64) -> bool {
        let mut bulletins = self.bulletins.iter();
        bulletins.any(|row| row.fixed_in(branch).is_none() && self.is_unfixed(row, branch))
    }

    /// True if a branch without a fixed version is affected by the bulletin.
    fn is_unfixed(&self, bulletin: &Bulletin, number: u64) -> bool {
        let is_later = self.branch(number).is_some_and(|row| row.first_day > bulletin.day);
        number <= bulletin.newest_affected && !is_later && !bulletin.not_affected.contains(&number)
    }

    /// Returns the floors that a version is below, each with the first GPU that it is for.
    pub fn floors<'a>(&'a self, version: &str, gpus: &[u16]) -> Vec<(u16, &'a Floor)> {
        let is_below = |row: &&Floor| {
            !DriverVersion::new(version).is_at_least(DriverVersion::new(&row.version))
        };
        let with_gpu =
            |row: &'a Floor| Some((self.concerned(gpus, &row.gpus, &row.generations)?, row));
        self.floors.iter().filter(is_below).filter_map(with_gpu).collect()
    }

    /// Returns the GPUs that drivers list from a newer branch on, as far as their lists were examined.
    pub fn unlisted(&self, version: &str, gpus: &[u16]) -> Vec<(u16, &Gpu)> {
        let Some(number) = DriverVersion::new(version).branch() else { return Vec::new() };
        let is_later = |gpu: &&Gpu| {
            let first = gpu.first.as_deref().and_then(|first| DriverVersion::new(first).branch());
            first.is_some_and(|first| first > number)
        };
        let mut ids = gpus.to_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().filter_map(|id| Some((id, self.gpu(id).filter(is_later)?))).collect()
    }

    /// Returns the exclusions that apply to a version and flavour on a host.
    pub fn exclusions(
        &self,
        version: &str,
        flavour: Flavour,
        traits: Traits<'_>,
    ) -> Vec<&Exclusion> {
        let applies = |row: &&Exclusion| {
            has_version(row, version)
                && (row.flavours.is_empty() || row.flavours.contains(&flavour))
                && self.has_gpu(row, traits.gpus)
                && (row.nics.is_empty() || row.nics.iter().any(|nic| traits.nics.contains(nic)))
                && has_kernel(row, traits.kernel)
                && (row.clouds.is_empty()
                    || traits.cloud.is_some_and(|cloud| row.clouds.iter().any(|c| c == cloud)))
        };
        self.exclusions.iter().filter(applies).collect()
    }

    /// Returns all that the table has against a version and flavour on a host.
    pub fn standing(
        &self,
        version: &str,
        flavour: Flavour,
        traits: Traits<'_>,
        today: Day,
    ) -> Standing<'_> {
        Standing {
            ended: self.ended(version, today),
            open: self.open_bulletins(version),
            floors: self.floors(version, traits.gpus),
            exclusions: self.exclusions(version, flavour, traits),
            unlisted: self.unlisted(version, traits.gpus),
        }
    }

    fn has_gpu(&self, row: &Exclusion, gpus: &[u16]) -> bool {
        let is_any = row.gpus.is_empty() && row.generations.is_empty();
        is_any || self.concerned(gpus, &row.gpus, &row.generations).is_some()
    }

    /// Returns the first GPU that is one of `ids`, or of one of `generations`.
    fn concerned(&self, gpus: &[u16], ids: &[String], generations: &[String]) -> Option<u16> {
        let is_one = |gpu: &u16| {
            let generation = self.gpu(*gpu).map(|row| &row.generation);
            ids.iter().any(|id| parse_half(id) == Some(*gpu))
                || generation.is_some_and(|name| generations.contains(name))
        };
        gpus.iter().copied().find(is_one)
    }
}

fn has_version(row: &Exclusion, version: &str) -> bool {
    if !row.versions.is_empty() {
        return row.versions.iter().any(|one| DriverVersion::new(version).is_within(one));
    }
    is_between(version, row.from.as_deref(), row.below.as_deref())
}

fn has_kernel(row: &Exclusion, release: &str) -> bool {
    if row.kernel_from.is_none() && row.kernel_below.is_none() {
        return true;
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let end = release.find(|c| !is_number(c)).unwrap_or(release.len());
    let number = release.get(..end).unwrap_or_default().trim_end_matches('.');
    !number.is_empty()
        && is_between(number, row.kernel_from.as_deref(), row.kernel_below.as_deref())
}

/// True if a version is `from` or newer, and older than `below`.
fn is_between(version: &str, from: Option<&str>, below: Option<&str>) -> bool {
    let is_at_least = |bound| DriverVersion::new(version).is_at_least(DriverVersion::new(bound));
    from.is_none_or(is_at_least) && !below.is_some_and(is_at_least)
}

#[cfg(test)]
mod tests;
