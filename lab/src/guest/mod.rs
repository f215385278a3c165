//! A cell's guest: its disks, the settings of its scripts, and its boots.

pub(crate) mod boot;
pub(crate) mod delivery;
pub(crate) mod file;
pub mod run_dir;
pub mod transcript;
pub mod workbench;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::cell::needs::Needs;
use crate::cell::{Cell, DriverWanted};
pub use crate::guest::boot::Boot;
use crate::guest::delivery::Delivery;
pub(crate) use crate::guest::file::GuestFile;
use crate::guest::transcript::Transcript;
use crate::guest::workbench::{Prepared, Workbench};
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::judge::checks::Expected;
use crate::judge::event::{Sink, What};
use crate::judge::evidence::Evidence;
use crate::supply::cluster;
use crate::supply::registry;
use crate::supply::stand_in::Made;
use crate::vm::agent_image;
use crate::vm::initramfs::{self, Modules};
use crate::vm::kernel::Kernel;
use crate::vm::{Disk, Ended, Network, Spec, Vm};

const INIT: &str = include_str!("scripts/init.sh");
const STAGE: &str = include_str!("scripts/stage.sh");
/// The seccomp profile in deploy/; /run/matrix/seccomp.json in the guest.
const SECCOMP: &str = include_str!("../../../deploy/seccomp/longshore.json");
/// Shell libraries that scenarios source, and programs that they start, by name.
const LIBRARIES: [(&str, &str); 13] = [
    ("lib.sh", include_str!("scripts/lib.sh")),
    ("engines.sh", include_str!("scripts/engines.sh")),
    ("kubelet.sh", include_str!("scripts/kubelet.sh")),
    ("consumers.sh", include_str!("scripts/consumers.sh")),
    ("in-roots.sh", include_str!("scripts/in-roots.sh")),
    ("ready.sh", include_str!("scripts/ready.sh")),
    ("selinux.sh", include_str!("scripts/selinux.sh")),
    ("manifest.sh", include_str!("scripts/manifest.sh")),
    ("events.sh", include_str!("scripts/events.sh")),
    ("rounds.sh", include_str!("scripts/rounds.sh")),
    ("cri.py", include_str!("scripts/cri.py")),
    ("wire.py", include_str!("scripts/wire.py")),
    ("device_plugin.py", include_str!("scripts/device_plugin.py")),
];
/// Mount points of the guest's disks, in the order of QEMU's arguments; the last exists only if the
/// driver comes on a disk of its own.
const DISKS: [&str; 5] =
    ["/", "/usr/lib/modules", "/var/lib/containers", "/var/lib/longshore", delivery::PLACE];
const MEMORY_MIB: u32 = 2048;

fn nonce() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let random = Path::new("/dev/urandom");
    File::open(random).and_then(|mut f| f.read_exact(&mut bytes)).at("read", random)?;
    Ok(longshore_core::digest::hex(&bytes))
}

/// A cell's guest, prepared to boot.
pub struct Guest<'a> {
    /// The cell.
    pub cell: &'a Cell,
    /// Files on disk for the cell.
    pub prepared: Prepared,
    /// Source of its driver.
    pub delivery: Delivery,
    /// Files that it has beyond those of every guest.
    pub files: Vec<GuestFile>,
    /// Disks of the root file system and of the containers that keep what is written to them.
    system: Option<[Disk; 2]>,
    /// Directory of the logs and results that a run leaves.
    dir: PathBuf,
    /// Directory of files that are removed after the run.
    work: tempfile::TempDir,
}

impl<'a> Guest<'a> {
    /// Prepares the guest, with `name`'s directory for the logs and results that stay.
    ///
    /// # Errors
    /// Something could not be obtained or made.
    pub(crate) fn prepare(
        cell: &'a Cell,
        needs: Needs,
        name: &str,
        workbench: &mut Workbench,
        sink: &Sink<'_>,
    ) -> Result<Self, Error> {
        let mut prepared = workbench.prepare(cell, needs, sink)?;
        let dir = run_dir::make(workbench, name)?;
        let work = tempfile::Builder::new().prefix(run_dir::WORK).tempdir_in(&dir);
        let work = work.at("make a directory in", &dir)?;
        prepared.seed.complete(work.path())?;
        let delivery = delivery::make(cell, needs, workbench, &prepared, work.path())?;
        Ok(Self { cell, prepared, delivery, files: Vec::new(), system: None, dir, work })
    }

    /// Returns the directory of the logs and results that a run leaves.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the directory of files that are removed after the run.
    pub(crate) fn work(&self) -> &Path {
        self.work.path()
    }

    /// Returns the driver that it must have.
    pub fn expected(&self) -> Expected {
        let of = |set| Expected::from_set(set, &self.cell.extra_modules);
        let seed = &self.prepared.seed;
        Expected { next: seed.next.as_ref().map(|set| Box::new(of(set))), ..of(&seed.set) }
    }

