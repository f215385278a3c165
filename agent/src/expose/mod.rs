//! The driver root, device nodes and firmware path the host gets to see.

pub mod ldcache;
pub mod nodes;
#[cfg(test)]
pub(crate) mod sample_elf;
pub mod tree;
