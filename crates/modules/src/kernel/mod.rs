//! Kernel modules: modinfo, dependencies, images, and the kernel's reasons for refusing one.

pub mod index;
pub mod modinfo;
pub mod symbols;
