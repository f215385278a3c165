//! The API server of the cluster that this process' pod is in, asked with the pod's service account.

use std::path::Path;
use std::time::Duration;

use longshore_cluster::{Account, ApiErrorKind, Cluster, Error, Fleet, Limits};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};

/// Remedy of a process without a service account.
const OUTSIDE: &str = "run it in a pod with a service account (automountServiceAccountToken), or leave --in-cluster \
                       out: kubectl is asked then";
/// Remedy of a refused token.
const TOKEN: &str = "check that the pod's service account has not been deleted, and that the API server is the one \
                     that made its token";
/// Remedy of an API server that does not answer.
const REACH: &str =
    "check that the pod reaches the API server (its network, a NetworkPolicy), or raise --wait";

/// Remedy of an object that no limit allows.
const SIZE: &str = "look for an object of that kind with annotations or fields of many MiB, and for a proxy before the API \
                    server that answers in its place";

/// The API server, and the service account.
#[derive(Debug)]
pub struct InCluster(pub(super) Box<Fleet>);

impl InCluster {
    /// Takes the service account of the pod, whose files are in this directory. A server that does not answer is
    /// asked again until `patience` is over.
    ///
    /// # Errors
    /// Exit code 32 outside of a pod, and where it has no service account.
    pub fn of_pod(
        env: Env<'_>,
        files: &Path,
        limits: Limits,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let account = Account::of_pod(env, files).map_err(|error| failed(&error))?;
        let Some(account) = account else {
            let of_pod = env("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty());
            let cause = match of_pod {
                true => format!(
                    "the pod has no service account: there is no token and ca.crt in {}",
                    files.display()
                ),
                false => {
                    "this is no pod of a cluster: KUBERNETES_SERVICE_HOST is not set".to_owned()
                }
            };
            return Err(Failure::new(FailureKind::Kubectl, cause).remedy(OUTSIDE));
        };
        let cluster = Cluster::new(account, Limits { answer: Fleet::ANSWER, ..limits })
            .map_err(|error| failed(&error))?;
        Ok(Self(Box::new(Fleet::new(cluster, patience))))
    }
}

/// Failure of a call.
pub(super) fn failed(error: &Error) -> Failure {
    let failure = Failure::new(FailureKind::Kubectl, error.to_string());
    match error.kind {
        ApiErrorKind::Forbidden => match Fleet::missing_right(error) {
            Some(right) => failure.remedy(format!(
                "add the rule `{right}` to a role of the pod's service account ({})",
                if right.group.is_empty() {
                    "a ClusterRole"
                } else {
                    "a Role of that namespace does"
                }
            )),
            None => failure.remedy(REACH),
        },
        ApiErrorKind::Unauthorized => failure.remedy(TOKEN),
        ApiErrorKind::Account => failure.remedy(OUTSIDE),
        ApiErrorKind::TooLarge => failure.remedy(SIZE),
        _ => failure.remedy(REACH),
    }
}
