//! Tests across the whole of longshore live in `tests/`; this library is what they share.
