//! Hermetic build root, compile, strip.
