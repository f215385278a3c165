//! Connections that are served at a time, and the choice of one to drop for another.
//!
//! A connection whose request is being answered stays. One that has sent no request, or does not
//! read its answer, is dropped for a new one: the oldest of the peer with the most connections. If
//! all are being answered, the new one waits, and those behind it in the kernel's queue.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Connections served at a time.
pub(super) const MOST: usize = 16;

/// Rounds of the runtime before a connection counts as one that has sent nothing: in the first it
/// registers its interest, in the second the kernel is polled, in the third it reads.
const ROUNDS: usize = 3;

/// Address of a connection's peer; None for a socket in the file system.
pub(super) type Peer = Option<IpAddr>;

/// True from the moment a request has been received whole until there is an answer.
pub(super) type Answering = Arc<AtomicBool>;

struct Connection {
    peer: Peer,
    answering: Answering,
    task: AbortHandle,
}

/// Open connections, the oldest first.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: Vec<Connection>,
}

impl Connections {
    /// Serves one more connection, once there is room for it.
    pub(super) async fn add<F>(&mut self, peer: Peer, serve: impl FnOnce(Answering) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.make_room().await;
        let answering = Answering::default();
        let task = self.tasks.spawn(serve(Arc::clone(&answering)));
        self.open.push(Connection { peer, answering, task });
    }

    async fn make_room(&mut self) {
        for _ in 0..ROUNDS {
            self.forget_ended();
            if self.open.len() < MOST {
                return;
            }
            tokio::task::yield_now().await;
        }
        loop {
            self.forget_ended();
            if self.open.len() < MOST {
                return;
            }
            let all = self.open.iter().map(|one| (one.peer, one.answering.load(Ordering::Relaxed)));
            match gives_way(&all.collect::<Vec<_>>()) {
                Some(number) => self.open.remove(number).task.abort(),
                None => drop(self.tasks.join_next().await),
            }
        }
    }

    fn forget_ended(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.open.retain(|one| !one.task.is_finished());
    }
}

/// Returns the connection to drop, given each one's peer and whether it is being answered, the
/// oldest first; None if all are being answered.
fn gives_way(open: &[(Peer, bool)]) -> Option<usize> {
    let mut of: BTreeMap<Peer, usize> = BTreeMap::new();
    for (peer, _) in open {
        *of.entry(*peer).or_default() += 1;
    }
    let idle = open.iter().enumerate().filter(|(_, (_, answering))| !answering);
    // Of several peers with as many the first is taken, which is the oldest.
    idle.min_by_key(|(_, (peer, _))| std::cmp::Reverse(of[peer])).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const A: Peer = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
    const B: Peer = Some(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)));

    #[rstest]
    #[case::none(&[], None)]
    #[case::all_have_asked(&[(A, true), (A, true), (B, true)], None)]
    #[case::the_oldest(&[(A, false), (A, false)], Some(0))]
    #[case::one_that_has_asked_stays(&[(A, true), (A, false)], Some(1))]
    #[case::of_the_busiest(&[(B, false), (A, false), (A, false)], Some(1))]
    #[case::the_busiest_counts_with_those_that_asked(&[(B, false), (A, true), (A, false)], Some(2))]
    #[case::the_busiest_has_asked_throughout(&[(A, true), (B, false), (A, true)], Some(1))]
    fn who_makes_room(#[case] open: &[(Peer, bool)], #[case] number: Option<usize>) {
        assert_eq!(gives_way(open), number);
    }

    /// Returns [`MOST`] connections that are being answered until the sender is used.
    async fn full(peer: Peer) -> (Connections, tokio::sync::watch::Sender<bool>) {
        let mut connections = Connections::default();
        let (end, ended) = tokio::sync::watch::channel(false);
        for _ in 0..MOST {
            let mut ended = ended.clone();
            let serve = |answering: Answering| async move {
                answering.store(true, Ordering::Relaxed);
                let _ = ended.changed().await;
                answering.store(false, Ordering::Relaxed);
                // The peer does not read it.
                std::future::pending::<()>().await;
            };
            connections.add(peer, serve).await;
        }
        (connections, end)
    }

    #[tokio::test]
    async fn a_newcomer_waits_while_all_are_answered_and_then_takes_the_place_of_one_that_idles() {
        let (mut connections, end) = full(A).await;
        tokio::select! {
            biased;
            () = connections.add(B, |_| async {}) => panic!("one that is answered was cut off"),
            () = async { for _ in 0..100 { tokio::task::yield_now().await } } => {}
        }
        end.send(true).expect("they wait");
        connections.add(B, |_| async {}).await;
        assert_eq!(connections.open.len(), MOST);
        assert_eq!(connections.open.iter().filter(|one| one.peer == B).count(), 1);
    }
}
