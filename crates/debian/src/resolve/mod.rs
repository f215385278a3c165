//! Dependency closure: packages and versions that a set of roots needs.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use super::packages::Package;
use super::relation::{Clause, Requirement};
use super::version;
use longshore_core::failure::{Failure, FailureKind};

/// Maximum number of rounds: each excludes one pick, and more than this mean contradictory
/// dependencies.
const MOST_ROUNDS: usize = 1000;

/// A requirement that the archives cannot satisfy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not available from the archives{}", asked_for(.chain))]
pub struct Unsatisfiable {
    /// The unsatisfied requirement.
    pub what: String,
    /// From a root to the depending package, as `name (version)`; empty for a root.
    pub chain: Vec<String>,
    /// Suggested remedy.
    pub remedy: String,
}

fn asked_for(chain: &[String]) -> String {
    if chain.is_empty() { String::new() } else { format!(": {} needs it", chain.join(" -> ")) }
}

impl Unsatisfiable {
    /// Converts it to a failure of the caller's kind.
    pub fn failure(self, kind: FailureKind) -> Failure {
        Failure::new(kind, self.to_string()).remedy(self.remedy)
    }
}

impl From<Unsatisfiable> for Failure {
    /// Exit code 12: in none of the sources.
    fn from(error: Unsatisfiable) -> Self {
        error.failure(FailureKind::Download)
    }
}

/// The available packages.
pub(super) trait Universe {
    /// Returns the packages of this name, newest first.
    fn named(&self, name: &str) -> Vec<Package>;
    /// Returns the packages that provide this name.
    fn providing(&self, name: &str) -> Vec<Package>;
    /// Returns the Debian architecture of the host.
    fn arch(&self) -> &str;
}

/// Returns the release that a suite belongs to: `bookworm-security` and `bookworm-backports` are
/// bookworm's.
pub fn release_of(suite: &str) -> &str {
    let pocket = ["-security", "-updates", "-backports", "-proposed-updates", "/updates"];
    let end = pocket.iter().filter_map(|pocket| suite.find(pocket)).min();
    &suite[..end.unwrap_or(suite.len())]
}

/// Returns the distance of a package of `suite` from `model`, the suite of the depending package:
/// same release, a backport to it, another release. Backports take dependencies from backports as
/// well.
fn distance(suite: &str, model: &str) -> u8 {
    let backport = |suite: &str| suite.contains("-backports");
    match release_of(suite) == release_of(model) {
        true if backport(suite) && !backport(model) => 1,
        true => 0,
        false => 2,
    }
}

/// The closure of `roots`; see [`Archive::closure`](super::archive::Archive::closure).
///
/// Packages are picked greedily. A pick that conflicts (another version of it is needed, or one of
/// its dependencies is missing) is recorded and all picking starts over.
pub(super) fn closure(
    universe: &dyn Universe,
    roots: &[Requirement],
) -> Result<Vec<Package>, Unsatisfiable> {
    let mut knowledge = Knowledge::new(universe);
    let mut first: Option<Unsatisfiable> = None;
    for _ in 0..MOST_ROUNDS {
        match Round::new(&mut knowledge).run(roots) {
            Ok(picks) => {
                return Ok(picks.iter().map(|pick| pick.package.as_ref().clone()).collect());
            }
            Err(Setback::Learned) => {}
            Err(Setback::Impossible(what, culprit)) => {
                first.get_or_insert(what.clone());
                match culprit {
                    Some(culprit) => {
                        knowledge.useless.insert(identity(&culprit));
                        // These requirements may come from packages that are now excluded.
                        knowledge.asked.clear();
                    }
                    // The first failure names the package that is really missing.
                    None => return Err(first.unwrap_or(what)),
                };
            }
        }
    }
    Err(first.unwrap_or_else(|| Unsatisfiable {
        what: roots.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        chain: Vec::new(),
        remedy: "their dependencies are too tangled: name exact versions".to_owned(),
    }))
}

/// A package's name, version and digest.
type Identity = (String, String, String);

fn identity(package: &Package) -> Identity {
    (package.name.clone(), package.version.clone(), package.sha256.clone())
}

type Candidates = Rc<Vec<Rc<Package>>>;

/// Facts kept from one round to the next.
struct Knowledge<'a> {
    universe: &'a dyn Universe,
    named: HashMap<String, Candidates>,
    providing: HashMap<String, Candidates>,
    /// Requirements on a name found after another version was picked, with the depending package.
    asked: HashMap<String, Vec<(Requirement, String)>>,
    /// Packages with unsatisfiable dependencies.
    useless: HashSet<Identity>,
}

impl<'a> Knowledge<'a> {
    fn new(universe: &'a dyn Universe) -> Self {
        Self {
            universe,
            named: HashMap::new(),
            providing: HashMap::new(),
            asked: HashMap::new(),
            useless: HashSet::new(),
        }
    }

    fn named(&mut self, name: &str) -> Candidates {
        let universe = self.universe;
        let found = || Rc::new(universe.named(name).into_iter().map(Rc::new).collect());
        self.named.entry(name.to_owned()).or_insert_with(found).clone()
    }

    fn providing(&mut self, name: &str) -> Candidates {
        let universe = self.universe;
        let found = || Rc::new(universe.providing(name).into_iter().map(Rc::new).collect());
        self.providing.entry(name.to_owned()).or_insert_with(found).clone()
    }

