//! Variables of the environment, which a caller may replace by its own.

/// Looks up an environment variable.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;
