//! Drivers that ran on this host: the current and the previous one.
//!
//! The journal below /run is gone after a reboot and the store is not, so the store records what
//! the host installed (`history.json`): the last two are never removed, so that a host can go back
//! without a network.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::journal::PlanSummary;
use crate::steps::{Content, Step};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_modules::sets::SetStore;

/// Path below the store.
const FILE: &str = "history.json";
/// Number of drivers kept: the current and the previous one.
const KEPT: usize = 2;
/// Size limit of the file.
const MAX: u64 = 1 << 20;

/// A driver that was installed on this host, as far as the store holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Installed {
    /// Driver version.
    pub driver_version: String,
    /// Flavour.
    pub flavour: Flavour,
    /// `uname -r` of the kernel it was installed on.
    pub kernel_release: String,
    /// sha256 (hex) of its modules.
    pub modules: BTreeSet<String>,
    /// Name of its user-mode tree, below `userspace`.
    pub tree: Option<String>,
}

/// Files of the store that steps use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// sha256 (hex) of modules.
    pub modules: BTreeSet<String>,
    /// Names of user-mode trees.
    pub trees: BTreeSet<String>,
}

impl Taken {
    /// Collects the files that these steps use.
    pub fn by<'a>(steps: impl IntoIterator<Item = &'a Step>) -> Self {
        Self::from_contents(steps.into_iter().filter_map(|step| step.properties().content))
    }

    /// Collects the files with this content.
    pub fn from_contents<'a>(contents: impl Iterator<Item = Content<'a>>) -> Self {
        let mut taken = Self::default();
        for content in contents {
            match content {
                Content::Module { origin, .. } => {
                    taken.modules.extend(origin.digest().map(str::to_owned));
                }
                Content::Tree(tree) => taken.trees.extend(tree_name(tree)),
            }
        }
        taken
    }
}

/// The name of the tree with this root: the store may have another path elsewhere.
pub(super) fn tree_name(root: &Path) -> Option<String> {
    root.parent()?.file_name()?.to_str().map(str::to_owned)
}

/// Describes the installed driver, from the plan and the steps that were executed for it.
pub fn installed<'a>(plan: &PlanSummary, steps: impl IntoIterator<Item = &'a Step>) -> Installed {
    let Taken { modules, trees } = Taken::by(steps);
    Installed {
        driver_version: plan.driver_version.clone(),
        flavour: plan.flavour,
        kernel_release: plan.kernel_release.clone(),
        modules,
        tree: trees.into_iter().next(),
    }
}

/// Reads the history, newest first. An unreadable file counts as empty, with a warning: it is
/// written anew.
pub fn read(store: &Store) -> Vec<Installed> {
    let path = store.root().join(FILE);
    let bytes = match fs::metadata(&path) {
        Ok(found) if found.len() <= MAX => fs::read(&path),
        Ok(_) => return Vec::new(),
        Err(e) => Err(e),
    };
    match bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(std::io::Error::from)) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read.unwrap_or_else(|e| {
            tracing::warn!("ignoring {}: {e}", path.display());
            Vec::new()
        }),
    }
}

/// Records the installed driver, and marks its files as used.
///
/// # Errors
/// Exit code 15 where the store cannot be written.
pub fn record(store: &Store, now: Installed) -> Result<(), Failure> {
    mark_used(store, &now);
    let mut history = read(store);
    // If everything was found loaded already, no files of the store were used for it.
    let same = |other: &Installed| {
        other.driver_version == now.driver_version
            && other.flavour == now.flavour
            && other.kernel_release == now.kernel_release
    };
    let now = match history.first() {
        Some(first) if now.modules.is_empty() && same(first) => {
            let (modules, tree) = (first.modules.clone(), now.tree.or_else(|| first.tree.clone()));
            Installed { modules, tree, ..now }
        }
        _ => now,
    };
    if history.first() == Some(&now) {
        return Ok(());
    }
    history.retain(|other| !is_of_same_modules(other, &now));
    history.insert(0, now);
    history.truncate(KEPT);
    let bytes = serde_json::to_vec_pretty(&history)
        .or_fail(FailureKind::Bug, || "writing down what is installed")?;
    store.write_file(Path::new(FILE), &bytes)
}

