//! Library that the tests across all of longshore in `tests/` share.
