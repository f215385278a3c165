//! Support table of NVIDIA's drivers: GPUs and their generations, branches with the last day of their support,
//! security bulletins, and combinations that do not work.
//!
//! The built-in table is data/support.toml with the GPUs of data/gpus.tsv ([`SupportTable::built_in`]); another one in
//! the same format replaces or extends it ([`SupportTable::merged`]). Its format is described in docs/reference/support-table.md.
//! Every question is a function of the table, the host and a day: nothing here reads a clock.

mod auto;
mod check;
mod fault;
mod gpus;
mod rows;
mod standing;
mod table;

pub use auto::{Chosen, choose};
pub use gpus::Gpu;
pub use rows::{
    Action, Branch, BranchKind, Bulletin, Exclusion, Floor, Generation, Provenance, Severity,
};
pub use standing::{Ended, OpenBulletin, Standing, Traits};
pub use table::{SupportTable, TableHead};
