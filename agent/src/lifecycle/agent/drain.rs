//! Requests for a drain of the node while a change waits for the users of the driver: a safe load of the
//! GPU operator's upgrade controller.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::held::HeldChange;
use crate::cluster::{Pod, SafeLoads};
use longshore_cluster::SafeLoad;
use longshore_core::failure::Failure;
use longshore_host::in_use::InUse;
use longshore_host::verbs::DriverUser;

/// Time limit of a request: the controller waits for jobs for as long as its policy says.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

/// Asks the cluster for a safe load, in a task beside the wait.
pub(super) struct AsksForDrain<S> {
    cluster: Arc<S>,
    asking: Mutex<Option<JoinHandle<()>>>,
}

impl<S: SafeLoads + Send + Sync + 'static> AsksForDrain<S> {
    /// Returns the receiver for this cluster.
    pub(super) fn new(cluster: S) -> Self {
        Self { cluster: Arc::new(cluster), asking: Mutex::default() }
    }

    /// Replaces the running request.
    fn replace(&self, next: impl Future<Output = ()> + Send + 'static) {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(former) = asking.take() {
            former.abort();
        }
        *asking = Some(tokio::spawn(next));
    }
}

impl<S: SafeLoads + Send + Sync + 'static> HeldChange for AsksForDrain<S> {
    fn waits(&self, in_use: &InUse) {
        let holders: Vec<String> = in_use.users.iter().map(DriverUser::to_string).collect();
        let cluster = Arc::clone(&self.cluster);
        self.replace(async move { report(&cluster.ask(&holders, LIMIT).await) });
    }

    fn over(&self) {
        let cluster = Arc::clone(&self.cluster);
        self.replace(async move {
            if let Err(failure) = cluster.withdraw().await {
                tracing::warn!("the request for a safe load stays: {}", failure.one_line());
            }
        });
    }
}

/// Returns the receiver of this process: its pod's cluster, if it is in one.
pub(crate) fn receiver() -> Option<Arc<dyn HeldChange>> {
    let pod = Pod::of_process(&|name| std::env::var(name).ok());
    match pod {
        Ok(pod) => pod.map(|pod| Arc::new(AsksForDrain::new(pod)) as Arc<dyn HeldChange>),
        Err(failure) => {
            tracing::warn!("no drain can be asked for: {}", failure.one_line());
            None
        }
    }
}

fn report(asked: &Result<SafeLoad, Failure>) {
    let reason = match asked {
        Ok(SafeLoad::Granted) => return tracing::info!("the node is drained: the change goes on"),
        Ok(SafeLoad::NoController) => "no controller upgrades drivers in this cluster",
        Ok(SafeLoad::NodeSkipped) => "a label exempts the node from upgrades",
        Ok(SafeLoad::UpgradeFailed) => "an upgrade of this node failed before",
        Ok(SafeLoad::Refused) => "the cluster refuses the request",
        Ok(SafeLoad::TimedOut) => "the request was not granted in a day",
        Err(failure) => return tracing::warn!("no drain was asked for: {}", failure.one_line()),
    };
    tracing::warn!(
        "nobody drains this node for the change ({reason}): end the pods that hold the driver"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    /// Tells of each call, and never grants a request.
    struct Calls(UnboundedSender<String>);

    impl SafeLoads for Calls {
        async fn ask(&self, holders: &[String], _: Duration) -> Result<SafeLoad, Failure> {
            self.0.send(format!("ask {}", holders.join(","))).ok();
            std::future::pending().await
        }

        async fn withdraw(&self) -> Result<(), Failure> {
            self.0.send("withdraw".to_owned()).ok();
            Ok(())
        }
    }

    fn in_use(pid: u32) -> InUse {
        let user = DriverUser {
            pid,
            namespace_pid: None,
            comm: "train".to_owned(),
            container: None,
            pod: None,
            devices: vec!["/dev/nvidia0".to_owned()],
        };
        InUse { held: Vec::new(), users: vec![user], unseen: None }
    }

    async fn next(calls: &mut UnboundedReceiver<String>) -> String {
        calls.recv().await.unwrap()
    }

    #[tokio::test]
    async fn each_wait_asks_with_the_present_users_and_its_end_withdraws() {
        let (sender, mut calls) = unbounded_channel();
        let asks = AsksForDrain::new(Calls(sender));
        for pid in [7, 8] {
            asks.waits(&in_use(pid));
            let asked = next(&mut calls).await;
            assert!(asked.starts_with(&format!("ask pid {pid} (train)")), "{asked}");
        }
        asks.over();
        assert_eq!(next(&mut calls).await, "withdraw");
        assert!(calls.try_recv().is_err());
    }
}
