//! longshore installs an NVIDIA driver on a host from a container, and uninstalls it again.
//!
//! Data flows in one direction: [`config`], [facts](longshore_host::facts) of the host and the [`catalog`]
//! of available sources go into the pure [`plan`]; the [`engine`] carries out a plan's [`steps`] through the
//! verbs of [`Host`](longshore_host::Host), and records every intent in the [`journal`] before the act. See
//! docs/internals/architecture.md.

pub mod build_lease;
mod build_service;
pub mod bundle;
pub mod catalog;
pub mod cdi;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod console;
pub mod daemons;
pub mod doctor;
pub mod endpoint;
pub mod engine;
pub mod fleet;
pub mod journal;
#[cfg(test)]
mod kept;
pub mod lifecycle;
pub mod logging;
pub mod nearest;
pub mod next_kernel;
mod open_registry;
pub mod plan;
pub mod prebuilt;
pub mod provider;
pub mod runtimes;
pub mod serve;
pub mod status;
pub mod steps;
pub mod supplier;
mod support_table;
pub mod telemetry;
pub mod terminal;
pub mod termination;
pub mod upkeep;
