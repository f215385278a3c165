//! Crashes of an agent at every possible point: before and after each act on the host, and between
//! the system calls of each write of its journal. From every state it leaves, the next agent, which
//! may die at every point as well, brings the host to Ready or back to the state before.
//!
//! Enumerated, not sampled. A crash is fully described by the host and the state directory at a
//! point: so an agent is run once, and at each point what it would leave is kept. Equal states are
//! examined once.
//!
//! At each of these points of an undisturbed agent the power is cut, too: the host is then as before, and the
//! state directory has what was synced, or more.
//!
//! `cargo test -p longshore --lib engine::tests::crashes -- --nocapture` prints the counts, and
//! docs/internals/crash-safety.md has them.

mod power;

use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use rstest::rstest;

use super::{FIRMWARE, engine, gpu_host, install, nouveau};
use crate::engine::*;
use crate::journal::phase::Phase;
use crate::journal::{Point, State};
use crate::steps::{Observed, Recorded};
use longshore_core::paths::Paths;
use longshore_host::fake::{FakeHost, FakeState};
use longshore_host::values::{Node, Owner};
use power::PowerCut;

/// Names of the state's files.
const NAMES: [&str; 2] = ["state.json", "state.json.next"];

/// Bytes of the state directory's files, by their names.
type Files = BTreeMap<String, Vec<u8>>;

/// The host and the state directory's files after an agent's crash.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Machine {
    host: FakeState,
    files: Files,
}

/// Outcome of an agent run, the state after it, and one note for each point on the way.
type Ended<T> = (Result<(), Failure>, Machine, Vec<T>);

/// Task of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AgentRun {
    /// From the present state to Ready.
    Install,
    /// From the present state to Removed.
    Remove,
}

/// A host before longshore ran, and what its kernel knows.
struct Scene {
    /// The test's name, for messages.
    name: String,
    host: FakeHost,
    before: Machine,
    dir: tempfile::TempDir,
    paths: Paths,
}

impl Scene {
    fn new(host: FakeHost) -> Self {
        // In memory where /dev/shm exists: tens of thousands of files are written.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let paths = Paths::below(dir.path());
        boot(&paths, "one");
        fs::create_dir_all(&paths.state).unwrap();
        let before = Machine { host: host.state(), files: BTreeMap::new() };
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        Self { name, host, before, dir, paths }
    }

    fn put(&self, machine: &Machine) {
        self.host.change(|state| state.clone_from(&machine.host));
        for name in NAMES {
            let path = self.paths.state.join(name);
            match machine.files.get(name) {
                Some(bytes) => fs::write(path, bytes).unwrap(),
                None => drop(fs::remove_file(path)),
            }
        }
    }

    fn look(host: &FakeHost, dir: &Path) -> Machine {
        let file = |name: &str| Some((name.to_owned(), fs::read(dir.join(name)).ok()?));
        let files = NAMES.into_iter().filter_map(file);
        Machine { host: host.state(), files: files.collect() }
    }

    /// Runs in `machine` undisturbed, and returns the result and the state afterwards.
    fn run(&self, run: AgentRun, machine: &Machine) -> (Result<(), Failure>, Machine) {
        self.put(machine);
        let mut journal = Journal::open(&self.paths, Disk::default()).unwrap();
        let ended = act(&self.host, run, &mut journal);
        (ended, Self::look(&self.host, &self.paths.state))
    }

    /// The same, with the state that each crash on the way would have left.
    fn run_with_crashes(&self, run: AgentRun, machine: &Machine) -> Ended<Machine> {
        self.put(machine);
        self.at_each_point(run, |machine, _| machine)
    }

    /// The same, with the state directories that a cut of the power at the same point may leave.
    fn run_with_power_cuts(
        &self,
        run: AgentRun,
        machine: &Machine,
    ) -> Ended<(Machine, Vec<Files>)> {
        self.put(machine);
        let disk = PowerCut::begin(&self.paths.state);
        let cut = disk.at_points();
        self.at_each_point(run, move |machine, point| {
            let directories = cut.directories(point, &machine.files);
            (machine, directories)
        })
    }

