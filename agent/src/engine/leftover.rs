//! Taking off what NVIDIA's driver container left when it died.
//!
//! The plan has proved whose it is and that nobody is alive; between that and the act somebody may
//! have put something else in its place, so that only the very thing is taken off.

use nix::errno::Errno;

use super::Engine;
use super::act::exposing;
use crate::failure::{ExitCode, Failure};
use crate::host::VerbError;
use crate::step::Leftover;

impl Engine<'_> {
    /// Whether it is (still) there.
    pub(super) fn has_leftover(&self, what: &Leftover) -> Result<bool, VerbError> {
        match what {
            Leftover::Mount { target, device, inode } => {
                let there = self.host.dir(target)? == Some((*device, *inode));
                Ok(there && self.host.mounts_on(target)? > 0)
            }
            Leftover::File { path } => self.host.has_file(path),
            Leftover::Value { path, value } => {
                Ok(self.host.parameter(path)?.as_ref() == Some(value))
            }
        }
    }

    /// Takes it off. A root that was mounted more than once comes off as often.
    pub(super) fn remove_leftover(&self, what: &Leftover) -> Result<(), Failure> {
        match what {
            Leftover::Mount { target, .. } => {
                // Each detach takes one off; more than there are cannot be.
                for _ in 0..self.host.mounts_on(target).map_err(exposing)? {
                    if self.has_leftover(what).map_err(exposing)? {
                        self.host.detach(target).map_err(exposing)?;
                    }
                }
            }
            Leftover::File { path } => match self.host.remove_file(path) {
                Err(e) if e.errno == Errno::ENOENT => {}
                result => result.map_err(exposing)?,
            },
            Leftover::Value { path, .. } => {
                self.host.write_parameter(path, "").map_err(exposing)?;
            }
        }
        if self.has_leftover(what).map_err(exposing)? {
            let cause = format!("{what}: it was taken off, and is still there");
            return Err(Failure::new(ExitCode::Expose, cause)
                .remedy("see whether NVIDIA's driver container runs on this host, and stop it"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    use rstest::rstest;

    use super::super::tests::{FIRMWARE, engine, gpu_host, install};
    use super::super::{CancelFlag, Stopped};
    use crate::host::Host;
    use crate::host::fake::{FakeHost, Fault};
    use crate::host::verbs::Node;
    use crate::journal::{EntryState, Journal};
    use crate::step::{Leftover, Step};

    const ROOT: &str = "/run/nvidia/driver";
    const PID: &str = "/run/nvidia/nvidia-driver.pid";

    fn clean() -> FakeHost {
        let host = gpu_host();
        host.change(|state| {
            for dir in ["/run/nvidia", ROOT, "/container"] {
                state.dirs.insert(dir.into());
            }
        });
        host
    }

    /// A host on which a container died that had mounted its root twice.
    fn littered() -> (FakeHost, Vec<Step>) {
        let host = clean();
        host.change(|state| {
            state.mounts = vec![("/container".into(), ROOT.into()); 2];
            state.files.insert(PID.into());
            state.parameters.insert(FIRMWARE.into(), "/fw".into());
        });
        let (device, inode) = host.dir(Path::new(ROOT)).unwrap().unwrap();
        let leftovers = [
            Leftover::Mount { target: ROOT.into(), device, inode },
            Leftover::Value { path: FIRMWARE.into(), value: "/fw".into() },
            Leftover::File { path: PID.into() },
        ];
        let mut steps = leftovers.map(|what| Step::RemoveLeftover { what }).to_vec();
        steps.extend(install());
        (host, steps)
    }

    fn apply(host: &FakeHost, steps: &[Step], journal: &mut Journal) -> Result<(), Stopped> {
        engine(host).apply(steps, journal, &CancelFlag::default())
    }

    #[test]
    fn leftovers_go_for_good_and_what_is_ours_is_undone_to_a_host_without_them() {
        let (host, steps) = littered();
        let mut journal = Journal::in_memory();
        apply(&host, &steps, &mut journal).unwrap();
        assert_eq!(host.mounts_on(Path::new(ROOT)).unwrap(), 1, "ours alone");
        let kept = |e: &&crate::journal::Entry| matches!(e.state, EntryState::Kept(_));
        assert_eq!(journal.state().entries.iter().filter(kept).count(), 3);
        assert!(journal.live().all(|e| !matches!(e.step, Step::RemoveLeftover { .. })));
        engine(&host).undo(&mut journal).unwrap();
        assert_eq!(host.state(), clean().state());
    }

    #[rstest]
    fn whoever_dies_on_the_way_is_followed_by_one_who_goes_on(
        #[values(Fault::DieBefore, Fault::DieAfter)] dies: fn(usize) -> Fault,
    ) {
        let (host, steps) = littered();
        host.fails(None);
        apply(&host, &steps, &mut Journal::in_memory()).unwrap();
        for at in 0..host.changes() {
            let (host, steps) = littered();
            let mut journal = Journal::in_memory();
            host.fails(Some(dies(at)));
            let died = catch_unwind(AssertUnwindSafe(|| apply(&host, &steps, &mut journal)));
            assert!(died.is_err(), "change {at}");
            host.fails(None);
            apply(&host, &steps, &mut journal).unwrap();
            engine(&host).undo(&mut journal).unwrap();
            assert_eq!(host.state(), clean().state(), "died at change {at}");
        }
    }

    #[test]
    fn what_somebody_put_in_its_place_is_not_touched() {
        let (host, steps) = littered();
        host.change(|state| {
            state.dirs.insert("/other".into());
            state.mounts.push(("/other".into(), ROOT.into()));
            state.files.remove(Path::new(PID));
            state.nodes.insert("/dev/x".into(), Node { major: 1, minor: 3, mode: 0o666 });
        });
        apply(&host, &steps[..1], &mut Journal::in_memory()).unwrap();
        assert_eq!(host.mounts_on(Path::new(ROOT)).unwrap(), 3);
        apply(&host, &steps[2..3], &mut Journal::in_memory()).unwrap();
    }
}
