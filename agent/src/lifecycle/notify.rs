//! Notifications of a service manager, sd_notify(3): a unit of type `notify` is started once the driver is ready.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::telemetry::{Live, Telemetry};

/// Name of the variable with the manager's socket. podman passes it on with `--sdnotify=container`.
const SOCKET: &str = "NOTIFY_SOCKET";

/// Time limit for the last message.
const LAST: Duration = Duration::from_secs(2);

/// Task that notifies the service manager.
#[derive(Debug)]
pub(super) struct Notifier(JoinHandle<()>);

impl Notifier {
    /// Begins to notify; None where no service manager asks for it.
    pub(super) fn begin(telemetry: &Telemetry) -> Option<Self> {
        std::env::var_os(SOCKET)?;
        let telemetry = telemetry.clone();
        Some(Self(tokio::spawn(async move { follow(&telemetry).await })))
    }

    /// Tells that the agent ends; a manager that does not take it is not waited for.
    pub(super) async fn end(self) {
        self.0.abort();
        if timeout(LAST, send(vec![Message::Stopping])).await.is_err() {
            tracing::warn!("notifying the service manager ({SOCKET}): no answer within {LAST:?}");
        }
    }
}

/// Message to the service manager.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    Ready,
    Stopping,
    Status(String),
}

/// Returns the messages about a state, of which the manager has `known`.
fn messages(live: &Live, known: &mut Known) -> Vec<Message> {
    let mut messages = Vec::new();
    if live.ready && !known.ready {
        known.ready = true;
        messages.push(Message::Ready);
    }
    let status = status(live);
    if known.status.as_ref() != Some(&status) {
        known.status = Some(status.clone());
        messages.push(Message::Status(status));
    }
    messages
}

/// State that the manager was told. A unit stays started where its driver is no longer ready.
#[derive(Debug, Default)]
struct Known {
    ready: bool,
    status: Option<String>,
}

/// Returns one line for `systemctl status`.
fn status(live: &Live) -> String {
    let phase = live.phase.map_or_else(|| "starting".to_owned(), |phase| phase.to_string());
    match &live.driver {
        Some(driver) => format!("{phase}: driver {}", driver.version),
        None => phase,
    }
}

async fn follow(telemetry: &Telemetry) {
    let mut changes = telemetry.changes();
    let mut known = Known::default();
    loop {
        changes.borrow_and_update();
        let messages = messages(&telemetry.live(), &mut known);
        if !messages.is_empty() {
            send(messages).await;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Sends messages on a thread that may block. A manager that does not take them is a warning: the agent does its work
/// without one.
async fn send(messages: Vec<Message>) {
    let sent = tokio::task::spawn_blocking(move || {
        let states: Vec<NotifyState<'_>> = messages.iter().map(Message::state).collect();
        sd_notify::notify(&states)
    });
    let sent: Result<io::Result<()>, _> = sent.await;
    match sent {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("notifying the service manager ({SOCKET}): {error}"),
        Err(error) => tracing::warn!("notifying the service manager ({SOCKET}): {error}"),
    }
}

impl Message {
    fn state(&self) -> NotifyState<'_> {
        match self {
            Self::Ready => NotifyState::Ready,
            Self::Stopping => NotifyState::Stopping,
            Self::Status(status) => NotifyState::Status(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::phase::Phase;

    #[test]
    fn a_unit_is_started_once_and_its_status_follows() {
        let telemetry = Telemetry::default();
        let mut known = Known::default();
        let mut reported = |phase| {
            telemetry.enter(phase);
            messages(&telemetry.live(), &mut known)
        };
        let status = |text: &str| Message::Status(text.to_owned());
        assert_eq!(reported(Phase::Probing), [status("probing")]);
        assert_eq!(reported(Phase::Idle), [Message::Ready, status("idle")]);
        assert_eq!(reported(Phase::Planning), [status("planning")]);
        assert_eq!(reported(Phase::Ready), [status("ready")]);
        assert_eq!(reported(Phase::Ready), []);
    }
}
