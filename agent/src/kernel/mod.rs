//! Modules as the kernel sees them: modinfo, dependencies, loading.

pub mod image;
pub mod index;
pub mod modinfo;
pub mod readback;
pub mod refusal;
pub mod symbols;
