//! Support table, and the reactions to what it says about a driver.

use std::sync::Arc;

use super::values::Reaction;
use super::{Fragment, SupportTableSource};
use longshore_core::failure::Failure;
use longshore_support::SupportTable;

/// Support table, and the reactions to what it says about a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupportConfig {
    /// The table.
    pub table: Arc<SupportTable>,
    /// Place of the one that replaces or extends the built-in table.
    pub source: Option<SupportTableSource>,
    /// Reaction to a driver with an open security bulletin.
    pub vulnerable: Reaction,
    /// Reaction to a driver whose branch has ended.
    pub ended: Reaction,
}

impl SupportConfig {
    /// Returns the settings with the built-in table.
    pub(super) fn with_defaults(all: &Fragment) -> Result<Self, Failure> {
        Ok(Self {
            table: Arc::new(SupportTable::built_in()?.clone()),
            source: all.support_table.clone(),
            vulnerable: all.vulnerable_driver.unwrap_or(Reaction::Warn),
            ended: all.ended_driver.unwrap_or(Reaction::Warn),
        })
    }
}
