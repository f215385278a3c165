//! longshore installs an NVIDIA driver on a host from a container, and uninstalls it again.
//!
//! Data flows in one direction: [`config`], [`host`] facts and the [`catalog`] of available sources
//! go into the pure [`plan`]; the [`engine`] carries out a plan's [`steps`] through the verbs of
//! [`host::Host`], and records every intent in the [`journal`] before the act. See
//! docs/architecture.md.

pub mod artifact;
pub mod build;
pub mod builder;
pub mod bundle;
pub mod cancel;
pub mod catalog;
pub mod commands;
pub mod config;
pub mod daemons;
pub mod deadlines;
pub mod digest;
pub mod disk;
pub mod doctor;
pub mod driver_modules;
pub mod driver_version;
pub mod endpoint;
pub mod engine;
pub mod failure;
pub mod finding;
pub mod flavour;
pub mod host;
pub mod image_reference;
pub mod input;
pub mod journal;
pub mod kernel;
pub mod landing;
pub mod layout;
pub mod lifecycle;
mod locks;
pub mod logging;
pub mod machine;
pub mod module_parameters;
pub mod module_signing;
pub mod once;
pub mod paths;
pub mod plan;
pub mod prebuilt;
pub mod printable;
pub mod privileges;
pub mod progress;
pub mod provider;
pub mod redact;
pub mod registry;
pub mod root;
pub mod scratch;
pub mod serve;
pub mod signature;
pub mod signed_sets;
pub mod source;
pub mod status;
pub mod steps;
pub mod store;
pub mod supplier;
pub mod telemetry;
pub mod terminal;
pub mod termination;
pub mod threads;
pub mod upkeep;

pub use failure::{ExitCode, Failure};
