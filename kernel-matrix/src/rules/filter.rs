//! Selection of cells of the rules: filters and shards.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::results::Shard;
use crate::rules::Cell;
use crate::rules::lock::Lock;
use crate::rules::pattern::Patterns;
use longshore_lab::host::cache::digest;
use longshore_lab::host::error::Error;

/// `KEY=PATTERN[,PATTERN...]`.
#[derive(Debug, Clone)]
pub struct Filter {
    key: &'static str,
    value: Value,
    patterns: Patterns,
}

/// Returns the value that a cell has of a key, if it has one. The lock tells releases.
type Value = fn(&Cell, Option<&Lock>) -> Option<String>;

/// Key of releases, which only a lock has.
const KERNEL: &str = "kernel";

const KEYS: [(&str, Value); 10] = [
    (KERNEL, |cell, lock| Some(lock?.kernel(&cell.kernel.id)?.release.clone())),
    ("suite", |cell, _| Some(cell.kernel.suite.clone())),
    ("line", |cell, _| cell.kernel.line.clone()),
    ("kernel-flavour", |cell, _| Some(cell.kernel.flavour.to_string())),
    ("driver", |cell, _| Some(cell.driver.branch.clone())),
    ("flavour", |cell, _| Some(cell.driver.flavour.to_string())),
    ("rule", |cell, _| Some(cell.rule.clone())),
    ("scenario", |cell, _| Some(cell.scenario.to_string())),
    ("gpus", |cell, _| Some(cell.gpus.to_string())),
    ("name", |cell, _| Some(cell.name.clone())),
];

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = || KEYS.map(|(name, _)| name).join(", ");
        let (key, patterns) = text
            .split_once('=')
            .ok_or_else(|| format!("a filter is KEY=PATTERN, with one of the keys {}", all()))?;
        let known = KEYS.into_iter().find(|(name, _)| *name == key);
        let (key, value) = known.ok_or_else(|| format!("there are the keys {}", all()))?;
        Ok(Self { key, value, patterns: Patterns::parse(patterns)? })
    }
}

impl Filter {
    fn matches(&self, cell: &Cell, lock: Option<&Lock>) -> bool {
        (self.value)(cell, lock).is_some_and(|value| self.patterns.matches(&value))
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, count)| {
            let shard = Self { index: index.parse().ok()?, count: count.parse().ok()? };
            (1..=shard.count).contains(&shard.index).then_some(shard)
        });
        numbers.ok_or_else(|| format!("`{text}` is not I/N, with I of 1 to N"))
    }
}

impl Shard {
    /// Returns the kernels of this part: all cells of one kernel are in one part, which fetches and unpacks
    /// its headers once. Kernels are dealt out in the order of their digests, so that neighbours in the
    /// file, which take as long as each other, are in different parts.
    fn kernels(self, cells: &[Cell]) -> BTreeSet<&str> {
        let mut ids: Vec<&str> = cells.iter().map(|cell| cell.kernel.id.as_str()).collect();
        ids.sort_by_cached_key(|id| (digest(&[id]), *id));
        ids.dedup();
        let part = (1..=self.count).cycle();
        ids.into_iter()
            .zip(part)
            .filter(|(_, part)| *part == self.index)
            .map(|(id, _)| id)
            .collect()
    }
}

