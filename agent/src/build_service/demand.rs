//! Kernels that are asked for: those of a list, and those of a cluster's nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use longshore_cluster::KernelsOfNode;
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::kernel_id::is_release;
use longshore_core::machine::Machine;
use longshore_core::sanitize::in_line;
use tokio::time::Instant;

use super::budget::{Budget, MOST_NEW};
use super::said::Topic;

/// Number of kernels that are built for. Whoever takes nodes decides on what they ask for: the rest is reported.
pub(super) const MOST_KERNELS: usize = 64;
/// Number of kernels of one node: the running one, and that of its next boot.
const MOST_OF_NODE: usize = 2;
/// Number of texts and nodes that a message names.
const NAMED: usize = 3;
/// Size limit of a list of kernels.
const MOST_BYTES: u64 = 64 << 10;

/// A kernel, and the nodes that ask for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// `uname -r`.
    pub(super) release: String,
    /// True if the list has it.
    pub(super) is_listed: bool,
    /// Names of the first nodes, sorted.
    pub(super) nodes: Vec<String>,
    /// Number of all of them.
    pub(super) count: usize,
}

impl Asked {
    /// Returns the nodes that ask, for a field of the log.
    pub(super) fn by(&self) -> String {
        let named = self.nodes.join(" ");
        match (self.count.saturating_sub(self.nodes.len()), self.count) {
            (_, 0) => "the list".to_owned(),
            (0, _) => named,
            (more, _) => format!("{named} and {more} more"),
        }
    }
}

/// Everything that is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// The kernels: those of the list first, then those of most nodes.
    pub(super) kernels: Vec<Asked>,
    /// Releases beyond [`MOST_KERNELS`].
    pub(super) left_out: Vec<String>,
    /// Releases of nodes alone that have asked for too many others of late, each with the first node.
    pub(super) overdrawn: BTreeMap<String, String>,
    /// Time at which the first of these may be built for.
    pub(super) again: Option<Instant>,
    /// Texts of nodes that are no releases, each with the first node.
    pub(super) invalid: BTreeMap<String, String>,
    /// Number of nodes of another architecture than this program's.
    pub(super) foreign: usize,
}

impl Demand {
    /// Returns the demand of a list and of nodes by their names, each within its `budget`.
    pub(super) fn new(
        listed: &[String],
        nodes: &BTreeMap<String, KernelsOfNode>,
        budget: &mut Budget,
        now: Instant,
    ) -> Self {
        let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        let mut asking: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut demand = Self::default();
        for &release in &listed {
            asking.entry(release).or_default();
        }
        let (mut admitted, mut refused) = (BTreeSet::new(), Vec::new());
        budget.forget(nodes, now);
        let arch = Machine::named(std::env::consts::ARCH).map(|machine| machine.debian);
        for (name, node) in nodes {
            // A kubelet spells an architecture as Debian does: amd64, arm64.
            if arch.as_ref().is_ok_and(|arch| *arch != node.arch) {
                demand.foreign += 1;
                continue;
            }
            for release in node.releases.iter().take(MOST_OF_NODE) {
                let release = release.as_str();
                if !is_release(release) {
                    demand.invalid.entry(release.to_owned()).or_insert_with(|| name.clone());
                    continue;
                }
                asking.entry(release).or_default().push(name.as_str());
                if listed.contains(release) || budget.admits(name, release, now) {
                    admitted.insert(release);
                } else {
                    refused.push((release, name));
                }
            }
        }
        // One node within its budget suffices for all that ask for the same.
        for (release, name) in refused {
            if !admitted.contains(release) {
                asking.remove(release);
                demand.overdrawn.entry(release.to_owned()).or_insert_with(|| name.clone());
                demand.again = demand.again.into_iter().chain(budget.again(name, now)).min();
            }
        }
        let mut all: Vec<Asked> = asking
            .into_iter()
            .map(|(release, nodes)| Asked {
                release: release.to_owned(),
                is_listed: listed.contains(release),
                nodes: nodes.iter().take(NAMED).map(ToString::to_string).collect(),
                count: nodes.len(),
            })
            .collect();
        // A single node's demand does not displace that of many.
        all.sort_by(|a, b| {
            (b.is_listed, b.count, &a.release).cmp(&(a.is_listed, a.count, &b.release))
        });
        let rest = all.split_off(all.len().min(MOST_KERNELS));
        demand.left_out = rest.into_iter().map(|asked| asked.release).collect();
        demand.kernels = all;
        demand
    }

