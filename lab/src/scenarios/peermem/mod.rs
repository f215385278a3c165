//! Judges nvidia_peermem (script.sh): the driver is Ready without it, it registers with the network driver
//! that is loaded later, and is gone after TERM.

use crate::cell::needs::{Needs, StandIn};
use crate::judge::checks::{self, Expected};
use crate::judge::records::Records;
use crate::scenarios::{Peermem, Scenario};

/// Module, and the finding where it is wanted and not loaded.
const MODULE: &str = "nvidia_peermem ";
const MISSING: &str = "peermem-missing";
/// Names with which it registers (nvidia-peermem.c).
const CLIENTS: [&str; 2] = ["nv_mem", "nv_mem_nc"];

/// Returns true for the kernel's report of a refused load, before the network driver is there.
fn is_expected(trouble: &str) -> bool {
    ["ib_register_peer_memory_client", "ib_unregister_peer_memory_client"].iter().any(|symbol| {
        trouble.contains(&format!("nvidia_peermem: Unknown symbol {symbol} (err -2)"))
    })
}

/// Stand-in for the part of MOFED's ib_core that nvidia_peermem registers with.
static PEER_MEMORY: StandIn = StandIn {
    module: "peer_memory",
    source: include_str!("peer_memory.c"),
    header: Some(("peer_mem.h", include_str!("peer_mem.h"))),
};

impl Scenario for Peermem {
    fn wrong(&self, expected: &Expected, records: &Records) -> Vec<String> {
        let mut wrong = without_network(records);
        wrong.extend(checks::ready(expected, records, "peermem"));
        wrong.extend(with_network(records));
        wrong.extend(clients(records));
        wrong
    }

    fn needs(&self) -> Needs {
        Needs { stand_in: Some(&PEER_MEMORY), ..Needs::default() }
    }

    fn provokes(&self, trouble: &str) -> bool {
        is_expected(trouble)
    }
}

/// Checks the driver that is Ready before the network driver is loaded.
fn without_network(records: &Records) -> Vec<String> {
    let mut wrong = Vec::new();
    match records.section("ready.modules") {
        Ok(modules) if modules.iter().any(|line| line.starts_with(MODULE)) => {
            wrong.push(format!("{MODULE}is loaded before the network driver"));
        }
        Ok(_) => {}
        Err(missing) => wrong.push(missing),
    }
    if !records.text("ready.status").contains(MISSING) {
        wrong.push(format!("without the network driver /status has no {MISSING}"));
    }
    wrong
}

/// Checks that the finding is gone when the module is loaded.
fn with_network(records: &Records) -> Option<String> {
    let status = records.text("peermem.status");
    let is_gone = status.starts_with("exit code 0") && !status.contains(MISSING);
    (!is_gone).then(|| format!("with the network driver /status is {status}"))
}

/// Checks the clients of the network driver: those of nvidia_peermem while it is loaded, none afterwards.
fn clients(records: &Records) -> Vec<String> {
    let wanted: [(&str, &[&str]); 2] = [("peermem.clients", &CLIENTS), ("after.clients", &[])];
    let differs = |(section, wanted): (&str, &[&str])| match records.section(section) {
        Ok(found) if found == wanted => None,
        Ok(found) => Some(format!("{section} are {found:?}, not {wanted:?}")),
        Err(missing) => Some(missing),
    };
    wanted.into_iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Records {
        let mut records = Records::default();
        for (name, text) in [
            ("ready.modules", "nvidia 1 0 - Live 0x0"),
            ("ready.status", "{\"findings\":[{\"code\":\"peermem-missing\"}]}"),
            ("peermem.status", "exit code 0\n\n{\"findings\":[]}"),
            ("peermem.clients", "nv_mem\nnv_mem_nc"),
            ("after.clients", ""),
        ] {
            records.sections.insert(name.into(), text.lines().map(str::to_owned).collect());
        }
        records
    }

    fn all(records: &Records) -> Vec<String> {
        let both = without_network(records).into_iter().chain(with_network(records));
        both.chain(clients(records)).collect()
    }

    #[test]
    fn a_module_that_is_loaded_with_the_network_driver_has_nothing_wrong() {
        assert_eq!(all(&good()), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_found() {
        for (section, text, wanted) in [
            ("ready.modules", "nvidia_peermem 1 0 - Live 0x0", "before the network driver"),
            ("ready.status", "{}", "no peermem-missing"),
            ("peermem.status", "exit code 0\n\npeermem-missing", "/status is"),
            ("peermem.status", "", "/status is"),
            ("peermem.clients", "nv_mem", "peermem.clients are"),
            ("after.clients", "nv_mem", "after.clients are"),
        ] {
            let mut records = good();
            records.sections.insert(section.into(), vec![text.into()]);
            let wrong = all(&records).join("\n");
            assert!(wrong.contains(wanted), "{wanted}: {wrong}");
        }
        let mut records = good();
        records.sections.clear();
        assert_eq!(all(&records).len(), 5);
    }

    #[test]
    fn only_the_first_load_may_lack_symbols() {
        let line = |module: &str, symbol: &str| {
            format!("[   9.1] {module}: Unknown symbol {symbol} (err -2)")
        };
        assert!(is_expected(&line("nvidia_peermem", "ib_register_peer_memory_client")));
        assert!(is_expected(&line("nvidia_peermem", "ib_unregister_peer_memory_client")));
        assert!(!is_expected(&line("nvidia_peermem", "nvidia_p2p_get_pages")));
        assert!(!is_expected(&line("nvidia", "ib_register_peer_memory_client")));
    }
}
