//! Runs one cell from its declaration to its verdict.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::checks::Expected;
use crate::compile;
use crate::console;
use crate::delivery::{self, Delivery};
use crate::error::{At, Error};
use crate::event::{Outcome, Sink, What};
use crate::image;
use crate::in_use;
use crate::initramfs::{self, Modules};
use crate::judge::{self, Evidence};
use crate::matrix::{Cell, Scenario, Supply};
use crate::power;
use crate::records::{Records, Taken};
use crate::registry;
use crate::rest::Rest;
use crate::timing::Timing;
use crate::trials;
use crate::vm::{Disk, Ended, Network, Power, Said, Spec, Vm};
use crate::workbench::{Prepared, Workbench};

const INIT: &str = include_str!("../guest/init.sh");
const POWER_CUT: &str = include_str!("../guest/power-cut.sh");
const STAGE: &str = include_str!("../guest/stage.sh");
/// The profile that is offered; /run/matrix/seccomp.json in the guest.
const SECCOMP: &str = include_str!("../../deploy/seccomp/longshore.json");
/// What scenarios read, by name.
const LIBRARIES: [(&str, &str); 4] = [
    ("lib.sh", include_str!("../guest/lib.sh")),
    ("ready.sh", include_str!("../guest/ready.sh")),
    ("events.sh", include_str!("../guest/events.sh")),
    ("rounds.sh", include_str!("../guest/rounds.sh")),
];
/// Where the guest mounts its disks, in the order QEMU is given them; the last only where the driver
/// comes on a disk of its own.
const DISKS: [&str; 5] =
    ["/", "/usr/lib/modules", "/var/lib/containers", "/var/lib/longshore", delivery::PLACE];
/// Last lines of the console that are shown of a guest that did not get to its end.
const TAIL: usize = 8;
const MEMORY_MIB: u32 = 2048;

