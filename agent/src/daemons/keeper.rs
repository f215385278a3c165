//! Keeps daemons alive while the driver is ready.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::backoff::Backoff;
use super::bring_up;
use crate::cancel::CancelFlag;
use crate::host::daemon::process::STACK;
use crate::host::daemon::{Answers, Daemon};
use crate::host::{Host, VerbError};
use crate::privileges;
use crate::telemetry::{DaemonState, Telemetry};

/// A daemon, and the mark it lives under.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The daemon.
    pub daemon: Daemon,
    /// Its mark.
    pub mark: String,
}

/// Watches daemons and starts those again that end. It wakes up for nothing else.
#[derive(Debug)]
pub struct Keeper {
    stop: CancelFlag,
    tasks: JoinSet<()>,
}

impl Keeper {
    /// Keeps `kept` alive from now on, and tells how they are.
    pub fn begin(host: &Arc<dyn Host>, kept: Vec<Kept>, telemetry: &Telemetry) -> Self {
        let stop = CancelFlag::default();
        let mut tasks = JoinSet::new();
        for kept in kept {
            let (host, stop, telemetry) = (Arc::clone(host), stop.clone(), telemetry.clone());
            tasks.spawn(async move { keep(&host, &kept, &stop, &telemetry).await });
        }
        Self { stop, tasks }
    }

    /// Starts nothing again from now on: when this returns no start is under way. The daemons
    /// themselves live on; they are ended by whoever undoes the step that started them.
    pub async fn end(mut self) {
        self.stop.set();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn keep(host: &Arc<dyn Host>, kept: &Kept, stop: &CancelFlag, telemetry: &Telemetry) {
    let Kept { daemon, mark } = kept;
    let tell = |state| telemetry.daemon(&daemon.name, daemon.required, state);
    let mut backoff = Backoff::default();
    // Since when it serves.
    let mut since = Some(Instant::now());
    let mut stopped = pin!(stop.wait());
    loop {
        let ended = tokio::select! {
            biased;
            () = &mut stopped => return,
            ended = lives(host, kept, telemetry) => ended,
        };
        tell(DaemonState::BackingOff);
        let wait = backoff.after(since.take().map(|since| since.elapsed()));
        let why = match ended {
            Ok(None) => "does not run".to_owned(),
            Ok(Some(said)) => format!("does not run (it said: {said})"),
            Err(error) => format!("is not seen to run ({error})"),
        };
        tracing::warn!("{daemon} {why}: starting it in {:.1} s", wait.as_secs_f64());
        tokio::select! {
            biased;
            () = &mut stopped => return,
            () = tokio::time::sleep(wait) => {}
        }
        tell(DaemonState::Starting);
        let (host, daemon, mark, stop) =
            (Arc::clone(host), daemon.clone(), mark.clone(), stop.clone());
        let start = move || bring_up(&*host, &daemon, &mark, &stop);
        match privileges::raised(start).await {
            Ok(Ok(())) => {
                since = Some(Instant::now());
                tracing::info!("{} was started again", kept.daemon);
            }
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(error) => tracing::warn!("{}: starting it: {error}", kept.daemon),
        }
    }
}

/// Waits until nobody with the mark answers for the daemon; gives what it said last.
async fn lives(
    host: &Arc<dyn Host>,
    kept: &Kept,
    telemetry: &Telemetry,
) -> Result<Option<String>, VerbError> {
    let daemon = &kept.daemon;
    loop {
        let (at, of) = (Arc::clone(host), kept.clone());
        let look = move || -> Result<_, VerbError> {
            // Looked for before it is asked: what ends in between is seen at once.
            Ok((at.daemon_processes(&of.mark)?, at.daemon(&of.daemon, &of.mark)?))
        };
        // Not here: it waits for other processes, and this thread may be the one that hears signals.
        let looked = tokio::task::spawn_blocking(look).await;
        let (processes, seen) =
            looked.map_err(|_| VerbError::new("look for", daemon.to_string(), Errno::EIO))??;
        if seen.answers != Answers::Ours {
            return Ok(seen.said);
        }
        telemetry.daemon(&daemon.name, daemon.required, DaemonState::Live);
        one_ends(processes).await.map_err(|e| VerbError::on_path("watch", &daemon.program, &e))?;
    }
}

/// Waits until one of the descriptors becomes readable. A thread waits, and not the runtime, which
/// has no sound way to take a descriptor of this kind.
async fn one_ends(processes: Vec<OwnedFd>) -> io::Result<()> {
    // Where this is no longer waited for, the writer is dropped, and the thread ends.
    let (given_up, _waiting) = io::pipe()?;
    let (ended, end) = oneshot::channel();
    let wait = move || {
        let fds = processes.iter().map(AsFd::as_fd).chain([given_up.as_fd()]);
        let mut all: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let result = loop {
            match poll(&mut all, None) {
                Err(rustix::io::Errno::INTR) => {}
                result => break result.map(drop),
            }
        };
        let _ = ended.send(result);
    };
    thread::Builder::new().name("daemon-watch".to_owned()).stack_size(STACK).spawn(wait)?;
    end.await.map_err(io::Error::other)?.map_err(io::Error::from)
}

#[cfg(test)]
mod tests;