/// Returns the cells that every filter and the shard have.
///
/// # Errors
/// A filter asks for kernel releases, and there is no lock to look them up in; or no cell meets a filter, or all of
/// them. A shard may be without a cell.
pub fn select<'a>(
    cells: &'a [Cell],
    filters: &[Filter],
    shard: Option<Shard>,
    lock: Option<&Lock>,
) -> Result<Vec<&'a Cell>, Error> {
    if lock.is_none() && filters.iter().any(|filter| filter.key == KERNEL) {
        let why = "kernel= is about releases, which are known after `kernel-matrix resolve`";
        return Err(Error::Matrix(why.into()));
    }
    for filter in filters {
        if !cells.iter().any(|cell| filter.matches(cell, lock)) {
            let Filter { key, patterns, .. } = filter;
            return Err(Error::Matrix(format!("no cell has {key}={patterns}")));
        }
    }
    let is_met = |cell: &&Cell| filters.iter().all(|filter| filter.matches(cell, lock));
    if !filters.is_empty() && !cells.iter().any(|cell| is_met(&cell)) {
        return Err(Error::Matrix("each filter has cells, and no cell meets all of them".into()));
    }
    let here = shard.map(|shard| shard.kernels(cells));
    let is_here =
        |cell: &&Cell| here.as_ref().is_none_or(|here| here.contains(cell.kernel.id.as_str()));
    Ok(cells.iter().filter(is_met).filter(is_here).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;
    use crate::rules::lock::LockedKernel;

    const RULES: &str = "format = 1\n[[kernels]]\ndistribution = 'debian'\n\
        suites = ['bookworm', 'sid']\nflavours = ['generic', 'rt']\narchitecture = 'amd64'\n\
        [[drivers]]\nbranches = ['535', '550']\nflavours = ['open', 'proprietary']\n\
        suites = ['sid']\n[[rule]]\nname = 'all'\n";

    fn lock() -> Lock {
        let kernel = |id: &str, release: &str| LockedKernel {
            id: id.into(),
            release: release.into(),
            unavailable: None,
            build_root: None,
            image: None,
            headers: Vec::new(),
        };
        let kernels = vec![kernel("bookworm", "6.1.0-50-amd64"), kernel("sid", "7.2.13-amd64")];
        Lock::new(Vec::new(), kernels, Vec::new())
    }

    #[test]
    fn cells_meet_every_filter() {
        let rules = Rules::parse(RULES).unwrap();
        for (filters, count) in [
            (vec![], 16),
            (vec!["suite=sid"], 8),
            (vec!["suite=sid", "driver=550"], 4),
            (vec!["suite=sid", "driver=550", "flavour=open"], 2),
            (vec!["kernel-flavour=rt", "driver=535,550"], 8),
            (vec!["kernel=6.1"], 4),
            (vec!["kernel=6.1,7.*"], 8),
            (vec!["name=sid-rt*", "rule=all", "driver=540.."], 2),
            (vec!["scenario=compile", "suite=sid"], 8),
        ] {
            let parsed: Vec<Filter> = filters.iter().map(|f| f.parse().unwrap()).collect();
            let cells = select(&rules.cells, &parsed, None, Some(&lock())).unwrap();
            assert_eq!(cells.len(), count, "{filters:?}");
        }
    }

    #[test]
    fn filters_that_select_nothing_are_refused() {
        let rules = Rules::parse(RULES).unwrap();
        for (filter, lock, expected) in [
            ("driver=535,560", None, None),
            ("driver=560", None, Some("no cell has driver=560")),
            ("kernel=6.1", None, Some("after `kernel-matrix resolve`")),
            ("kernel=5.10", Some(lock()), Some("no cell has kernel=5.10")),
            ("line=6.12", None, Some("no cell has line=6.12")),
            ("scenario=round-trip", None, Some("no cell has scenario=round-trip")),
            ("gpus=t4", None, Some("no cell has gpus=t4")),
            ("name=sid-535-open suite=bookworm", None, Some("no cell meets all of them")),
        ] {
            let filters: Vec<Filter> = filter.split(' ').map(|f| f.parse().unwrap()).collect();
            let selected = select(&rules.cells, &filters, None, lock.as_ref());
            let error = selected.err().map(|error| error.to_string());
            match (error, expected) {
                (None, None) => {}
                (error, expected) => assert!(error.unwrap().contains(expected.unwrap())),
            }
        }
        for filter in ["535", "colour=red", "driver=", "driver=a*b"] {
            assert!(filter.parse::<Filter>().is_err(), "{filter}");
        }
    }

    #[test]
    fn each_kernel_is_in_one_shard_with_all_its_cells() {
        let rules = Rules::parse(include_str!("../../rules.toml")).unwrap();
        let shards = [1, 2, 3].map(|index| Shard { index, count: 3 });
        let cells = rules.compiled();
        let parts = shards.map(|shard| select(&cells, &[], Some(shard), None).unwrap());
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), cells.len());
        assert!(parts.iter().all(|part| part.len() == cells.len() / 3));
        for kernel in &rules.kernels {
            let has = |part: &&Vec<&Cell>| part.iter().any(|cell| cell.kernel == *kernel);
            assert_eq!(parts.iter().filter(has).count(), 1, "{}", kernel.id);
        }
    }

    #[test]
    fn a_shard_is_one_of_those_there_are() {
        assert_eq!("2/3".parse::<Shard>().unwrap().to_string(), "2/3");
        for text in ["0/3", "4/3", "1/0", "1", "a/b", "-1/2"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
