//! Verdicts about the runtimes of this host.

use std::collections::BTreeMap;
use std::path::Path;

use super::host_files::HostFiles;
use super::{HostRuntimes, Target, target};
use crate::runtimes::asking::ProgramAnswer;
use longshore_runtimes::containerd::{self, Dump, Question};
use longshore_runtimes::systemd::Service;
use longshore_runtimes::{Assessment, Files, Invocation, Runtime, State, Version, docker, readers};

/// First podman whose help has the effective list of directories.
const HELPS: Version = Version::new(5, 5, 0);
/// File of the variables of every login (pam_env(8)).
const LOGINS: &str = "/etc/environment";

impl HostRuntimes {
    /// Assesses a runtime: by the command line of its running process, and where the unit has another, also
    /// by that, with which the next start reads an edit. It is on where both are.
    pub fn assess(&self, target: &Target) -> Assessment {
        let (version, unasked) = self.version(target);
        let mut made = match (&target.problem, &target.invocation) {
            (Some(why), None) if target.named.is_none() => {
                let remedy = "correct the unit, then `systemctl daemon-reload`";
                refused(target.runtime(), version, why.clone(), remedy)
            }
            _ => {
                let file = target.running_file.as_ref().unwrap_or(&target.file);
                let running = Target { file: file.clone(), ..target.clone() };
                self.with(&running, target.invocation.as_ref(), version, unasked.as_deref())
            }
        };
        if let Some(next) = &target.next {
            made.notes.push(format!(
                "the running process has other flags than {next}, which counts from the next start on"
            ));
            let after = self.with(target, Some(next), version, unasked.as_deref()).state;
            let now = std::mem::replace(&mut made.state, after);
            match (now.is_well(), made.state.is_well()) {
                (true, false) => made.notes.push(format!("on until then: {}", now.reason())),
                (true, true) => made.state = now,
                (false, true) => made.state = restarted(target, &now, &made.state),
                (false, false) => {}
            }
        }
        made.notes.extend(unasked);
        made.notes.extend(target.problem.clone().filter(|why| made.state.reason() != why));
        made.notes.extend(self.other_file(target));
        made
    }

    fn with(
        &self,
        target: &Target,
        invocation: Option<&Invocation>,
        version: Option<Version>,
        unasked: Option<&str>,
    ) -> Assessment {
        let files = HostFiles(&self.root);
        match target.runtime() {
            Runtime::Docker => match files.read(&target.file) {
                Ok(bytes) => docker::assess(version, &target.file, bytes, invocation),
                Err(error) => {
                    let reason = format!("reading {}: {error}", target.file.display());
                    let remedy = "make it a readable file of less than 1 MiB";
                    refused(Runtime::Docker, version, reason, remedy)
                }
            },
            Runtime::Containerd => {
                // A program that did not tell its version is not waited for once more.
                let dump = match unasked {
                    Some(why) if why.contains("could not be asked") => Dump::Silent(why.to_owned()),
                    _ => self.dump(target),
                };
                let asked = Question {
                    version,
                    path: &target.file,
                    edited: target.edited.as_deref(),
                    distribution: target.distribution,
                    dump: &dump,
                };
                containerd::assess(asked, &files)
            }
            Runtime::Crio => readers::crio(version, &files, invocation),
            Runtime::Podman => {
                let variables = self.variables_of_podman(target);
                let help = match version {
                    Some(version) if version >= HELPS && !is_elsewhere(&variables) => {
                        match self.ask(target, &["--help"]) {
                            ProgramAnswer::Text(text) => Some(text),
                            _ => None,
                        }
                    }
                    _ => None,
                };
                readers::podman(version, &files, &variables, help.as_deref())
            }
        }
    }

    /// Returns the variables that the host sets for podman: for logins, and in the unit of its service.
    fn variables_of_podman(&self, target: &Target) -> BTreeMap<String, String> {
        let files = HostFiles(&self.root);
        let text = files.read(Path::new(LOGINS)).ok().flatten().unwrap_or_default();
        let mut found = longshore_runtimes::systemd::variables(&String::from_utf8_lossy(&text));
        for unit in target.distribution.units {
            if let Ok(Some(service)) = Service::read(&files, unit) {
                found.extend(service.variables);
            }
        }
        found
    }

    /// Returns a note where the daemon reads another file than the one that was named.
    fn other_file(&self, target: &Target) -> Option<String> {
        let named = target.named.as_ref()?;
        let invocation = target.invocation.as_ref().or(target.next.as_ref())?;
        let file = target::flagged(target.distribution, invocation)
            .unwrap_or_else(|| target.distribution.file.into());
        (file != target.file).then(|| {
            format!(
                "{} reads {} ({invocation}), not {}",
                target.runtime().program(),
                file.display(),
                named.display()
            )
        })
    }
}

/// The state where the next start alone has CDI on.
fn restarted(target: &Target, now: &State, after: &State) -> State {
    let reason = format!("{}; from the next start on: {}", now.reason(), after.reason());
    let remedy = match target.restart.command() {
        Some(command) => format!("restart it: `{command}`"),
        None => "restart it".to_owned(),
    };
    State::Manual { reason, remedy }
}

fn is_elsewhere(variables: &BTreeMap<String, String>) -> bool {
    variables.keys().any(|name| name.starts_with("CONTAINERS_CONF"))
}

fn refused(runtime: Runtime, version: Option<Version>, reason: String, remedy: &str) -> Assessment {
    let state = State::Refused { reason, remedy: remedy.to_owned() };
    Assessment { runtime, version, state, notes: Vec::new() }
}
