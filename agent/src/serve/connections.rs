//! The connections that are served at a time, and the one that makes room for another.
//!
//! A connection whose request has come in is answered. One that has sent none gives way to a newcomer:
//! the oldest of the peer that has most of them. Where all are being answered the newcomer waits, and
//! those behind it in the kernel's queue.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Connections served at a time.
pub(super) const MOST: usize = 16;

/// Rounds of the runtime that a connection is given before it counts as one that has sent nothing: in
/// the first it says what it waits for, in the second the kernel is asked, in the third it reads.
const ROUNDS: usize = 3;

/// An address that connections come from; None for a socket in the file system.
pub(super) type Peer = Option<IpAddr>;

/// Set once a request has come in whole.
pub(super) type Asked = Arc<AtomicBool>;

struct Connection {
    peer: Peer,
    asked: Asked,
    task: AbortHandle,
}

/// The connections, the oldest first.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: Vec<Connection>,
}

impl Connections {
    /// Serves one more, once there is room for it.
    pub(super) async fn add<F>(&mut self, peer: Peer, serve: impl FnOnce(Asked) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.make_room().await;
        let asked = Asked::default();
        let task = self.tasks.spawn(serve(Arc::clone(&asked)));
        self.open.push(Connection { peer, asked, task });
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
            let all = self.open.iter().map(|one| (one.peer, one.asked.load(Ordering::Relaxed)));
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

/// The connection that makes room, of those with their peer and whether they have asked, the oldest
/// first; None where all have asked.
fn gives_way(open: &[(Peer, bool)]) -> Option<usize> {
    let mut of: BTreeMap<Peer, usize> = BTreeMap::new();
    for (peer, _) in open {
        *of.entry(*peer).or_default() += 1;
    }
    let silent = open.iter().enumerate().filter(|(_, (_, asked))| !asked);
    // Of several as busy the first is taken, which is the oldest.
    silent.min_by_key(|(_, (peer, _))| std::cmp::Reverse(of[peer])).map(|(number, _)| number)
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
}
