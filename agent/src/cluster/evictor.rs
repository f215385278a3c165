//! The controller of evictions in a pod of its own, and the answers to its probes.
//!
//! The probes ask by an abstract socket: it needs no directory, so the pod's root can be read-only, and none but the
//! processes of its network namespace can reach it.

use std::convert::Infallible;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Evictor, EvictorOptions, FILES, Fleet, Health, Limits};
use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::Pod;

/// Name of the abstract socket.
const SOCKET: &str = "longshore-evictor";
/// Time limit of an answer to a probe. The kubelet's own is 1 s by default.
const ANSWER: Duration = Duration::from_millis(900);
/// Length of the longest answer.
const LONGEST: u64 = 64;

/// Question of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum EvictorQuestion {
    /// Its task goes on, also where the API server does not answer.
    Alive,
    /// It follows the nodes.
    Ready,
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Runs the controller for ever.
///
/// # Errors
/// Exit code 15 outside of a cluster, in a pod without a service account or a name, and where its files cannot be used.
pub async fn run_evictor(env: Env<'_>, options: EvictorOptions) -> Result<Infallible, Failure> {
    let limits = Limits { answer: Fleet::ANSWER, ..Limits::default() };
    let pod = Pod::from_env(env, Path::new(FILES), limits)?;
    let pod = pod.ok_or_else(|| no_pod("this is no pod of a cluster with a service account"))?;
    let Pod { cluster, namespace, name, .. } = pod;
    let own = namespace.zip(name).ok_or_else(|| no_pod("its pod's name is not known"))?;
    let health = Arc::new(Health::default());
    let evictor = Evictor::new(cluster, own, options, Arc::clone(&health));
    tracing::info!("cordons and evicts for the agents, {} nodes at a time", options.most_nodes);
    let probes = async {
        match serve(SOCKET, &health).await {
            Ok(never) => never,
            // Another controller on this host, outside of a pod: only its probes are lost.
            Err(error) => {
                tracing::warn!("probes are not answered: {error}");
                std::future::pending::<Infallible>().await
            }
        }
    };
    tokio::select! {
        never = evictor.run() => Ok(never),
        never = probes => Ok(never),
    }
}

fn no_pod(why: &str) -> Failure {
    Failure::new(FailureKind::Preflight, format!("the controller of evictions cannot run: {why}"))
        .remedy("run it in a pod with a service account, and with POD_NAME and POD_NAMESPACE by fieldRef")
}

/// Answers each probe with the words that hold.
async fn serve(name: &str, health: &Health) -> io::Result<Infallible> {
    let listener = UnixListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        let (mut stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            // Too many open files, for a moment.
            Err(error) => {
                tracing::debug!("a probe is not answered: {error}");
                tokio::time::sleep(ANSWER).await;
                continue;
            }
        };
        let words = [
            (health.is_alive(), EvictorQuestion::Alive),
            (health.is_ready(), EvictorQuestion::Ready),
        ];
        let words = words.into_iter().filter(|(holds, _)| *holds);
        let words: Vec<String> = words.map(|(_, question)| question.to_string()).collect();
        let answer = format!("{}\n", words.join(" "));
        match timeout(ANSWER, stream.write_all(answer.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("a probe has gone: {error}"),
            Err(_) => tracing::debug!("a probe does not read its answer"),
        }
    }
}

/// Asks the controller of this pod; false where the answer is no.
///
/// # Errors
/// Exit code 30 where none answers.
pub fn ask_evictor(question: EvictorQuestion) -> Result<bool, Failure> {
    ask(SOCKET, question).or_fail(FailureKind::NotReady, || "asking the controller of evictions")
}

fn ask(name: &str, question: EvictorQuestion) -> io::Result<bool> {
    let stream = UnixStream::connect_addr(&address(name)?)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer)?;
    let wanted = question.to_string();
    Ok(answer.split_whitespace().any(|word| word == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    #[tokio::test]
    async fn a_probe_is_told_what_holds() {
        let name = format!("longshore-evictor-test-{}", std::process::id());
        assert!(ask(&name, EvictorQuestion::Alive).is_err(), "none runs");
        let health = Health::default();
        let asks = async |question| {
            let name = name.clone();
            tokio::task::spawn_blocking(move || ask(&name, question)).await.expect("asked")
        };
        let asked = async {
            let mut alive = asks(EvictorQuestion::Alive).await;
            while alive.is_err() {
                tokio::task::yield_now().await;
                alive = asks(EvictorQuestion::Alive).await;
            }
            (alive.expect("answered"), asks(EvictorQuestion::Ready).await.expect("answered"))
        };
        let answers = tokio::select! {
            answers = asked => answers,
            ended = serve(&name, &health) => panic!("{:?}", ended.err()),
        };
        assert_eq!(answers, (true, false));
    }

    #[tokio::test]
    async fn outside_of_a_pod_it_does_not_run() {
        let failure = run_evictor(&|_| None, EvictorOptions::default()).await.expect_err("no pod");
        assert_eq!(failure.code(), ExitCode::Preflight);
        assert!(failure.to_string().contains("no pod of a cluster"), "{failure}");
    }
}
