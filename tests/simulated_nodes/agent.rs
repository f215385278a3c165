//! Agent of a simulated node: longshore's own run, over a simulated host and with scripted plans.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use longshore::cluster::VersionUnknown;
use longshore::config::{self, Config, DEFAULT_FILE, Fragment};
use longshore::engine::fake_images::FakeImages;
use longshore::journal::PlanSummary;
use longshore::lifecycle::{self, scripted, signals};
use longshore::logging::Log;
use longshore::plan::{Acquire, Plan};
use longshore::provider::{Configurations, Gathered, Provider};
use longshore::steps::Step;
use longshore::telemetry::{Awaited, Telemetry};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{Code, Finding};
use longshore_core::paths::Paths;
use longshore_host::fake::FakeHost;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{build, host, pulled};

/// Variables of an agent beside those of its pod.
pub(crate) mod variables {
    /// Directory of the node's files.
    pub(crate) const DIR: &str = "SIMULATED_DIR";
    /// Directories to mount, DIRECTORY:MOUNT_PATH, separated by commas.
    pub(crate) const VOLUMES: &str = "SIMULATED_VOLUMES";
    /// Drivers that the host has, separated by commas.
    pub(crate) const DRIVERS: &str = "SIMULATED_DRIVERS";
    /// Driver of which the kernel refuses a module.
    pub(crate) const REFUSED: &str = "SIMULATED_REFUSED";
    /// Point of the host's steps at which the agent is killed.
    pub(crate) const DIES_AT: &str = "SIMULATED_DIES_AT";
    /// Duration of a compile in seconds.
    pub(crate) const COMPILE: &str = "SIMULATED_COMPILE";
}

pub(crate) fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Runs the agent, with the environment of its pod.
pub(crate) fn main() -> ExitCode {
    signals::hold();
    mount_volumes(&given(variables::VOLUMES).unwrap_or_default());
    let log = Log::default();
    log.start(None, &given).expect("a log");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.expect("a runtime").block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log.report(&failure);
            tell(&format!("failed {}", failure.one_line()));
            ExitCode::from(failure.code().number())
        }
    }
}

/// Mounts the pod's volumes where a kubelet does, for this process alone.
pub(crate) fn mount_volumes(volumes: &str) {
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace (as root)");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), none).expect("a /run of its own");
    // Mount points are made in it.
    fs::create_dir_all("/run/etc/upper").expect("a directory");
    fs::create_dir_all("/run/etc/work").expect("a directory");
    let layers = "lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work";
    mount(Some("overlay"), "/etc", Some("overlay"), MsFlags::empty(), Some(layers))
        .expect("an /etc of its own");
    for volume in volumes.split(',').filter(|volume| !volume.is_empty()) {
        let (dir, place) = volume.split_once(':').expect("DIRECTORY:MOUNT_PATH");
        fs::create_dir_all(place).expect("a mount point");
        mount(Some(dir), place, none, MsFlags::MS_BIND, none).expect("a volume");
    }
}

/// Writes a line for the kubelet.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    // A kubelet that has ended reads nothing.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn run() -> Result<(), Failure> {
    let dir = PathBuf::from(given(variables::DIR).expect("a directory"));
    let drivers = given(variables::DRIVERS).unwrap_or_default();
    let dies_at = given(variables::DIES_AT).and_then(|n| n.parse().ok());
    let host = host::open(&dir, &drivers.split(',').collect::<Vec<_>>(), dies_at);
    let nodes = Simulated { host: Arc::clone(&host), dir };
    let telemetry = Telemetry::default();
    let config = nodes.read().await?;
    let run = lifecycle::run_over(config, nodes, &telemetry, host, Arc::new(FakeImages));
    let reported = async {
        let mut changes = telemetry.changes();
        loop {
            changes.borrow_and_update();
            let live = telemetry.live();
            let phase = live.phase.map(|phase| phase.to_string()).unwrap_or_default();
            tell(&format!("phase {phase} {}", if live.ready { "ready" } else { "not-ready" }));
            if changes.changed().await.is_err() {
                return std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        ended = run => ended.map(drop),
        () = reported => Ok(()),
    }
}

#[derive(Clone)]
struct Simulated {
    host: Arc<FakeHost>,
    dir: PathBuf,
}

impl Configurations for Simulated {
    async fn read(&self) -> Result<Config, Failure> {
        let config = config::load(Fragment::default(), &given, Some(Path::new(DEFAULT_FILE)))?;
        Ok(Config { paths: Paths::below(&self.dir), ..config })
    }

    async fn image_version(&self, _: &Config) -> Result<Option<String>, VersionUnknown> {
        Ok(None)
    }

    fn keep_image_version(&self, _: Option<String>) {}

    fn provider<'a>(&self, config: &'a Config) -> impl Provider + 'a {
        Script { nodes: self.clone(), config, offered: Mutex::default() }
    }
}

struct Script<'a> {
    nodes: Simulated,
    config: &'a Config,
    /// Sets that the registry offered when the host was read.
    offered: Mutex<Vec<String>>,
}

impl Script<'_> {
    fn kernel(&self) -> String {
        pulled::kernel(&self.nodes.dir)
    }

    /// True if modules of a builder are to be pulled first.
    fn pulls(&self) -> bool {
        pulled::is_wanted(self.config) && !pulled::is_stored(self.config, &self.kernel())
    }

    fn first(&self) -> Option<String> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }
}

impl Provider for Script<'_> {
    async fn gather(&self) -> Result<Gathered, Failure> {
        if self.pulls() {
            let offered = self.offered().await;
            *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = offered;
        }
        Ok(scripted::gathered())
    }

    fn plan(&self, _: &Gathered) -> Result<Plan, Failure> {
        let unnamed = || Failure::new(FailureKind::Usage, "LONGSHORE_DRIVER is not set");
        let version = self.config.driver.version.as_deref().ok_or_else(unnamed)?;
        let mut plan = scripted::plan(version);
        if given(variables::REFUSED).as_deref() == Some(version) {
            plan = scripted::with_refused_module(plan);
        }
        plan.replaces = scripted::replaced(&self.nodes.host.state(), &plan);
        if self.pulls() && self.first().is_none() {
            let detail = format!("no signed set of {version} is available for {}", self.kernel());
            let missing = Finding::refusal(Code::NothingBuilt, detail);
            return Ok(Plan { findings: vec![missing], ..plan });
        }
        if build::is_wanted(self.config) || self.pulls() {
            let driver_version = version.to_owned();
            let acquire =
                Acquire::AssembleUserspace { driver_version, run_file: None, sources: None };
            plan = Plan { acquire: vec![acquire], exact: false, ..plan };
        }
        Ok(plan)
    }

    async fn acquire(&self, _: &Plan) -> Result<(), Failure> {
        match self.first().filter(|_| self.pulls()) {
            Some(manifest) => pulled::pull(self.config, &manifest).await,
            None => build::once(self.config).await,
        }
    }

    fn awaits(&self, _: &Plan) -> Option<Awaited> {
        let waits = self.pulls() && self.first().is_none() && !self.config.registry_wait.is_zero();
        waits.then(|| pulled::awaited(self.config, &self.kernel()))
    }

    async fn offered(&self) -> Vec<String> {
        pulled::offered(self.config, &self.kernel()).await
    }

    async fn installed(&self, _: &PlanSummary, _: &[Step]) {}
}
