//! Property tests: after any failure, stop or death of the agent, the host ends as it was before.

use longshore_core::failure::ExitCode;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use proptest::prelude::*;

use super::{FIRMWARE, engine, gpu_host, install, load};
use crate::engine::*;
use crate::steps::{Bind, MakeDir, WriteParameter};
use longshore_host::fake::{FakeHost, Fault};
use longshore_host::values::{Node, Owner};

/// Generates things that other programs left on a host before longshore ran.
fn other_peoples_things() -> impl Strategy<Value = FakeHost> {
    let bools = prop::array::uniform6(any::<bool>());
    bools.prop_map(|[drm, ipmi, dir, mount, node, stale]| {
        let host = gpu_host();
        host.change(|state| {
            for (there, name) in [(drm, "drm"), (ipmi, "ipmi_msghandler"), (ipmi, "ipmi_devintf")] {
                if there {
                    state.loaded.insert(name.to_owned(), String::new());
                }
            }
            if dir {
                state.dirs.insert("/run/nvidia".into());
                state.parameters.insert(FIRMWARE.into(), "/theirs".to_owned());
            }
            if mount {
                state.mounts.push(("theirs".to_owned(), "/store/tree/dev".into()));
            }
            let mut node_at = |path: &str, major| {
                state.nodes.insert(
                    path.into(),
                    Node { major, minor: 0, mode: 0o600, owner: Owner::default() },
                );
            };
            if node {
                node_at("/dev/nvidia0", 195);
            }
            if stale {
                node_at("/dev/nvidia-uvm", 400);
            }
        });
        host
    })
}

/// Generates steps in an order that need not make sense: some then fail by themselves.
fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let mut pool = install();
    pool.push(load("ipmi_devintf"));
    pool.push(Step::MakeDir(MakeDir { path: "/dev/nvidia-caps".into() }));
    pool.push(Step::WriteParameter(WriteParameter {
        path: "/sys/absent".into(),
        value: "x".to_owned(),
    }));
    pool.push(Step::WriteParameter(WriteParameter { path: FIRMWARE.into(), value: String::new() }));
    pool.push(Step::Bind(Bind { source: "/store/tree".into(), target: "/run".into() }));
    let random = prop::collection::vec(prop::sample::select(pool), 0..14);
    prop_oneof![Just(install()), random]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    let errno = prop::sample::select(vec![Errno::EPERM, Errno::ENOSPC, Errno::EINVAL, Errno::EIO]);
    (0..40_usize, errno, 0..3).prop_map(|(n, errno, kind)| match kind {
        0 => Fault::Refuse(n, errno),
        1 => Fault::DieBefore(n),
        _ => Fault::DieAfter(n),
    })
}

/// Runs `act` until its end or the agent's death in it.
fn may_die<T>(act: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(act)).ok()
}

/// Acts as a second agent: undoes from the journal that the first one left.
fn takes_off(host: &FakeHost, journal: &mut Journal) {
    host.fails(None);
    engine(host).undo(journal).expect("nothing hinders the undo");
    assert_eq!(journal.live().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_failure_or_death_at_any_verb_is_undone(
        host in other_peoples_things(),
        steps in any_steps(),
        fault in any_fault(),
    ) {
        let before = host.state();
        let mut journal = Journal::in_memory();
        host.fails(Some(fault));
        let cancel = CancelFlag::default();
        let outcome = may_die(|| engine(&host).apply(&steps, &mut journal, &cancel));
        if matches!(&outcome, Some(Err(Stopped::Failed(f))) if f.code() != ExitCode::RolledBack) {
            prop_assert_eq!(&host.state(), &before, "a rollback that claims to be clean is");
        }
        takes_off(&host, &mut journal);
        prop_assert_eq!(host.state(), before);
    }

    #[test]
    fn a_death_in_the_undo_is_undone_by_the_next(
        host in other_peoples_things(),
        steps in any_steps(),
        fault in any_fault(),
    ) {
        let before = host.state();
        let mut journal = Journal::in_memory();
        let _ = engine(&host).apply(&steps, &mut journal, &CancelFlag::default());
        host.fails(Some(fault));
        let _ = may_die(|| engine(&host).undo(&mut journal));
        takes_off(&host, &mut journal);
        prop_assert_eq!(host.state(), before);
    }

    #[test]
    fn a_cancellation_after_any_look_is_clean(
        host in other_peoples_things(),
        steps in any_steps(),
        after in 0..30_usize,
    ) {
        let before = host.state();
        let cancel = CancelFlag::default();
        let flag = cancel.clone();
        host.on_look(move |_, look| {
            if look >= after {
                flag.set();
            }
        });
        let mut journal = Journal::in_memory();
        match engine(&host).apply(&steps, &mut journal, &cancel) {
            Ok(()) => takes_off(&host, &mut journal),
            Err(Stopped::Failed(f)) => prop_assert_ne!(f.code(), ExitCode::RolledBack, "{}", f),
            Err(Stopped::Cancelled) => {}
        }
        prop_assert_eq!(host.state(), before);
    }

    #[test]
    fn applying_after_a_death_ends_where_an_undisturbed_apply_does(
        host in other_peoples_things(),
        fault in any_fault(),
    ) {
        let before = host.state();
        let mut journal = Journal::in_memory();
        host.fails(Some(fault));
        let cancel = CancelFlag::default();
        let _ = may_die(|| engine(&host).apply(&install(), &mut journal, &cancel));
        host.fails(None);
        prop_assert!(engine(&host).apply(&install(), &mut journal, &cancel).is_ok());
        prop_assert!(host.state().loaded.contains_key("nvidia_modeset"));
        takes_off(&host, &mut journal);
        prop_assert_eq!(host.state(), before);
    }
}