    /// Runs in the present state, and returns what `note` makes of the state at each point; a point between two
    /// system calls of the journal has a name.
    fn at_each_point<T: Send + 'static>(
        &self,
        run: AgentRun,
        note: impl Fn(Machine, Option<Point>) -> T + Send + Sync + 'static,
    ) -> Ended<T> {
        let noted = Arc::new(Mutex::new(Vec::new()));
        let mut journal = Journal::open(&self.paths, Disk::default()).unwrap();
        let (into, dir) = (Arc::clone(&noted), self.paths.state.clone());
        let note = Arc::new(move |host: &FakeHost, point| {
            into.lock().unwrap().push(note(Self::look(host, &dir), point));
        });
        let at_host = Arc::clone(&note);
        self.host.at_point(move |host| at_host(host, None));
        let host = self.host.share();
        journal.at_point(Box::new(move |point| {
            note(&host, Some(point));
            Ok(())
        }));
        let ended = act(&self.host, run, &mut journal);
        self.host.at_point(|_| {});
        let noted = std::mem::take(&mut *noted.lock().unwrap());
        (ended, Self::look(&self.host, &self.paths.state), noted)
    }
}

fn boot(paths: &Paths, id: &str) {
    let dir = paths.root.join("proc/sys/kernel/random");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("boot_id"), id).unwrap();
}

/// Goes through the phases of an agent run, with the work of each.
fn act(host: &FakeHost, run: AgentRun, journal: &mut Journal) -> Result<(), Failure> {
    let engine = engine(host);
    match run {
        AgentRun::Install => {
            journal.begin(Phase::Probing)?;
            journal.enter(Phase::Planning)?;
            journal.enter(Phase::Installing)?;
            match engine.apply(&install(), journal, &CancelFlag::default()) {
                Ok(()) => journal.enter(Phase::Ready),
                Err(Stopped::Cancelled) => unreachable!("nobody cancels"),
                Err(Stopped::Failed(failure)) => journal.enter(Phase::Failed).and(Err(failure)),
            }
        }
        AgentRun::Remove => {
            // As in the lifecycle: a full disk is no reason to leave the driver on the host.
            if let Err(failure) = journal.begin(Phase::Removing) {
                assert_eq!(failure.code(), ExitCode::Preflight);
            }
            engine.undo(journal).map_err(NotUndone::into_failure)?;
            journal.enter(Phase::Removed)
        }
    }
}

/// Returns a machine's key, with its loadings numbered in their order: a repeat only raises their
/// numbers.
fn key(machine: &Machine) -> String {
    let mut host = machine.host.clone();
    let mut state = machine.files.get("state.json").map(|bytes| {
        serde_json::from_slice::<State>(bytes).expect("a state is whole wherever its writer died")
    });
    let entries = state.iter().flat_map(|state| state.entries.iter());
    let numbers: BTreeSet<u64> =
        host.instances.values().copied().chain(entries.filter_map(|e| e.instance)).collect();
    let rank = |n: &mut u64| *n = numbers.range(..*n).count() as u64;
    host.instances.values_mut().for_each(rank);
    for entry in state.iter_mut().flat_map(|state| state.entries.iter_mut()) {
        entry.instance.iter_mut().for_each(rank);
    }
    // Neither the dead agent's phase matters to the next one, nor how far it got with writing the
    // state: the unfinished file is removed before a new one is begun.
    if let Some(state) = &mut state {
        state.phase = Phase::Removed;
    }
    let next = machine.files.contains_key("state.json.next");
    let entries = state.iter().flat_map(|state| state.entries.iter());
    let in_entries = entries.filter_map(|entry| {
        let Recorded::StartDaemon(Observed { before, .. }) = &entry.step else { return None };
        Some(before.mark.clone())
    });
    // The marks of daemons are random.
    let marks: Vec<String> = in_entries.chain(host.daemons.keys().cloned()).collect();
    let text = format!("{host:?}{state:?}{next}");
    marks.iter().enumerate().fold(text, |text, (n, mark)| text.replace(mark, &n.to_string()))
}

/// Counters of the run.
#[derive(Debug, Default)]
struct Count {
    first: usize,
    again: usize,
    states: usize,
    /// Different state directories after a cut of the power.
    cuts: usize,
}

