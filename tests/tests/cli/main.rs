//! Tests of the real program with bad input and on hosts that are not ready: each time the exit
//! code in docs/reference/exit-codes.md, one message with cause and remedy, and no unfinished file.

mod air_gapped;
mod archives;
mod background;
mod cdi;
mod configuration;
mod doctor;
mod fleet;
mod help;
mod hosts;
mod image;
mod kernel_hook;
mod leftovers;
mod locks;
mod observability;
mod panics;
mod plan;
mod process_one;
mod proxies;
mod runtime;
mod schemas;
mod show_combinations;
mod signals;
mod store_of_host;
mod streams;
mod upkeep;
