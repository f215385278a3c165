//! Simulated nodes of a real cluster: a kubelet for many nodes without containers, and agents over simulated
//! hosts, each a process of its own. See docs/internals/fleet-simulation.md.
//!
//! ```text
//! simulated-nodes --dir DIR --port PORT --nodes 50 [--failing N --refused VERSION] [--kill VERSION]
//! ```
//!
//! At SIGUSR1 all nodes boot the kernel of the file `next-kernel` in DIR. `simulated-nodes archive DIR` writes an archive and
//! the configuration of a builder.
//!
//! KUBECONFIG names the cluster. Pods of the chart get an agent, and that of its controller of evictions the
//! controller; all others run at once, and use the driver where they have the label `uses-driver=true`. Needs root. Ends at
//! SIGTERM, with its agents.
#![recursion_limit = "512"]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod build;
mod evictor;
mod host;
mod kubelet;
mod node;
mod pod;
mod proxy;
mod pulled;
mod volumes;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// First argument of an agent, and of the controller of evictions.
const AGENT: &str = "agent";
const EVICTOR: &str = "evictor";
/// First argument of a call that writes an archive for a builder into the directory that follows.
const ARCHIVE: &str = "archive";

#[derive(Debug, Clone, Parser)]
struct Options {
    /// Directory of the nodes' files
    #[arg(long)]
    dir: PathBuf,
    /// Port of the API server on 127.0.0.1
    #[arg(long)]
    port: u16,
    /// Number of nodes
    #[arg(long)]
    nodes: usize,
    /// Drivers that the hosts have
    #[arg(long, default_value = "535,550")]
    drivers: String,
    /// Number of nodes on which the kernel refuses a module of the driver --refused
    #[arg(long, default_value_t = 0)]
    failing: usize,
    /// Driver that fails there
    #[arg(long, default_value = "")]
    refused: String,
    /// Driver during whose installation the agent of each node is killed once, each at another point
    #[arg(long)]
    kill: Option<String>,
}

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(AGENT) => return agent::main(),
        Some(EVICTOR) => return evictor::main(),
        _ => {}
    }
    if let (Some(ARCHIVE), Some(dir)) =
        (std::env::args().nth(1).as_deref(), std::env::args().nth(2))
    {
        return match pulled::write_archive(dir.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("simulated-nodes: writing the archive to {dir}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.expect("a runtime").block_on(kubelet::run(Options::parse())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("simulated-nodes: {error}");
            ExitCode::FAILURE
        }
    }
}
