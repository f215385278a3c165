//! A fact that may have been unreadable.

use serde::{Deserialize, Serialize};

/// A fact, or the reason why it could not be read: "could not check" is not "no".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe<T> {
    /// The value that was read.
    Read(T),
    /// The reason why it could not be read.
    Unreadable(String),
}
