//! Fixtures of the tests across all of longshore: an archive and its packages, a server with faults,
//! module sets and their signer, a .run file, and the program itself in a directory of its own.

pub mod archive;
pub mod manifest;
pub mod module_sets;
pub mod packages;
pub mod processes;
pub mod run_file;
pub mod scene;
pub mod server;
pub mod signer;
pub mod stand_in;
pub mod tls;
