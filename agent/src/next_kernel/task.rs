//! Task that looks for the kernel of the next boot, and prepares it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{Kernels, NextRelease, Permission, TellFailure};
use crate::config::{Config, NextKernelMode};
use crate::journal::phase::Phase;
use crate::telemetry::{NextKernel, Telemetry, Unprepared};
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::Failure;

/// Waits of the task.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Time between two looks at the host.
    pub look: Duration,
    /// Time for which a kernel is installed before it is prepared: its packages are unpacked and configured
    /// one after the other.
    pub settled: Duration,
    /// Time between two looks into the store.
    pub store: Duration,
    /// Wait after the first failure, and the longest.
    pub retry: (Duration, Duration),
}

impl Default for Times {
    fn default() -> Self {
        Self {
            look: Duration::from_secs(2 * 60),
            settled: Duration::from_secs(30),
            store: Duration::from_secs(60 * 60),
            retry: (Duration::from_secs(15 * 60), Duration::from_secs(6 * 60 * 60)),
        }
    }
}

/// Result of an attempt to prepare a kernel.
enum Attempt {
    Done(Result<(), Unprepared>),
    /// The permission was withdrawn, or the agent ends.
    Interrupted,
}

/// Kernel of the next boot, as the task knows it.
struct Noticed {
    next: NextRelease,
    /// Configuration that it was looked at with.
    config: Arc<Config>,
    since: Instant,
    is_ready: bool,
    /// Time of the last look into the store.
    checked: Instant,
    failure: Option<Unprepared>,
    is_reported: bool,
    /// Wait after the next failure, and the end of the present one.
    wait: Duration,
    retry_at: Instant,
}

impl Noticed {
    fn forget_failures(&mut self, times: Times) {
        (self.failure, self.is_reported) = (None, false);
        (self.wait, self.retry_at) = (times.retry.0, self.checked);
    }
}

/// The task.
pub(super) struct Task<K> {
    kernels: K,
    permitted: watch::Receiver<Option<Arc<Config>>>,
    telemetry: Telemetry,
    tell: TellFailure,
    times: Times,
    /// Kernel of the last look that succeeded.
    noticed: Option<Noticed>,
    /// The last look failed, which is logged once; nothing is reported or prepared until one succeeds.
    is_unread: bool,
}

impl<K: Kernels> Task<K> {
    pub(super) fn new(
        kernels: K,
        permission: &Permission,
        telemetry: &Telemetry,
        tell: TellFailure,
        times: Times,
    ) -> Self {
        Self {
            kernels,
            permitted: permission.subscribe(),
            telemetry: telemetry.clone(),
            tell,
            times,
            noticed: None,
            is_unread: false,
        }
    }

