//! `longshore builder`: compiles, signs, attests and pushes the sets that a fleet asks for. It alone has the keys for
//! that; every node pulls with public keys (docs/supply-chain/builder.md).
//!
//! [`demand`] has the kernels that are asked for, [`queue`] the sets and when each is looked after,
//! [`index`] the signed list of them, [`record`] its highest version for a cluster's nodes. No driver is installed here,
//! and the host is not changed.

mod budget;
mod demand;
mod drivers;
mod index;
mod queue;
mod record;
mod said;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use longshore_cluster::{FollowedNodes, NodeKernels};
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::flavour::Flavour;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Instrument;

use crate::config::{Config, PublishConfig};
use crate::plan::BuildSet;
use crate::plan::gpu::other;
use crate::supplier::{ForRegistry, NotMade, Provisioner};
use crate::telemetry::Telemetry;
use budget::Budget;
use demand::{Asked, Demand};
use drivers::Drivers;
use index::Index;
use queue::{Queue, Work};
pub(crate) use record::IndexRecord;
use said::{Said, Topic};

/// Interval of reading a list of kernels again.
const LIST_READ: Duration = Duration::from_secs(10);
/// Time after which a round ends with the set in progress: then the archives, the list and the store are looked at anew.
const ROUND: Duration = Duration::from_secs(5 * 60);
/// Pauses while the registry cannot be used: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time limit for the first list of nodes of a builder that ends by itself.
const FIRST_LIST: Duration = Duration::from_secs(120);
/// Flavours of a driver.
const BOTH: [Flavour; 2] = [Flavour::Open, Flavour::Proprietary];

/// Sources of what is asked for.
#[derive(Debug, Default)]
pub(crate) struct RequestedKernels {
    /// Kernel releases of the command line.
    pub(crate) kernels: Vec<String>,
    /// File with more of them.
    pub(crate) list: Option<PathBuf>,
    /// Nodes of a cluster.
    pub(crate) nodes: Option<NodeKernels>,
}

/// A builder.
pub(crate) struct BuildService<'a> {
    config: &'a Config,
    publish: &'a PublishConfig,
    telemetry: &'a Telemetry,
    requests: RequestedKernels,
    nodes: Option<watch::Receiver<FollowedNodes>>,
    /// The list as it was read last.
    listed: Vec<String>,
    /// New kernels of each node.
    budget: Budget,
    demand: Demand,
    queue: Queue,
    /// Index of the registry; None without a key that signs it.
    index: Option<Index>,
    /// Record of the index in the cluster; None where it is not recorded.
    record: Option<IndexRecord>,
    /// Warnings about unmet demand, and about sources of it, that were logged.
    said: Said,
}

/// End of one try of a set.
enum Tried {
    /// It was in the registry.
    There,
    /// It is in the registry now, as this manifest.
    Pushed(String),
    /// The driver does not have this flavour, which nothing named.
    Needless,
}

impl<'a> BuildService<'a> {
    /// Takes the sources of what is asked for, and the record of the index; reads keys and lists once.
    ///
    /// # Errors
    /// Exit code 2 where nothing is asked for, no registry is named to push to, or a key or a list cannot be read; 15
    /// where the store cannot be written.
    pub(crate) fn new(
        config: &'a Config,
        telemetry: &'a Telemetry,
        requests: RequestedKernels,
        record: Option<IndexRecord>,
    ) -> Result<Self, Failure> {
        let publish = config.publish.as_ref().ok_or_else(|| {
            Failure::new(FailureKind::Usage, "no registry is named to push modules to")
                .remedy("name one: [publish] reference, --publish or LONGSHORE_PUBLISH")
        })?;
        if requests.kernels.is_empty() && requests.list.is_none() && requests.nodes.is_none() {
            return Err(Failure::new(FailureKind::Usage, "nothing is asked for").remedy(
                "name kernels (--kernel RELEASE, --kernels FILE), or ask the nodes of the cluster (--cluster)",
            ));
        }
        let provisioner = Provisioner::new(config);
        provisioner.store()?;
        ForRegistry::new(&provisioner, publish)?;
        if publish.sign_key.is_none() {
            tracing::warn!("no publish-key is set: modules are pushed without a signature");
            if record.is_some() {
                tracing::warn!("no index is recorded: without a publish-key none is written");
            }
        }
        let nodes = requests.nodes.as_ref().map(NodeKernels::reported);
        let index = publish
            .sign_key
            .as_ref()
            .map(|_| Index::new(config.builder.index_expires, config.signatures.denied.clone()));
        let mut service = Self {
            config,
            publish,
            telemetry,
            requests,
            nodes,
            listed: Vec::new(),
            budget: Budget::default(),
            demand: Demand::default(),
            queue: Queue::default(),
            index,
            record,
            said: Said::default(),
        };
        service.listed = service.read_list()?;
        telemetry.builder_not_ready(Some("the builder is starting".to_owned()));
        Ok(service)
    }

