//! Tests of the real program with bad input and on hosts that are not ready: each time the exit
//! code in docs/exit-codes.md, one message with cause and remedy, and no unfinished file.

mod air_gapped;
mod archives;
mod configuration;
mod debs;
mod doctor;
mod hosts;
mod image;
mod leftovers;
mod locks;
mod observability;
mod panics;
mod process_one;
mod proxies;
mod scene;
mod signals;
mod streams;
mod upkeep;

// A whole archive and a server with faults, shared with the archive's own tests.
#[allow(dead_code)]
#[path = "../archive/mini.rs"]
mod mini;
#[allow(dead_code)]
#[path = "../archive/server.rs"]
mod server;
// Modules that are ELF files, shared with the registry's own tests.
#[allow(dead_code)]
#[path = "../registry/sets.rs"]
mod sets;
#[allow(dead_code)]
#[path = "../sweep/tls.rs"]
mod tls;