/// Kills every agent run at every point, and every recovery from that at every point, and checks
/// the result.
struct Crasher<'a> {
    scene: &'a Scene,
    /// The host with the driver; None where it cannot be installed.
    ready: Option<FakeState>,
    count: Count,
    /// Crashes that were recovered from, and Ready states that were then removed.
    recovered: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl Crasher<'_> {
    fn crash_all(&mut self) {
        let scene = self.scene;
        let (ended, installed, mut crashes) =
            scene.run_with_power_cuts(AgentRun::Install, &scene.before);
        assert_eq!(ended.is_ok(), self.ready.is_some(), "{}: {ended:?}", scene.name);
        if self.ready.is_some() {
            self.ready = Some(installed.host.whichever_loading());
        }
        let (ended, removed, on_removal) = scene.run_with_power_cuts(AgentRun::Remove, &installed);
        ended.unwrap();
        assert_eq!(removed.host.whichever_loading(), scene.before.host.whichever_loading());
        crashes.extend(on_removal);
        self.count.first += crashes.len();
        let cuts: BTreeSet<Files> =
            crashes.iter().flat_map(|(_, directories)| directories).cloned().collect();
        self.count.cuts = cuts.len();
        cuts.into_iter().for_each(|files| self.lose_power(files));
        let mut seen = BTreeSet::new();
        let crashes = crashes.into_iter().map(|(crash, _)| crash);
        for crash in crashes.filter(|crash| seen.insert(key(crash))) {
            self.recover(&crash);
            for recovery in [AgentRun::Install, AgentRun::Remove] {
                let (_, _, again) = scene.run_with_crashes(recovery, &crash);
                self.count.again += again.len();
                again.iter().for_each(|crash| self.recover(crash));
            }
        }
        self.count.states = self.recovered.len();
    }

    /// Runs to the end without a further crash: each run from here succeeds.
    fn recover(&mut self, crash: &Machine) {
        let key = key(crash);
        if !self.recovered.insert(key) {
            return;
        }
        let scene = self.scene;
        self.removes(crash);
        let (ended, after) = scene.run(AgentRun::Install, crash);
        match &self.ready {
            Some(ready) => {
                ended.unwrap_or_else(|e| panic!("{}: {}\n{crash:#?}", scene.name, e.report()));
                assert_eq!(
                    after.host.whichever_loading(),
                    *ready,
                    "{}: ready from\n{crash:#?}",
                    scene.name
                );
            }
            None => assert!(ended.is_err(), "{}", scene.name),
        }
        if self.removed.insert(self::key(&after)) {
            self.removes(&after);
        }
    }

    fn nothing_is_left(&self, machine: &Machine) {
        assert_eq!(machine.files.keys().collect::<Vec<_>>(), ["state.json"]);
        let state: State = serde_json::from_slice(&machine.files["state.json"]).unwrap();
        assert!(!state.entries.iter().any(|entry| entry.is_live()));
    }

    /// Boots the host after a cut of the power that left these files: it has nothing of ours. One agent
    /// removes, and another installs, whose driver is then removed.
    fn lose_power(&self, files: Files) {
        let scene = self.scene;
        boot(&scene.paths, "two");
        let cut = Machine { host: scene.before.host.clone(), files };
        self.removes(&cut);
        let (ended, after) = scene.run(AgentRun::Install, &cut);
        match &self.ready {
            Some(ready) => {
                ended.unwrap_or_else(|e| panic!("{}: {}\n{cut:#?}", scene.name, e.report()));
                let found = after.host.whichever_loading();
                assert_eq!(found, *ready, "{}: ready after\n{cut:#?}", scene.name);
            }
            None => assert!(ended.is_err(), "{}", scene.name),
        }
        self.removes(&after);
        boot(&scene.paths, "one");
    }

    /// Removes, after which the host is as before.
    fn removes(&self, machine: &Machine) {
        let scene = self.scene;
        let (ended, after) = scene.run(AgentRun::Remove, machine);
        ended.unwrap_or_else(|e| panic!("{}: removing: {}\n{machine:#?}", scene.name, e.report()));
        let (found, before) =
            (after.host.whichever_loading(), scene.before.host.whichever_loading());
        assert_eq!(found, before, "{}: removed from\n{machine:#?}", scene.name);
        self.nothing_is_left(&after);
    }
}

