//! One task that keeps the node's request as it is wanted: it reads the node, decides, writes where
//! something differs, and watches for what changes the decision.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::decision::{Action, Pace, Past, Standing, Wish};
use super::holders_value;
use super::node::{Request, Seen, Version};
use super::watched::Watched;
use crate::client::{Cluster, Pauses};
use crate::error::{Error, Kind};
use crate::text::is_name;
use crate::wishes::{Dropped, Numbered, or_wish, wish_for};

/// Requests for a safe load of the driver on one node.
#[derive(Debug)]
pub struct Requests {
    wish: watch::Sender<Numbered<Wish>>,
    /// Number of the last wish for nothing that came true.
    settled: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Requests {
    /// Begins with no wish; makes no call yet. `tell` is called with each state that differs from the
    /// last one. It needs a tokio runtime.
    ///
    /// # Errors
    /// A name that is none.
    pub fn begin(
        cluster: Cluster,
        node: String,
        pace: Pace,
        tell: impl Fn(Standing) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        if !is_name(&node) {
            let why = format!("`{node}` is no name of a node");
            return Err(Error::new("asking for a safe load", Kind::Name, why));
        }
        let (wish, wishes) = watch::channel((0, Wish::Unknown));
        let (done, settled) = watch::channel(0);
        let tell = Box::new(tell);
        let keeper = Keeper { cluster, node, pace, wishes, done, tell, past: Past::default() };
        Ok(Self { wish, settled, task: tokio::spawn(keeper.run()) })
    }

    /// Wishes for a request with the names of these users; the same names change nothing.
    pub fn want(&self, holders: &[String]) {
        wish_for(&self.wish, Wish::Request(holders_value(holders)));
    }

    /// Wishes for no request, be it one that an earlier agent left.
    pub fn want_none(&self) {
        wish_for(&self.wish, Wish::Nothing);
    }

    /// Waits until no request of longshore's is left, `limit` at most; false if one may be left.
    pub async fn withdrawn(&self, limit: Duration) -> bool {
        self.want_none();
        let number = self.wish.borrow().0;
        let mut settled = self.settled.clone();
        let done = settled.wait_for(|done| *done >= number);
        matches!(timeout(limit, done).await, Ok(Ok(_)))
    }

    /// True if anything was wished for.
    pub fn are_begun(&self) -> bool {
        self.wish.borrow().0 > 0
    }
}

/// The task.
struct Keeper {
    cluster: Cluster,
    node: String,
    pace: Pace,
    wishes: watch::Receiver<Numbered<Wish>>,
    done: watch::Sender<u64>,
    tell: Box<dyn Fn(Standing) + Send + Sync>,
    past: Past,
}

/// Node as it was last seen, with its version.
type Last = (Seen, Version);

impl Keeper {
    async fn run(mut self) {
        let mut last = None;
        let mut pauses = self.cluster.limits.pauses();
        loop {
            match self.turn(last.take(), &mut pauses).await {
                Ok(next) => last = next,
                Err(Dropped) => return,
            }
        }
    }

    /// Makes one decision, and waits for what may change it; returns the node where it is known then.
    async fn turn(
        &mut self,
        last: Option<Last>,
        pauses: &mut Pauses,
    ) -> Result<Option<Last>, Dropped> {
        let (number, wish) = self.wishes.borrow_and_update().clone();
        if wish == Wish::Unknown {
            self.wishes.changed().await.map_err(|_| Dropped)?;
            return Ok(None);
        }
        let last = match last {
            Some(last) => last,
            None => match self.cluster.node(&self.node).await {
                Ok(found) => found,
                Err(error) => return self.fails(number, &wish, error, pauses).await,
            },
        };
        let now = Instant::now();
        self.past.sees(&last.0, now);
        match self.past.decide(&wish, &last.0, &self.pace, now) {
            Action::Set(value) => self.write(number, &wish, &last, Some(value), pauses).await,
            Action::Remove => self.write(number, &wish, &last, None, pauses).await,
            Action::Stay(Standing::NoRequest, _) => {
                self.done.send_replace(number);
                self.past.granted = None;
                pauses.reset();
                self.tells(Standing::NoRequest);
                self.wishes.changed().await.map_err(|_| Dropped)?;
                Ok(None)
            }
            Action::Stay(standing, due) => {
                self.tells(standing);
                self.wait(last, due, pauses).await
            }
        }
    }

