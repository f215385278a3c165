//! One virtual machine: QEMU under software emulation, its serial console and its results port.

use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::error::{At, Error};
use crate::gpu;
use crate::proxy;
use crate::secure_boot::Firmware;

/// What a VM is made of.
#[derive(Debug)]
pub struct Spec {
    /// bzImage.
    pub kernel: PathBuf,
    /// Initramfs.
    pub initrd: PathBuf,
    /// Further words for the kernel's command line.
    pub arguments: String,
    /// UEFI firmware; a BIOS where None.
    pub firmware: Option<Firmware>,
    /// Seen by the guest as vda, vdb, ...
    pub disks: Vec<Disk>,
    /// What it reaches over a network; None gives it no network device.
    pub network: Option<Network>,
    /// Simulated devices.
    pub gpus: Vec<gpu::Spec>,
    /// Memory, MiB.
    pub memory: u32,
    /// Whether the console is this process's terminal (Ctrl-A X ends QEMU) instead of a stream.
    pub on_terminal: bool,
}

/// A raw image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The image.
    pub image: PathBuf,
    /// Whether what is written to it stays; else it is thrown away.
    pub kept: bool,
}

impl Disk {
    /// A disk of which nothing that is written stays.
    pub fn snapshot(image: &Path) -> Self {
        Self { image: image.to_path_buf(), kept: false }
    }
}

/// A network with one address and one port on it, which leads to this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// `ADDRESS:PORT` in 10.0.2.0/24.
    pub address: String,
    /// Port on this machine's 127.0.0.1.
    pub port: u16,
    /// busybox: QEMU starts its nc for each connection.
    pub busybox: PathBuf,
}

/// What a VM says.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// A line of the serial console.
    Console(String),
    /// A line of the results port.
    Result(String),
    /// Console and results port are closed: the VM is gone.
    Gone,
}

/// How a VM ended.
#[derive(Debug)]
pub enum Ended {
    /// QEMU ended by itself. Its exit code is not kept: a guest's panic and its power-off both give 0.
    Exited,
    /// It was still running at the deadline and was killed.
    Overdue,
}

/// A running VM. Dropping it kills QEMU.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    said: Receiver<Said>,
    links: Vec<UnixStream>,
}

impl Vm {
    /// Starts QEMU.
    ///
    /// # Errors
    /// QEMU cannot be started, or a socket cannot be made.
    pub fn start(spec: &Spec) -> Result<Self, Error> {
        let mut command = qemu(spec);
        let mut inherited = Vec::new();
        let mut links = Vec::new();
        for gpu in &spec.gpus {
            let (ours, theirs) = socketpair()?;
            let device = gpu::Device::new(*gpu, spec.gpus.len() == 1);
            let serving = ours.try_clone().at("clone socket of", Path::new("the GPU"))?;
            // It ends when the socket is shut down by us or closed by QEMU.
            thread::spawn(move || proxy::serve(serving, device));
            command.arg("-device").arg(format!("x-pci-proxy-dev,fd={}", theirs.as_raw_fd()));
            links.push(ours);
            inherited.push(theirs);
        }
        let (results, theirs) = socketpair()?;
        command
            .args([
                "-device",
                "virtio-serial",
                "-device",
                "virtserialport,chardev=results,name=results",
            ])
            .arg("-chardev")
            .arg(format!("socket,id=results,fd={}", theirs.as_raw_fd()));
        inherited.push(theirs);
        let mut qemu = command.spawn().at("start", Path::new("qemu-system-x86_64"))?;
        drop(inherited);
        let said = listen(&mut qemu, results);
        Ok(Self { qemu, said, links })
    }

