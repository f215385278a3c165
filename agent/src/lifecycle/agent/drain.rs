//! Drain of the node while a change waits for the users of the driver: by the GPU operator's upgrade
//! controller, which a safe load asks for it, or by longshore's own controller of evictions.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::evicting::EvictsUsers;
use super::held::HeldChange;
use crate::cluster::Pod;
use crate::config::Config;
use crate::telemetry::Telemetry;
use longshore_cluster::{Reporter, Requests, Standing};
use longshore_core::failure::Failure;
use longshore_core::sanitize::in_line;
use longshore_host::facts::in_use::InUse;
use longshore_host::values::DriverUser;

/// Time limit of the withdrawal at the end of the agent.
pub(super) const WITHDRAWAL: Duration = Duration::from_secs(5);

/// Asks the cluster for a safe load, in a task beside the wait.
pub(super) struct AsksForDrain {
    requests: Requests,
    limit: Duration,
}

impl HeldChange for AsksForDrain {
    fn waits(&self, in_use: &InUse, _: &str) {
        self.requests.want(&in_use.users.iter().map(name).collect::<Vec<_>>());
    }

    fn over(&self) {
        self.requests.withdraw();
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.requests.are_begun() && !self.requests.withdrawn(self.limit).await {
                tracing::warn!(
                    "the request for a safe load may stay on the node: the API server did not answer \
                     within {} s; the next agent withdraws it once its driver is ready",
                    self.limit.as_secs_f64()
                );
            }
        })
    }
}

/// Drains of the own node: by the operator's controller, or by longshore's where that is set.
pub(crate) struct DrainsNode {
    asks: FoundLater,
    evicts: Option<EvictsUsers>,
}

impl DrainsNode {
    /// Returns those of this process, by its settings; `reporter` writes the events of evictions, and
    /// `telemetry` counts them.
    pub(crate) fn of_process(
        config: &Config,
        reporter: Option<Arc<Reporter>>,
        telemetry: &Telemetry,
    ) -> Self {
        let asks = FoundLater { find: receiver, found: OnceLock::new() };
        // A request that an earlier agent left is withdrawn once the driver is ready.
        if config.operator.wait_to_change && !config.evicts() {
            asks.find();
        }
        let undoes = config.cluster.report && !config.operator.enabled;
        let pod = || Pod::of_process(&|name| std::env::var(name).ok());
        let evicts = match config.evicts() || undoes {
            true => Self::evictions(config, pod(), reporter, telemetry),
            false => None,
        };
        Self { asks, evicts }
    }

    fn evictions(
        config: &Config,
        pod: Result<Option<Pod>, Failure>,
        reporter: Option<Arc<Reporter>>,
        telemetry: &Telemetry,
    ) -> Option<EvictsUsers> {
        let deadline = config.cluster.evict_deadline;
        let evicts = config.evicts();
        let begin = |pod: Pod| pod.evictions(deadline, evicts, reporter, telemetry);
        let begun = pod.and_then(|pod| pod.map_or(Ok(None), begin));
        match begun {
            Ok(Some(evictions)) => {
                // It may be long until the driver is ready, and no pod is evicted meanwhile.
                if !evicts {
                    evictions.withdraw();
                }
                Some(EvictsUsers { evictions, evicts, limit: WITHDRAWAL })
            }
            Ok(None) => {
                if evicts {
                    tracing::warn!(
                        "no pod is evicted: the agent runs outside of a cluster, or does not know its \
                         node or its pod (set NODE_NAME by fieldRef spec.nodeName, POD_NAME by \
                         metadata.name)"
                    );
                }
                None
            }
            Err(failure) => {
                no_drain(&failure);
                None
            }
        }
    }

    fn own(&self) -> Option<&EvictsUsers> {
        self.evicts.as_ref().filter(|own| own.evicts)
    }
}

impl HeldChange for DrainsNode {
    fn waits(&self, in_use: &InUse, change: &str) {
        match self.own() {
            Some(own) => own.waits(in_use, change),
            None => self.asks.waits(in_use, change),
        }
    }

    fn tries(&self, change: &str) {
        if let Some(own) = self.own() {
            own.tries(change);
        }
    }

