//! Tests of longshore in virtual machines: real kernels, a simulated NVIDIA GPU, scenarios and their verdicts.
//!
//! lab/matrix.toml declares the [cells](cell). A [guest] is made from a kernel, a root file system, the agent's image
//! and its store ([supply], [vm]), all kept in the [cache](host::cache), and boots in a QEMU whose devices are a
//! [gpu]. A [scenario](scenarios) has a script, which acts in the guest and only reports, and a judge beside it, which
//! decides from these reports alone ([judge]). [run] runs cells. Progress is a stream of
//! [events](judge::event).

pub mod cell;
pub mod gpu;
pub mod guest;
pub mod host;
pub mod judge;
pub mod run;
pub mod scenarios;
pub mod supply;
pub mod vm;
