use longshore_core::failure::FailureKind;
use std::collections::VecDeque;
use std::future::pending;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::scripted::{FIRMWARE, ROOT, gathered, load, plan, planned, replaced, show};
use super::*;
use crate::cluster::VersionUnknown;
use crate::config::Reaction;
use crate::engine::InUseWait;
use crate::engine::fake_images::FakeImages;
use crate::journal::PlanSummary;
use crate::plan::Acquire;
use crate::plan::Plan;
use crate::provider::{Gathered, Provider};
use crate::steps::{Bind, MakeDir, ModuleOrigin, MountTmpfs, Step};
use crate::telemetry::Awaited;
use longshore_core::disk::Disk;
use longshore_core::finding::{Code, Finding};
use longshore_core::flavour::Flavour;
use longshore_core::paths::Paths;
use longshore_host::fake::{FakeHost, FakeModule, FakeState};
use longshore_host::values::{Node, Owner};

mod adopt;
mod awaiting;
mod change;
mod cluster;
mod crash;
mod daemons;
mod ended_early;
mod extra_modules;
mod fabric;
mod idle;
mod next_kernel;
mod operator;
mod renewal;
mod spec;
mod stay;
mod stuck;
mod successor;
mod table;
mod unloading;
mod version;
mod whole_run;

/// Provider that returns scripted plans in order, the last one for ever; it computes itself what
/// they replace on the host.
#[derive(Clone)]
struct Script {
    plans: Arc<Mutex<VecDeque<Result<Plan, FailureKind>>>>,
    configs: Arc<Mutex<VecDeque<Result<Config, FailureKind>>>>,
    host: Arc<FakeHost>,
    stop: CancelFlag,
    at: At,
    /// Installed drivers that it was informed of.
    installed: Installed,
    /// Number of times that it read the host.
    gathered: Arc<AtomicUsize>,
    images: Arc<version::Images>,
    offers: Arc<awaiting::Offers>,
    tables: Arc<table::Tables>,
}

impl Configurations for Script {
    async fn image_version(&self, _: &Config) -> Result<Option<String>, VersionUnknown> {
        self.images.answer()
    }

    fn keep_image_version(&self, version: Option<String>) {
        *self.images.kept.lock().unwrap() = version;
    }

    async fn read(&self) -> Result<Config, Failure> {
        let next = self.configs.lock().unwrap().pop_front();
        next.expect("a configuration to read").map_err(|kind| Failure::new(kind, "no such key"))
    }

    async fn with_table(&self, running: &Config) -> Result<Config, Failure> {
        self.tables.next_of(running)
    }

    fn follows(&self, running: &Config) {
        self.tables.followed.lock().unwrap().push(running.jobs);
    }

    async fn table_changed(&self) {
        self.tables.changed.notified().await;
    }

    fn provider<'a>(&self, config: &'a Config) -> impl Provider + 'a {
        self.images.wanted.lock().unwrap().push(config.driver.version.clone());
        self.clone()
    }
}

/// Drivers that providers were informed of.
type Installed = Arc<Mutex<Vec<(PlanSummary, Vec<Step>)>>>;

/// Point at which a test's script stops the agent, or fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Never,
    Gather,
    /// In a gathering that does not notice it and completes.
    GatherDone,
    Acquire,
    /// In an acquisition that does not notice it and completes.
    AcquireDone,
    AcquireFails,
    /// In the work after the installation, which does not complete.
    Installed,
}

impl Provider for Script {
    async fn gather(&self) -> Result<Gathered, Failure> {
        self.gathered.fetch_add(1, Ordering::Relaxed);
        if self.at == At::Gather {
            self.stop.set();
            return pending().await;
        }
        if self.at == At::GatherDone {
            self.stop.set();
        }
        Ok(gathered())
    }

