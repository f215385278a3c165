//! Questions of the agent to the cluster that its pod is in: the driver version in the tag of the pod's
//! image, and a safe load of the driver on its node.
//!
//! Outside of a cluster, and in a pod without a service account, nothing is asked.

use std::path::Path;
use std::time::Duration;

use longshore_cluster::{Account, Cluster, Error, FILES, Limits, Pace, Requests, Standing};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};

/// Names of the driver's container: the GPU operator's, and that of longshore's own pods.
const CONTAINERS: [&str; 2] = ["nvidia-driver-ctr", "longshore"];

/// Limits of a call: the agent's start waits for 17 s at most.
const LIMITS: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 3,
    first_pause: Duration::from_millis(500),
    longest_pause: Duration::from_secs(30),
    watch: Duration::from_secs(240),
};

/// The pod that this process runs in.
#[derive(Debug)]
pub struct Pod {
    cluster: Cluster,
    namespace: Option<String>,
    name: Option<String>,
    node: Option<String>,
}

impl Pod {
    /// Finds the pod by its environment and its service account's files; None outside of a cluster.
    ///
    /// # Errors
    /// Exit code 15 where the service account's files cannot be used.
    pub fn of_process(env: Env<'_>) -> Result<Option<Self>, Failure> {
        Self::of(env, Path::new(FILES), LIMITS)
    }

    fn of(env: Env<'_>, files: &Path, limits: Limits) -> Result<Option<Self>, Failure> {
        let Some(account) = Account::of_pod(env, files).map_err(|e| failed(&e))? else {
            return Ok(None);
        };
        let cluster = Cluster::new(account, limits).map_err(|e| failed(&e))?;
        let given = |name| env(name).filter(|value| !value.is_empty());
        let hostname = || nix::unistd::gethostname().ok()?.into_string().ok();
        let namespace = given("POD_NAMESPACE").or_else(|| cluster.namespace().map(str::to_owned));
        // A pod's host name is its own name, except on the host's network.
        let name = given("POD_NAME").or_else(hostname);
        Ok(Some(Self { cluster, namespace, name, node: given("NODE_NAME") }))
    }

    async fn driver_version(&self) -> Result<Option<String>, Error> {
        let (Some(namespace), Some(name)) = (&self.namespace, &self.name) else { return Ok(None) };
        let image = self.cluster.own_image(namespace, name, &CONTAINERS).await?;
        let Some(image) = image else { return Ok(None) };
        let version = image.driver_version().map(str::to_owned);
        match &version {
            Some(version) => {
                tracing::info!("driver {version}, by the tag of {}", image.reference())
            }
            None => tracing::debug!("no driver version is in the tag of {}", image.reference()),
        }
        Ok(version)
    }
}

impl Pod {
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
}

/// Reads the driver version in the tag of the own pod's image, for a configuration that names none.
/// Under the GPU operator (DRIVER_CONFIG_DIGEST) an API server that does not answer is a failure: the
/// newest driver would be another one than the tag's. Elsewhere it is a warning.
///
/// # Errors
/// Exit code 15.
pub async fn driver_version(env: Env<'_>) -> Result<Option<String>, Failure> {
    version_of(env, Pod::of_process(env)).await
}

async fn version_of(
    env: Env<'_>,
    pod: Result<Option<Pod>, Failure>,
) -> Result<Option<String>, Failure> {
    let answer = match pod {
        Ok(None) => return Ok(None),
        Ok(Some(pod)) => pod.driver_version().await.map_err(|e| failed(&e)),
        Err(failure) => Err(failure),
    };
    match answer {
        Err(failure) if env("DRIVER_CONFIG_DIGEST").is_none() => {
            tracing::warn!("{}; the newest driver is chosen", failure.one_line());
            Ok(None)
        }
        answer => answer,
    }
}

fn failed(error: &Error) -> Failure {
    Failure::new(FailureKind::Preflight, error.to_string()).remedy(
        "name the driver (DRIVER_VERSION), or let the pod's service account reach the API server",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    const SHORT: Limits = Limits {
        call: Duration::from_secs(5),
        tries: 2,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(1),
        watch: Duration::from_secs(1),
    };

    /// Makes a pod whose API server is on a port that nothing listens on.
    fn pod(dir: &Path, env: Env<'_>) -> Result<Option<Pod>, Failure> {
        let key = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let rest = ["-nodes", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.crt"];
        let mut openssl = std::process::Command::new("openssl");
        let out = openssl.args(key).args(rest).current_dir(dir).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        std::fs::write(dir.join("token"), "token").unwrap();
        std::fs::write(dir.join("namespace"), "gpu-operator").unwrap();
        Pod::of(env, dir, SHORT)
    }

    fn env(name: &str) -> Option<String> {
        match name {
            "KUBERNETES_SERVICE_HOST" => Some("127.0.0.1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("1".to_owned()),
            "POD_NAME" => Some("driver-x7k2p".to_owned()),
            _ => None,
        }
    }

    #[rstest]
    #[case::elsewhere(None, Ok(None))]
    #[case::under_the_operator(Some("27"), Err(ExitCode::Preflight))]
    #[tokio::test]
    async fn an_api_server_that_is_away(
        #[case] digest: Option<&str>,
        #[case] wanted: Result<Option<String>, ExitCode>,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let env = |name: &str| match name {
            "DRIVER_CONFIG_DIGEST" => digest.map(str::to_owned),
            name => env(name),
        };
        let found = version_of(&env, pod(dir.path(), &env)).await;
        assert_eq!(found.map_err(|failure| failure.code()), wanted);
    }

    #[test]
    fn the_page_about_deadlines_has_the_limit_of_a_call() {
        let row = "An answer of the cluster's API server";
        longshore_core::testing::assert_in_page(row, LIMITS.call);
    }

    #[tokio::test]
    async fn outside_of_a_cluster_nothing_is_asked() {
        let none = |_: &str| None;
        assert!(Pod::of_process(&none).unwrap().is_none());
        assert_eq!(driver_version(&none).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_pod_that_does_not_know_its_node_asks_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod(dir.path(), &env).unwrap().unwrap();
        assert!(pod.requests(|_| {}).unwrap().is_none());
    }
}
