//! Events of a matrix run: the only input of the modules that show or record it.

use std::time::Duration;

use serde::Serialize;

use crate::gpu;
use crate::judge::trials::Trial;

/// An event of a cell.
#[derive(Debug)]
pub struct Event {
    /// The cell.
    pub cell: String,
    /// Kind of event.
    pub what: What,
}

/// Kinds of event.
#[derive(Debug)]
pub enum What {
    /// Preparing has begun on this.
    Preparing(String),
    /// A line of output of a program that prepares something.
    Output(String),
    /// Versions that the matrix's names resolved to.
    Resolved(Resolved),
    /// Everything the cell needs is on disk.
    Prepared {
        /// Duration of the preparation.
        took: Duration,
    },
    /// QEMU was started with these devices.
    Started {
        /// Simulated devices.
        gpus: Vec<gpu::Spec>,
    },
    /// The guest's scenario reached this phase.
    Phase {
        /// The phase's name.
        name: String,
        /// Time since QEMU's start.
        after: Duration,
    },
    /// The guest has reported a whole section.
    Section {
        /// Name of the section, for example `ready.look`.
        name: String,
        /// Its lines.
        lines: Vec<String>,
    },
    /// A line of the guest's console.
    ConsoleLine(String),
    /// A console line that reports a kernel fault.
    Trouble(String),
    /// A measurement, for example of the agent's memory.
    Measured {
        /// Measured quantity, for example `agent VmRSS`.
        what: String,
        /// The value with its unit.
        value: String,
    },
    /// One of many agent runs in a cell's guest, and its result.
    Trial(Trial),
    /// The cell is finished.
    Verdict(Outcome),
}

/// Packages and versions that the names in the matrix resolved to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// Kernel package, for example `linux-image-6.1.0-50-amd64`.
    pub kernel_package: String,
    /// Its Debian version.
    pub kernel_version: String,
    /// sha256 of the kernel package.
    pub kernel_sha256: String,
    /// `uname -r`.
    pub kernel_release: String,
    /// Driver version; empty where nothing was built.
    pub driver_version: String,
    /// Version of the driver that it is changed to, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_driver_version: Option<String>,
    /// Flavour of the kernel modules.
    pub flavour: String,
    /// sha256 of the driver's source package; empty where nothing was built.
    pub driver_sha256: String,
    /// sha256 of the agent's image; empty where none is used.
    pub image_sha256: String,
    /// Version of QEMU; empty where no VM was started.
    pub qemu_version: String,
    /// Backend of the simulated GPU; empty where no VM was started.
    pub gpu_backend: String,
}

impl Resolved {
    /// Returns the driver's version; where it is changed to another one, both.
    pub fn driver(&self) -> String {
        let next = self.next_driver_version.as_ref().map(|next| format!(" to {next}"));
        format!("{}{}", self.driver_version, next.unwrap_or_default())
    }
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// All checks passed.
    Passed,
    /// It ran, with these faults.
    Failed(Vec<String>),
    /// It could not be run, for this reason; counts as a failure.
    NotRun(String),
}

/// Receiver of the events of one cell.
#[derive(Clone)]
pub struct Sink<'a> {
    cell: String,
    take: &'a (dyn Fn(Event) + Sync),
}

impl<'a> Sink<'a> {
    /// Passes events of `cell` to `take`.
    pub fn new(cell: &str, take: &'a (dyn Fn(Event) + Sync)) -> Self {
        Self { cell: cell.to_owned(), take }
    }

    /// Emits an event.
    pub fn tell(&self, what: What) {
        (self.take)(Event { cell: self.cell.clone(), what });
    }
}