    /// Keeps what is written to the root file system and to the containers' disk from boot to boot.
    ///
    /// # Errors
    /// The disks cannot be copied.
    pub fn keep_system(&mut self) -> Result<(), Error> {
        let kept = |disk: &Path, name: &str| kept(disk, &self.work.path().join(name));
        let Prepared { rootfs, image, .. } = &self.prepared;
        self.system = Some([kept(&rootfs.image, "system")?, kept(&image.disk, "containers")?]);
        Ok(())
    }

    /// Returns the path of the console's log of a boot.
    pub fn console_log(&self, boot: &Boot) -> PathBuf {
        self.dir.join(format!("{}console.log", boot.name))
    }

    /// Returns the settings that the guest's scripts source.
    fn settings(&self, boot: &Boot, nonce: &str) -> String {
        let Self { cell, delivery, .. } = self;
        let of = |flag: bool, word: &'static str| if flag { word } else { "" };
        let own = cell.own_arguments();
        let words = delivery.arguments.iter().chain(&own);
        let arguments: String = words.map(|word| format!(" {word}")).collect();
        // An agent that compiles has the host's apt sources; every other one has no archive.
        let host_apt = of(delivery.archive.is_none(), " --host-apt=false");
        let branch_and_flavour = |driver: &DriverWanted| (driver.branch.clone(), driver.flavour);
        let (branch, flavour) = branch_and_flavour(&cell.driver);
        // A driver that is changed is selected in a file: flags of a start cannot be changed later.
        let (flags, drivers) = match cell.next_driver.as_ref().map(branch_and_flavour) {
            None => (format!(" --driver {branch} --flavour {flavour}"), String::new()),
            Some((next, its)) => (
                String::new(),
                format!("DRIVER='{branch} {flavour}'\nNEXT_DRIVER='{next} {its}'\n"),
            ),
        };
        format!(
            "NONCE={nonce}\nIMAGE={}\nPULL={}\nVERSION={}\n{drivers}\
             AGENT_ARGUMENTS='run{flags}{host_apt}{arguments}'\n\
             IMPORT='{}'\nPRIVILEGES='{}'\nPRELOAD='{}'\nPERSISTENCED={}\nMEDIA={}\nNETWORK={}\nAPT_SOURCES='{}'\n\
             LOSES_POWER={}\nAFTER={}\nCUT={}\nROUNDS={}\nENGINE={}\nDAEMONS='{}'\nCONSUMERS='{}'\nINIT={}\nSELINUX={}\nNEXT_RELEASE={}\n",
            delivery.image.as_deref().unwrap_or(agent_image::NAME),
            of(delivery.image.is_some(), "yes"),
            self.prepared.seed.set.key.driver_version,
            delivery.import.join(" "),
            cell.privileges.join("\n"),
            cell.preload.join(" "),
            of(cell.persistenced, "auto"),
            of(delivery.media.is_some(), delivery::PLACE),
            of(self.reaches().is_some(), "10.0.2.15/24"),
            self.apt_sources(),
            of(boot.loses_power, "yes"),
            boot.after,
            boot.cut,
            if boot.rounds > 0 { boot.rounds.to_string() } else { String::new() },
            cell.engine,
            cell.daemons().join(" "),
            cell.consumers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            cell.init,
            of(cell.selinux, "yes"),
            self.installs().map(|next| next.release.as_str()).unwrap_or_default(),
        )
    }

    /// Returns the kernel that the guest installs while it runs, if any.
    fn installs(&self) -> Option<&Kernel> {
        self.prepared
            .next_kernel
            .as_ref()
            .filter(|next| next.release != self.prepared.kernel.release)
    }

