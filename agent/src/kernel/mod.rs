//! Modules as the kernel sees them: modinfo, dependencies, loading.

pub mod index;
pub mod modinfo;
pub mod symbols;