    /// Returns one line for each kind of demand that is not met; they are compared with those said before.
    pub(super) fn unmet(&self) -> Vec<(Topic, String)> {
        let mut lines = Vec::new();
        if !self.left_out.is_empty() {
            let first = self.left_out.iter().take(NAMED).cloned().collect::<Vec<_>>().join(" ");
            let line = format!(
                "{} kernels are asked for beyond the {MOST_KERNELS} that are built for: {first} ...",
                self.left_out.len()
            );
            lines.push((Topic::LeftOut, line));
        }
        if let Some((release, node)) = self.overdrawn.first_key_value() {
            let line = format!(
                "{} kernels are built for later, as their nodes have asked for {MOST_NEW} others within an hour; the \
                 first is {release}, of node {node}",
                self.overdrawn.len()
            );
            lines.push((Topic::Overdrawn, line));
        }
        if let Some((text, node)) = self.invalid.first_key_value() {
            let line = format!(
                "{} texts of nodes are no kernel releases; the first is `{}`, of node {node}",
                self.invalid.len(),
                in_line(text)
            );
            lines.push((Topic::Invalid, line));
        }
        if self.foreign > 0 {
            let line = format!(
                "{} nodes have another architecture than {}, and nothing is built for them here",
                self.foreign,
                std::env::consts::ARCH
            );
            lines.push((Topic::Foreign, line));
        }
        lines
    }
}

