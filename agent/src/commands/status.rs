//! `longshore status`: for people, scripts, and probes.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::config::{self, BoundedDuration, Config, Fragment};
use crate::lifecycle::probe::{Asked, Question, probe};
use crate::lifecycle::signals;
use longshore_core::environment::Env;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};

use super::{print, print_answer, verdict_of};

/// Format of the JSON.
const FORMAT: u32 = 1;

/// Time between two questions of a wait.
const AGAIN: Duration = Duration::from_secs(1);

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Print in one line whether the driver is ready; exit code 30 where it is not
    #[arg(long, conflicts_with_all = ["json", "alive"])]
    ready: bool,
    /// Wait until the driver is ready, for this long at most, also for an agent that does not run yet
    #[arg(long, value_name = "SPAN", requires = "ready")]
    wait: Option<BoundedDuration>,
    /// Print in one line whether the agent is running and not stuck; exit code 30 where it is not
    #[arg(long, conflicts_with = "json")]
    alive: bool,
}

impl Status {
    /// True for the question of a probe.
    pub(super) fn is_probe(&self) -> bool {
        self.question().is_some()
    }

    fn question(&self) -> Option<Question> {
        match self {
            Self { ready: true, .. } => Some(Question::Ready),
            Self { alive: true, .. } => Some(Question::Alive),
            _ => None,
        }
    }
}

/// Answers a probe that waits for nothing; None for any other `asked`. It begins no runtime, and reads no settings but the
/// directories: such a process is started every few seconds, and must not fail where a running agent does not.
pub(super) fn at_once(
    flags: &Fragment,
    env: Env<'_>,
    asked: &Status,
) -> Option<Result<ExitCode, Failure>> {
    let question = asked.question().filter(|_| asked.wait.is_none())?;
    // It dies by a signal as usual.
    signals::release();
    let paths = config::probed(flags.clone(), env, &config::usual_file());
    Some(paths.and_then(|paths| reported(probe(&paths, Asked::Agent, question))))
}

pub(super) fn reported((yes, why): (bool, String)) -> Result<ExitCode, Failure> {
    print(&format!("{why}\n"))?;
    Ok(if yes { ExitCode::Done } else { ExitCode::NotReady })
}

pub(super) async fn status(config: &Config, asked: Status) -> Result<ExitCode, Failure> {
    let Some(question) = asked.question() else { return report(config, asked.json) };
    let until = Instant::now() + asked.wait.map_or(Duration::ZERO, BoundedDuration::duration);
    loop {
        let paths = config.paths.clone();
        let asked =
            tokio::task::spawn_blocking(move || probe(&paths, Asked::Agent, question)).await;
        let (yes, why) = asked.or_fail(FailureKind::Bug, || "asking the agent")?;
        if yes || Instant::now() >= until {
            return reported((yes, why));
        }
        sleep(AGAIN).await;
    }
}

fn report(config: &Config, json: bool) -> Result<ExitCode, Failure> {
    let (report, record) = crate::status::status(config)?;
    if json {
        let (verdict, code) = verdict_of(record.as_ref().err(), report.is_ready());
        print_answer(FORMAT, verdict, code, &report)?;
    } else {
        print(&report.render())?;
    }
    record.map(|()| ExitCode::Done)
}
