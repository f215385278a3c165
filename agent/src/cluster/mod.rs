//! Questions of the agent to the cluster that its pod is in: the driver version in the tag of the pod's
//! image, and the pod that follows this one; requests for a safe load of the driver on its node and for evictions
//! from it, and the report of the driver. Also the controller of evictions, which has a pod of its own.
//!
//! Outside of a cluster, and in a pod without a service account, nothing is asked.

mod evictor;
mod node_part;
mod pod_names;
mod report;
mod successor;

use std::path::Path;
use std::time::Duration;

pub use evictor::{EvictorQuestion, ask_evictor, run_evictor};
pub use report::DriverReport;

use longshore_cluster::{Account, ApiErrorKind, Cluster, Error, FILES, Limits};
use longshore_cluster::{OwnImage, Pace, Requests, Standing};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::Code;
use longshore_core::sanitize::in_line;
pub use successor::{Successor, successor};

/// Names of the driver's container: the GPU operator's, and that of longshore's own pods.
pub(crate) const CONTAINERS: [&str; 2] = ["nvidia-driver-ctr", "longshore"];

/// Limits of a call: one question takes 17 s at most.
const LIMITS: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 3,
    first_pause: Duration::from_millis(500),
    longest_pause: Duration::from_secs(30),
    watch: Duration::from_secs(240),
    answer: Limits::ANSWER,
};

/// Variables of the operator's pods, one of any pod's.
const IN_POD: [&str; 2] = ["DRIVER_CONFIG_DIGEST", "KUBERNETES_SERVICE_HOST"];

/// Length at which an image's reference is cut in a finding.
const SHOWN: usize = 300;

/// Reason why the version in the tag is not known.
#[derive(Debug)]
pub enum VersionUnknown {
    /// The answer is final: a person has to change something.
    Refused(Failure),
    /// The cluster refuses the question. An API server that was just started does so for a moment, until
    /// it has read its roles.
    Denied(Failure),
    /// There was no usable answer; the same question may be answered later.
    Unanswered(Failure),
}

impl VersionUnknown {
    /// Returns the failure, for a command that does not wait.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Refused(failure) | Self::Denied(failure) | Self::Unanswered(failure) => failure,
        }
    }
}

/// The pod that this process runs in.
#[derive(Debug)]
pub struct Pod {
    cluster: Cluster,
    namespace: Option<String>,
    name: Option<String>,
    /// The name, where a variable has it.
    given_name: Option<String>,
    node: Option<String>,
}

impl Pod {
    /// Finds the pod by its environment and its service account's files; None outside of a cluster.
    ///
    /// # Errors
    /// Exit code 15 where the service account's files cannot be used.
    pub fn of_process(env: Env<'_>) -> Result<Option<Self>, Failure> {
        Self::from_env(env, Path::new(FILES), LIMITS)
    }

    fn from_env(env: Env<'_>, files: &Path, limits: Limits) -> Result<Option<Self>, Failure> {
        let Some(account) = Account::of_pod(env, files).map_err(|e| failed(&e))? else {
            return Ok(None);
        };
        let cluster = Cluster::new(account, limits).map_err(|e| failed(&e))?;
        let given = |name| env(name).filter(|value| !value.is_empty());
        let hostname = || nix::unistd::gethostname().ok()?.into_string().ok();
        let namespace = given("POD_NAMESPACE").or_else(|| cluster.namespace().map(str::to_owned));
        // A pod's host name is its own name, except on the host's network.
        let given_name = given("POD_NAME");
        let name = given_name.clone().or_else(hostname);
        Ok(Some(Self { cluster, namespace, name, given_name, node: given("NODE_NAME") }))
    }

    /// Begins requests for a safe load on the pod's node, without any request yet; None where the pod
    /// does not know its node. `tell` is called with each state.
    ///
    /// # Errors
    /// Exit code 15 where the node's name is none.
    pub fn requests(
        self,
        tell: impl Fn(Standing) + Send + Sync + 'static,
    ) -> Result<Option<Requests>, Failure> {
        let Some(node) = self.node else { return Ok(None) };
        let begun = Requests::begin(self.cluster, node, Pace::default(), tell);
        begun.map(Some).map_err(|e| failed(&e))
    }

