//! Hermetic build root, compile, strip.

pub mod sandbox;
