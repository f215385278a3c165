//! Threads with stacks too small for a huge page.

use std::thread;

/// Stack size: half of a huge page. For a stack of that size the kernel would allocate one where
/// transparent huge pages are always on, as in Debian (measured on 6.1): two megabytes, zeroed and
/// never freed.
pub const STACK: usize = 1 << 20;

/// Returns a builder of a thread with this name.
pub fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK)
}