    fn over(&self) {
        self.asks.over();
        if let Some(evicts) = &self.evicts {
            evicts.over();
        }
    }

    fn look_within(&self) -> Duration {
        self.own().map_or(Duration::MAX, HeldChange::look_within)
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let evicted = async {
                if let Some(evicts) = &self.evicts {
                    evicts.ended().await;
                }
            };
            tokio::join!(self.asks.ended(), evicted);
        })
    }
}

/// Returns the name of a user: the same for all processes of one program in a pod, so that a request
/// does not change with each of them.
fn name(user: &DriverUser) -> String {
    let comm = in_line(&user.comm);
    match (&user.pod, &user.container) {
        (Some(pod), _) => format!("{comm} of pod {pod}"),
        (None, Some(container)) => format!("{comm} of container {container}"),
        (None, None) => comm.to_string(),
    }
}

/// Receiver that is found when a change first waits, because SIGHUP can switch waiting on; or at once,
/// so that a request which an earlier agent left is withdrawn.
struct FoundLater {
    find: fn() -> Option<Arc<dyn HeldChange>>,
    found: OnceLock<Option<Arc<dyn HeldChange>>>,
}

impl FoundLater {
    /// Finds it now.
    fn find(&self) -> Option<&Arc<dyn HeldChange>> {
        self.found.get_or_init(self.find).as_ref()
    }

    fn found(&self) -> Option<&Arc<dyn HeldChange>> {
        self.found.get()?.as_ref()
    }
}

impl HeldChange for FoundLater {
    fn waits(&self, in_use: &InUse, change: &str) {
        if let Some(receiver) = self.find() {
            receiver.waits(in_use, change);
        }
    }

    fn over(&self) {
        if let Some(receiver) = self.found() {
            receiver.over();
        }
    }

    fn ended(&self) -> BoxFuture<'_, ()> {
        match self.found() {
            Some(receiver) => receiver.ended(),
            None => Box::pin(std::future::ready(())),
        }
    }
}

/// Returns the receiver of this process: its pod's cluster, if it is in one.
fn receiver() -> Option<Arc<dyn HeldChange>> {
    let pod = Pod::of_process(&|name| std::env::var(name).ok());
    let requests = pod.and_then(|pod| pod.map_or(Ok(None), |pod| pod.requests(report)));
    match requests {
        Ok(requests) => requests.map(|requests| {
            Arc::new(AsksForDrain { requests, limit: WITHDRAWAL }) as Arc<dyn HeldChange>
        }),
        Err(failure) => {
            no_drain(&failure);
            None
        }
    }
}

fn no_drain(failure: &Failure) {
    tracing::warn!("no drain can be asked for: {}", failure.one_line());
}