    async fn write(
        &mut self,
        number: u64,
        wish: &Wish,
        (_, version): &Last,
        value: Option<String>,
        pauses: &mut Pauses,
    ) -> Result<Option<Last>, Dropped> {
        if value.is_none() {
            self.past.removes();
        }
        let now = match self.cluster.annotate(&self.node, version, value.as_deref()).await {
            Ok(now) => now,
            Err(error) => return self.fails(number, wish, error, pauses).await,
        };
        match value {
            Some(value) => {
                self.past.wrote(Instant::now());
                tracing::info!("a safe load of the driver is asked for: {value}");
            }
            None if matches!(now.0.request, Request::Own(_)) => {
                tracing::debug!("the cluster kept the request, which is removed again");
                return or_wish(&mut self.wishes, pauses.pause()).await.map(|_| Some(now));
            }
            None => tracing::info!("the request for a safe load is withdrawn"),
        }
        Ok(Some(now))
    }

    /// Handles a failed call: it is made again after a pause, or at once for another wish.
    async fn fails(
        &mut self,
        number: u64,
        wish: &Wish,
        error: Error,
        pauses: &mut Pauses,
    ) -> Result<Option<Last>, Dropped> {
        if error.kind == Kind::Status(409) {
            tracing::debug!("{error}; another program changed the node, which is read again");
        } else if error.kind.is_refusal() {
            if *wish == Wish::Nothing {
                self.done.send_replace(number);
            }
            self.tells_of(Standing::Refused, wish, &error);
            let pause = sleep(self.pace.refused);
            return or_wish(&mut self.wishes, pause).await.map(|_| None);
        } else {
            self.tells_of(Standing::Unreachable, wish, &error);
        }
        or_wish(&mut self.wishes, pauses.pause()).await.map(|_| None)
    }

    /// Watches the node until it changes, another wish is made, or the time comes.
    async fn wait(
        &mut self,
        (seen, mut version): Last,
        due: Option<Instant>,
        pauses: &mut Pauses,
    ) -> Result<Option<Last>, Dropped> {
        let began = Instant::now();
        let watched = self.cluster.watch(&self.node, &seen, &mut version);
        let until = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            biased;
            changed = self.wishes.changed() => {
                return changed.map(|()| Some((seen, version))).map_err(|_| Dropped);
            }
            () = until => return Ok(Some((seen, version))),
            ended = watched => ended,
        };
        // Also after a change: a server that ends each watch at once is not asked without pauses.
        if began.elapsed() >= self.cluster.limits.longest_pause {
            pauses.reset();
        }
        let last = match ended {
            Watched::Changed(now) => Some((now, version)),
            Watched::Closed => Some((seen, version)),
            Watched::Failed(error) => {
                self.resumes(&error);
                if error.kind.is_refusal() {
                    let pause = sleep(self.pace.refused);
                    return or_wish(&mut self.wishes, pause).await.map(|_| None);
                }
                None
            }
        };
        or_wish(&mut self.wishes, pauses.pause()).await.map(|_| last)
    }

    /// Reports a broken watch, and reads a refused token again.
    fn resumes(&self, error: &Error) {
        match error.kind.is_refusal() {
            true => self.cluster.report_once(error),
            false => tracing::debug!("{error}; it is resumed"),
        }
        if error.kind == Kind::Unauthorized
            && let Err(error) = self.cluster.renew()
        {
            tracing::debug!("{error}");
        }
    }

    fn tells(&mut self, standing: Standing) {
        if self.past.told.replace(standing) != Some(standing) {
            (self.tell)(standing);
        }
    }

    /// Reports a state with its failure, where the state is new and a request is wanted: otherwise
    /// nothing waits for the cluster.
    fn tells_of(&mut self, standing: Standing, wish: &Wish, error: &Error) {
        if !matches!(wish, Wish::Request(_)) {
            return tracing::debug!("{error}; an earlier agent's request is looked for again");
        }
        if self.past.told != Some(standing) {
            tracing::warn!("{error}");
        }
        self.tells(standing);
    }
}