    /// Returns the images of its kernels, by their names in /boot, for a guest that installs a kernel.
    fn kernel_images(&self) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let Some(next) = &self.prepared.next_kernel else { return Ok(Vec::new()) };
        let image = |kernel: &Kernel| {
            let bytes = fs::read(&kernel.vmlinuz).at("read", &kernel.vmlinuz)?;
            Ok((format!("boot/vmlinuz-{}", kernel.release), bytes))
        };
        let mut kernels = vec![&self.prepared.kernel, next];
        kernels.dedup_by_key(|kernel| &kernel.release);
        kernels.into_iter().map(image).collect()
    }

    /// Returns the address that the guest reaches, and the port on this machine; None for none.
    fn reaches(&self) -> Option<(&'static str, u16)> {
        let Delivery { registry, archive, cluster, .. } = &self.delivery;
        let registry = registry.as_ref().map(|registry| (registry::IN_GUEST, registry.port));
        let archive = archive.as_ref().map(|archive| (registry::IN_GUEST, archive.port));
        let cluster = cluster.as_ref().map(|cluster| (cluster::IN_GUEST, cluster.port));
        registry.or(archive).or(cluster)
    }

    /// Returns the host's apt sources, at the address at which the guest reaches them; empty where it
    /// reaches none.
    fn apt_sources(&self) -> String {
        let archives = self.delivery.archive.iter().flat_map(|relay| &relay.archives);
        let line = |(suite, path): &(String, String)| {
            format!("deb http://{}{path} {suite} main\n", registry::IN_GUEST)
        };
        archives.map(line).collect()
    }

    /// Returns the VM of a boot.
    ///
    /// # Errors
    /// Its initramfs cannot be made.
    pub fn spec(&self, boot: &Boot, nonce: &str) -> Result<Spec, Error> {
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
        files.extend(
            self.files.iter().map(|file| (file.name.as_str(), file.mode, file.content.as_slice())),
        );
        files.extend(LIBRARIES.map(|(name, text)| (name, 0o644, text.as_bytes())));
        let Prepared { kernel, rootfs, stand_in, .. } = &self.prepared;
        let stand_in = stand_in.as_ref().map(Made::files).unwrap_or_default();
        let read = |(name, path): (String, PathBuf)| Ok((name, fs::read(&path).at("read", &path)?));
        let stand_in: Vec<_> = stand_in.into_iter().map(read).collect::<Result<_, Error>>()?;
        files.extend(stand_in.iter().map(|(name, bytes)| (name.as_str(), 0o644, bytes.as_slice())));
        let images = self.kernel_images()?;
        files.extend(images.iter().map(|(name, bytes)| (name.as_str(), 0o644, bytes.as_slice())));
        let payload = initramfs::payload(&files);
        let modules = Modules::open(&kernel.modules)?;
        let mut initrd = initramfs::base(&rootfs.busybox, INIT, &modules)?;
        initrd.extend(payload);
        let path = self.work.path().join("initrd");
        fs::write(&path, initrd).at("write", &path)?;
        let network = self.reaches().map(|(address, port)| Network {
            address: address.to_owned(),
            port,
            busybox: rootfs.busybox.clone(),
            inbound: self.delivery.cluster.as_ref().map(|cluster| cluster.kubelet),
        });
        Ok(Spec {
            qemu: Arc::clone(&self.prepared.qemu),
            kernel: kernel.vmlinuz.clone(),
            initrd: path,
            arguments: self.arguments(),
            firmware: self.prepared.firmware.clone(),
            disks,
            network,
            gpus: self.cell.gpus.clone(),
            memory: if self.delivery.archive.is_some() { 2 * MEMORY_MIB } else { MEMORY_MIB },
            processors: boot.processors,
            counts: boot.counts,
            on_terminal: false,
        })
    }

    /// Returns the kernel's arguments; the policy is loaded before it is enforced.
    fn arguments(&self) -> String {
        let arguments = &self.cell.kernel_arguments;
        if !self.cell.selinux {
            return arguments.clone();
        }
        format!("{arguments} security=selinux selinux=1 enforcing=0")
    }

    /// Returns the disks in the order of [`DISKS`].
    fn disks(&self) -> Vec<Disk> {
        let Prepared { kernel, rootfs, image, seed, .. } = &self.prepared;
        let kept = self.delivery.kept_store.clone();
        let store = kept.unwrap_or_else(|| Disk::snapshot(&seed.disk));
        let modules = self.delivery.modules.clone();
        let modules = modules.unwrap_or_else(|| Disk::snapshot(&kernel.disk));
        let [system, containers] = self
            .system
            .clone()
            .unwrap_or_else(|| [Disk::snapshot(&rootfs.image), Disk::snapshot(&image.disk)]);
        let mut disks = vec![system, modules, containers, store];
        disks.extend(self.delivery.media.as_deref().map(Disk::snapshot));
        disks
    }

    /// Boots the VM and gathers its output, which is also kept on disk.
    ///
    /// # Errors
    /// QEMU cannot be started, or its output cannot be written.
    pub fn watch(&self, boot: &Boot, sink: &Sink<'_>) -> Result<Evidence, Error> {
        let nonce = nonce()?;
        let spec = self.spec(boot, &nonce)?;
        let mut transcript = Transcript::create(&self.dir, &boot.name, nonce, sink)?;
        let started = Instant::now();
        let mut vm = Vm::start(&spec)?;
        sink.tell(What::Started { gpus: spec.gpus.clone() });
        let ended = vm
            .watch(started + self.cell.deadline(), |said| transcript.take(said, started.elapsed()));
        let mut evidence = transcript.finish();
        let ended = ended?;
        if let Some(cluster) = &self.delivery.cluster {
            cluster.records(&mut evidence.records)?;
        }
        evidence.power_lost = matches!(ended, Ended::PowerLost);
        evidence.overdue = matches!(ended, Ended::Overdue);
        if let Ended::Killed(signal) = ended {
            evidence.killed_by = Some(signal);
        }
        Ok(evidence)
    }
}

/// Copies a disk of the guest's, so that writes to it are kept from boot to boot.
fn kept(image: &Path, to: &Path) -> Result<Disk, Error> {
    disk::copy(image, to)?;
    Ok(Disk::Kept(to.to_path_buf()))
}