    /// Looks and prepares until `stop` is set, or there is no agent run any more.
    pub(super) async fn run(mut self, stop: CancelFlag) {
        loop {
            let config = tokio::select! {
                biased;
                () = stop.wait() => return,
                config = self.permission() => config,
            };
            let Some(config) = config else { return };
            tokio::select! {
                biased;
                () = stop.wait() => return,
                () = self.look(&config) => {}
            }
            if self.is_due(&config) {
                self.prepare(&config, &stop).await;
            }
            let wake = self.next_look(&config);
            tokio::select! {
                biased;
                () = stop.wait() => return,
                () = self.withdrawn(&config) => {}
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Waits until a preparation is permitted; None where it cannot be any more.
    async fn permission(&self) -> Option<Arc<Config>> {
        let (mut permitted, mut changes) = (self.permitted.clone(), self.telemetry.changes());
        loop {
            let config = permitted.borrow_and_update().clone();
            if config.is_some() && self.telemetry.phase() == Some(Phase::Ready) {
                return config;
            }
            tokio::select! {
                changed = permitted.changed() => changed.ok()?,
                changed = changes.changed() => changed.ok()?,
            }
        }
    }

    /// Waits until the permission with this configuration is withdrawn. A repair leaves the phase.
    fn withdrawn(&self, of: &Arc<Config>) -> impl Future<Output = ()> + Send + use<K> {
        let (mut permitted, mut changes) = (self.permitted.clone(), self.telemetry.changes());
        let (telemetry, of) = (self.telemetry.clone(), Arc::clone(of));
        async move {
            loop {
                let given = permitted.borrow_and_update().clone();
                let is_given = given.is_some_and(|given| Arc::ptr_eq(&given, &of));
                if !is_given || telemetry.phase() != Some(Phase::Ready) {
                    return;
                }
                let changed = tokio::select! {
                    changed = permitted.changed() => changed,
                    changed = changes.changed() => changed,
                };
                if changed.is_err() {
                    return;
                }
            }
        }
    }

    /// Looks at the host, and from time to time into the store.
    async fn look(&mut self, config: &Arc<Config>) {
        let next = match config.next_kernel() {
            NextKernelMode::Off => Ok(None),
            NextKernelMode::Prepare | NextKernelMode::Report => self.kernels.next(config).await,
        };
        let looked = match next {
            Ok(Some(next)) => self.notice(next, config).await,
            Ok(None) => {
                self.noticed = None;
                Ok(())
            }
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &looked
            && !self.is_unread
        {
            tracing::warn!("the next kernel is not known: {}", failure.one_line());
        }
        self.is_unread = looked.is_err();
        self.report(false);
    }

    async fn notice(&mut self, next: NextRelease, config: &Arc<Config>) -> Result<(), Failure> {
        // Every permission has a copy of the configuration; the waits after failures begin again with a changed
        // one alone.
        let is_same = |noticed: &Noticed| noticed.next == next && noticed.config == *config;
        if let Some(noticed) = self.noticed.as_ref().filter(|noticed| is_same(noticed))
            && Arc::ptr_eq(&noticed.config, config)
            && noticed.checked.elapsed() < self.times.store
        {
            return Ok(());
        }
        let is_ready = self.kernels.has_modules(config, &next.release).await?;
        let now = Instant::now();
        match self.noticed.as_mut().filter(|noticed| is_same(noticed)) {
            Some(noticed) => {
                noticed.config = Arc::clone(config);
                (noticed.is_ready, noticed.checked) = (is_ready, now);
                // Something else prepared it, such as the hook of the kernel's package.
                if is_ready {
                    noticed.forget_failures(self.times);
                }
            }
            None => {
                if !next.is_running {
                    tell_noticed(&next, is_ready);
                }
                self.noticed = Some(Noticed {
                    next,
                    config: Arc::clone(config),
                    since: now,
                    is_ready,
                    checked: now,
                    failure: None,
                    is_reported: false,
                    wait: self.times.retry.0,
                    retry_at: now,
                });
            }
        }
        Ok(())
    }

    /// Returns the kernel that the last look found.
    fn known(&self) -> Option<&Noticed> {
        self.noticed.as_ref().filter(|_| !self.is_unread)
    }

    /// Returns the kernel that is to be prepared, and the time from which on.
    fn wanted(&self, config: &Config) -> Option<(&Noticed, Instant)> {
        let noticed = self.known()?;
        let is_wanted = config.next_kernel() == NextKernelMode::Prepare
            && !noticed.next.is_running
            && !noticed.is_ready;
        is_wanted.then(|| (noticed, noticed.retry_at.max(noticed.since + self.times.settled)))
    }

    fn is_due(&self, config: &Config) -> bool {
        self.wanted(config).is_some_and(|(_, from)| from <= Instant::now())
    }

    fn next_look(&self, config: &Config) -> Instant {
        let look = Instant::now() + self.times.look;
        self.wanted(config).map_or(look, |(_, from)| look.min(from))
    }

    async fn prepare(&mut self, config: &Arc<Config>, stop: &CancelFlag) {
        let Some(noticed) = &self.noticed else { return };
        let release = noticed.next.release.clone();
        self.report(true);
        tracing::info!(kernel = release, "fetching what the next kernel {release} needs");
        let result = match self.attempt(config, &release, stop).await {
            Attempt::Interrupted => {
                tracing::info!(
                    kernel = release,
                    "the preparation of kernel {release} was ended, because the agent ends or changes the \
                     driver; it is done once the driver is ready again"
                );
                return self.report(false);
            }
            Attempt::Done(Ok(())) => self.confirm(config, &release).await,
            Attempt::Done(Err(failure)) => Err(failure),
        };
        self.end_attempt(result);
        self.report(false);
    }

    async fn attempt(&self, config: &Arc<Config>, release: &str, stop: &CancelFlag) -> Attempt {
        let ends = CancelFlag::default();
        let mut work = pin!(self.kernels.prepare(config, release, &ends));
        tokio::select! {
            biased;
            () = stop.wait() => {}
            () = self.withdrawn(config) => {}
            done = &mut work => return Attempt::Done(done),
        }
        ends.set();
        // Its process has to end; its result is of no interest.
        let _ = work.await;
        Attempt::Interrupted
    }

    /// Looks for the result in the store.
    async fn confirm(&self, config: &Config, release: &str) -> Result<(), Unprepared> {
        let lacks = match self.kernels.has_modules(config, release).await {
            Ok(true) => return Ok(()),
            Ok(false) => "the store lacks something for it all the same".to_owned(),
            Err(failure) => failure.one_line(),
        };
        Err(Unprepared { cause: format!("everything was fetched, but {lacks}"), remedy: None })
    }

    fn end_attempt(&mut self, result: Result<(), Unprepared>) {
        let Some(noticed) = &mut self.noticed else { return };
        let (release, now) = (&noticed.next.release, Instant::now());
        noticed.checked = now;
        let Err(failure) = result else {
            tracing::info!(
                kernel = release,
                "everything for the next kernel {release} is in the store"
            );
            noticed.is_ready = true;
            return noticed.forget_failures(self.times);
        };
        let Unprepared { cause, remedy } = &failure;
        let remedy = remedy.as_ref().map(|text| format!("; remedy: {text}")).unwrap_or_default();
        tracing::warn!(
            kernel = release,
            "the next kernel {release} could not be prepared, which is tried again in {} min: \
             {cause}{remedy}",
            noticed.wait.as_secs() / 60
        );
        if !noticed.is_reported {
            (self.tell)(release, &failure);
        }
        (noticed.is_reported, noticed.failure) = (true, Some(failure));
        noticed.retry_at = now + noticed.wait;
        noticed.wait = (noticed.wait * 2).min(self.times.retry.1);
    }

    fn report(&self, preparing: bool) {
        let state = |noticed: &Noticed| NextKernel {
            release: noticed.next.release.clone(),
            running: noticed.next.is_running,
            ready: noticed.is_ready,
            preparing,
            failure: noticed.failure.clone(),
        };
        self.telemetry.next_kernel(self.known().map(state));
    }
}

fn tell_noticed(next: &NextRelease, is_ready: bool) {
    let release = &next.release;
    let modules = if is_ready { "has its modules" } else { "lacks its modules" };
    tracing::info!(
        kernel = release,
        "kernel {release} is installed and not booted; the store {modules}"
    );
}
