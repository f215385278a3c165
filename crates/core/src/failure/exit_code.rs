//! Table of exit codes. docs/reference/exit-codes.md has the same texts, with links; `longshore explain` prints them.

/// Row of the table.
#[derive(Debug, Clone, Copy)]
pub struct ExitCodeEntry {
    /// Name, for example `in-use`; its meaning never changes.
    pub name: &'static str,
    /// Meaning.
    pub means: &'static str,
    /// First thing to look at; empty for success.
    pub look: &'static str,
    /// True where an agent (`longshore run`) can end with it.
    pub ends_agent: bool,
}

macro_rules! exit_codes {
    ($($variant:ident $number:literal $name:literal $agent:literal
        means $means:literal
        look $look:literal)+) => {
        /// Process exit codes; documented for users, and never changed in meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum ExitCode {
            $(#[doc = $means] $variant = $number,)+
        }

        impl ExitCode {
            /// All exit codes, by number.
            pub const ALL: &[ExitCode] = &[$(ExitCode::$variant),+];

            /// Returns the code's row of the table.
            pub fn entry(self) -> &'static ExitCodeEntry {
                match self {
                    $(ExitCode::$variant => &ExitCodeEntry {
                        name: $name,
                        means: $means,
                        look: $look,
                        ends_agent: $agent,
                    },)+
                }
            }
        }
    };
}

exit_codes! {
    Done 0 "done" true
        means "Everything asked for was done"
        look ""
    Usage 2 "usage" true
        means "The command line or the configuration is wrong"
        look "The message names the flag, or the file, line and key"
    HostUnsupported 10 "host-unsupported" true
        means "This host, kernel or architecture is not one longshore can serve"
        look "`longshore doctor`"
    Toolchain 11 "toolchain" true
        means "Kernel headers, the matching compiler, or the sign-file for a configured key are unavailable"
        look "The nearest kernel releases in the message; the configured suites"
    Download 12 "download" true
        means "A download (or an upload to a registry) failed, or what was asked for is in none of the sources"
        look "The URL in the message; proxy; the nearest versions in the message"
    Verification 13 "verification" true
        means "Something fetched, imported or stored is not what it should be, or others may have written the record"
        look "Keyring, mirror, clock; the store's disk (`longshore store verify`); who writes to the state directory"
    Compile 14 "compile" true
        means "The driver does not compile for this kernel, or a patch does not fit it"
        look "What kind of failure it is, the compiler's first error line and the log's path in the message; `failed before` means that it was not tried again"
    Preflight 15 "preflight" true
        means "The host is not ready, or a file of the store or of a layout cannot be read or written; nothing on the host was touched"
        look "The finding and its remedy; `longshore doctor` has all of them; the disk of the file that the message names (`dmesg`)"
    KernelRefused 16 "kernel-refused" true
        means "The kernel refused a module; a driver that was live before is back"
        look "The kernel's own words in the message"
    NoDevice 17 "no-device" true
        means "There is no NVIDIA GPU or NVSwitch to drive; or, with `missing-gpus` set to `refuse`, the driver did not take one that is there"
        look "`lspci -d 10de:`; pass-through of the device; the kernel's line in the message"
    Expose 18 "expose" true
        means "The driver is loaded but could not be exposed to the host, or a daemon it needs does not serve"
        look "Mounts below /run/nvidia; the daemon's last output in the message"
    Runtime 19 "runtime" false
        means "A container runtime does not read CDI specs, or its configuration was not edited or not put back"
        look "`longshore runtime check`; the file and the reason in the message"
    InUse 20 "in-use" true
        means "The driver is in use and was left as it is: neither uninstalled nor changed for another"
        look "The processes, containers and pods the message names, each with what it is where that is known"
    RolledBack 21 "rolled-back" true
        means "A failure was rolled back, and the rollback left something behind, or could not bring the former driver back; or a step of an install or uninstall hangs in the kernel"
        look "What the message says was left; where it says that the host needs a reboot: drain it and reboot"
    NotReady 30 "not-ready" false
        means "The driver is not ready (`longshore status --ready`) or not there (`longshore cdi show`), or no agent runs, or it is stuck (`--alive`)"
        look "The line that the command prints; `longshore status`"
    NodesNotReady 31 "nodes-not-ready" false
        means "A node of the cluster is not ready (`longshore fleet status`), would refuse the plan or gave none (`longshore fleet plan`), or could not be cleaned (`longshore fleet clean`)"
        look "The node's line, and the indented one below it"
    Kubectl 32 "kubectl" false
        means "kubectl is missing, or failed, or its answer is not a list of nodes; with `--in-cluster`, there is no service account, or the API server did not answer or refused"
        look "kubectl's own words in the message, and the same command by hand; the server's words, and the rule that the service account lacks"
    Bug 70 "bug" true
        means "A fault in longshore itself"
        look "Please report it with the log"
}

impl ExitCode {
    /// Returns the number that the process exits with.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the code with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/reference/exit-codes.md");

    /// A cell of the page, without its links.
    fn without_links(cell: &str) -> String {
        let mut parts = cell.split("](");
        let mut text = parts.next().unwrap_or_default().replace('[', "");
        for part in parts {
            let (_, rest) = part.split_once(')').expect("a link ends");
            text.push_str(&rest.replace('[', ""));
        }
        text
    }

    #[test]
    fn the_page_has_each_exit_code_once_with_the_texts_of_the_table() {
        let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
        let rows = rows.map(|row| row.split('|').map(|cell| without_links(cell.trim())).collect());
        let rows: Vec<Vec<String>> =
            rows.filter(|row: &Vec<_>| row[0].parse::<u8>().is_ok()).collect();
        let of_table = ExitCode::ALL.iter().map(|code| {
            let entry = code.entry();
            vec![code.number().to_string(), entry.means.to_owned(), entry.look.to_owned()]
        });
        assert_eq!(rows, of_table.collect::<Vec<_>>());
    }

    #[test]
    fn a_number_and_a_name_are_those_of_one_code() {
        for code in ExitCode::ALL {
            assert_eq!(ExitCode::from_number(code.number()), Some(*code));
            let same = ExitCode::ALL.iter().filter(|c| c.entry().name == code.entry().name);
            assert_eq!(same.count(), 1);
        }
        assert_eq!(ExitCode::from_number(1), None);
    }
}
