//! Daemons of a driver: started once it is loaded, kept running, and stopped before it is unloaded
//! (docs/daemons.md).

mod backoff;
mod bring_up;
mod keeper;

pub use bring_up::{bring_up, stop};
pub use keeper::{Keeper, Kept};