    async fn driver_version(&self) -> Result<String, VersionUnknown> {
        let (Some(namespace), Some(name)) = (&self.namespace, &self.name) else {
            return Err(unknown("the pod's own name is not known"));
        };
        let found = self.cluster.own_image(namespace, name, &CONTAINERS).await;
        let image = found.map_err(|error| not_read(&error))?;
        let image = image.ok_or_else(|| unknown("no container of the pod is the driver's"))?;
        let version = image.driver_version().ok_or_else(|| without_version(&image))?;
        tracing::info!("driver {version}, by the tag of {}", shown(&image));
        Ok(version.to_owned())
    }
}

/// Reads the driver version in the tag of the own pod's image, for a configuration that names none. None
/// outside of a cluster. Only the GPU operator makes such tags: without it a version that is not found
/// is a warning, and the newest driver is chosen.
///
/// # Errors
/// Under the operator, where the version is not known: the newest driver would be another one.
pub fn driver_version(
    env: Env<'_>,
    operator: bool,
) -> impl Future<Output = Result<Option<String>, VersionUnknown>> + Send + use<> {
    let in_pod = IN_POD.iter().any(|name| env(name).is_some_and(|value| !value.is_empty()));
    version_of(Pod::of_process(env), operator && in_pod, operator)
}

async fn version_of(
    pod: Result<Option<Pod>, Failure>,
    asks_in_any_case: bool,
    operator: bool,
) -> Result<Option<String>, VersionUnknown> {
    let answer = match pod {
        Ok(None) if asks_in_any_case => Err(unknown("the pod has no service account to ask with")),
        Ok(None) => return Ok(None),
        Ok(Some(pod)) => pod.driver_version().await,
        Err(failure) => Err(VersionUnknown::Unanswered(failure)),
    };
    match answer {
        Err(unknown) if !operator => {
            tracing::warn!("{}; the newest driver is chosen", unknown.into_failure().one_line());
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

fn shown(image: &OwnImage) -> String {
    in_line(image.reference()).chars().take(SHOWN).collect()
}

/// Remedy where the service account may not read the pod.
const FORBIDDEN: &str = "add the rule `apiGroups: [\"\"], resources: [pods], verbs: [get]` to a Role of the \
                         pod's service account, or name the driver: `driver` in longshore.toml, or \
                         DRIVER_VERSION in the pod's variables";
/// Remedy where there is no such pod: its name was taken from the host name.
const MISSING: &str = "set POD_NAME and POD_NAMESPACE by fieldRef (metadata.name, metadata.namespace), which a \
                       pod on the host's network needs; or name the driver: `driver` in longshore.toml, or \
                       DRIVER_VERSION in the pod's variables";

/// Sorts a failed call.
fn not_read(error: &Error) -> VersionUnknown {
    match error.kind {
        ApiErrorKind::Forbidden => VersionUnknown::Denied(refusal(error, FORBIDDEN)),
        ApiErrorKind::Missing => VersionUnknown::Denied(refusal(error, MISSING)),
        ApiErrorKind::Name => VersionUnknown::Refused(refusal(error, MISSING)),
        _ => VersionUnknown::Unanswered(failed(error)),
    }
}

/// Refusal of an image whose reference names no driver.
fn without_version(image: &OwnImage) -> VersionUnknown {
    let why = match image.tag() {
        Some(_) => "its tag is not VERSION-SYSTEM",
        None if image.reference().contains('@') => "it is named by its digest, without a tag",
        None => "it has no tag",
    };
    unknown(&format!("the pod's image {} names no driver version: {why}", shown(image)))
}

fn unknown(why: &str) -> VersionUnknown {
    VersionUnknown::Refused(refusal(&why, Code::DriverVersionUnknown.entry().remedy))
}

fn refusal(why: &dyn std::fmt::Display, remedy: &str) -> Failure {
    let code = Code::DriverVersionUnknown;
    Failure::new(code.entry().kind, format!("{code}: {why}")).remedy(remedy)
}

fn failed(error: &Error) -> Failure {
    Failure::new(FailureKind::Preflight, error.to_string()).remedy(
        "name the driver (DRIVER_VERSION), or let the pod's service account reach the API server",
    )
}

#[cfg(test)]
mod tests;
