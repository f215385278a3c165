//! One virtual machine: QEMU under software emulation, its serial console and its results port.

pub(crate) mod agent_image;
pub(crate) mod cpio;
pub(crate) mod initramfs;
pub mod kernel;
pub(crate) mod platform;
pub mod qemu;
pub(crate) mod rootfs;
pub(crate) mod secure_boot;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Instant;

use command_fds::CommandFdExt;

use crate::gpu;
use crate::gpu::backend::{Attached, Link};
use crate::gpu::device::Device;
use crate::gpu::sockets::Sockets;
use crate::host::bounded_output::{self, Lines, QUEUED_LINES};
use crate::host::error::{At, Error};
use crate::vm::platform::GUEST;
use crate::vm::qemu::Qemu;
use crate::vm::secure_boot::Firmware;

/// Specification of a VM.
#[derive(Debug)]
pub struct Spec {
    /// QEMU, and its backend of the simulated devices.
    pub qemu: Arc<Qemu>,
    /// bzImage.
    pub kernel: PathBuf,
    /// Initramfs.
    pub initrd: PathBuf,
    /// Further arguments on the kernel's command line.
    pub arguments: String,
    /// UEFI firmware; a BIOS where None.
    pub firmware: Option<Firmware>,
    /// Seen by the guest as vda, vdb, ...
    pub disks: Vec<Disk>,
    /// Network address that it reaches; None gives it no network device.
    pub network: Option<Network>,
    /// Simulated devices.
    pub gpus: Vec<gpu::Spec>,
    /// Memory, MiB.
    pub memory: u32,
    /// Processors.
    pub processors: u32,
    /// True if its clock counts instructions, 2 ns each, instead of following this machine's.
    pub counts: bool,
    /// True if the console is this process's terminal (Ctrl-A X ends QEMU) instead of a stream.
    pub on_terminal: bool,
}

/// A disk image, and the persistence of writes to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disk {
    /// A raw image. Writes are discarded.
    Snapshot(PathBuf),
    /// A raw image. Writes are kept.
    Kept(PathBuf),
    /// A qcow2 image ([`crate::host::disk::volatile`]). When the VM is killed, writes outside the image's
    /// former clusters are kept only if they were flushed, as with a disk whose cache loses its
    /// power.
    Volatile(PathBuf),
}

impl Disk {
    /// Returns a disk whose writes are discarded.
    pub fn snapshot(image: &Path) -> Self {
        Self::Snapshot(image.to_path_buf())
    }

    /// Returns QEMU's description of it.
    fn drive(&self) -> String {
        let (image, how) = match self {
            Self::Snapshot(image) => (image, "format=raw,snapshot=on"),
            Self::Kept(image) => (image, "format=raw,snapshot=off"),
            // Discarded blocks are unmapped from their clusters.
            Self::Volatile(image) => (image, "format=qcow2,cache=writeback,discard=unmap"),
        };
        format!("file={},if=virtio,{how}", image.display())
    }
}

/// A network with one address and one port on it, which is forwarded to this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// `ADDRESS:PORT` in 10.0.2.0/24.
    pub address: String,
    /// Port on this machine's 127.0.0.1.
    pub port: u16,
    /// busybox: QEMU starts its nc for each connection.
    pub busybox: PathBuf,
    /// Port of this machine's 127.0.0.1 that is forwarded to the same port of the guest.
    pub inbound: Option<u16>,
}

/// Output of a VM.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A line of the serial console.
    Console(String),
    /// A line of the results port.
    Result(String),
    /// Console and results port are closed: the VM is gone.
    Gone,
}

/// Power state that a VM's watcher returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    /// The power stays on.
    On,
    /// The power goes off at once.
    Off,
}

/// End of a VM.
#[derive(Debug)]
pub enum Ended {
    /// QEMU ended by itself. Its exit code is not kept: a guest's panic and its power-off both give 0.
    Exited,
    /// This signal, of another process, ended QEMU.
    Killed(i32),
    /// It was still running at the deadline and was killed.
    Overdue,
    /// The watcher turned its power off.
    PowerLost,
}

/// A running VM. Dropping it kills QEMU.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    said: Receiver<Said>,
    links: Vec<Link>,
}

impl Vm {
    /// Starts QEMU.
    ///
    /// # Errors
    /// QEMU cannot be started, or a socket cannot be made.
    pub fn start(spec: &Spec) -> Result<Self, Error> {
        let mut command = qemu(spec);
        let mut sockets = Sockets::default();
        let (say, said) = mpsc::sync_channel(QUEUED_LINES);
        let mut links = Vec::new();
        for gpu in &spec.gpus {
            let device = Device::new(*gpu, spec.gpus.len() == 1);
            let attached = spec.qemu.backend.attach(device, &mut sockets)?;
            command.arg("-device").arg(&attached.argument);
            links.push(serve(attached, *gpu, say.clone()));
        }
        let (results, number) = sockets.add()?;
        command
            .args([
                "-device",
                "virtio-serial",
                "-device",
                "virtserialport,chardev=results,name=results",
            ])
            .arg("-chardev")
            .arg(format!("socket,id=results,fd={number}"));
        let program = Path::new(GUEST.qemu);
        let mapped = command.fd_mappings(sockets.into_mappings()).map_err(io::Error::other);
        mapped.at("pass sockets to", program)?;
        let mut qemu = command.spawn().at("start", program)?;
        // The command holds its ends of the sockets until then.
        drop(command);
        listen(&mut qemu, results, say);
        Ok(Self { qemu, said, links })
    }

