//! Starting of a driver's daemons.

mod rules;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{
    Announces, ApplyResult, Bounds, Deviation, EntryState, Intent, Next, Progress, Properties,
    Recheck, StepKind, Tools, UndoResult, Watch, exposing,
};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_host::Host;
use longshore_host::daemon::{Answers, Daemon};

pub(super) use rules::shown_dirs;

/// Start a daemon of the driver; undone by ending it with all its child processes, and removing its
/// private files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("start {daemon}")]
pub struct StartDaemon {
    /// The daemon.
    pub daemon: Daemon,
}

/// The daemon did not run; every process that it becomes has this mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoDaemon {
    /// Value of [`longshore_host::daemon::MARK_VARIABLE`] in their environment.
    pub mark: String,
}

impl StepKind for StartDaemon {
    type Before = NoDaemon;
    const WAS: &'static str = "no-daemon";

    fn subject(&self) -> String {
        self.daemon.name.clone()
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            // The remains of a daemon are found by its entry's mark.
            resumed: true,
            // A driver is ready without a daemon that it can do without.
            verified: self.daemon.required,
            optional: None,
            recheck: Recheck::Never,
            carries_daemons: false,
            next: Next::Wanted,
            content: None,
            watch: Watch::Nothing,
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    /// Finds no need of a start if another program's daemon serves already.
    fn observe(&self, host: &dyn Host) -> Result<Option<NoDaemon>, Failure> {
        let daemon = &self.daemon;
        let mark = longshore_host::daemon::new_mark()
            .or_fail(FailureKind::Preflight, || "drawing a random mark")?;
        let seen = host.daemon(daemon, &mark).map_err(exposing)?;
        if let Answers::Other(pid) = seen.answers {
            tracing::warn!(
                "{daemon}: pid {pid} answers on {} and is not ours: using that one",
                daemon.socket.display()
            );
            return Ok(None);
        }
        Ok(Some(NoDaemon { mark }))
    }

    /// Starts the daemon. An optional one is retried later.
    fn apply(&self, before: &NoDaemon, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let daemon = &self.daemon;
        let Err(error) = tools.daemons.start(daemon, &before.mark, tools.cancel) else {
            return Ok(intent.done());
        };
        if !daemon.required {
            tracing::warn!("going on without {daemon}, retrying it later: {error}");
            return Ok(intent.done());
        }
        let remedy = format!(
            "its log is above, and its messages may be in the host's syslog; without {daemon} this \
             host's GPUs are not usable, or the configuration asks for it"
        );
        Err(Failure::new(FailureKind::Expose, format!("starting {daemon}"))
            .with_source(error)
            .remedy(remedy))
    }

    fn is_there(
        &self,
        before: &NoDaemon,
        _: &Progress<'_>,
        host: &dyn Host,
    ) -> Result<bool, Failure> {
        let seen = host.daemon(&self.daemon, &before.mark).map_err(exposing)?;
        Ok(seen.answers == Answers::Ours)
    }

    fn undo(&self, before: &NoDaemon, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        tools.daemons.end(&self.daemon, &before.mark)?;
        for file in self.daemon.private_files() {
            match tools.host.remove_file(file) {
                Err(e) if e.errno == Errno::ENOENT => {}
                removed => removed?,
            }
        }
        Ok(EntryState::Undone)
    }

    fn seen(&self, _: &NoDaemon) -> Deviation {
        Deviation::gone(format!("{self}: its effect is gone"))
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        let daemon = &self.daemon;
        let private = &bounds.daemons;
        let of_one =
            bounds.driver_roots.iter().any(|root| rules::is_of_table(daemon, root, private));
        if of_one { Ok(()) } else { Err(format!("no daemon is started as {daemon} is")) }
    }

    fn check_before(&self, before: &NoDaemon, _: &Bounds) -> Result<(), String> {
        rules::mark(&before.mark)
    }
}