/// Reads a list of kernels: a release in each line; empty lines and those after a `#` are passed over.
///
/// # Errors
/// Exit code 2 for a file that cannot be read, or a line that is no release.
pub(super) fn read_list(path: &Path) -> Result<Vec<String>, Failure> {
    let read = bounded_read::read_text(path, MOST_BYTES);
    let text = read.or_fail(FailureKind::Usage, || {
        format!("reading the list of kernels {}", path.display())
    })?;
    let mut releases = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let release = line.split('#').next().unwrap_or_default().trim();
        if release.is_empty() {
            continue;
        }
        if !is_release(release) {
            let cause = format!(
                "line {} of the list of kernels {} is no kernel release: `{}`",
                number + 1,
                path.display(),
                in_line(release)
            );
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy("write one release in each line, as uname -r gives it"));
        }
        releases.push(release.to_owned());
    }
    Ok(releases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::fs;
    use std::time::Duration;

    fn nodes(of: &[(&str, &[&str])]) -> BTreeMap<String, KernelsOfNode> {
        let arch = Machine::named(std::env::consts::ARCH).expect("a machine").debian;
        let node = |(name, releases): &(&str, &[&str])| {
            let releases = releases.iter().map(ToString::to_string).collect();
            (name.to_string(), KernelsOfNode { arch: arch.to_owned(), releases })
        };
        of.iter().map(node).collect()
    }

    fn demand(listed: &[String], nodes: &BTreeMap<String, KernelsOfNode>) -> Demand {
        Demand::new(listed, nodes, &mut Budget::default(), Instant::now())
    }

    fn releases(demand: &Demand) -> Vec<&str> {
        demand.kernels.iter().map(|asked| asked.release.as_str()).collect()
    }

    #[test]
    fn what_most_nodes_ask_for_is_first_and_what_the_list_names_before_it() {
        let nodes = nodes(&[("a", &["6.1", "6.2"]), ("b", &["6.2"]), ("c", &["6.3"])]);
        let demand = demand(&["6.9".to_owned(), "6.3".to_owned()], &nodes);
        assert_eq!(releases(&demand), ["6.3", "6.9", "6.2", "6.1"]);
        let by: Vec<_> = demand.kernels.iter().map(Asked::by).collect();
        assert_eq!(by, ["c", "the list", "a b", "a"]);
        assert!(demand.unmet().is_empty());
    }

    #[test]
    fn a_node_that_was_taken_displaces_nothing_that_many_ask_for() {
        let names: Vec<String> = (0..200).map(|n| format!("hostile-{n:03}")).collect();
        let kernels: Vec<String> = (0..400).map(|n| format!("1.0.{n}")).collect();
        let mut all = nodes(&[("a", &["6.1"]), ("b", &["6.1"])]);
        for (n, name) in names.iter().enumerate() {
            let of = [&kernels[2 * n], &kernels[2 * n + 1], "9.9.9"];
            all.extend(nodes(&[(name, &of)]));
        }
        let demand = demand(&[], &all);
        assert_eq!((demand.kernels.len(), demand.left_out.len()), (MOST_KERNELS, 337));
        assert_eq!(demand.kernels[0].release, "6.1");
        assert!(!releases(&demand).contains(&"9.9.9"), "a third kernel of a node");
        assert!(demand.unmet()[0].1.starts_with("337 kernels are asked for beyond the 64"));
    }

    /// A node that names other releases each minute, while a second one asks for one that sorts behind them.
    #[test]
    fn a_node_that_names_others_all_the_time_is_built_for_within_its_budget() {
        let (mut budget, begin) = (Budget::default(), Instant::now());
        let listed = ["1.0.9".to_owned()];
        let mut built = BTreeSet::new();
        for minute in 0..59_u64 {
            let now = begin + Duration::from_secs(60 * minute);
            let fresh = [format!("1.0.{}", 2 * minute), format!("1.0.{}", 2 * minute + 1)];
            let all =
                nodes(&[("taken", &[fresh[0].as_str(), fresh[1].as_str()]), ("well", &["6.1"])]);
            let demand = Demand::new(&listed, &all, &mut budget, now);
            assert!(releases(&demand).contains(&"6.1"), "at minute {minute}");
            built.extend(demand.kernels.iter().map(|asked| asked.release.clone()));
            let is_overdrawn = !demand.overdrawn.is_empty();
            assert_eq!(is_overdrawn, minute > 1, "at minute {minute}");
            assert_eq!(demand.again, is_overdrawn.then(|| begin + Duration::from_secs(3600)));
        }
        // Four of the node, the list's, which it named, too, and the other node's.
        let expected = ["1.0.0", "1.0.1", "1.0.2", "1.0.3", "1.0.9", "6.1"].map(str::to_owned);
        assert_eq!(built, BTreeSet::from(expected));
        let now = begin + Duration::from_secs(3600);
        let demand = Demand::new(&[], &nodes(&[("taken", &["1.0.500"])]), &mut budget, now);
        assert_eq!(releases(&demand), ["1.0.500"]);
    }

    #[test]
    fn what_another_node_asks_for_within_its_budget_is_built_for() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        for pair in [["1", "2"], ["3", "4"]] {
            Demand::new(&[], &nodes(&[("a", &pair)]), &mut budget, now);
        }
        let alone = Demand::new(&[], &nodes(&[("a", &["5"])]), &mut budget, now);
        assert_eq!((alone.kernels.len(), alone.overdrawn.len()), (0, 1));
        assert!(alone.unmet()[0].1.contains("the first is 5, of node a"), "{:?}", alone.unmet());
        let both = Demand::new(&[], &nodes(&[("a", &["5"]), ("b", &["5"])]), &mut budget, now);
        assert_eq!((both.kernels[0].count, both.overdrawn.len()), (2, 0));
    }

    #[test]
    fn what_is_no_release_or_of_another_machine_is_reported() {
        let mut all = nodes(&[("a", &["../etc", "6.1"]), ("b", &["../etc"])]);
        let arch = "s390x".to_owned();
        all.insert("c".to_owned(), KernelsOfNode { arch, releases: vec!["6.2".to_owned()] });
        let demand = demand(&[], &all);
        assert_eq!(releases(&demand), ["6.1"]);
        let unmet = demand.unmet();
        assert!(
            unmet[0].1.contains("`../etc`, of node a") && unmet[1].1.starts_with("1 nodes"),
            "{unmet:?}"
        );
    }

    #[rstest]
    #[case::plain("6.1.0-50-amd64\n6.1.0-51-amd64\n", Some(2))]
    #[case::comments("# of the fleet\n\n 6.1.0-50-amd64 # most\n", Some(1))]
    #[case::none("", Some(0))]
    #[case::no_release("6.1\n../..\n", None)]
    #[case::escapes("\u{1b}[2J", None)]
    fn a_list_has_a_release_in_each_line(#[case] text: &str, #[case] count: Option<usize>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("kernels");
        fs::write(&path, text).expect("written");
        let read = read_list(&path);
        assert_eq!(read.as_ref().map(Vec::len).ok(), count);
        if let Err(failure) = read {
            assert_eq!(failure.code(), ExitCode::Usage);
            assert!(!failure.to_string().contains('\u{1b}'), "{failure}");
        }
        assert!(read_list(&dir.path().join("missing")).is_err());
    }
}