    /// Passes every line to `hear` until the VM is gone, `deadline` passes, or `hear` turns its
    /// power off.
    ///
    /// # Errors
    /// QEMU's exit status cannot be read.
    pub fn watch(
        &mut self,
        deadline: Instant,
        mut hear: impl FnMut(Said) -> Power,
    ) -> Result<Ended, Error> {
        loop {
            match bounded_output::receive(&self.said, deadline) {
                Ok(Said::Gone) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(said) => {
                    if hear(said) == Power::Off {
                        self.kill();
                        return Ok(Ended::PowerLost);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Ok(Ended::Overdue);
                }
            }
        }
        let status = self.qemu.wait().at("wait for", Path::new(GUEST.qemu))?;
        Ok(status.signal().map_or(Ended::Exited, Ended::Killed))
    }

    fn kill(&mut self) {
        // Both fail only if QEMU has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        self.links.iter().for_each(Link::end);
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts the thread that serves a device. Its error is a line of the console.
fn serve(attached: Attached, gpu: gpu::Spec, say: SyncSender<Said>) -> Link {
    let Attached { serve, link, .. } = attached;
    // It ends when the link is ended or QEMU closes its end.
    thread::spawn(move || {
        if let Err(error) = serve() {
            // Fails only where nobody reads the console any more.
            let _ = say.send(Said::Console(format!("simulated {gpu}: {error}")));
        }
    });
    link
}

/// Returns QEMU's command line except for the devices on sockets. QEMU ends with the thread that
/// started it.
fn qemu(spec: &Spec) -> Command {
    let options = spec.firmware.as_ref().map_or("", |_| GUEST.with_firmware);
    let machine = format!("{},memory-backend=m{options}", GUEST.machine);
    let mut command = spec.qemu.command();
    command
        .args(["-accel", "tcg", "-machine", &machine, "-cpu", "max"])
        .args(["-smp", &spec.processors.to_string()])
        // The backends pass guest memory as descriptors, so the memory needs one.
        .arg("-object")
        .arg(format!("memory-backend-memfd,id=m,size={}M,share=on", spec.memory))
        .arg("-m")
        .arg(format!("{}M", spec.memory))
        .args(["-nodefaults", "-nographic", "-no-reboot"])
        .arg("-kernel")
        .arg(&spec.kernel)
        .arg("-initrd")
        .arg(&spec.initrd)
        .arg("-append")
        .arg(format!(
            "console={} oops=panic panic=-1 {} {}",
            GUEST.console, GUEST.arguments, spec.arguments
        ));
    if spec.counts {
        command.args(["-icount", "shift=1"]);
    }
    if let Some(firmware) = &spec.firmware {
        let flash = |unit: u8, file: &Path, how: &str| {
            format!("if=pflash,format=raw,unit={unit},{how}=on,file={}", file.display())
        };
        // Only code in system management mode may change the keys.
        command.args(["-global", "driver=cfi.pflash01,property=secure,value=on"]);
        command.arg("-drive").arg(flash(0, &firmware.code, "readonly"));
        command.arg("-drive").arg(flash(1, &firmware.variables, "snapshot"));
    }
    for disk in &spec.disks {
        command.arg("-drive").arg(disk.drive());
    }
    match &spec.network {
        None => command.args(["-net", "none"]),
        Some(Network { address, port, busybox, inbound }) => command
            .arg("-netdev")
            .arg(format!(
                "user,id=net,restrict=on,guestfwd=tcp:{address}-cmd:{} nc 127.0.0.1 {port}{}",
                busybox.display(),
                inbound
                    .map(|port| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}"))
                    .unwrap_or_default(),
            ))
            .args(["-device", "virtio-net-pci,netdev=net,romfile="]),
    };
    if spec.on_terminal {
        command.args(["-serial", "mon:stdio"]);
    } else {
        command.args(["-serial", "stdio"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    command
}

/// Starts the threads that turn console, stderr and results into one stream.
fn listen(qemu: &mut Child, results: UnixStream, say: SyncSender<Said>) {
    let mut readers = vec![thread::spawn({
        let say = say.clone();
        move || lines(results, &say, Said::Result)
    })];
    if let Some(console) = qemu.stdout.take() {
        let say = say.clone();
        readers.push(thread::spawn(move || lines(console, &say, Said::Console)));
    }
    if let Some(complaints) = qemu.stderr.take() {
        let say = say.clone();
        readers.push(thread::spawn(move || lines(complaints, &say, Said::Console)));
    }
    thread::spawn(move || {
        for reader in readers {
            // A reader that panicked sends no more lines.
            let _ = reader.join();
        }
        let _ = say.send(Said::Gone);
    });
}

fn lines(from: impl Read, say: &SyncSender<Said>, kind: fn(String) -> Said) {
    for line in Lines::new(from).map_while(io::Result::ok) {
        if say.send(kind(line)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cache::Cache;
    use crate::vm::qemu;

    fn spec() -> Spec {
        let cache = Cache::at(std::env::temp_dir()).unwrap();
        Spec {
            qemu: Qemu::find(&qemu::Options::default(), &cache).unwrap(),
            kernel: "/k/vmlinuz".into(),
            initrd: "/k/initrd".into(),
            arguments: String::new(),
            firmware: None,
            disks: vec![Disk::snapshot(Path::new("/d/a")), Disk::Kept("/d/b".into())],
            network: None,
            gpus: Vec::new(),
            memory: 512,
            processors: 1,
            counts: false,
            on_terminal: false,
        }
    }

    #[test]
    fn disks_are_in_order_and_nothing_reaches_a_network_unasked() {
        let arguments = arguments(&spec());
        let drives: Vec<_> = arguments.iter().filter(|a| a.contains("if=virtio")).collect();
        assert!(drives[0].starts_with("file=/d/a,") && drives[1].starts_with("file=/d/b,"));
        assert!(drives[0].contains("snapshot=on") && drives[1].contains("snapshot=off"));
        let net = arguments.iter().position(|a| a == "-net").unwrap();
        assert_eq!(arguments[net + 1], "none");
    }

    #[test]
    fn a_network_leads_to_one_port_only() {
        for (inbound, end) in [(None, ""), (Some(99), ",hostfwd=tcp:127.0.0.1:99-:99")] {
            let (address, busybox) = ("10.0.2.100:5000".to_owned(), "/b/busybox".into());
            let network = Network { address, port: 4321, busybox, inbound };
            let arguments = arguments(&Spec { network: Some(network), ..spec() });
            let wanted = format!(
                "user,id=net,restrict=on,\
                 guestfwd=tcp:10.0.2.100:5000-cmd:/b/busybox nc 127.0.0.1 4321{end}"
            );
            assert!(arguments.contains(&wanted), "{arguments:?}");
            assert!(!arguments.iter().any(|a| a == "-net"));
        }
    }

    #[test]
    fn a_clock_that_counts_is_asked_for() {
        let has = |spec: &Spec| arguments(spec).iter().any(|a| a == "-icount");
        assert!(has(&Spec { counts: true, ..spec() }) && !has(&spec()));
    }

    #[test]
    fn the_fullest_vm_has_a_slot_for_every_device() {
        // Of the 32 slots of q35's bus, its host bridge has 0 and its ISA bridge 31.
        const SLOTS: usize = 30;
        let gpus = [vec!["h100"; 8], vec!["nvswitch"; 6]].concat();
        let gpus: Vec<gpu::Spec> = gpus.iter().map(|name| name.parse().unwrap()).collect();
        assert_eq!(gpu::check(&gpus), Ok(()));
        let disks = vec![Disk::snapshot(Path::new("/d")); 5];
        let address = "10.0.2.100:5000".to_owned();
        let network = Network { address, port: 1, busybox: "/b".into(), inbound: None };
        let spec = Spec { disks, network: Some(network), gpus, ..spec() };
        let arguments = arguments(&spec);
        let has_slot = |a: &&String| a.contains("if=virtio") || a.starts_with("virtio-net-pci");
        // The results port's virtio-serial and the GPUs come with their sockets.
        let slots = arguments.iter().filter(has_slot).count() + 1 + spec.gpus.len();
        assert_eq!(slots, 21);
        assert!(slots <= SLOTS);
    }

    fn arguments(spec: &Spec) -> Vec<String> {
        qemu(spec).get_args().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_reader_waits_while_nobody_takes_its_lines_and_ends_with_the_vm() {
        let (say, said) = mpsc::sync_channel(1);
        let reader = thread::spawn(move || lines(io::repeat(b'\n'), &say, Said::Console));
        assert_eq!(said.recv(), Ok(Said::Console(String::new())));
        drop(said);
        reader.join().unwrap();
    }

    #[test]
    fn a_disk_that_is_not_there_ends_the_vm_with_qemus_words() {
        let mut vm = Vm::start(&spec()).unwrap();
        let mut heard = Vec::new();
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let hear = |said| {
            heard.push(format!("{said:?}"));
            Power::On
        };
        let ended = vm.watch(deadline, hear).unwrap();
        assert!(matches!(ended, Ended::Exited));
        assert!(heard.iter().any(|line| line.contains("/d/a")), "{heard:?}");
    }
}
