//! Modules as the kernel sees them: modinfo, dependencies, loading.