/// True if both have the same driver and modules: another tree for them, with the sources of GDS or in
/// place of a damaged one, is no other driver, and the previous driver remains the previous driver.
fn is_of_same_modules(other: &Installed, now: &Installed) -> bool {
    let without_tree = |installed: &Installed| Installed { tree: None, ..installed.clone() };
    without_tree(other) == without_tree(now)
}

fn mark_used(store: &Store, now: &Installed) {
    if let Some(tree) = &now.tree {
        store.mark_used(&PathBuf::from("userspace").join(tree).join("manifest.json"));
    }
    let sets = store.sets().unwrap_or_default();
    let used = sets.iter().filter(|s| s.modules.iter().any(|m| now.modules.contains(&m.sha256)));
    for set in used {
        store.mark_used(&PathBuf::from("sets").join(format!("{}.json", set.key.file_stem())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{Bind, LoadModule, ModuleOrigin};
    use longshore_core::disk::Disk;

    fn one(version: &str, module: &str) -> Installed {
        Installed {
            driver_version: version.into(),
            flavour: Flavour::Open,
            kernel_release: "6.1".into(),
            modules: [module.to_owned()].into_iter().filter(|m| !m.is_empty()).collect(),
            tree: Some("tree".into()),
        }
    }

    #[test]
    fn the_last_two_are_remembered() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        assert_eq!(read(&store), []);
        for (version, module, wanted) in [
            ("1", "a", &["1"][..]),
            ("1", "a", &["1"]),
            ("2", "b", &["2", "1"]),
            ("3", "c", &["3", "2"]),
            // Back to the previous one: both are still recorded.
            ("2", "b", &["2", "3"]),
            // Adopted, with no files of the store used.
            ("2", "", &["2", "3"]),
            ("4", "", &["4", "2"]),
        ] {
            record(&store, one(version, module)).expect("written");
            let versions: Vec<_> = read(&store).into_iter().map(|i| i.driver_version).collect();
            assert_eq!(versions, wanted, "after {version}");
        }
        // The tree was damaged, and another was put beside it; one with GDS' sources; one without.
        let tree = |name: &str| Some(name.to_owned());
        for name in ["tree.2", "535-x86_64-abc-gds", "tree.2"] {
            record(&store, Installed { tree: tree(name), ..one("4", "") }).expect("written");
            let known = read(&store).into_iter().map(|i| (i.driver_version, i.tree));
            let wanted = [("4".into(), tree(name)), ("2".into(), tree("tree"))];
            assert_eq!(known.collect::<Vec<_>>(), wanted);
        }
        fs::write(store.root().join(FILE), "[").expect("damaged");
        assert_eq!(read(&store), []);
        record(&store, one("1", "a")).expect("written anew");
        assert_eq!(read(&store).len(), 1);
    }

    #[test]
    fn what_steps_take_is_modules_and_a_tree() {
        let load = |sha256: &str| {
            Step::LoadModule(LoadModule {
                name: "nvidia".into(),
                origin: ModuleOrigin::Driver { sha256: sha256.into() },
                parameters: String::new(),
                version: None,
                srcversion: None,
            })
        };
        let bind = Step::Bind(Bind {
            source: "/elsewhere/userspace/535-x86_64-abc/root".into(),
            target: "/run/nvidia/driver".into(),
        });
        let taken = Taken::by([&load("a"), &load("b"), &bind]);
        assert_eq!(taken.modules, ["a", "b"].map(str::to_owned).into());
        assert_eq!(taken.trees, ["535-x86_64-abc".to_owned()].into());
    }
}
