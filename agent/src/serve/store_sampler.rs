//! Measurement of the store, beside the requests: it reads every directory of the store, and a disk may not answer.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longshore_core::disk::Disk;
use longshore_core::small_stacks;
use longshore_core::store::Store;
use nix::sys::statvfs::statvfs;

use crate::telemetry::metrics::StoreSample;
use crate::upkeep::inventory::Inventory;

/// Interval of two measurements, which requests begin.
const EVERY: Duration = Duration::from_secs(300);
/// Age from which a measurement is not served: the next one does not end.
const OUTDATED: Duration = Duration::from_secs(900);

/// Sampler of one store.
#[derive(Debug)]
pub(super) struct StoreSampler {
    store: Store,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Begin of the last measurement.
    begun: Option<Instant>,
    is_running: bool,
    last: Option<(Instant, StoreSample)>,
}

impl StoreSampler {
    pub(super) fn new(store: &Path) -> Self {
        // It is only read: no deadline for writing counts.
        Self { store: Store::at(store, Disk::within(EVERY)), state: Arc::default() }
    }

    /// Returns the last measurement, and begins another where it is old. Does not block.
    pub(super) fn last(&self) -> Option<StoreSample> {
        let mut state = locked(&self.state);
        let is_due = state.begun.is_none_or(|at| at.elapsed() >= EVERY);
        if is_due && !state.is_running {
            state.begun = Some(Instant::now());
            state.is_running = self.begin();
        }
        state.last.filter(|(at, _)| at.elapsed() < OUTDATED).map(|(_, sample)| sample)
    }

    /// Measures on a thread of its own; false if none can be started.
    fn begin(&self) -> bool {
        let (store, shared) = (self.store.clone(), Arc::clone(&self.state));
        let measure = move || {
            let sample = measure(&store);
            let mut state = locked(&shared);
            state.last = sample.map(|sample| (Instant::now(), sample));
            state.is_running = false;
        };
        match small_stacks::named("store-size").spawn(measure) {
            Ok(_detached) => true,
            Err(error) => {
                tracing::debug!("the store is not measured: {error}");
                false
            }
        }
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A measurement that panicked leaves the numbers of the one before.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns None for a store that is absent or cannot be read.
fn measure(store: &Store) -> Option<StoreSample> {
    let size = statvfs(store.root()).ok()?;
    let free = size.blocks_available().saturating_mul(size.fragment_size());
    let inventory = Inventory::read(store);
    let inventory = inventory.inspect_err(|failure| tracing::debug!("{}", failure.one_line()));
    Some(StoreSample { bytes: inventory.ok()?.size(), free })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(sampler: &StoreSampler) -> Option<StoreSample> {
        let since = Instant::now();
        while locked(&sampler.state).begun.is_none() || locked(&sampler.state).is_running {
            let _ = sampler.last();
            assert!(since.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::yield_now();
        }
        sampler.last()
    }

    #[test]
    fn a_store_is_measured_beside_the_first_request() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(dir.path(), Disk::default()).expect("store");
        store.put(&[7; 100_000]).expect("put");
        let sample = measured(&StoreSampler::new(dir.path())).expect("a sample");
        assert!((100_000..1_000_000).contains(&sample.bytes) && sample.free > 0, "{sample:?}");
    }

    #[test]
    fn an_absent_store_has_no_size() {
        assert_eq!(measured(&StoreSampler::new(Path::new("/nonexistent"))), None);
    }

    #[test]
    fn a_measurement_that_does_not_end_is_not_begun_again_and_the_last_one_is_outdated() {
        let sampler = StoreSampler::new(Path::new("/nonexistent"));
        let ago = |span: Duration| Instant::now().checked_sub(span).expect("a time before");
        let sample = StoreSample { bytes: 1, free: 2 };
        for (age, served) in [(EVERY, Some(sample)), (OUTDATED, None)] {
            let state =
                State { begun: Some(ago(age)), is_running: true, last: Some((ago(age), sample)) };
            *locked(&sampler.state) = state;
            assert_eq!(sampler.last(), served);
            assert!(locked(&sampler.state).begun.is_some_and(|at| at.elapsed() >= age));
        }
    }
}