/// Returns a host that other programs used first: a firmware path, modules, a mount, a node, and
/// one of another device.
fn crowded_host() -> FakeHost {
    let host = gpu_host();
    host.change(|state| {
        state.loaded.insert("drm".to_owned(), String::new());
        state.dirs.insert("/run/nvidia".into());
        state.parameters.insert(FIRMWARE.into(), "/theirs".to_owned());
        state.mounts.push(("theirs".to_owned(), "/store/tree/dev".into()));
        let node = |major, minor| Node { major, minor, mode: 0o600, owner: Owner::default() };
        state.nodes.insert("/dev/nvidia0".into(), node(195, 0));
        state.nodes.insert("/dev/nvidia-uvm".into(), node(400, 0));
        state.dirs.extend(["/dev/char", "/var/run/cdi"].map(Into::into));
        for (path, target) in [("195:0", "/dev/nvidia0"), ("511:0", "../nvidia-caps/nvidia-cap1")] {
            state.links.insert(Path::new("/dev/char").join(path), target.into());
        }
        state.published.insert("/var/run/cdi/theirs.json".into(), b"{}".to_vec());
    });
    host
}

/// Returns a host with nouveau whose kernel refuses the last module, so that every installation is rolled
/// back.
fn refused_after_nouveau() -> FakeHost {
    let host = nouveau::host();
    host.teach("nvidia_modeset", |module| module.refused = Some(Errno::ENODEV));
    host
}

#[rstest]
#[case::a_host_with_others_things(crowded_host(), true)]
#[case::a_host_with_nouveau(nouveau::host(), true)]
#[case::nouveau_and_an_installation_that_fails(refused_after_nouveau(), false)]
fn a_death_at_any_point_and_another_in_the_recovery_are_recovered_from(
    #[case] host: FakeHost,
    #[case] installs: bool,
) {
    let scene = Scene::new(host);
    let ready = installs.then(FakeState::default);
    let (recovered, removed) = (BTreeSet::new(), BTreeSet::new());
    let mut crasher = Crasher { scene: &scene, ready, count: Count::default(), recovered, removed };
    crasher.crash_all();
    let count = crasher.count;
    assert!(scene.dir.path().exists());
    is_on_the_page(&format!(
        "{} crash points in installing and removing, {} more in recovering from them; {} different states \
         left, and {} state directories by power cuts, all recovered",
        count.first, count.again, count.states, count.cuts
    ));
}

/// Prints a line of counts, which the page has, too: a change that makes the agent pass fewer points makes
/// these tests cover less.
fn is_on_the_page(line: &str) {
    println!("{line}");
    let page = include_str!("../../../../../docs/internals/crash-safety.md");
    assert!(
        page.lines().any(|found| found == line),
        "docs/internals/crash-safety.md lacks this line: {line}"
    );
}

/// Fills the disk at the n-th write of the state, or from it on, at any of its points.
#[test]
fn a_full_disk_at_any_write_of_the_state_leaves_the_host_as_it_was() {
    let scene = Scene::new(gpu_host());
    let (_, installed) = scene.run(AgentRun::Install, &scene.before);
    let mut count = 0;
    for run in [AgentRun::Install, AgentRun::Remove] {
        let start = if run == AgentRun::Install { &scene.before } else { &installed };
        for lasting in [false, true] {
            let mut nth = 0;
            // Ends when no such point is left.
            while fill(&scene, run, start, nth, lasting) {
                nth += 1;
            }
            count += nth;
        }
    }
    is_on_the_page(&format!("{count} points at which the disk was full, all recovered"));
}

/// Returns false if there was no n-th point.
fn fill(scene: &Scene, run: AgentRun, start: &Machine, nth: usize, lasting: bool) -> bool {
    scene.put(start);
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let passed = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&passed);
    journal.at_point(Box::new(move |_| {
        let mut passed = counter.lock().unwrap();
        let full = *passed == nth || (lasting && *passed > nth);
        *passed += 1;
        if full { Err(io::Error::from(Errno::ENOSPC)) } else { Ok(()) }
    }));
    let ended = act(&scene.host, run, &mut journal);
    drop(journal);
    let there = *passed.lock().unwrap() > nth;
    // An agent run that failed for want of space reports that.
    if let Err(failure) = &ended {
        assert_eq!(failure.code(), ExitCode::Preflight, "{}", failure.report());
        let remedy = failure.remedy_text().unwrap_or_default();
        assert!(remedy.starts_with("free space"), "{}", failure.report());
    }
    assert!(there || ended.is_ok());
    // The next agent has free space again.
    let machine = Scene::look(&scene.host, &scene.paths.state);
    let (ended, after) = scene.run(AgentRun::Remove, &machine);
    ended.unwrap();
    assert_eq!(
        after.host.whichever_loading(),
        scene.before.host.whichever_loading(),
        "{run:?}, full at {nth}, lasting: {lasting}"
    );
    there
}
