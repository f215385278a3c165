//! Kubelet of all simulated nodes: registers them, and follows the pods that are bound to them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, pin_mut, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Config, ResourceExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Options;
use crate::node::SimulatedNode;
use crate::pod;

/// Failure of the simulation.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// Calls at the same time.
const CALLS: usize = 16;
/// Pause before a call is repeated.
const PAUSE: Duration = Duration::from_secs(1);

/// State that all pods share.
pub(crate) struct Kubelet {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) nodes: BTreeMap<String, Arc<SimulatedNode>>,
}

/// Request for the end of a pod: its grace period in seconds.
pub(crate) type End = Option<i64>;

/// Repeats a call that the API server failed to serve or that did not reach it, until it is answered: a kubelet
/// synchronizes its pods again, too. The script that runs the simulation has the deadline. The client repeats by itself
/// what was answered by 429, 503 or 504, but not by 500, which the API server answers when its connection to etcd is
/// closed.
pub(crate) async fn persist<T, F: Future<Output = kube::Result<T>>>(
    mut call: impl FnMut() -> F,
) -> kube::Result<T> {
    let mut answered = call().await;
    while let Some(error) = answered.as_ref().err().filter(|error| is_unserved(error)) {
        eprintln!("a call is repeated: {error}");
        sleep(PAUSE).await;
        answered = call().await;
    }
    answered
}

fn is_unserved(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

/// Runs until SIGTERM.
pub(crate) async fn run(options: Options) -> Result<(), Error> {
    let mut config = Config::infer().await?;
    config.read_timeout = None;
    let client = Client::try_from(config)?;
    let mut nodes = BTreeMap::new();
    for number in 0..options.nodes {
        let node = SimulatedNode::make(number, &options).await?;
        nodes.insert(node.name.clone(), Arc::new(node));
    }
    let kubelet = Arc::new(Kubelet { client, options, nodes });
    kubelet.register().await?;
    println!("registered {} nodes", kubelet.nodes.len());
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = kubelet.follow() => ended?,
        ended = kubelet.boot_when_asked() => ended?,
        _ = term.recv() => {}
    }
    kubelet.summarize()
}

impl Kubelet {
    /// Boots the kernel of the file `next-kernel` on all nodes, at each SIGUSR1.
    async fn boot_when_asked(&self) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut asked = signal(SignalKind::user_defined1())?;
        while asked.recv().await.is_some() {
            let release = fs::read_to_string(self.options.dir.join("next-kernel"))?;
            let release = release.trim();
            let booted =
                stream::iter(self.nodes.values()).map(Ok).try_for_each_concurrent(CALLS, |node| {
                    let api = &api;
                    async move {
                        let patch = Patch::Merge(node.boot(release)?);
                        let parameters = PatchParams::default();
                        persist(|| api.patch_status(&node.name, &parameters, &patch)).await?;
                        Ok::<_, Error>(())
                    }
                });
            booted.await?;
            println!("booted {release}");
        }
        Ok(())
    }

    /// Makes the nodes' objects.
    async fn register(&self) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        let made =
            stream::iter(self.nodes.values()).map(Ok).try_for_each_concurrent(CALLS, |node| {
                let (api, now) = (&api, &now);
                async move {
                    let object: Node = serde_json::from_value(node.object(now))?;
                    api.create(&PostParams::default(), &object).await?;
                    Ok::<_, Error>(())
                }
            });
        made.await
    }

    /// Follows all pods, by one watch.
    async fn follow(self: &Arc<Self>) -> Result<(), Error> {
        let api: Api<Pod> = Api::all(self.client.clone());
        let mut pods: BTreeMap<String, watch::Sender<End>> = BTreeMap::new();
        loop {
            let every = ListParams::default();
            let listed = persist(|| api.list(&every)).await?;
            let mut version = listed.metadata.resource_version.clone().unwrap_or_default();
            for pod in listed.items {
                self.take(&mut pods, pod);
            }
            'watch: loop {
                let parameters = WatchParams::default().timeout(280);
                let watched = persist(|| api.watch(&parameters, &version)).await?;
                pin_mut!(watched);
                while let Some(event) = watched.next().await {
                    match event {
                        Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => {
                            version = pod.resource_version().unwrap_or(version);
                            self.take(&mut pods, pod);
                        }
                        Ok(WatchEvent::Deleted(pod)) => {
                            version = pod.resource_version().unwrap_or(version);
                            if let Some(ends) = pods.remove(&pod.uid().unwrap_or_default()) {
                                ends.send_replace(Some(0));
                            }
                        }
                        Ok(WatchEvent::Bookmark(_)) => {}
                        Ok(WatchEvent::Error(error)) => {
                            eprintln!("the watch is begun anew: {error:?}");
                            break 'watch;
                        }
                        Err(error) => {
                            eprintln!("the watch is begun anew: {error}");
                            break 'watch;
                        }
                    }
                }
            }
        }
    }

    /// Begins a pod, or asks for its end.
    fn take(self: &Arc<Self>, pods: &mut BTreeMap<String, watch::Sender<End>>, pod: Pod) {
        let (Some(uid), Some(spec)) = (pod.uid(), &pod.spec) else { return };
        let Some(node) = spec.node_name.as_ref().and_then(|name| self.nodes.get(name)) else {
            return;
        };
        let grace = pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .map(|_| pod.metadata.deletion_grace_period_seconds.unwrap_or(30));
        match pods.get(&uid) {
            Some(ends) if grace.is_some() => drop(ends.send_replace(grace)),
            Some(_) => {}
            None => {
                let (ends, end) = watch::channel(grace);
                let (kubelet, node) = (Arc::clone(self), Arc::clone(node));
                pods.insert(uid, ends);
                tokio::spawn(async move {
                    let name = pod.name_any();
                    if let Err(error) = pod::run(&kubelet, &node, pod, end).await {
                        eprintln!("pod {name} on {}: {error}", node.name);
                    }
                });
            }
        }
    }

    /// Writes the counts of all nodes.
    fn summarize(&self) -> Result<(), Error> {
        let mut lines = String::from("node\tconnections\tsent\treceived\n");
        for node in self.nodes.values() {
            let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
            let way = &node.way;
            let (connections, sent, received) =
                (of(&way.connections), of(&way.sent), of(&way.received));
            lines.push_str(&format!("{}\t{connections}\t{sent}\t{received}\n", node.name));
        }
        fs::write(self.options.dir.join("traffic.tsv"), lines)?;
        Ok(())
    }
}
