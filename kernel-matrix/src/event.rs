//! What happens while the matrix runs. Whoever shows or records it consumes these and nothing else.

use std::time::Duration;

use serde::Serialize;

use crate::gpu;
use crate::trials::Trial;

/// Something that happened to a cell.
#[derive(Debug)]
pub struct Event {
    /// The cell.
    pub cell: String,
    /// What.
    pub what: What,
}

/// What can happen.
#[derive(Debug)]
pub enum What {
    /// Preparing has begun with this.
    Preparing(String),
    /// What the names in the matrix stand for today.
    Resolved(Resolved),
    /// Everything the cell needs is on disk.
    Prepared {
        /// How long that took.
        took: Duration,
    },
    /// QEMU was started with these devices.
    Started {
        /// Simulated devices.
        gpus: Vec<gpu::Spec>,
    },
    /// The guest's scenario is at this, so long after the start.
    Phase {
        /// The phase's name.
        name: String,
        /// Since QEMU's start.
        after: Duration,
    },
    /// The guest has reported something whole.
    Section {
        /// What, for example `ready.look`.
        name: String,
        /// Its lines.
        lines: Vec<String>,
    },
    /// A line of the guest's console.
    ConsoleLine(String),
    /// A console line that tells of a kernel in trouble.
    Trouble(String),
    /// Something measured, for example the agent's memory.
    Measured {
        /// What, for example `agent VmRSS`.
        what: String,
        /// The value with its unit.
        value: String,
    },
    /// One of many lives in a cell's guest, and what came of it.
    Trial(Trial),
    /// The cell is finished.
    Verdict(Outcome),
}

/// What the names in the matrix stood for.
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
    /// Version of the driver that it is changed to, where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_driver_version: Option<String>,
    /// Flavour of the kernel modules.
    pub flavour: String,
    /// sha256 of the driver's source package; empty where nothing was built.
    pub driver_sha256: String,
    /// sha256 of the agent's image; empty where none is used.
    pub image_sha256: String,
}

impl Resolved {
    /// The driver's version; where it is changed to another one, both.
    pub fn driver(&self) -> String {
        let next = self.next_driver_version.as_ref().map(|next| format!(" to {next}"));
        format!("{}{}", self.driver_version, next.unwrap_or_default())
    }
}

/// How a cell came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// Everything was as it has to be.
    Passed,
    /// It ran, and these things were wrong.
    Failed(Vec<String>),
    /// It did not get to run, and why; counts as a failure.
    NotRun(String),
}

/// Where events of one cell go.
#[derive(Clone)]
pub struct Sink<'a> {
    cell: String,
    take: &'a (dyn Fn(Event) + Sync),
}

impl<'a> Sink<'a> {
    /// Events of `cell` go to `take`.
    pub fn new(cell: &str, take: &'a (dyn Fn(Event) + Sync)) -> Self {
        Self { cell: cell.to_owned(), take }
    }

    /// Tells of something.
    pub fn tell(&self, what: What) {
        (self.take)(Event { cell: self.cell.clone(), what });
    }
}