/// Runs a cell; whatever happens, there is an outcome.
pub fn run(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Outcome {
    let ran = || {
        // Another run on this machine would empty this one's directory.
        let cache = hold(workbench).cache().clone();
        let _alone = cache.lock(&format!("run-{}", cell.name))?;
        match cell.scenario {
            Scenario::Build => compile::run(cell, workbench, sink),
            _ => boot(cell, workbench, sink),
        }
    };
    let outcome = ran().unwrap_or_else(|error| Outcome::NotRun(error.to_string()));
    sink.tell(What::Verdict(outcome.clone()));
    outcome
}

fn boot(cell: &Cell, workbench: &Mutex<Workbench>, sink: &Sink<'_>) -> Result<Outcome, Error> {
    let started = Instant::now();
    let mut guest = Guest::prepare(cell, &cell.name, &mut hold(workbench), sink)?;
    sink.tell(What::Prepared { took: started.elapsed() });
    let expected = expected(&guest.prepared);
    if cell.scenario == Scenario::PowerCut {
        return cut_power(&guest, &expected, sink);
    }
    let boot = Boot::of(scenario(cell));
    if cell.from == Supply::Store {
        let first = Boot { name: "first-boot-".into(), loses_power: true, ..Boot::of(boot.script) };
        let outcome = judge::first_boot(cell, &expected, &guest.watch(&first, sink)?);
        if outcome != Outcome::Passed {
            return Ok(outcome);
        }
        guest.delivery.registry = None;
    }
    let evidence = guest.watch(&boot, sink)?;
    measure(&evidence, sink);
    if cell.scenario == Scenario::InUse
        && let Ok(value) = in_use::adoption(&evidence.records)
    {
        sink.tell(What::Measured { what: "start to Ready, adopting".into(), value });
    }
    for trial in trials::read(&evidence.records).unwrap_or_default() {
        sink.tell(What::Trial(trial));
    }
    Ok(judge::judge(cell, &expected, &evidence))
}

/// Boots the guest again and again: each boot recovers from where the last one's power went off, and
/// goes on until its own does.
fn cut_power(guest: &Guest<'_>, expected: &Expected, sink: &Sink<'_>) -> Result<Outcome, Error> {
    let mut wrong = Vec::new();
    let mut after = "";
    for (number, cut) in power::CUTS.into_iter().chain([""]).enumerate() {
        let name = format!("boot-{}-", number + 1);
        let evidence = guest.watch(&Boot { name, after, cut, ..Boot::of(POWER_CUT) }, sink)?;
        if !after.is_empty() {
            let trial = power::recovered(guest.cell, expected, &evidence, after, cut);
            wrong.extend(trial.wrong.iter().map(|why| format!("{after}: {why}")));
            sink.tell(What::Trial(trial));
        }
        if let Some(why) = power::not_cut(guest.cell, &evidence, cut) {
            wrong.push(why);
            wrong.extend(evidence.tail.iter().map(|line| format!("console: {line}")));
            break;
        }
        after = cut;
    }
    Ok(if wrong.is_empty() { Outcome::Passed } else { Outcome::Failed(wrong) })
}

/// Boots a cell's VM and gives the person at the terminal a shell in it instead of its scenario.
///
/// # Errors
/// Something cannot be had or made, or QEMU cannot be started.
pub fn shell(cell: &Cell, mut workbench: Workbench, sink: &Sink<'_>) -> Result<(), Error> {
    let name = format!("{}.shell", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let guest = Guest::prepare(cell, &name, &mut workbench, sink)?;
    let script = include_str!("../guest/shell.sh");
    let mut spec = guest.spec(&Boot::of(script), "shell")?;
    spec.on_terminal = true;
    // A person has as long as a person wants.
    let days = Instant::now() + Duration::from_secs(7 * 86400);
    Vm::start(&spec)?.watch(days, |_| Power::On)?;
    Ok(())
}

/// Boots a cell's VM and times the agent in it beside modprobe and rmmod.
///
/// # Errors
/// Something cannot be had or made, or the guest did not get to its end.
pub fn time(cell: &Cell, workbench: Workbench, sink: &Sink<'_>) -> Result<Timing, Error> {
    let records = measured(cell, workbench, "timing", include_str!("../guest/timing.sh"), sink)?;
    Timing::read(&records).map_err(Error::Unexpected)
}

/// Boots a cell's VM and measures what the agent takes there while it is Ready.
///
/// # Errors
/// As [`time`].
pub fn rest(cell: &Cell, workbench: Workbench, sink: &Sink<'_>) -> Result<Rest, Error> {
    let records = measured(cell, workbench, "rest", include_str!("../guest/rest.sh"), sink)?;
    Rest::read(&records).map_err(Error::Unexpected)
}

/// What a cell's guest says whose scenario is `script`.
fn measured(
    cell: &Cell,
    mut workbench: Workbench,
    what: &str,
    script: &'static str,
    sink: &Sink<'_>,
) -> Result<Records, Error> {
    // What is measured takes longer than what happens in a cell.
    const AT_LEAST: u64 = 1800;
    let mut cell = cell.clone();
    cell.deadline_seconds = cell.deadline_seconds.max(AT_LEAST);
    let name = format!("{}.{what}", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let guest = Guest::prepare(&cell, &name, &mut workbench, sink)?;
    let evidence = guest.watch(&Boot::of(script), sink)?;
    match judge::unfinished(&cell, &evidence) {
        Some(why) => Err(Error::Unexpected(why)),
        None => Ok(evidence.records),
    }
}

/// The workbench, while nobody else prepares.
pub fn hold(workbench: &Mutex<Workbench>) -> std::sync::MutexGuard<'_, Workbench> {
    // Somebody who panicked while holding it left only the cache behind, which is consistent.
    workbench.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An empty directory for what the run of this name leaves to look at.
pub fn run_dir(workbench: &Workbench, name: &str) -> Result<PathBuf, Error> {
    let dir = workbench.cache().dir("runs").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).at("empty", &dir)?;
    }
    fs::create_dir_all(&dir).at("make", &dir)?;
    Ok(dir)
}

fn nonce() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let random = Path::new("/dev/urandom");
    File::open(random).and_then(|mut f| f.read_exact(&mut bytes)).at("read", random)?;
    Ok(longshore::store::hex(&bytes))
}

fn scenario(cell: &Cell) -> &'static str {
    match cell.scenario {
        Scenario::RoundTrip | Scenario::Build => include_str!("../guest/round-trip.sh"),
        Scenario::Refused => include_str!("../guest/refused.sh"),
        Scenario::Interrupted => include_str!("../guest/interrupted.sh"),
        Scenario::PowerCut => POWER_CUT,
        Scenario::InUse => include_str!("../guest/in-use.sh"),
        Scenario::Killed => include_str!("../guest/killed.sh"),
    }
}

