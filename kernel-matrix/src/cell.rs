//! Runs one cell from its declaration to its verdict.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::checks::Expected;
use crate::compile;
use crate::console;
use crate::error::{At, Error};
use crate::event::{Outcome, Sink, What};
use crate::image;
use crate::initramfs::{self, Modules};
use crate::judge::{self, Evidence};
use crate::matrix::{Cell, Scenario};
use crate::records::Taken;
use crate::timing::Timing;
use crate::vm::{Ended, Said, Spec, Vm};
use crate::workbench::{Prepared, Workbench};

const INIT: &str = include_str!("../guest/init.sh");
const STAGE: &str = include_str!("../guest/stage.sh");
const LIB: &str = include_str!("../guest/lib.sh");
/// Where the guest mounts its disks, in the order QEMU is given them.
const DISKS: &str =
    "vda /\nvdb /usr/lib/modules\nvdc /var/lib/containers\nvdd /var/lib/longshore\n";
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
    let (prepared, dir) = {
        let mut workbench = hold(workbench);
        let prepared = workbench.prepare(cell, sink)?;
        (prepared, run_dir(&workbench, &cell.name)?)
    };
    sink.tell(What::Prepared { took: started.elapsed() });
    let nonce = nonce()?;
    let spec = spec(cell, &prepared, &dir, &nonce, scenario(cell))?;
    let evidence = watch(cell, &spec, &dir, nonce, sink)?;
    measure(&evidence, sink);
    Ok(judge::judge(cell, &expected(&prepared), &evidence))
}

/// Boots a cell's VM and gives the person at the terminal a shell in it instead of its scenario.
///
/// # Errors
/// Something cannot be had or made, or QEMU cannot be started.
pub fn shell(cell: &Cell, mut workbench: Workbench, sink: &Sink<'_>) -> Result<(), Error> {
    let prepared = workbench.prepare(cell, sink)?;
    let name = format!("{}.shell", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let dir = run_dir(&workbench, &name)?;
    let script = include_str!("../guest/shell.sh");
    let mut spec = spec(cell, &prepared, &dir, "shell", script)?;
    spec.on_terminal = true;
    // A person has as long as a person wants.
    let days = Instant::now() + Duration::from_secs(7 * 86400);
    Vm::start(&spec)?.watch(days, |_| ())?;
    Ok(())
}

/// Boots a cell's VM and times the agent in it beside modprobe and rmmod.
///
/// # Errors
/// Something cannot be had or made, or the guest did not get to its end.
pub fn time(cell: &Cell, mut workbench: Workbench, sink: &Sink<'_>) -> Result<Timing, Error> {
    let prepared = workbench.prepare(cell, sink)?;
    let name = format!("{}.timing", cell.name);
    let _alone = workbench.cache().lock(&format!("run-{name}"))?;
    let dir = run_dir(&workbench, &name)?;
    let nonce = nonce()?;
    let spec = spec(cell, &prepared, &dir, &nonce, include_str!("../guest/timing.sh"))?;
    let evidence = watch(cell, &spec, &dir, nonce, sink)?;
    if let Some(why) = judge::unfinished(cell, &evidence) {
        return Err(Error::Unexpected(why));
    }
    Timing::read(&evidence.records).map_err(Error::Unexpected)
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
    }
}

fn spec(
    cell: &Cell,
    prepared: &Prepared,
    dir: &Path,
    nonce: &str,
    scenario: &str,
) -> Result<Spec, Error> {
    let settings = format!(
        "NONCE={nonce}\nIMAGE={}\nAGENT_ARGUMENTS='run --driver {} --flavour {} --host-apt=false'\nPRELOAD='{}'\n",
        image::NAME,
        cell.driver.branch,
        cell.driver.flavour_name(),
        cell.preload.join(" ")
    );
    let payload = initramfs::payload(&[
        ("disks", 0o644, DISKS.as_bytes()),
        ("cell.sh", 0o644, settings.as_bytes()),
        ("stage.sh", 0o755, STAGE.as_bytes()),
        ("lib.sh", 0o644, LIB.as_bytes()),
        ("scenario.sh", 0o644, scenario.as_bytes()),
    ]);
    let modules = Modules::open(&prepared.kernel.modules)?;
    let mut initrd = initramfs::base(&prepared.rootfs.busybox, INIT, &modules)?;
    initrd.extend(payload);
    let path = dir.join("initrd");
    fs::write(&path, initrd).at("write", &path)?;
    Ok(Spec {
        kernel: prepared.kernel.vmlinuz.clone(),
        initrd: path,
        disks: vec![
            prepared.rootfs.image.clone(),
            prepared.kernel.disk.clone(),
            prepared.image.disk.clone(),
            prepared.seed.disk.clone(),
        ],
        gpus: cell.gpus.clone(),
        memory: MEMORY_MIB,
        on_terminal: false,
    })
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

/// Boots the VM and gathers what it says, which is also kept in `dir`.
fn watch(
    cell: &Cell,
    spec: &Spec,
    dir: &Path,
    nonce: String,
    sink: &Sink<'_>,
) -> Result<Evidence, Error> {
    let open = |name: &str| File::create(dir.join(name)).at("write", &dir.join(name));
    let (mut console_log, mut results_log) = (open("console.log")?, open("results.log")?);
    let mut evidence = Evidence { nonce, ..Evidence::default() };
    let started = Instant::now();
    let mut vm = Vm::start(spec)?;
    sink.tell(What::Started { gpus: spec.gpus.clone() });
    let ended = vm.watch(started + cell.deadline(), |said| match said {
        Said::Console(line) => {
            // A full disk must not end the VM half way: what counts is in memory.
            let _ = writeln!(console_log, "{line}");
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
        Said::Result(line) => {
            let _ = writeln!(results_log, "{line}");
            match evidence.records.take(&line) {
                Taken::Phase(name) => {
                    let name = name.to_owned();
                    sink.tell(What::Phase { name, after: started.elapsed() });
                }
                Taken::Section(name, lines) => {
                    sink.tell(What::Section { name: name.to_owned(), lines: lines.to_vec() });
                }
                Taken::Line => {}
            }
        }
        Said::Gone => {}
    })?;
    evidence.overdue = matches!(ended, Ended::Overdue);
    Ok(evidence)
}

fn measure(evidence: &Evidence, sink: &Sink<'_>) {
    for line in evidence.records.section("ready.memory").unwrap_or_default() {
        if let Some((what, value)) = line.split_once(':') {
            sink.tell(What::Measured {
                what: format!("agent {what}"),
                value: value.trim().to_owned(),
            });
        }
    }
}