    /// Builds everything that is asked for once, and ends; returns 0 where all of it is in the registry.
    ///
    /// # Errors
    /// The first failure, after everything was tried; 32 where the nodes cannot be listed; the registry's at once.
    pub(crate) async fn once(mut self) -> Result<ExitCode, Failure> {
        if let Some(nodes) = &mut self.nodes {
            let listed = nodes.wait_for(|reported| reported.nodes.is_some());
            if !matches!(timeout(FIRST_LIST, listed).await, Ok(Ok(_))) {
                let why = nodes.borrow().failure.clone();
                let cause = format!(
                    "the nodes were not listed in {} s: {}",
                    FIRST_LIST.as_secs(),
                    why.as_deref().unwrap_or("no answer")
                );
                return Err(Failure::new(FailureKind::Kubectl, cause).remedy(
                    "let the pod's service account list and watch nodes, and reach the API server",
                ));
            }
        }
        let now = Instant::now();
        self.ask_anew(now);
        let mut failed = None;
        self.round(now, Some(&mut failed)).await?;
        // Each set that was tried is due later than now.
        while self.queue.next(now).is_some() {
            self.round(now, Some(&mut failed)).await?;
        }
        let sets = self.queue.count();
        tracing::info!(
            served = sets.served,
            failing = sets.failing,
            "{} sets are in {}, {} could not be made",
            sets.served,
            self.publish.reference,
            sets.failing
        );
        failed.map_or(Ok(ExitCode::Done), Err)
    }

