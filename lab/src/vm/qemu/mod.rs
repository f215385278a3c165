//! The QEMU that runs the VMs: this machine's, or one of a Debian suite ([`root`]), and the backend
//! of the simulated GPU that it has.

mod root;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use crate::gpu::backend::Backend;
use crate::gpu::backends::{self, BACKENDS};
use crate::gpu::qemu_version::Version;
use crate::host::cache::Cache;
use crate::host::error::Error;
use crate::host::process::{LIMIT, run};
use crate::vm::platform::GUEST;

/// Choice of QEMU and of its backend.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// Debian suite whose QEMU runs the VMs, unpacked into the cache, instead of this machine's QEMU:
    /// for example trixie-backports.
    #[arg(long, value_name = "SUITE")]
    qemu_suite: Option<String>,
    /// Backend of the simulated GPU: vfio-user (QEMU 10.1 and later) or proxy (QEMU before 10); by
    /// default the one that QEMU has.
    #[arg(long, value_name = "NAME", value_parser = backends::named)]
    gpu_backend: Option<&'static dyn Backend>,
}

/// A QEMU that can be started, and its backend of the simulated GPU.
#[derive(Debug)]
pub struct Qemu {
    /// Tree with its files; None for this machine's.
    root: Option<PathBuf>,
    /// Its version.
    pub version: Version,
    /// The backend.
    pub backend: &'static dyn Backend,
}

impl Qemu {
    /// Finds the QEMU and the backend that `options` choose.
    ///
    /// # Errors
    /// QEMU cannot be obtained or started, or does not have a backend.
    pub fn find(options: &Options, cache: &Cache) -> Result<Arc<Self>, Error> {
        let made = options.qemu_suite.as_ref().map(|suite| root::make(cache, suite));
        let root = made.transpose()?;
        let said = |argument: &[&str]| run(program(root.as_ref()).args(argument), LIMIT);
        let version = version(&said(&["--version"])?)?;
        let models = models(&said(&["-device", "help"])?);
        let backend = choose(version, &models, options.gpu_backend)?;
        Ok(Arc::new(Self { root, version, backend }))
    }

    /// Returns its command, without arguments. The program ends with the thread that started it.
    pub fn command(&self) -> Command {
        program(self.root.as_ref())
    }
}

/// Returns the command of this machine's QEMU, or of that below `root`.
fn program(root: Option<&PathBuf>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    if let Some(root) = root {
        command.args(root::ENTER).arg(root);
    }
    command.arg(GUEST.qemu);
    command
}

/// Reads `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)`.
fn version(said: &[String]) -> Result<Version, Error> {
    let number = |text: &str| text.parse().ok();
    let read = |line: &String| -> Option<Version> {
        let text = line.strip_prefix("QEMU emulator version ")?.split(' ').next()?;
        let mut numbers = text.split('.').map(number);
        let mut next = || numbers.next().unwrap_or(Some(0));
        Some(Version([next()?, next()?, next()?]))
    };
    said.iter().find_map(read).ok_or_else(|| {
        let said = said.first().map_or("", String::as_str);
        Error::Unexpected(format!("{} --version: no version of QEMU in `{said}`", GUEST.qemu))
    })
}

/// Reads the names of `-device help`: lines such as `name "x-pci-proxy-dev", bus PCI`.
fn models(said: &[String]) -> BTreeSet<String> {
    let name = |line: &String| Some(line.strip_prefix("name \"")?.split_once('"')?.0.to_owned());
    said.iter().filter_map(name).collect()
}

/// Chooses the backend: the wanted one if QEMU has its model, else the first that also runs in this
/// version.
fn choose(
    version: Version,
    models: &BTreeSet<String>,
    wanted: Option<&'static dyn Backend>,
) -> Result<&'static dyn Backend, Error> {
    let has = |backend: &&dyn Backend| models.contains(backend.model());
    let found = match wanted {
        Some(wanted) => Some(wanted).filter(has),
        None => BACKENDS.into_iter().find(|backend| has(backend) && backend.runs_in(version)),
    };
    found.ok_or_else(|| {
        let asked = wanted.map_or_else(|| BACKENDS.to_vec(), |wanted| vec![wanted]);
        let needs = asked.iter().map(|b| format!("{} ({})", b.model(), b.versions()));
        Error::Matrix(format!(
            "QEMU {version} has no device model for the simulated GPU that runs under software \
             emulation: it needs {}. Install such a QEMU, or name a Debian suite that has one by \
             --qemu-suite",
            needs.collect::<Vec<_>>().join(" or ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_debian_and_others_write_them() {
        for (line, wanted) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", Some([7, 2, 22])),
            ("QEMU emulator version 11.1.3", Some([11, 1, 3])),
            ("QEMU emulator version 11.1", Some([11, 1, 0])),
            ("QEMU emulator version next", None),
            ("usage: qemu", None),
            ("", None),
        ] {
            let said = ["warning: an old terminal".to_owned(), line.to_owned()];
            assert_eq!(version(&said).ok(), wanted.map(Version), "{line}");
        }
        assert!(version(&["odd".into()]).unwrap_err().to_string().contains("`odd`"));
        assert!(Version([10, 0, 13]) < Version([10, 1, 0]));
    }

    #[test]
    fn the_backend_is_one_that_this_qemu_has_and_can_run() {
        let both = ["vfio-user-pci", "x-pci-proxy-dev"];
        for (version, has, wanted, chosen) in [
            ([7, 2, 22], &both[1..], None, Ok("proxy")),
            ([11, 1, 3], &both[..], None, Ok("vfio-user")),
            ([11, 1, 3], &both[..], Some("proxy"), Ok("proxy")),
            (
                [11, 1, 3],
                &both[1..],
                None,
                Err("vfio-user-pci (QEMU 10.1 and later) or x-pci-proxy-dev"),
            ),
            ([10, 0, 13], &both[1..], None, Err("QEMU 10.0.13")),
            ([7, 2, 22], &[], None, Err("--qemu-suite")),
            ([7, 2, 22], &both[1..], Some("vfio-user"), Err("vfio-user-pci (QEMU 10.1 and later)")),
        ] {
            let help =
                has.iter().map(|model| format!("name \"{model}\", bus PCI, desc \"a \\\"b\""));
            let models = models(&help.collect::<Vec<_>>());
            let wanted = wanted.map(|name| backends::named(name).unwrap());
            let found = choose(Version(version), &models, wanted).map(Backend::name);
            match chosen {
                Ok(name) => assert_eq!(found.unwrap(), name, "{version:?} {has:?}"),
                Err(says) => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains(says), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_qemu_of_a_root_is_entered_and_the_machines_is_not() {
        let words = |root: Option<&PathBuf>| -> Vec<String> {
            let command = program(root);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(words(None), ["--pdeathsig", "KILL", "qemu-system-x86_64"]);
        let inside = words(Some(&"/c/qemu/tree".into()));
        assert_eq!(inside[2], "unshare");
        assert_eq!(inside[inside.len() - 2..], ["/c/qemu/tree", "qemu-system-x86_64"]);
    }
}
