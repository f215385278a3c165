//! Question at SIGTERM: does another pod follow this one? The driver then stays for it.

use std::time::Duration;

use longshore_cluster::{ApiErrorKind, Error, Owner};
use longshore_core::environment::Env;
use longshore_core::failure::Failure;
use tokio::time::timeout;

use super::Pod;

/// Time limit of the question, all calls together.
const LIMIT: Duration = Duration::from_secs(3);

/// Answer about the pod that follows, with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Successor {
    /// The process runs outside of a cluster, or its pod has no service account.
    NoCluster,
    /// One follows.
    Follows(String),
    /// None follows.
    None(String),
    /// The cluster refuses the question: as if none followed, because an uninstalled chart takes the
    /// service account with it.
    Refused(String),
    /// There is no answer: as if one followed, because its users would lose the driver otherwise.
    Unanswered(String),
}

impl Successor {
    /// True if the driver stays.
    pub fn keeps_driver(&self) -> bool {
        matches!(self, Self::Follows(_) | Self::Unanswered(_))
    }

    /// Logs the answer, and its consequence.
    pub fn log(&self) {
        match self {
            Self::NoCluster => {}
            Self::Follows(why) => tracing::info!("{why}: the driver stays for its next pod"),
            Self::None(why) => tracing::info!("{why}: the driver is uninstalled"),
            Self::Refused(why) => tracing::warn!(
                "{why}; the driver is uninstalled. To keep it for the next pod, add the rules \
                 `apiGroups: [\"\"], resources: [pods], verbs: [get]` and `apiGroups: [apps], resources: \
                 [daemonsets], verbs: [get]` to a Role of the pod's service account"
            ),
            Self::Unanswered(why) => tracing::warn!(
                "{why}; the driver stays for the next pod. If none follows, run `longshore unload` on \
                 this host"
            ),
        }
    }
}

/// Asks the cluster of this process.
pub fn successor(env: Env<'_>) -> impl Future<Output = Successor> + Send + use<> {
    of_pod(Pod::of_process(env), LIMIT)
}

async fn of_pod(pod: Result<Option<Pod>, Failure>, limit: Duration) -> Successor {
    let pod = match pod {
        Ok(Some(pod)) => pod,
        Ok(None) => return Successor::NoCluster,
        Err(failure) => return Successor::Unanswered(failure.one_line()),
    };
    let (Some(namespace), Some(name)) = (&pod.namespace, &pod.name) else {
        return Successor::None("the pod's own name is not known".to_owned());
    };
    match timeout(limit, pod.cluster.owner(namespace, name, pod.node.as_deref())).await {
        Ok(answer) => judged(answer),
        Err(_) => Successor::Unanswered(format!(
            "the API server did not name the pod's DaemonSet within {} s",
            limit.as_secs_f64()
        )),
    }
}

