//! What of the store is kept, and whether it is sound.
//!
//! [`inventory`] says what lies there, [`gc`] what of it goes, [`check`] what of it is damaged;
//! [`history`] is the store's own memory of what ran on this host, [`mounted`] what of it is in use.

pub mod check;
pub mod gc;
pub mod history;
pub mod inventory;
mod mounted;