    /// Hands every line to `hear` until the VM is gone or `deadline` passes.
    ///
    /// # Errors
    /// QEMU's exit status cannot be had.
    pub fn watch(&mut self, deadline: Instant, mut hear: impl FnMut(Said)) -> Result<Ended, Error> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(Said::Gone) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(said) => hear(said),
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Ok(Ended::Overdue);
                }
            }
        }
        self.qemu.wait().at("wait for", Path::new("qemu-system-x86_64"))?;
        Ok(Ended::Exited)
    }

    fn kill(&mut self) {
        // Both fail only where QEMU has ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        for link in &self.links {
            let _ = link.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// QEMU's command line but for the devices on sockets. It dies with the thread that started it.
fn qemu(spec: &Spec) -> Command {
    let machine = match spec.firmware {
        Some(_) => "q35,memory-backend=m,smm=on",
        None => "q35,memory-backend=m",
    };
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-accel", "tcg", "-machine", machine, "-cpu", "max", "-smp", "1"])
        // The proxy passes guest memory as descriptors, so it has to have one.
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
        // On a busy machine the emulated timer is too late for the kernel's test of it.
        .arg(format!("console=ttyS0 oops=panic panic=-1 no_timer_check {}", spec.arguments));
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
        let (image, snapshot) = (disk.image.display(), if disk.kept { "off" } else { "on" });
        command.arg("-drive");
        command.arg(format!("file={image},if=virtio,format=raw,snapshot={snapshot}"));
    }
    match &spec.network {
        None => command.args(["-net", "none"]),
        Some(Network { address, port, busybox }) => command
            .arg("-netdev")
            .arg(format!(
                "user,id=net,restrict=on,guestfwd=tcp:{address}-cmd:{} nc 127.0.0.1 {port}",
                busybox.display()
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

/// A pair of which the second end is inherited by the next child.
fn socketpair() -> Result<(UnixStream, UnixStream), Error> {
    let at = Path::new("a socket for QEMU");
    let (ours, theirs) = UnixStream::pair().at("make", at)?;
    fcntl(theirs.as_fd(), FcntlArg::F_SETFD(FdFlag::empty())).at("pass on", at)?;
    Ok((ours, theirs))
}

/// Starts the threads that turn console, stderr and results into one stream.
fn listen(qemu: &mut Child, results: UnixStream) -> Receiver<Said> {
    let (say, said) = mpsc::channel();
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
            // A reader that panicked has said all it will.
            let _ = reader.join();
        }
        let _ = say.send(Said::Gone);
    });
    said
}

fn lines(from: impl Read, say: &Sender<Said>, kind: fn(String) -> Said) {
    for line in BufReader::new(from).split(b'\n').map_while(io::Result::ok) {
        let text = String::from_utf8_lossy(&line);
        if say.send(kind(text.trim_end_matches('\r').to_owned())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            kernel: "/k/vmlinuz".into(),
            initrd: "/k/initrd".into(),
            arguments: String::new(),
            firmware: None,
            disks: vec![
                Disk::snapshot(Path::new("/d/a")),
                Disk { image: "/d/b".into(), kept: true },
            ],
            network: None,
            gpus: Vec::new(),
            memory: 512,
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
        let network =
            Network { address: "10.0.2.100:5000".into(), port: 4321, busybox: "/b/busybox".into() };
        let arguments = arguments(&Spec { network: Some(network), ..spec() });
        let wanted = "user,id=net,restrict=on,\
                      guestfwd=tcp:10.0.2.100:5000-cmd:/b/busybox nc 127.0.0.1 4321";
        assert!(arguments.iter().any(|a| a == wanted), "{arguments:?}");
        assert!(!arguments.iter().any(|a| a == "-net"));
    }

    fn arguments(spec: &Spec) -> Vec<String> {
        qemu(spec).get_args().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn lines_are_whole_without_their_ends_and_survive_bad_text() {
        let (say, said) = mpsc::channel();
        lines(&b"one\r\nt\xffwo\nrest"[..], &say, Said::Console);
        drop(say);
        let heard: Vec<Said> = said.iter().collect();
        let expected = ["one", "t\u{fffd}wo", "rest"].map(|l| Said::Console(l.into()));
        assert_eq!(heard, expected);
    }

    #[test]
    fn a_disk_that_is_not_there_ends_the_vm_with_qemus_words() {
        let mut vm = Vm::start(&spec()).unwrap();
        let mut heard = Vec::new();
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let ended = vm.watch(deadline, |said| heard.push(format!("{said:?}"))).unwrap();
        assert!(matches!(ended, Ended::Exited));
        assert!(heard.iter().any(|line| line.contains("/d/a")), "{heard:?}");
    }
}
