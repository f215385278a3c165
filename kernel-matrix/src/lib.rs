//! The matrix of kernels and drivers that a fleet uses.
//!
//! rules.toml ([`rules`]) declares it. [`rules::resolve`] looks each kernel and driver up
//! in the archives for a [`rules::lock`] file, [`rules::filter`] selects cells, [`build_run`] compiles them, and
//! [`boot_run`] boots those that have a scenario, in guests of [`longshore_lab`]. Each verdict goes to the
//! [`build_run::log`] at once, and all of them to [`build_run::results`] in the end. Outcomes of earlier runs stand for
//! cells of the same key ([`reuse`]); [`push`] fills a registry with the sets that passed, and [`push::published`]
//! finds them there. [`results`] are a whole matrix as a file, and [`report`] is its page for people.

pub mod boot_run;
pub mod build_run;
pub mod ending;
pub mod push;
pub mod report;
pub mod results;
pub mod reuse;
pub mod rules;
