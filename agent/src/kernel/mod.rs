//! Modules as the kernel sees them: modinfo, dependencies, loading.

pub mod modinfo;
