//! The daemons that belong to a driver: started once it is there, kept alive, and stopped before
//! it goes (docs/daemons.md).

mod backoff;
mod bring_up;
mod keeper;

pub use bring_up::{bring_up, stop};
pub use keeper::{Keeper, Kept};