fn report(standing: Standing) {
    let reason = match standing {
        Standing::NoRequest | Standing::Postponed => return,
        Standing::Asked => return tracing::info!("waiting for the node to be drained"),
        Standing::AskedByAnother => {
            return tracing::info!("another program has asked for the node to be drained");
        }
        Standing::Granted => return tracing::info!("the node is drained: the change goes on"),
        Standing::NoController => "no controller upgrades drivers in this cluster",
        Standing::NodeSkipped => "a label exempts the node from upgrades",
        Standing::UpgradeFailed => "an upgrade of this node failed before",
        Standing::Refused => "the cluster refuses the request",
        Standing::Unreachable => "the API server does not answer; it is asked again",
    };
    tracing::warn!(
        "no controller drains this node for the change ({reason}): end the pods that hold the driver"
    );
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use longshore_cluster::testing::{Api, SHORT, ScriptedAnswer};
    use longshore_cluster::{Pace, SAFE_LOAD, UPGRADES_ENABLED};
    use serde_json::{Value, json};

    fn user(pid: u32, comm: &str) -> DriverUser {
        DriverUser {
            pid,
            namespace_pid: None,
            comm: comm.to_owned(),
            container: Some("0123".to_owned()),
            pod: Some("abc".to_owned()),
            devices: vec!["/dev/nvidia0".to_owned()],
        }
    }

    pub(in super::super) fn in_use(users: &[(u32, &str)]) -> InUse {
        let users = users.iter().map(|(pid, comm)| user(*pid, comm)).collect();
        InUse { held: Vec::new(), users, unseen: None }
    }

    fn node(version: u32, request: Option<&str>) -> ScriptedAnswer {
        let mut node = json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "name": "n", "resourceVersion": version.to_string(),
                          "annotations": { UPGRADES_ENABLED: "true" } },
        });
        if let Some(value) = request {
            node["metadata"]["annotations"][SAFE_LOAD] = json!(value);
        }
        ScriptedAnswer::Body(200, node.to_string())
    }

    const TRAIN: &str = "longshore: driver in use by train of pod abc";

    fn receiver(api: &Api, limit: Duration) -> AsksForDrain {
        let requests = Requests::begin(api.cluster(SHORT), "n".to_owned(), Pace::default(), report);
        AsksForDrain { requests: requests.unwrap(), limit }
    }

    /// Values that were written, in order.
    fn written(api: &Api) -> Vec<Value> {
        let patches = api.requests().into_iter().filter(|r| r.line.starts_with("PATCH"));
        let value = |body: &str| serde_json::from_str::<Value>(body).unwrap();
        patches.map(|r| value(&r.body)["metadata"]["annotations"][SAFE_LOAD].clone()).collect()
    }

    pub(in super::super) async fn until(api: &Api, requests: usize) {
        while api.requests().len() < requests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn other_processes_of_the_same_program_ask_no_second_time_and_the_end_withdraws() {
        let answers =
            [node(1, None), node(2, Some(TRAIN)), ScriptedAnswer::Open(vec![]), node(3, None)];
        let api = Api::with(answers);
        let asks = receiver(&api, LONG);
        asks.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
        until(&api, 3).await;
        asks.waits(&in_use(&[(8, "train"), (9, "train")]), "driver 1 to 2");
        asks.ended().await;
        assert_eq!(written(&api), [json!(TRAIN), Value::Null]);
        assert_eq!(api.requests().len(), 4);
    }

    #[tokio::test]
    async fn the_leftover_of_a_killed_agent_is_withdrawn_by_the_next_one() {
        let api = Api::with([node(1, Some(TRAIN)), node(2, None)]);
        let asks = receiver(&api, LONG);
        asks.over();
        asks.ended().await;
        assert_eq!(written(&api), [Value::Null]);
    }

    #[tokio::test]
    async fn an_agent_that_asked_for_nothing_ends_at_once_and_a_silent_server_is_given_up() {
        let api = Api::with([
            node(1, None),
            node(2, Some(TRAIN)),
            ScriptedAnswer::Open(vec![]),
            ScriptedAnswer::Silence,
        ]);
        let asks = receiver(&api, Duration::from_millis(50));
        asks.ended().await;
        assert!(api.requests().is_empty());
        asks.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
        until(&api, 3).await;
        asks.ended().await;
        assert_eq!(api.requests().len(), 4);
    }

    /// Counts the calls, and the receivers that were found.
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);

    struct Counts;

    impl HeldChange for Counts {
        fn waits(&self, _: &InUse, _: &str) {}
        fn over(&self) {}
        fn ended(&self) -> BoxFuture<'_, ()> {
            ENDED.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        }
    }

    fn found() -> Option<Arc<dyn HeldChange>> {
        FOUND.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(Counts))
    }

    #[tokio::test]
    async fn a_receiver_is_found_when_a_change_first_waits_and_its_end_is_waited_for() {
        let counts = || [&FOUND, &ENDED].map(|count| count.load(Ordering::Relaxed));
        let later = FoundLater { find: found, found: OnceLock::new() };
        later.over();
        later.ended().await;
        assert_eq!(counts(), [0, 0]);
        for _ in 0..2 {
            later.waits(&in_use(&[(7, "train")]), "driver 1 to 2");
            later.over();
        }
        later.ended().await;
        assert_eq!(counts(), [1, 1]);
    }

    #[test]
    fn the_page_about_deadlines_has_the_limit() {
        for row in [
            "The withdrawal of a request for a safe load",
            "The uncordon of the node, at the end of an agent",
        ] {
            longshore_core::testing::assert_in_page(row, WITHDRAWAL);
        }
    }
}
