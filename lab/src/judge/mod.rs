//! Judgement of a guest: its evidence, the events of a run, and checks that several scenarios share.

pub(crate) mod answers;
pub(crate) mod checks;
pub(crate) mod console;
pub mod end;
pub mod event;
pub mod evidence;
pub(crate) mod identity;
pub(crate) mod log_text;
pub(crate) mod manifest;
pub(crate) mod records;
pub(crate) mod scene;
pub(crate) mod start_times;
pub(crate) mod tainted;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub(crate) mod timing;
pub(crate) mod trials;
