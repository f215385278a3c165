//! Commands of the operator's side container for nvidia_peermem. They only read: the agent of the
//! main container loads the module as a step of its record, because the operator sets
//! GPU_DIRECT_RDMA_ENABLED for both containers.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::lifecycle::signals;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};

/// Interval of looking: sysfs reports no change of a module.
const INTERVAL: Duration = Duration::from_secs(2);
/// Number of looks at a ready driver without the module, after which the command fails.
const PATIENT: u32 = 30;

/// Command of the side container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, derive_more::Display)]
pub enum SideCar {
    /// Waits until the agent has loaded nvidia_peermem, and stays.
    #[display("reload_nvidia_peermem")]
    Reload,
    /// Fails while the network driver is loaded and nvidia_peermem is not.
    #[display("probe_nvidia_peermem")]
    Probe,
}

impl SideCar {
    /// Runs the command.
    ///
    /// # Errors
    /// 16 if nvidia_peermem is not loaded though what it needs is.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let host_mofed = std::env::var("USE_HOST_MOFED").is_ok_and(|value| value == "true");
        let look = || PeermemInputs::read(Path::new("/"), host_mofed);
        match self {
            SideCar::Probe => probe(look()).map(|()| ExitCode::Done),
            SideCar::Reload => stay(look, &ends()?, INTERVAL).map(|()| ExitCode::Done),
        }
    }
}

/// State of the host, as far as nvidia_peermem depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PeermemInputs {
    /// The network driver is loaded.
    mlx5: bool,
    /// The network driver is installed: loaded on the host, or declared ready by its container.
    mofed: bool,
    /// The startup probe found the driver ready.
    driver: bool,
    /// nvidia_peermem is loaded.
    peermem: bool,
}

impl PeermemInputs {
    /// Reads the state below `root`. A link counts as nothing: other containers write below /run.
    fn read(root: &Path, host_mofed: bool) -> Self {
        let is_file =
            |path: &str| fs::symlink_metadata(root.join(path)).is_ok_and(|found| found.is_file());
        let mlx5 = is_file("sys/module/mlx5_core/refcnt");
        let declared = || is_file("run/mellanox/drivers/.driver-ready");
        Self {
            mlx5,
            mofed: if host_mofed { mlx5 } else { declared() },
            driver: is_file("run/nvidia/validations/.driver-ctr-ready"),
            peermem: is_file("sys/module/nvidia_peermem/refcnt"),
        }
    }

    fn missing(self) -> Option<&'static str> {
        match self {
            PeermemInputs { mofed: false, .. } => Some("the network driver (MOFED)"),
            PeermemInputs { driver: false, .. } => Some("the NVIDIA driver"),
            PeermemInputs { peermem: false, .. } => {
                Some("nvidia_peermem, which the driver's agent loads")
            }
            _ => None,
        }
    }
}

fn probe(seen: PeermemInputs) -> Result<(), Failure> {
    if seen.mlx5 && !seen.peermem { Err(not_loaded()) } else { Ok(()) }
}

fn not_loaded() -> Failure {
    Failure::new(FailureKind::KernelRefused, "nvidia_peermem is not loaded").remedy(
        "see the log of the driver's container: its agent loads nvidia_peermem where \
         GPU_DIRECT_RDMA_ENABLED is true and the set of modules has it",
    )
}

/// Stays until a signal ends it; logs what is being waited for.
fn stay(
    look: impl Fn() -> PeermemInputs,
    ends: &Receiver<()>,
    interval: Duration,
) -> Result<(), Failure> {
    let (mut last, mut without) = (None, 0);
    loop {
        let seen = look();
        if last != Some(seen) {
            match seen.missing() {
                Some(what) => tracing::info!("waiting for {what}"),
                None => tracing::info!("nvidia_peermem is loaded; staying until SIGTERM"),
            }
        }
        let is_late = seen.mofed && seen.driver && !seen.peermem;
        without = if is_late { without + 1 } else { 0 };
        if without > PATIENT {
            return Err(not_loaded());
        }
        last = Some(seen);
        match ends.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Returns the receiver of the signals that end this process.
fn ends() -> Result<Receiver<()>, Failure> {
    let fail = || "setting signal handlers";
    let mut signals = Signals::new([SIGTERM, SIGINT]).or_fail(FailureKind::Bug, fail)?;
    signals::release();
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        if signals.forever().next().is_some() {
            // The receiver is gone where the command has ended by itself.
            let _ = sender.send(());
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .or_fail(FailureKind::Bug, fail)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::fs::symlink;

    use rstest::rstest;

    use super::*;

    const MLX5: &str = "sys/module/mlx5_core/refcnt";
    const MOFED: &str = "run/mellanox/drivers/.driver-ready";
    const DRIVER: &str = "run/nvidia/validations/.driver-ctr-ready";
    const PEERMEM: &str = "sys/module/nvidia_peermem/refcnt";

    fn seen(files: &[&str], host_mofed: bool) -> PeermemInputs {
        let dir = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, "0\n").expect("written");
        }
        PeermemInputs::read(dir.path(), host_mofed)
    }

    #[rstest]
    #[case::no_network(&[], true)]
    #[case::no_network_driver_ready(&[DRIVER], true)]
    #[case::network_alone(&[MLX5], false)]
    #[case::both(&[MLX5, PEERMEM], true)]
    #[case::module_alone(&[PEERMEM], true)]
    fn the_probe(#[case] files: &[&str], #[case] passes: bool) {
        assert_eq!(probe(seen(files, false)).is_ok(), passes);
    }

    #[rstest]
    #[case(&[], false, Some("the network driver (MOFED)"))]
    #[case(&[MLX5], false, Some("the network driver (MOFED)"))]
    #[case(&[MLX5], true, Some("the NVIDIA driver"))]
    #[case(&[MOFED], false, Some("the NVIDIA driver"))]
    #[case(&[MOFED, DRIVER], false, Some("nvidia_peermem, which the driver's agent loads"))]
    #[case(&[MOFED, DRIVER, PEERMEM], false, None)]
    fn waits(#[case] files: &[&str], #[case] host_mofed: bool, #[case] wanted: Option<&str>) {
        assert_eq!(seen(files, host_mofed).missing(), wanted);
    }

    #[test]
    fn a_link_is_no_ready_file() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("run/nvidia/validations")).expect("made");
        symlink("/proc/self/status", dir.path().join(DRIVER)).expect("linked");
        assert!(!PeermemInputs::read(dir.path(), false).driver);
    }

    #[test]
    fn it_stays_until_a_signal_and_fails_only_where_a_ready_driver_lacks_the_module() {
        let loaded = PeermemInputs { mlx5: true, mofed: true, driver: true, peermem: true };
        let (sender, ends) = mpsc::channel();
        let looks = RefCell::new(0);
        let look = || {
            *looks.borrow_mut() += 1;
            if *looks.borrow() == 3 {
                sender.send(()).expect("received");
            }
            if *looks.borrow() == 1 { PeermemInputs::default() } else { loaded }
        };
        stay(look, &ends, Duration::ZERO).expect("stopped");
        assert!(*looks.borrow() >= 3);
        let without = || PeermemInputs { peermem: false, ..loaded };
        stay(without, &ends, Duration::ZERO).expect_err("not loaded");
    }
}
