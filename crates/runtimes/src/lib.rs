//! Configurations of container runtimes, as far as they decide on the Container Device Interface (CDI).
//!
//! Text in, verdict out: [`docker::assess`], [`containerd::assess`], [`readers::crio`] and [`readers::podman`]
//! say of a configuration whether its runtime reads CDI specs, and where it does not, have the edited text
//! ([`Edit`]) and its [`difference`]. An edit changes one value, and keeps every other byte. Nothing here
//! touches a host: files come through [`Files`], versions through [`Version`], the command line of a daemon
//! through [`Invocation`], and its places through [`Distribution`].

pub mod containerd;
mod difference;
pub mod distribution;
pub mod docker;
mod files;
mod invocation;
mod json_text;
pub mod readers;
mod runtime;
mod spec_dirs;
pub mod systemd;
mod toml_text;
mod verdict;
mod version;

pub use difference::difference;
pub use distribution::Distribution;
pub use files::Files;
pub use invocation::{Flag, Invocation, Source};
pub use runtime::Runtime;
pub use verdict::{Assessment, Edit, State};
pub use version::Version;

#[cfg(test)]
mod fixtures;