    /// Follows what is asked for, until it is dropped.
    pub(crate) async fn run(mut self) -> std::convert::Infallible {
        let mut pause = FIRST_PAUSE;
        loop {
            let now = Instant::now();
            self.read_list_again();
            self.ask_anew(now);
            if let Some(record) = &mut self.record {
                record.keep_where_due().await;
            }
            match self.round(now, None).await {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    self.telemetry.builder_not_ready(self.unlisted());
                    self.until_asked().await;
                }
                Err(failure) => {
                    let why = format!("the registry cannot be used: {}", failure.one_line());
                    if pause == FIRST_PAUSE {
                        tracing::warn!("{why}; it is asked again");
                    } else {
                        tracing::debug!("{why}");
                    }
                    self.telemetry.failed(&failure);
                    self.telemetry.builder_not_ready(Some(why));
                    sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Returns the reason that what is asked for is not known yet.
    fn unlisted(&self) -> Option<String> {
        let reported = self.nodes.as_ref()?.borrow();
        let failure = || reported.failure.clone().unwrap_or_else(|| "no answer yet".to_owned());
        reported.nodes.is_none().then(|| format!("the nodes are not known: {}", failure()))
    }

    /// Waits until something else is asked for, a set, the index or its record is due, or the list is to be read again.
    async fn until_asked(&mut self) {
        let of_index = self.index.as_ref().map(Index::due);
        let of_record = self.record.as_ref().and_then(IndexRecord::due);
        let due = self.queue.next_due().into_iter().chain(self.demand.again);
        let due = due.chain(of_index).chain(of_record).min();
        let has_list = self.requests.list.is_some();
        let due = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let changed = async {
            // The task of the watch lives as long as this service.
            if let Some(nodes) = &mut self.nodes
                && nodes.changed().await.is_ok()
            {
                return;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = changed => {}
            () = due => {}
            () = sleep(LIST_READ), if has_list => {}
        }
    }

    fn read_list(&self) -> Result<Vec<String>, Failure> {
        let mut all = self.requests.kernels.clone();
        if let Some(path) = &self.requests.list {
            all.extend(demand::read_list(path)?);
        }
        Ok(all)
    }

    /// Reads the list again; one that cannot be read leaves what was asked for before.
    fn read_list_again(&mut self) {
        match self.read_list() {
            Ok(listed) => self.listed = listed,
            Err(failure) => {
                let line = format!("{}; what it had before is built for", failure.one_line());
                self.say(Topic::List, &line);
            }
        }
    }

    /// Logs a warning where it is another one than that before, or that one is long ago.
    fn say(&mut self, topic: Topic, line: &str) {
        if self.said.is_due(topic, line, Instant::now()) {
            tracing::warn!("{line}");
        }
    }

    /// Takes over what the list and the nodes ask for now; new sets are due at `due`.
    fn ask_anew(&mut self, due: Instant) {
        let reported = self.nodes.as_mut().map(|nodes| nodes.borrow_and_update().clone());
        let reported = reported.unwrap_or_default();
        if let Some(failure) = reported.failure {
            self.say(Topic::Nodes, &format!("{failure}; the nodes known before are built for"));
        }
        let nodes = reported.nodes.unwrap_or_default();
        let demand = Demand::new(&self.listed, &nodes, &mut self.budget, Instant::now());
        for (topic, line) in demand.unmet() {
            self.say(topic, &line);
        }
        self.queue.follow(self.works(&demand), due);
        let left_out = demand.left_out.len() + demand.overdrawn.len();
        self.telemetry.builder_asked(self.queue.count(), left_out);
        self.demand = demand;
    }

    /// Returns the sets of a demand: each driver in each flavour for each kernel.
    fn works(&self, demand: &Demand) -> Vec<Work> {
        let config = &self.config.builder;
        let flavours = config.flavours.as_deref().unwrap_or(&BOTH);
        let mut works = Vec::new();
        for Asked { release, .. } in &demand.kernels {
            for driver in &config.drivers {
                works.extend(flavours.iter().map(|flavour| Work {
                    driver: driver.clone(),
                    flavour: *flavour,
                    kernel: release.clone(),
                }));
            }
        }
        works
    }

    /// Looks after the sets that are due at `now`, one after the other, until all were tried or [`ROUND`] is over. The
    /// indexes of archives are kept for as long. The first failure is kept in `first`, where that is given, and the others
    /// are logged; such a round follows no new demand.
    ///
    /// # Errors
    /// The registry's failure: nothing else is tried without it. That of the index, after the sets.
    async fn round(
        &mut self,
        now: Instant,
        first: Option<&mut Option<Failure>>,
    ) -> Result<(), Failure> {
        let is_index_due = self.index.as_ref().is_some_and(|index| index.is_due(now));
        if self.queue.next(now).is_none() && !is_index_due {
            return Ok(());
        }
        let provisioner = Provisioner::new(self.config).telling(self.telemetry);
        let ended = self.round_with(&provisioner, now, first).await;
        provisioner.tidy().await;
        ended
    }

    async fn round_with(
        &mut self,
        provisioner: &Provisioner<'_>,
        now: Instant,
        mut first: Option<&mut Option<Failure>>,
    ) -> Result<(), Failure> {
        let registry = ForRegistry::new(provisioner, self.publish)?;
        let (mut drivers, mut said) = (Drivers::default(), BTreeSet::new());
        let (begin, follows) = (Instant::now(), first.is_none());
        // An index that cannot be written holds up no set: nodes that require none wait for them.
        let mut unlisted = self.write_index(&registry).await.err();
        while let Some(work) = self.queue.next(now).cloned() {
            let by = self.demand.kernels.iter().find(|asked| asked.release == work.kernel);
            let by = by.map(Asked::by).unwrap_or_default();
            // Of this level, so that no filter leaves it out of the fields of a warning.
            let span = tracing::error_span!(
                "set",
                driver = work.driver.as_deref().unwrap_or("newest"),
                flavour = %work.flavour,
                kernel = work.kernel,
                asked_by = by
            );
            let tried = self.try_one(&registry, &mut drivers, &work).instrument(span.clone()).await;
            self.telemetry.builder_builds(None);
            let ended = Instant::now();
            match tried {
                Ok(Tried::There) => self.queue.served(&work, ended),
                Ok(Tried::Pushed(manifest)) => {
                    self.telemetry.builder_tried(true);
                    self.queue.served(&work, ended);
                    if let Some(index) = &mut self.index {
                        index.add(manifest);
                    }
                    // Written again in spite of a failure before.
                    unlisted = None;
                }
                Ok(Tried::Needless) => self.queue.needless(&work, ended),
                Err(NotMade::Build(failure)) => {
                    self.telemetry.builder_tried(false);
                    let is_new = self.queue.failed(&work, &failure, ended);
                    match &mut first {
                        Some(first) if first.is_none() => **first = Some(failure),
                        // One archive that is away fails many sets alike.
                        _ if is_new && said.insert(failure.one_line()) => {
                            span.in_scope(|| warn_of(&failure));
                            self.telemetry.failed(&failure);
                        }
                        _ => {}
                    }
                }
                Err(NotMade::Registry(failure)) => {
                    // One set that a registry fails for holds up neither the others nor the list of those before it.
                    self.queue.postpone(&work);
                    if let Err(unlisted) = self.write_index(&registry).await {
                        tracing::debug!("the index was not written: {}", unlisted.one_line());
                    }
                    return Err(failure);
                }
            }
            if unlisted.is_none() {
                unlisted = self.write_index(&registry).await.err();
            }
            if begin.elapsed() >= ROUND {
                break;
            }
            if follows {
                self.ask_anew(now);
            }
        }
        unlisted.map_or(Ok(()), Err)
    }

    /// Writes the index where it is due, and records it.
    ///
    /// # Errors
    /// The registry's failure; it is tried again in the next round.
    async fn write_index(&mut self, registry: &ForRegistry<'_>) -> Result<(), Failure> {
        let Some(index) = &mut self.index else { return Ok(()) };
        let written = index.write(registry).await;
        let written =
            written.map_err(|(NotMade::Registry(failure) | NotMade::Build(failure))| failure)?;
        if let (Some(record), Some(written)) = (&mut self.record, &written) {
            record.add(written).await;
        }
        Ok(())
    }

    async fn try_one(
        &mut self,
        registry: &ForRegistry<'_>,
        drivers: &mut Drivers,
        work: &Work,
    ) -> Result<Tried, NotMade> {
        let driver = match drivers.driver(registry, work, work.flavour).await {
            Ok(driver) => driver,
            Err(failure) => {
                let is_needless = self.config.builder.flavours.is_none()
                    && drivers.driver(registry, work, other(work.flavour)).await.is_ok();
                return match is_needless {
                    true => Ok(Tried::Needless),
                    false => Err(NotMade::Build(failure)),
                };
            }
        };
        let version = driver.version.clone();
        let build = BuildSet {
            driver_version: driver.version.clone(),
            flavour: driver.flavour,
            kernel_release: work.kernel.clone(),
            // The newest build of the release is wanted.
            kernel_version: None,
            driver: Some(driver),
            headers: None,
            mofed: None,
            signs: true,
        };
        if let Some(manifest) = registry.look(&build).await? {
            // Without an index, whatever is found counts as there.
            let is_listed = match &mut self.index {
                Some(index) => index.has(&manifest, registry).await?,
                None => true,
            };
            if is_listed {
                tracing::debug!("{} has it: {manifest}", self.publish.reference);
                self.telemetry.builder_not_ready(self.unlisted());
                return Ok(Tried::There);
            }
            if self.index.as_mut().is_some_and(|index| index.doubts(&manifest)) {
                tracing::warn!(
                    "{manifest} of {} is signed, but neither this builder pushed it nor an index by its key lists it: \
                     it may be an old one that was put back, is not listed, and is made anew",
                    self.publish.reference
                );
            }
        }
        // The registry answers: what is compiled now is known to be missing there.
        self.telemetry.builder_not_ready(self.unlisted());
        tracing::info!("building {version}: {} has no such set", self.publish.reference);
        let what = format!("{version} ({}) for {}", work.flavour, work.kernel);
        self.telemetry.builder_builds(Some(what));
        registry.make(&build).await.map(Tried::Pushed)
    }
}

fn warn_of(failure: &Failure) {
    let (cause, remedy) = (failure.one_line(), failure.remedy_or_default());
    tracing::warn!("not built: {cause}; remedy: {remedy}; it is tried again with growing pauses");
}
