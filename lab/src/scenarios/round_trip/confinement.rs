//! Confinement by the kernel of the agent and the driver's daemons while the driver is Ready.

use crate::cell::Cell;
use crate::judge::records::Records;

/// A daemon of the driver.
struct Daemon {
    /// Its name; /proc/PID/status has the first 15 characters.
    name: &'static str,
    /// Its capabilities there.
    capabilities: &'static str,
    /// True for a cell in which it runs.
    runs: fn(&Cell) -> bool,
}

/// Characters of a name in /proc/PID/status.
const SHOWN: usize = 15;

const DAEMONS: [Daemon; 2] = [
    Daemon {
        name: "nvidia-persistenced",
        capabilities: "0000000000000000",
        runs: |cell| cell.persistenced,
    },
    // CAP_SYS_ADMIN.
    Daemon {
        name: "nv-fabricmanager",
        capabilities: "0000000000200000",
        runs: |cell| cell.from.has_fabric_manager(),
    },
];

/// Returns the faults of the processes in a guest that was Ready: each must run under the requested
/// profile, and the driver's daemons, where the cell has them, must run, have no further capability, and
/// end by SIGTERM.
pub(super) fn wrong(cell: &Cell, records: &Records) -> Vec<String> {
    let lines = records.section("ready.confinement").unwrap_or_default();
    let starts: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].starts_with("Name:")).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let processes = starts.iter().zip(ends).map(|(&start, end)| &lines[start..end]);
    let mut wrong = Vec::new();
    let (mut agents, mut daemons) = (0, [0; DAEMONS.len()]);
    for process in processes {
        let value =
            |key: &str| process.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        let name = value("Name").unwrap_or_default();
        let mut wants = |key: &str, wanted: &str| {
            let seen = value(key).unwrap_or("nothing");
            if seen != wanted {
                wrong.push(format!("{name} has {key} {seen}, not {wanted}"));
            }
        };
        if cell.privileges.iter().any(|word| word.contains("seccomp=/")) {
            wants("Seccomp", "2");
        }
        match DAEMONS.iter().position(|daemon| daemon.name[..SHOWN] == *name) {
            Some(at) => {
                daemons[at] += 1;
                let capabilities = DAEMONS[at].capabilities;
                wants("CapPrm", capabilities);
                wants("CapEff", capabilities);
                wants("NoNewPrivs", "1");
            }
            None => agents += 1,
        }
    }
    if agents == 0 {
        wrong.push("no process of the agent was seen while it was Ready".into());
    }
    for (daemon, count) in DAEMONS.iter().zip(daemons) {
        if (daemon.runs)(cell) != (count == 1) {
            wrong.push(format!("{count} processes of {} while it was Ready", daemon.name));
        }
    }
    let log = records.text("agent-log");
    let killed = log.lines().find(|line| line.contains("killing it"));
    wrong.extend(killed.map(|line| format!("a daemon was killed: {line}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str = "Name:\tlongshore\nCapPrm:\t1\nSeccomp:\t2\n";
    const FABRIC_MANAGER: &str = "Name:\tnv-fabricmanage\nCapPrm:\t0000000000200000\n\
        CapEff:\t0000000000200000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
    const DAEMON: &str = "Name:\tnvidia-persiste\nCapPrm:\t0000000000000000\n\
        CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

    /// Returns the faults of a guest with these process states and this agent log.
    fn why(seen: &str, log: &str) -> String {
        let cell: Cell = toml::from_str(
            "name = 'a'\nscenario = 'round-trip'\npersistenced = true\n\
             from = 'fabric-manager'\n\
             privileges = ['--security-opt=seccomp=/run/matrix/seccomp.json']\n\
             kernel = { suite = 's', package = 'p' }\n\
             driver = { branch = '535', flavour = 'open' }",
        )
        .unwrap();
        let mut records = Records::default();
        for (section, text) in [("ready.confinement", seen), ("agent-log", log)] {
            records.take(&format!("@begin {section}"));
            for line in text.lines() {
                records.take(&format!("|{line}"));
            }
            records.take(&format!("@end {section}"));
        }
        wrong(&cell, &records).join("; ")
    }

    #[test]
    fn agent_and_daemons_have_to_be_there_and_confined() {
        let all = [AGENT, DAEMON, FABRIC_MANAGER].concat();
        assert_eq!(why(&all, "undone"), "");
        assert_eq!(
            why(&all.replace("Seccomp:\t2", "Seccomp:\t0"), ""),
            "longshore has Seccomp 0, not 2; nvidia-persiste has Seccomp 0, not 2; \
             nv-fabricmanage has Seccomp 0, not 2"
        );
        assert_eq!(
            why(&[AGENT, DAEMON, &FABRIC_MANAGER.replace("Privs:\t1", "Privs:\t0")].concat(), ""),
            "nv-fabricmanage has NoNewPrivs 0, not 1"
        );
        assert_eq!(
            why(&all.replace("CapEff:\t0000000000200000", "CapEff:\t0000000000201000"), ""),
            "nv-fabricmanage has CapEff 0000000000201000, not 0000000000200000"
        );
        assert_eq!(
            why(AGENT, ""),
            "0 processes of nvidia-persistenced while it was Ready; \
             0 processes of nv-fabricmanager while it was Ready"
        );
        assert!(why("", "").starts_with("no process of the agent was seen"));
    }

    #[test]
    fn a_daemon_has_to_end_by_itself() {
        let log = "nvidia-persistenced did not end 5.0 s after SIGTERM: killing it";
        assert_eq!(
            why(&[AGENT, DAEMON, FABRIC_MANAGER].concat(), log),
            format!("a daemon was killed: {log}")
        );
    }
}
