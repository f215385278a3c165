//! Restarts daemons that end while the driver is ready.

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
use crate::telemetry::DaemonState;
use longshore_core::cancel::CancelFlag;
use longshore_core::privileges;
use longshore_host::daemon::process::STACK;
use longshore_host::daemon::{Answers, Daemon};
use longshore_host::verbs::bring_up::bring_up;
use longshore_host::{Host, VerbError};

/// A daemon that is kept running, and its mark.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The daemon.
    pub daemon: Daemon,
    /// Its mark.
    pub mark: String,
}

/// Receiver of each daemon's state.
type Report = Arc<dyn Fn(&Daemon, DaemonState) + Send + Sync>;

/// Watches daemons and restarts those that end. It wakes up for nothing else.
#[derive(Debug)]
pub struct Keeper {
    stop: CancelFlag,
    tasks: JoinSet<()>,
}

impl Keeper {
    /// Watches `kept` from now on, and reports each state that they enter.
    pub fn begin(
        host: &Arc<dyn Host>,
        kept: Vec<Kept>,
        report: impl Fn(&Daemon, DaemonState) + Send + Sync + 'static,
    ) -> Self {
        let stop = CancelFlag::default();
        let report: Report = Arc::new(report);
        let mut tasks = JoinSet::new();
        for kept in kept {
            let (host, stop, report) = (Arc::clone(host), stop.clone(), Arc::clone(&report));
            tasks.spawn(async move { keep(&host, &kept, &stop, &report).await });
        }
        Self { stop, tasks }
    }

    /// Stops restarting daemons: when this returns no start is in progress. The daemons themselves
    /// keep running; undoing the step that started them ends them.
    pub async fn end(mut self) {
        self.stop.set();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn keep(host: &Arc<dyn Host>, kept: &Kept, stop: &CancelFlag, report: &Report) {
    let Kept { daemon, mark } = kept;
    let mut backoff = Backoff::default();
    // Time since which the daemon has been serving.
    let mut since = Some(Instant::now());
    let mut stopped = pin!(stop.wait());
    loop {
        let ended = tokio::select! {
            biased;
            () = &mut stopped => return,
            ended = until_ended(host, kept, report) => ended,
        };
        report(daemon, DaemonState::BackingOff);
        let wait = backoff.after(since.take().map(|since| since.elapsed()));
        let why = match ended {
            Ok(None) => "is not running".to_owned(),
            Ok(Some(output)) => format!("is not running (last output: {output})"),
            Err(error) => format!("could not be checked ({error})"),
        };
        tracing::warn!("{daemon} {why}: restarting it in {:.1} s", wait.as_secs_f64());
        tokio::select! {
            biased;
            () = &mut stopped => return,
            () = tokio::time::sleep(wait) => {}
        }
        report(daemon, DaemonState::Starting);
        let (host, daemon, mark, stop) =
            (Arc::clone(host), daemon.clone(), mark.clone(), stop.clone());
        let start = move || bring_up(&*host, &daemon, &mark, &stop);
        match privileges::run_privileged(start).await {
            Ok(Ok(())) => {
                since = Some(Instant::now());
                tracing::info!("{} was restarted", kept.daemon);
            }
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(error) => tracing::warn!("{}: restarting it failed: {error}", kept.daemon),
        }
    }
}

/// Waits until no process with the mark answers for the daemon; returns its last output.
async fn until_ended(
    host: &Arc<dyn Host>,
    kept: &Kept,
    report: &Report,
) -> Result<Option<String>, VerbError> {
    let daemon = &kept.daemon;
    loop {
        let (at, of) = (Arc::clone(host), kept.clone());
        let look = move || -> Result<_, VerbError> {
            // Processes first, then the socket: a process that ends in between is noticed at once.
            Ok((at.daemon_processes(&of.mark)?, at.daemon(&of.daemon, &of.mark)?))
        };
        // On another thread: this waits for other processes, and the current thread may be the one
        // that handles signals.
        let looked = tokio::task::spawn_blocking(look).await;
        let (processes, seen) =
            looked.map_err(|_| VerbError::new("look for", daemon.to_string(), Errno::EIO))??;
        if seen.answers != Answers::Ours {
            return Ok(seen.last_output);
        }
        report(daemon, DaemonState::Live);
        one_ends(processes).await.map_err(|e| VerbError::on_path("watch", &daemon.program, &e))?;
    }
}

/// Waits until one of the descriptors becomes readable. A thread waits, because the runtime has no
/// sound way to take a descriptor of this kind.
async fn one_ends(processes: Vec<OwnedFd>) -> io::Result<()> {
    // When the future is dropped, so is the writer, and the thread ends.
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