/// Judges an answer.
fn judged(answer: Result<Owner, Error>) -> Successor {
    let error = match answer {
        Ok(Owner::Exists(name)) => {
            return Successor::Follows(format!("the pod's DaemonSet {name} exists"));
        }
        Ok(Owner::Elsewhere(name)) => {
            let why = format!("the pod's DaemonSet {name} selects other nodes by their labels");
            return Successor::None(why);
        }
        Ok(Owner::Ending(name)) => {
            return Successor::None(format!("the pod's DaemonSet {name} is being deleted"));
        }
        Ok(Owner::EndingNamespace(name)) => {
            let why = format!("the namespace of the pod's DaemonSet {name} is being deleted");
            return Successor::None(why);
        }
        Ok(Owner::Gone(name)) => {
            return Successor::None(format!("the pod's DaemonSet {name} was deleted"));
        }
        Ok(Owner::None) => {
            return Successor::None("the pod belongs to no DaemonSet".to_owned());
        }
        Err(error) => error,
    };
    match error.kind {
        // The pod was deleted by force, or its name is not the host name.
        ApiErrorKind::Missing | ApiErrorKind::Name => Successor::None(format!(
            "{error} (a pod on the host's network needs POD_NAME and POD_NAMESPACE by fieldRef)"
        )),
        ApiErrorKind::Forbidden | ApiErrorKind::Unauthorized => {
            Successor::Refused(error.to_string())
        }
        _ => Successor::Unanswered(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use longshore_cluster::testing::{Api, ScriptedAnswer, refused};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::tests::pod;
    use super::*;

    fn object(metadata: &Value) -> ScriptedAnswer {
        let body = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn owned(kind: &str) -> ScriptedAnswer {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "driver", "uid": "u",
                             "controller": true }]);
        object(&json!({ "name": "driver-x7k2p", "ownerReferences": owner }))
    }

    fn set_by(metadata: &Value, selector: &Value) -> ScriptedAnswer {
        let template = json!({ "spec": { "containers": [], "nodeSelector": selector } });
        let body = json!({ "kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": metadata,
                           "spec": { "template": template } });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn set_with(metadata: &Value) -> ScriptedAnswer {
        set_by(metadata, &Value::Null)
    }

    /// A DaemonSet of the nodes with GPUs.
    fn set_of_gpus() -> ScriptedAnswer {
        set_by(&json!({ "name": "driver" }), &json!({ "gpu": "true" }))
    }

    fn set() -> ScriptedAnswer {
        set_with(&json!({ "name": "driver" }))
    }

    fn ending() -> ScriptedAnswer {
        set_with(&json!({ "name": "driver", "deletionTimestamp": "2026-11-23T03:00:00Z" }))
    }

    /// Answers of the API server; the driver stays; a part of the reason.
    #[rstest]
    #[case::exists(vec![owned("DaemonSet"), set(), refused(403)], true, "DaemonSet driver exists")]
    #[case::namespace_ends(vec![owned("DaemonSet"), set(), object(&json!({ "deletionTimestamp": "2026-11-23T03:00:00Z" }))], false, "namespace of the pod's DaemonSet driver is being")]
    #[case::ending(vec![owned("DaemonSet"), ending()], false, "is being deleted")]
    #[case::deleted(vec![owned("DaemonSet"), refused(404)], false, "was deleted")]
    #[case::of_no_set(vec![owned("Job")], false, "no DaemonSet")]
    #[case::elsewhere(vec![owned("DaemonSet"), set_of_gpus(), object(&json!({ "name": "node-1" }))], false, "selects other nodes")]
    #[case::node_unread(vec![owned("DaemonSet"), set_of_gpus(), refused(403), refused(403)], true, "DaemonSet driver exists")]
    #[case::pod_is_gone(vec![refused(404)], false, "POD_NAME")]
    #[case::forbidden(vec![owned("DaemonSet"), refused(403)], false, "answered 403")]
    #[case::unauthorized(vec![refused(401)], false, "answered 401")]
    #[case::broken(vec![owned("DaemonSet"), refused(503)], true, "answered 503")]
    #[case::garbage(vec![ScriptedAnswer::Body(200, "<html>".into())], true, "not of the API")]
    #[case::cut(vec![owned("DaemonSet"), ScriptedAnswer::Cut(vec![])], true, "get daemonsets")]
    #[tokio::test]
    async fn the_driver_stays_unless_the_cluster_says_that_nobody_follows(
        #[case] answers: Vec<ScriptedAnswer>,
        #[case] stays: bool,
        #[case] reason: &str,
    ) {
        let api = Api::with(answers);
        let pod = pod(&api).map(|pod| pod.map(|pod| Pod { node: Some("node-1".into()), ..pod }));
        let found = of_pod(pod, Duration::from_secs(60)).await;
        assert_eq!(found.keeps_driver(), stays, "{found:?}");
        assert!(format!("{found:?}").contains(reason), "{found:?}");
    }

    #[tokio::test]
    async fn a_server_that_hangs_is_given_up_at_the_limit() {
        for answers in
            [vec![ScriptedAnswer::Silence], vec![owned("DaemonSet"), ScriptedAnswer::Silence]]
        {
            let api = Api::with(answers);
            let limit = Duration::from_millis(300);
            let found = of_pod(pod(&api), limit).await;
            assert!(
                matches!(&found, Successor::Unanswered(why) if why.contains("0.3 s")),
                "{found:?}"
            );
        }
    }

    #[tokio::test]
    async fn outside_of_a_cluster_nothing_is_asked() {
        assert_eq!(successor(&|_| None).await, Successor::NoCluster);
        assert!(!Successor::NoCluster.keeps_driver());
    }

    #[test]
    fn the_page_about_deadlines_has_the_limit() {
        let row = "An answer of the API server about the pod's DaemonSet, at SIGTERM";
        longshore_core::testing::assert_in_page(row, LIMIT);
    }
}