    fn plan(&self, _: &Gathered) -> Result<Plan, Failure> {
        let mut plans = self.plans.lock().unwrap();
        let next = if plans.len() > 1 { plans.pop_front() } else { plans.front().cloned() };
        let plan = next.unwrap().map_err(|kind| Failure::new(kind, "no plan"))?;
        Ok(Plan { replaces: replaced(&self.host.state(), &plan), ..plan })
    }

    async fn acquire(&self, _: &Plan) -> Result<(), Failure> {
        match self.at {
            At::Acquire => {
                self.stop.set();
                pending().await
            }
            At::AcquireDone => {
                self.stop.set();
                Ok(())
            }
            At::AcquireFails => Err(Failure::new(FailureKind::Compile, "does not compile")),
            _ => Ok(()),
        }
    }

    fn awaits(&self, plan: &Plan) -> Option<Awaited> {
        awaiting::awaited(plan)
    }

    async fn offered(&self) -> Vec<String> {
        self.offers.next()
    }

    async fn installed(&self, plan: &PlanSummary, steps: &[Step]) {
        self.installed.lock().unwrap().push((plan.clone(), steps.to_vec()));
        if self.at == At::Installed {
            self.stop.set();
            pending::<()>().await;
        }
    }
}

/// Returns the plan of an agent whose records have format 3: the tree itself is on the driver root.
fn plan_of_format_3(version: &str) -> Plan {
    planned(
        version,
        vec![
            Step::Bind(Bind { source: format!("/store/{version}").into(), target: ROOT.into() }),
            Step::MountTmpfs(MountTmpfs { target: "/run/driver/dev".into(), label: None }),
        ],
    )
}

fn wanting(plan: Plan) -> Plan {
    let driver_version = plan.driver_version.clone();
    let acquire = Acquire::AssembleUserspace { driver_version, run_file: None, sources: None };
    Plan { acquire: vec![acquire], exact: false, ..plan }
}

fn refusing(plan: Plan) -> Plan {
    let finding = Finding::refusal(Code::OtherDriverLive, "another driver is live");
    Plan { findings: vec![finding], ..plan }
}

struct Scene {
    host: Arc<FakeHost>,
    images: Arc<dyn crate::engine::image::Images>,
    stop: CancelFlag,
    renewal: Renewal,
    configs: Arc<Mutex<VecDeque<Result<Config, FailureKind>>>>,
    _dir: tempfile::TempDir,
    paths: Paths,
    installed: Installed,
    gathered: Arc<AtomicUsize>,
    images_of_pod: Arc<version::Images>,
    offers: Arc<awaiting::Offers>,
    tables: Arc<table::Tables>,
    telemetry: Telemetry,
    step_limit: Duration,
    missing_gpus: Reaction,
    /// Requests a check of the driver, as an event of the kernel does.
    again: Renewal,
    conduct: Conduct,
    permission: Permission,
    /// Changes the configuration that agents of this scene start with.
    settings: fn(&mut Config),
}

impl Scene {
    fn new() -> Self {
        let host = scripted::host(&["535", "550", "refused"]);
        // In memory if /dev/shm exists: hundreds of agent runs write their journals here.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let paths = Paths::below(dir.path());
        Self {
            host: Arc::new(host),
            images: Arc::new(FakeImages),
            stop: CancelFlag::default(),
            renewal: Renewal::default(),
            configs: Arc::default(),
            _dir: dir,
            paths,
            installed: Arc::default(),
            gathered: Arc::default(),
            images_of_pod: Arc::default(),
            offers: Arc::default(),
            tables: Arc::default(),
            telemetry: Telemetry::default(),
            step_limit: Duration::from_secs(600),
            missing_gpus: Reaction::Warn,
            again: Renewal::default(),
            conduct: Conduct::default(),
            permission: Permission::default(),
            settings: |_| {},
        }
    }

    fn config(&self) -> Config {
        let mut config = config(&self.paths);
        (self.settings)(&mut config);
        config
    }