/// One boot of a guest.
#[derive(Default)]
struct Boot {
    /// What the names of its phases and logs begin with.
    name: String,
    /// What happens in it.
    script: &'static str,
    /// Whether its power goes off when the driver is Ready.
    loses_power: bool,
    /// Where the last boot's power went off.
    after: &'static str,
    /// Where this one's does.
    cut: &'static str,
}

impl Boot {
    /// The one boot of a cell.
    fn of(script: &'static str) -> Self {
        Self { script, ..Self::default() }
    }
}

/// Everything a cell's guest is made of.
struct Guest<'a> {
    cell: &'a Cell,
    prepared: Prepared,
    delivery: Delivery,
    /// What a run leaves to look at.
    dir: PathBuf,
    /// What it does not leave.
    work: tempfile::TempDir,
}

impl<'a> Guest<'a> {
    /// Makes everything ready, with `name`'s directory for what is left to look at.
    fn prepare(
        cell: &'a Cell,
        name: &str,
        workbench: &mut Workbench,
        sink: &Sink<'_>,
    ) -> Result<Self, Error> {
        let prepared = workbench.prepare(cell, sink)?;
        let dir = run_dir(workbench, name)?;
        let work = tempfile::Builder::new().prefix("work-").tempdir_in(&dir);
        let work = work.at("make a directory in", &dir)?;
        let delivery = delivery::make(cell, workbench, &prepared, work.path())?;
        Ok(Self { cell, prepared, delivery, dir, work })
    }

    /// What the guest's scripts are told.
    fn settings(&self, boot: &Boot, nonce: &str) -> String {
        let Self { cell, delivery, .. } = self;
        let of = |flag: bool, word: &'static str| if flag { word } else { "" };
        let arguments: String = delivery.arguments.iter().map(|word| format!(" {word}")).collect();
        format!(
            "NONCE={nonce}\nIMAGE={}\n\
             AGENT_ARGUMENTS='run --driver {} --flavour {} --host-apt=false{arguments}'\n\
             IMPORT='{}'\nPRIVILEGES='{}'\nPRELOAD='{}'\nPERSISTENCED={}\nMEDIA={}\nNETWORK={}\n\
             LOSES_POWER={}\nAFTER={}\nCUT={}\n",
            image::NAME,
            cell.driver.branch,
            cell.driver.flavour_name(),
            delivery.import.join(" "),
            cell.privileges.join("\n"),
            cell.preload.join(" "),
            of(cell.persistenced, "auto"),
            of(delivery.media.is_some(), delivery::PLACE),
            of(delivery.registry.is_some(), "10.0.2.15/24"),
            of(boot.loses_power, "yes"),
            boot.after,
            boot.cut,
        )
    }

    /// The VM of a boot.
    fn spec(&self, boot: &Boot, nonce: &str) -> Result<Spec, Error> {
        let disks = self.disks();
        let places: String = ('a'..='z')
            .zip(DISKS)
            .take(disks.len())
            .map(|(letter, place)| format!("vd{letter} {place}\n"))
            .collect();
        let settings = self.settings(boot, nonce);
        let mut files = vec![
            ("disks", 0o644, places.as_bytes()),
            ("cell.sh", 0o644, settings.as_bytes()),
            ("stage.sh", 0o755, STAGE.as_bytes()),
            ("scenario.sh", 0o644, boot.script.as_bytes()),
            ("seccomp.json", 0o644, SECCOMP.as_bytes()),
        ];
        files.extend(LIBRARIES.map(|(name, text)| (name, 0o644, text.as_bytes())));
        let payload = initramfs::payload(&files);
        let Prepared { kernel, rootfs, .. } = &self.prepared;
        let modules = Modules::open(&kernel.modules)?;
        let mut initrd = initramfs::base(&rootfs.busybox, INIT, &modules)?;
        initrd.extend(payload);
        let path = self.work.path().join("initrd");
        fs::write(&path, initrd).at("write", &path)?;
        let network = self.delivery.registry.as_ref().map(|registry| Network {
            address: registry::IN_GUEST.to_owned(),
            port: registry.port,
            busybox: rootfs.busybox.clone(),
        });
        Ok(Spec {
            kernel: kernel.vmlinuz.clone(),
            initrd: path,
            arguments: self.cell.kernel_arguments.clone(),
            firmware: self.prepared.firmware.clone(),
            disks,
            network,
            gpus: self.cell.gpus.clone(),
            memory: MEMORY_MIB,
            on_terminal: false,
        })
    }

