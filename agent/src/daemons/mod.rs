//! Daemons of a driver: started once it is loaded, kept running, and stopped before it is unloaded
//! (docs/operate/daemons.md).

mod backoff;
mod keeper;

pub use keeper::{Keeper, Kept};