    /// Returns the packages that satisfy a requirement: those of the name first, then those that
    /// provide it; the nearest to the suite `model` first, then the highest version.
    fn candidates(&mut self, wanted: &Requirement, model: Option<&str>) -> Vec<Rc<Package>> {
        if !wanted.allows_arch(self.universe.arch()) {
            return Vec::new();
        }
        let mut found: Vec<(bool, Rc<Package>)> = Vec::new();
        let named = self.named(&wanted.name);
        found
            .extend(named.iter().filter(|p| wanted.accepts(&p.version)).map(|p| (true, p.clone())));
        let providing = self.providing(&wanted.name);
        found.extend(providing.iter().filter(|p| provides(p, wanted)).map(|p| (false, p.clone())));
        found.retain(|(_, package)| {
            let asked = self.asked.get(&package.name).map(Vec::as_slice).unwrap_or_default();
            asked.iter().all(|(asked, _)| asked.accepts(&package.version))
                && !self.useless.contains(&identity(package))
        });
        let far = |p: &Package| model.map_or(0, |model| distance(&p.origin.text, model));
        found.sort_by(|(a_real, a), (b_real, b)| {
            b_real
                .cmp(a_real)
                .then_with(|| far(a).cmp(&far(b)))
                .then_with(|| version::compare(&b.version, &a.version))
        });
        found.into_iter().map(|(_, package)| package).collect()
    }
}

fn provides(package: &Package, wanted: &Requirement) -> bool {
    package.provides.iter().any(|provided| {
        provided.name == wanted.name && wanted.accepts_provided(provided.version.as_deref())
    })
}

fn satisfies(package: &Package, wanted: &Requirement) -> bool {
    (package.name == wanted.name && wanted.accepts(&package.version)) || provides(package, wanted)
}

/// A package of the closure, and the one that depends on it.
#[derive(derive_more::Display)]
#[display("{} ({})", package.name, package.version)]
struct Pick {
    package: Rc<Package>,
    parent: Option<usize>,
}

enum Setback {
    /// A fact was added to the knowledge.
    Learned,
    /// A clause that nothing satisfies, and its package, unless a root.
    Impossible(Unsatisfiable, Option<Rc<Package>>),
}

/// One pass over all dependencies, from the roots.
struct Round<'k, 'a> {
    knowledge: &'k mut Knowledge<'a>,
    picks: Vec<Pick>,
    by_name: HashMap<String, usize>,
    waiting: VecDeque<(Clause, usize)>,
}

impl<'k, 'a> Round<'k, 'a> {
    fn new(knowledge: &'k mut Knowledge<'a>) -> Self {
        Self { knowledge, picks: Vec::new(), by_name: HashMap::new(), waiting: VecDeque::new() }
    }

    fn run(mut self, roots: &[Requirement]) -> Result<Vec<Pick>, Setback> {
        for root in roots {
            self.satisfy(&Clause(vec![root.clone()]), None)?;
        }
        while let Some((clause, parent)) = self.waiting.pop_front() {
            self.satisfy(&clause, Some(parent))?;
        }
        Ok(self.picks)
    }

    fn satisfy(&mut self, clause: &Clause, parent: Option<usize>) -> Result<(), Setback> {
        let met = |wanted: &Requirement| {
            let real = self.by_name.get(&wanted.name).map(|&at| &self.picks[at]);
            real.is_some_and(|pick| wanted.accepts(&pick.package.version))
                || self.picks.iter().any(|pick| satisfies(&pick.package, wanted))
        };
        if clause.0.iter().any(met) {
            return Ok(());
        }
        // Later roots are taken from the first one's release.
        let model = parent.or((!self.picks.is_empty()).then_some(0));
        let suite = model.map(|at| self.picks[at].package.origin.text.clone());
        let mut taken = None;
        for wanted in &clause.0 {
            for package in self.knowledge.candidates(wanted, suite.as_deref()) {
                if self.by_name.contains_key(&package.name) {
                    taken.get_or_insert((package.name.clone(), wanted.clone()));
                    continue;
                }
                self.pick(package, parent);
                return Ok(());
            }
        }
        match taken {
            // Another version of it is picked already; the next round picks this one.
            Some((name, wanted)) if name == wanted.name && wanted.version.is_some() => {
                let asker = parent.map_or("a root".to_owned(), |at| self.picks[at].to_string());
                self.knowledge.asked.entry(name).or_default().push((wanted, asker));
                Err(Setback::Learned)
            }
            _ => Err(self.impossible(clause, parent)),
        }
    }

    fn pick(&mut self, package: Rc<Package>, parent: Option<usize>) {
        let at = self.picks.len();
        self.by_name.insert(package.name.clone(), at);
        self.waiting.extend(package.depends.iter().map(|clause| (clause.clone(), at)));
        self.picks.push(Pick { package, parent });
    }

    /// Describes the other requirements on a clause's packages that contradict it.
    fn rivals(&self, clause: &Clause) -> Option<String> {
        let asked = clause.0.iter().filter_map(|wanted| self.knowledge.asked.get(&wanted.name));
        let rivals: Vec<String> =
            asked.flatten().map(|(wanted, asker)| format!("{asker} needs {wanted}")).collect();
        (!rivals.is_empty())
            .then(|| format!("{}: name versions of the roots that go together", rivals.join(", ")))
    }

    fn impossible(&self, clause: &Clause, parent: Option<usize>) -> Setback {
        let mut chain = Vec::new();
        let mut at = parent;
        while let Some(pick) = at.map(|at| &self.picks[at]) {
            chain.push(pick.to_string());
            at = pick.parent;
        }
        chain.reverse();
        let remedy = self.rivals(clause).unwrap_or_else(|| {
            "add the suite or the component that has it to the archives \
             ([[archive]] in the configuration file, --archive-suite, --archive-component)"
                .to_owned()
        });
        let what = Unsatisfiable { what: clause.to_string(), chain, remedy };
        Setback::Impossible(what, parent.map(|at| self.picks[at].package.clone()))
    }
}

#[cfg(test)]
mod tests;