    fn context(&self) -> Context {
        Context {
            telemetry: self.telemetry.clone(),
            host: Arc::clone(&self.host) as Arc<dyn longshore_host::Host>,
            images: Arc::clone(&self.images),
            in_use_wait: InUseWait { deadline: Duration::ZERO, interval: Duration::ZERO },
            step_limit: self.step_limit,
            rest: Idle::default(),
            missing_gpus: self.missing_gpus,
            triggers: Triggers { again: self.again.clone(), kernel: false },
            conduct: self.conduct.clone(),
            permission: self.permission.clone(),
        }
    }

    /// Runs an agent by the script, with the journal of this scene.
    async fn live(
        &self,
        at: At,
        plans: Vec<Result<Plan, FailureKind>>,
    ) -> Result<ExitCode, Failure> {
        self.live_by(self.config(), at, plans).await
    }

    /// The same with a configuration.
    async fn live_by(
        &self,
        config: Config,
        at: At,
        plans: Vec<Result<Plan, FailureKind>>,
    ) -> Result<ExitCode, Failure> {
        let script = Script {
            plans: Arc::new(Mutex::new(plans.into())),
            configs: Arc::clone(&self.configs),
            host: Arc::clone(&self.host),
            stop: self.stop.clone(),
            at,
            installed: Arc::clone(&self.installed),
            gathered: Arc::clone(&self.gathered),
            images: Arc::clone(&self.images_of_pod),
            offers: Arc::clone(&self.offers),
            tables: Arc::clone(&self.tables),
        };
        let journal = Journal::open(&self.paths, Disk::default()).unwrap();
        let (stop, renewal) = (self.stop.clone(), self.renewal.clone());
        let agent = Agent::new(self.context(), journal, stop, renewal, Instant::now());
        agent.live(config, &script).await
    }

    fn state(&self) -> journal::State {
        journal::read_state(&self.paths).unwrap().unwrap()
    }

    /// Returns the loaded driver.
    fn live_driver(&self) -> Option<String> {
        scripted::loaded_driver(&self.host.state())
    }

    /// Returns the loads and unloads so far.
    fn module_verbs(&self) -> Vec<String> {
        self.host.log().into_iter().filter(|line| line.contains("_module ")).collect()
    }

    async fn until_ready(&self) {
        while self.phase() != Some(Phase::Ready) {
            tokio::task::yield_now().await;
        }
    }

    async fn stop_at_ready(&self) {
        self.until_ready().await;
        self.stop.set();
    }

    /// Runs an agent until it is Ready, and kills it there: its journal and its driver stay.
    /// Returns the failure that ended it before.
    async fn reach_ready(&self, wanted: Plan) -> Result<(), Failure> {
        let agent = self.live(At::Never, vec![Ok(wanted)]);
        tokio::select! {
            // It begins before the phase that the last one left is read.
            biased;
            ended = agent => Err(ended.expect_err("nobody stopped it")),
            () = self.until_ready() => Ok(()),
        }
    }

    /// Runs an agent that is stopped as soon as it begins: it uninstalls the last one's driver.
    async fn uninstall(&self) {
        self.stop.set();
        assert_eq!(self.live(At::Never, vec![]).await.unwrap(), ExitCode::Done);
        assert_eq!(self.phase(), Some(Phase::Removed));
    }

    /// Stops the agent as soon as its phase on disk is `phase`.
    async fn stop_at(&self, phase: Phase) {
        while self.phase() != Some(phase) {
            tokio::task::yield_now().await;
        }
        self.stop.set();
    }

    fn phase(&self) -> Option<Phase> {
        journal::read_state(&self.paths).unwrap().map(|state| state.phase)
    }

    /// Runs an agent until it is Ready, and kills it there: its journal and its driver stay.
    async fn die_when_ready(&self, wanted: Plan) {
        self.reach_ready(wanted).await.unwrap();
    }
}

fn config(paths: &Paths) -> Config {
    let none = crate::config::Fragment::default();
    let config = crate::config::load(none, &|_| None, None).unwrap();
    let deadlines = Deadlines { lock: Duration::ZERO, ..config.deadlines };
    Config { paths: paths.clone(), deadlines, ..config }
}
