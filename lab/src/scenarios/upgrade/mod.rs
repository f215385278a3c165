//! Judges the change from one driver to another and back (script.sh). An act is the effect
//! of a start or a SIGHUP; each is compared with the driver that it must result in and with an act
//! before it.

use crate::cell::needs::Needs;
use crate::judge::checks::{self, Expected};
use crate::judge::end;
use crate::judge::identity::{self, ALL};
use crate::judge::records::Records;
use crate::judge::timing;
use crate::scenarios::{Scenario, Upgrade};

/// State of the agent after an act.
#[derive(Clone, Copy, PartialEq)]
enum Agent {
    /// It runs, and is Ready.
    Ready,
    /// It ended, or was killed, and the record has this phase.
    Gone(&'static str),
}

/// Expected state after an act.
struct Act {
    name: &'static str,
    /// True if the driver is the one that it is changed to.
    next: bool,
    agent: Agent,
    /// Exit code, where the agent ended by itself.
    exit: Option<&'static str>,
    /// Act that the modules are compared with, and the modules loaded since.
    since: Option<(&'static str, &'static [&'static str])>,
    /// Act after which the whole host must have been the same.
    like: Option<&'static str>,
    /// Texts of the agent's log for this act: for each list, one line must contain all of its
    /// parts, with `{first}` and `{next}` for the versions and `{holder}` for the process that
    /// holds the driver.
    says: &'static [&'static [&'static str]],
}

const STAYS: &str = "the running configuration and its driver stay";
const IS_BACK: &str = "driver {first}, which was live before, is back";
const UVM: &[&str] = &["nvidia_uvm"];

const INSTALLED: Act = Act {
    name: "installed",
    next: false,
    agent: Agent::Ready,
    exit: None,
    since: None,
    like: None,
    says: &[&["driver {first} is ready (3 of its modules loaded)", "after the start"]],
};

/// All acts, in order.
const ACTS: &[Act] = &[
    INSTALLED,
    Act {
        name: "adopted",
        since: Some(("installed", &[])),
        like: Some("installed"),
        says: &[&["driver {first} is ready (adopted; 1 missing step carried out)"]],
        ..INSTALLED
    },
    Act {
        name: "parameter",
        since: Some(("adopted", UVM)),
        like: Some("adopted"),
        says: &[&["driver {first} is ready (1 of its modules loaded)", "after SIGHUP"]],
        ..INSTALLED
    },
    Act {
        name: "unavailable",
        since: Some(("parameter", &[])),
        like: Some("parameter"),
        says: &[&[STAYS, "no archive is configured", "remedy: "]],
        ..INSTALLED
    },
    Act {
        name: "upgraded",
        next: true,
        since: Some(("unavailable", ALL)),
        says: &[
            &["unloading nvidia: driver {first} is loaded", "{next} is wanted"],
            &["driver {next} is ready (3 of its modules loaded)", "after SIGHUP"],
        ],
        ..INSTALLED
    },
    Act {
        name: "back",
        since: Some(("upgraded", ALL)),
        like: Some("installed"),
        says: &[&["driver {first} is ready (3 of its modules loaded)", "after SIGHUP"]],
        ..INSTALLED
    },
    Act {
        name: "upgraded-anew",
        next: true,
        since: Some(("back", ALL)),
        like: Some("upgraded"),
        says: &[&["driver {next} is ready (3 of its modules loaded)", "after the start"]],
        ..INSTALLED
    },
    Act {
        name: "back-anew",
        since: Some(("upgraded-anew", ALL)),
        like: Some("installed"),
        ..INSTALLED
    },
    Act {
        name: "refused-in-place",
        since: Some(("back-anew", ALL)),
        like: Some("installed"),
        says: &[&[STAYS, "nvidia_uvm: ", "uvm_disable_hmm", IS_BACK, "remedy: "]],
        ..INSTALLED
    },
    Act {
        name: "left",
        agent: Agent::Gone("ready"),
        since: Some(("refused-in-place", &[])),
        says: &[],
        ..INSTALLED
    },
    Act {
        name: "refused",
        agent: Agent::Gone("failed"),
        exit: Some("16"),
        since: Some(("left", ALL)),
        like: Some("left"),
        says: &[&["error: nvidia: ", "IMEX", IS_BACK], &["remedy: "]],
        ..INSTALLED
    },
    Act {
        name: "refused-again",
        agent: Agent::Gone("failed"),
        exit: Some("16"),
        since: Some(("refused", &[])),
        like: Some("left"),
        says: &[&["error: driver {next} failed before and is not tried again"], &["remedy: "]],
        ..INSTALLED
    },
    // A process holds the driver from here on.
    Act { name: "hold", agent: Agent::Gone("failed"), says: &[], ..INSTALLED },
    Act {
        name: "held",
        agent: Agent::Gone("in-use"),
        exit: Some("20"),
        since: Some(("hold", &[])),
        like: Some("hold"),
        says: &[&["error: ", "in use", "{holder}", "{next} is wanted"], &["remedy: "]],
        ..INSTALLED
    },
    Act {
        name: "readopted",
        since: Some(("hold", &[])),
        like: Some("installed"),
        says: &[&["driver {first} is ready (adopted as it was)", "after the start"]],
        ..INSTALLED
    },
    Act {
        name: "held-in-place",
        since: Some(("hold", &[])),
        like: Some("readopted"),
        says: &[&[STAYS, "in use", "{holder}", "remedy: "]],
        ..INSTALLED
    },
];

/// Acts after which nvidia_uvm has the parameter from the configuration.
const PREFETCH_OFF: [&str; 2] = ["parameter", "unavailable"];

impl Scenario for Upgrade {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = Vec::new();
        for act in ACTS {
            let why = act.wrong(expected, records);
            if !why.is_empty() {
                let last = end::last_lines(records, &format!("{}.log", act.name));
                wrong.extend(checks::under(act.name, why.into_iter().chain(last)));
            }
        }
        wrong.extend(adoption(records).err());
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { next_driver: true, ..Needs::default() }
    }

    /// Returns the durations of the acts, for people.
    fn measured(&self, _expected: &Expected, records: &Records) -> Vec<(String, String)> {
        let after = |act: &str, what: &str| said(records, act, what).ok();
        let named = [
            ("start to Ready, one node put back", after("adopted", "the start")),
            ("start to Ready, adopted as it was", after("readopted", "the start")),
            ("another parameter by SIGHUP", after("parameter", "SIGHUP")),
            ("next driver by SIGHUP", after("upgraded", "SIGHUP")),
            ("first driver again by SIGHUP", after("back", "SIGHUP")),
        ];
        let mut measured: Vec<(String, String)> = named
            .into_iter()
            .filter_map(|(what, ms)| Some((what.to_owned(), format!("{:.0} ms", ms?))))
            .collect();
        let log = records.section("upgraded.log").unwrap_or_default();
        if let Ok(seconds) = timing::between(log, "phase changing", "is ready") {
            let value = format!("{:.0} ms", seconds * 1000.0);
            measured.push(("of it with no driver ready".to_owned(), value));
        }
        measured
    }
}

impl Act {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let Self { name, .. } = self;
        if !records.phases.iter().any(|phase| phase == name) {
            return vec!["the act was never reached".into()];
        }
        let Some(next) = &expected.next else { return vec!["there is no next driver".into()] };
        let driver = if self.next { next } else { expected };
        let mut wrong = checks::kernel_side(driver, records, name);
        // For other acts the mounts are compared with those before.
        if self.since.map_or(*name == INSTALLED.name, |(_, anew)| anew == ALL) {
            wrong.extend(checks::user_side(driver, records, name));
            wrong.extend(self.consumer(driver, records));
            wrong.extend(self.spec(driver, records));
        }
        wrong.extend(self.record(driver, records));
        wrong.extend(self.exit(records));
        wrong.extend(self.prefetch(records));
        if let Some((then, anew)) = self.since {
            wrong.extend(identity::compare(records, then, name, anew));
        }
        if let Some(like) = self.like {
            let differs = end::differences_between(records, like, name);
            let of_host = differs.into_iter().filter(|what| !is_of_others(what));
            wrong.extend(of_host.map(|what| format!("not as {like}: {what}")));
        }
        wrong.extend(self.unsaid(expected, next, records));
        wrong
    }

    /// Checks that a container that was started with the first driver sees this one alone.
    fn consumer(&self, driver: &Expected, records: &Records) -> Option<String> {
        let seen = records.text(&format!("{}.consumer", self.name));
        let library = format!("usr/lib/x86_64-linux-gnu/libcuda.so.{}", driver.version);
        let wanted = format!("dev/nvidiactl\n{library}");
        (seen.trim_end() != wanted).then(|| format!("the running consumer sees {seen}"))
    }

    /// Checks that the CDI spec names the files of this driver alone.
    fn spec(&self, driver: &Expected, records: &Records) -> Option<String> {
        let seen = records.text(&format!("{}.spec", self.name));
        let wanted = format!("libcuda.so.{}", driver.version);
        (seen.trim_end() != wanted).then(|| format!("the CDI spec names {seen:?}, not {wanted}"))
    }

    /// Checks that the record has this driver, whole, and nothing else that was loaded.
    fn record(&self, driver: &Expected, records: &Records) -> Vec<String> {
        let text = records.text(&format!("{}.record", self.name));
        let Ok(state) = serde_json::from_str::<serde_json::Value>(&text) else {
            return vec![format!("the agent's record cannot be read: {text}")];
        };
        let phase = match self.agent {
            Agent::Ready => "ready",
            Agent::Gone(phase) => phase,
        };
        let version = driver.version.as_str();
        let mut wrong = Vec::new();
        let mut wants = |what: &str, seen: &serde_json::Value, wanted: serde_json::Value| {
            if *seen != wanted {
                wrong.push(format!("the record has {what} {seen}, not {wanted}"));
            }
        };
        wants("phase", &state["phase"], phase.into());
        wants("whole", &state["whole"], true.into());
        wants("driver", &state["plan"]["driver_version"], version.into());
        wants("something to bring back", &state["previous"], serde_json::Value::Null);
        let loads = |entry: &&serde_json::Value| {
            let of_driver = !entry["step"]["origin"]["driver"].is_null();
            entry["step"]["do"] == "load-module" && of_driver && entry["state"] != "undone"
        };
        let empty = Vec::new();
        let entries = state["entries"].as_array().unwrap_or(&empty);
        let loaded: Vec<_> = entries.iter().filter(loads).collect();
        if loaded.len() != driver.modules.len() {
            let (seen, wanted) = (loaded.len(), driver.modules.len());
            wrong.push(format!("the record has {seen} modules of a driver, not {wanted}"));
        }
        for entry in loaded {
            if entry["step"]["version"] != version || entry["state"] != "done" {
                wrong.push(format!("the record has {entry}"));
            }
        }
        wrong
    }

    fn exit(&self, records: &Records) -> Option<String> {
        let code = records.facts.get(&format!("{}.exit-code", self.name)).map(String::as_str);
        (code != self.exit).then(|| format!("exit code {code:?}, not {:?}", self.exit))
    }

    fn prefetch(&self, records: &Records) -> Option<String> {
        let wanted = if PREFETCH_OFF.contains(&self.name) { "0" } else { "1" };
        let seen = records.text(&format!("{}.prefetch", self.name));
        (seen != wanted).then(|| format!("uvm_perf_prefetch_enable is {seen:?}, not {wanted}"))
    }

    fn unsaid(&self, first: &Expected, next: &Expected, records: &Records) -> Vec<String> {
        let log = match records.section(&format!("{}.log", self.name)) {
            Ok(log) => log,
            Err(missing) => return vec![missing],
        };
        // A bare number could be a part of another one.
        let holder = records.facts.get("holder");
        let holder = holder.map(|pid| format!("pid {pid} (sleep) holds /dev/nvidiactl"));
        let holder = holder.as_deref().unwrap_or("no holder");
        let normalized = |part: &&str| {
            part.replace("{first}", &first.version)
                .replace("{next}", &next.version)
                .replace("{holder}", holder)
        };
        let mut wrong = Vec::new();
        for parts in self.says {
            let parts: Vec<String> = parts.iter().map(normalized).collect();
            if !log.iter().any(|line| parts.iter().all(|part| line.contains(part))) {
                wrong.push(format!("no line of the log says {parts:?}"));
            }
        }
        wrong
    }
}

/// True if a difference between two acts is not the agent's doing: its socket and the file beside it
/// stay when it is killed, and go when it ends; and the process that holds the driver was started at
/// some point, with references of its own.
fn is_of_others(difference: &str) -> bool {
    let is = |aspect: &str, what: &str| difference.starts_with(aspect) && difference.contains(what);
    is("run: ", " /run/longshore/serving.json")
        || is("run: ", " /run/longshore/agent.sock")
        || is("processes: ", " sleep")
        || is("modules: ", " nvidia refcount ")
}

/// Returns the milliseconds that the agent reports for an act, from its request to Ready.
fn said(records: &Records, act: &str, asked: &str) -> Result<f64, String> {
    let log = records.section(&format!("{act}.log"))?;
    let end = format!(" ms after {asked}");
    let words = log.iter().filter(|line| line.contains("is ready")).find_map(|line| {
        let before = &line[..line.find(&end)?];
        before.rsplit(' ').next()?.parse().ok()
    });
    words
        .ok_or_else(|| format!("{act}: the agent does not say how long after {asked} it was Ready"))
}

/// Checks the agent's time of adopting against the clocks: no less than its log spans, and no more
/// than has passed since its process began.
fn adoption(records: &Records) -> Result<f64, String> {
    /// Tolerance in seconds: the clock is read later than the agent reads its own, and has ticks.
    const SLACK: f64 = 0.05;
    let said = said(records, "adopted", "the start")? / 1000.0;
    let log = records.section("adopted.log")?;
    let logged = timing::between(log, "phase probing", "is ready")?;
    let bad = || "the guest's `adopted.started` is absent or malformed".to_owned();
    let words = records.facts.get("adopted.started").ok_or_else(bad)?;
    let words: Vec<&str> = words.split(' ').collect();
    let [begun, now, clock] = words[..] else { return Err(bad()) };
    let (begun, now): (f64, f64) =
        (begun.parse().map_err(|_| bad())?, now.parse().map_err(|_| bad())?);
    let at = timing::seconds_of_day(clock).ok_or_else(bad)?;
    let since_ready = timing::since(timing::clock(log, "is ready")?, at);
    let lived = now - begun - since_ready;
    if logged <= said + SLACK && said <= lived + SLACK {
        Ok(said)
    } else {
        Err(format!(
            "adopted: the agent says {said:.3} s; its log spans {logged:.3} s, its process had \
             run for {lived:.3} s"
        ))
    }
}

#[cfg(test)]
mod tests;
