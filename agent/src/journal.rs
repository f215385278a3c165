//! The record on disk of what was done to the host, for undoing it.