    /// In the order of [`DISKS`].
    fn disks(&self) -> Vec<Disk> {
        let Prepared { kernel, rootfs, image, seed, .. } = &self.prepared;
        let kept = self.delivery.kept_store.clone();
        let store = kept.unwrap_or_else(|| Disk::snapshot(&seed.disk));
        let mut disks =
            [&rootfs.image, &kernel.disk, &image.disk].map(|i| Disk::snapshot(i)).to_vec();
        disks.push(store);
        disks.extend(self.delivery.media.as_deref().map(Disk::snapshot));
        disks
    }

    /// Boots the VM and gathers what it says, which is also kept.
    fn watch(&self, boot: &Boot, sink: &Sink<'_>) -> Result<Evidence, Error> {
        let nonce = nonce()?;
        let spec = self.spec(boot, &nonce)?;
        let open = |name: &str| {
            let path = self.dir.join(format!("{}{name}", boot.name));
            File::create(&path).at("write", &path)
        };
        let (mut console_log, mut results_log) = (open("console.log")?, open("results.log")?);
        let mut evidence = Evidence { nonce, ..Evidence::default() };
        let started = Instant::now();
        let mut vm = Vm::start(&spec)?;
        sink.tell(What::Started { gpus: spec.gpus.clone() });
        let ended = vm.watch(started + self.cell.deadline(), |said| {
            let mut power = Power::On;
            match said {
                Said::Console(line) => {
                    // A full disk must not end the VM half way: what counts is in memory.
                    let _ = writeln!(console_log, "{line}");
                    hear(&mut evidence, line, sink);
                }
                Said::Result(line) => {
                    let _ = writeln!(results_log, "{line}");
                    match evidence.records.take(&line) {
                        Taken::Phase(name) => {
                            if name == power::PHASE {
                                power = Power::Off;
                            }
                            let (name, after) = (format!("{}{name}", boot.name), started.elapsed());
                            evidence.reached.push((name.clone(), after));
                            sink.tell(What::Phase { name, after });
                        }
                        Taken::Section(name, lines) => {
                            let (name, lines) = (name.to_owned(), lines.to_vec());
                            sink.tell(What::Section { name, lines });
                        }
                        Taken::Line => {}
                    }
                }
                Said::Gone => {}
            }
            power
        })?;
        evidence.power_lost = matches!(ended, Ended::PowerLost);
        evidence.overdue = matches!(ended, Ended::Overdue);
        Ok(evidence)
    }
}

/// Takes in a line of the console.
fn hear(evidence: &mut Evidence, line: String, sink: &Sink<'_>) {
    if let Some(word) = console::verdict(&line) {
        evidence.last_word = Some(word);
    }
    if console::is_trouble(&line) {
        evidence.trouble.push(line.clone());
        sink.tell(What::Trouble(line.clone()));
    }
    if evidence.tail.len() == TAIL {
        evidence.tail.pop_front();
    }
    evidence.tail.push_back(line.clone());
    sink.tell(What::ConsoleLine(line));
}

fn expected(prepared: &Prepared) -> Expected {
    let set = &prepared.seed.set;
    let always = ["nvidia", "nvidia_uvm", "nvidia_modeset"];
    let modules = set.modules.iter().filter(|m| always.contains(&m.name.as_str()));
    Expected {
        version: set.key.driver_version.clone(),
        modules: modules
            .map(|m| (m.name.clone(), m.srcversion.clone().unwrap_or_default()))
            .collect(),
    }
}

fn measure(evidence: &Evidence, sink: &Sink<'_>) {
    let at = |phase: &str| evidence.reached.iter().find(|(name, _)| name == phase).map(|r| r.1);
    if let (Some(start), Some(ready)) = (at("start"), at("ready")) {
        let value = format!("{:.1} s", ready.saturating_sub(start).as_secs_f64());
        sink.tell(What::Measured { what: "start to Ready".into(), value });
    }
    for line in evidence.records.section("ready.memory").unwrap_or_default() {
        if let Some((what, value)) = line.split_once(':') {
            sink.tell(What::Measured {
                what: format!("agent {what}"),
                value: value.trim().to_owned(),
            });
        }
    }
}
