//! `longshore builder`: builds what a fleet asks for, for a registry that its nodes pull from.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use super::{env, release, status};
use crate::build_service::{BuildService, IndexRecord, RequestedKernels};
use crate::config::{self, Config, Fragment};
use crate::journal::Lock;
use crate::journal::private_dir::PrivateDir;
use crate::lifecycle::probe::{Asked, Question, probe};
use crate::lifecycle::signals;
use crate::serve::{self, LivenessProbe, Server, Subject};
use crate::telemetry::Telemetry;
use longshore_cluster::{Account, Cluster, Error, FILES, Limits, NodeKernels, is_name};
use longshore_core::environment::Env;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::paths::Paths;
use longshore_host::facts::process_files::Looker;

/// Arguments of `builder`.
#[derive(Debug, clap::Args)]
pub(super) struct Builder {
    /// Kernel release as uname -r gives it (repeatable)
    #[arg(long = "kernel", value_name = "RELEASE", value_parser = release)]
    kernels: Vec<String>,
    /// File with a kernel release in each line; it is read again every 10 s
    #[arg(long = "kernels", value_name = "FILE")]
    kernel_list: Option<PathBuf>,
    /// Kernels of the cluster's nodes, too: the running ones, and those that agents report for the next boot. Asks the
    /// API server with the pod's service account, which may get, list and watch nodes
    #[arg(long = "cluster")]
    of_cluster: bool,
    /// Label selector of these nodes, for example `gpu=true`; by default all
    #[arg(long, value_name = "SELECTOR", requires = "of_cluster")]
    selector: Option<String>,
    /// Directory with the service account's token and ca.crt
    #[arg(long, value_name = "DIR", default_value = FILES, requires = "of_cluster")]
    service_account: PathBuf,
    /// ConfigMap of the pod's namespace that the index's highest version is recorded in, for agents with
    /// index-minimum-file. It has to exist; the account may get and patch it
    #[arg(long, value_name = "NAME", requires = "of_cluster", value_parser = object_name)]
    index_record: Option<String>,
    /// Build everything once and end: for a Job, or CI
    #[arg(long)]
    once: bool,
    /// Ask the builder of this container if its task goes on (liveness probe); exit code 30 if not
    #[arg(long, conflicts_with_all = ["kernels", "kernel_list", "of_cluster", "once", "ready"])]
    alive: bool,
    /// Ask it if the registry answers, and the cluster where it asks that (readiness probe); exit code 30 if not
    #[arg(long, conflicts_with_all = ["kernels", "kernel_list", "of_cluster", "once"])]
    ready: bool,
}

/// Directory of a builder's lock and socket in the state directory: an agent may run on the same host.
const OWN_DIR: &str = "builder";

impl Builder {
    /// True for a builder that runs until it is stopped.
    pub(super) fn stays(&self) -> bool {
        !self.once
    }
}

/// Returns the paths with a builder's state directory.
fn own(paths: &Paths) -> Paths {
    Paths { state: paths.state.join(OWN_DIR), ..paths.clone() }
}

/// Answers a probe, as [`status::at_once`]; None for any other `asked`.
pub(super) fn at_once(
    flags: &Fragment,
    env: Env<'_>,
    asked: &Builder,
) -> Option<Result<ExitCode, Failure>> {
    let question = match (asked.alive, asked.ready) {
        (true, _) => Question::Alive,
        (_, true) => Question::Ready,
        _ => return None,
    };
    // It dies by a signal as usual.
    signals::release();
    let paths = config::probed(flags.clone(), env, &config::usual_file());
    Some(paths.and_then(|paths| status::reported(probe(&own(&paths), Asked::Builder, question))))
}

/// Builds what is asked for: once, or until it is dropped.
///
/// # Errors
/// As [`BuildService::new`] and [`BuildService::once`]; 15 where another builder has the state directory; 32 where
/// `--cluster` is given outside of a cluster, or `--index-record` in a pod without a namespace.
pub(super) async fn builder(
    config: &Config,
    telemetry: &Telemetry,
    asked: Builder,
) -> Result<ExitCode, Failure> {
    let Builder { kernels, kernel_list, of_cluster, selector, service_account, .. } = asked;
    let Builder { index_record, once, .. } = asked;
    let nodes = match of_cluster {
        true => {
            let limits = Limits { answer: NodeKernels::ANSWER, ..Limits::default() };
            Some(NodeKernels::follow(cluster(&service_account, limits)?, selector))
        }
        false => None,
    };
    let record = index_record.map(|name| record_of(config, &service_account, name));
    let record = record.transpose()?.flatten();
    let requests = RequestedKernels { kernels, list: kernel_list, nodes };
    let service = BuildService::new(config, telemetry, requests, record)?;
    if once {
        return service.once().await;
    }
    telemetry.store_limit(config.store_max_size);
    let (probe, responder) = LivenessProbe::new();
    let paths = own(&config.paths);
    let _lock = lock(&paths)?;
    let subject = Subject::new(telemetry.clone(), probe, paths.clone(), Looker::default());
    // It ends with the process; the next builder removes what it served on.
    let server = Server::begin(&config.serving, subject);
    serve::publish(server.as_ref(), &paths.state, config.disk());
    let never: Infallible = responder.drive(service.run()).await;
    match never {}
}

/// Takes the state directory for this builder, as long as the lock is held.
fn lock(paths: &Paths) -> Result<Lock, Failure> {
    let dir = &paths.state;
    let made = PrivateDir::make(dir);
    made.or_fail(FailureKind::Preflight, || format!("making {}", dir.display()))?;
    Lock::take(dir)?.map_err(|holder| {
        let cause = format!("another builder runs here: {holder} holds {}", dir.display());
        Failure::new(FailureKind::Preflight, cause)
            .remedy("end it, or give this one another directory (state-dir)")
    })
}

/// Returns the record of the index in a ConfigMap of the pod's namespace; None where no registry is named, which the
/// builder refuses.
fn record_of(config: &Config, files: &Path, name: String) -> Result<Option<IndexRecord>, Failure> {
    let Some(publish) = &config.publish else { return Ok(None) };
    let cluster = cluster(files, Limits::default())?;
    let namespace = cluster.namespace().map(str::to_owned).ok_or_else(|| {
        let cause = format!("{} names no namespace, which --index-record needs", files.display());
        Failure::new(FailureKind::Kubectl, cause)
            .remedy("mount the pod's service account as a kubelet does, or leave the option out")
    })?;
    Ok(Some(IndexRecord::new(cluster, namespace, name, &publish.reference)))
}

/// Parses the name of an object.
fn object_name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("not the name of an object (RFC 1123)".to_owned()),
    }
}

/// Returns the client of the cluster that this pod is in.
fn cluster(files: &Path, limits: Limits) -> Result<Cluster, Failure> {
    let failed = |why: String| {
        Failure::new(FailureKind::Kubectl, why).remedy(
            "run it in a pod with a service account that may get, list and watch nodes, or name the \
             kernels (--kernel, --kernels)",
        )
    };
    let account = Account::of_pod(&env, files).map_err(|error: Error| failed(error.to_string()))?;
    let account = account.ok_or_else(|| failed("this is no pod of a cluster".to_owned()))?;
    Cluster::new(account, limits).map_err(|error| failed(error.to_string()))
}
