//! Kernels in memory: for tests, without any process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Kernels, NextRelease, TellFailure, Times};
use crate::config::Config;
use crate::telemetry::Unprepared;
use longshore_core::cancel::CancelFlag;
use longshore_core::failure::{Failure, FailureKind};

/// Waits of a look-out in tests.
pub(crate) const AT_ONCE: Times = Times {
    look: Duration::from_millis(1),
    settled: Duration::ZERO,
    store: Duration::ZERO,
    retry: (Duration::from_millis(1), Duration::from_millis(2)),
};

/// End of a preparation in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Well,
    /// It ends well, and the store lacks something all the same.
    Emptily,
    Badly,
    /// It ends only when it is stopped.
    Never,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) next: Option<NextRelease>,
    pub(crate) is_ready: bool,
    pub(crate) ends: Ends,
    /// Number of looks at the host.
    pub(crate) looks: usize,
    /// The preparations that were begun, and those that were stopped.
    pub(crate) begun: Vec<String>,
    pub(crate) stopped: usize,
    /// The failures that were told.
    pub(crate) reported: Vec<String>,
}

/// Kernels of a host in memory.
#[derive(Debug, Clone)]
pub(crate) struct InMemory(Arc<Mutex<State>>);

impl InMemory {
    /// Returns a host whose next kernel is this one, which the store has nothing for.
    pub(crate) fn new(next: Option<(&str, bool)>, ends: Ends) -> Self {
        let next = next
            .map(|(release, is_running)| NextRelease { release: release.to_owned(), is_running });
        let (begun, reported) = (Vec::new(), Vec::new());
        let state = State { next, is_ready: false, ends, looks: 0, begun, stopped: 0, reported };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns a receiver that keeps the failures in `reported`.
    pub(crate) fn tell(&self) -> TellFailure {
        let reported = self.clone();
        Box::new(move |release, failure| {
            reported.with(|state| state.reported.push(format!("{release}: {}", failure.cause)));
        })
    }

    /// Waits for a state.
    pub(crate) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        while !self.with(|state| wanted(state)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until what a look found now leads to was done: one that began earlier counts not.
    pub(crate) async fn looked(&self) {
        let before = self.with(|state| state.looks);
        self.until(|state| state.looks >= before + 3).await;
    }

    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().expect("lock"))
    }
}

impl Kernels for InMemory {
    async fn next(&self, _: &Config) -> Result<Option<NextRelease>, Failure> {
        self.with(|state| {
            state.looks += 1;
            match &state.next {
                Some(next) if next.release.is_empty() => {
                    Err(Failure::new(FailureKind::Preflight, "the host does not answer"))
                }
                next => Ok(next.clone()),
            }
        })
    }

    async fn has_modules(&self, _: &Config, _: &str) -> Result<bool, Failure> {
        Ok(self.with(|state| state.is_ready))
    }

    async fn prepare(
        &self,
        _: &Config,
        release: &str,
        stop: &CancelFlag,
    ) -> Result<(), Unprepared> {
        let ends = self.with(|state| {
            state.begun.push(release.to_owned());
            state.ends
        });
        match ends {
            Ends::Well => {
                self.with(|state| state.is_ready = true);
                Ok(())
            }
            Ends::Emptily => Ok(()),
            Ends::Badly => Err(Unprepared { cause: "no headers".to_owned(), remedy: None }),
            Ends::Never => {
                stop.wait().await;
                self.with(|state| state.stopped += 1);
                Err(Unprepared { cause: "it was ended".to_owned(), remedy: None })
            }
        }
    }
}
