//! Threads whose stacks the kernel gives no huge page.

use std::thread;

/// Bytes of a stack: half of what a huge page has. Of one as large the kernel would make one where it
/// uses them always, as Debian's does (measured on 6.1): two megabytes that are zeroed and stay.
pub const STACK: usize = 1 << 20;

/// A thread of this name that is to be started.
pub fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK)
}
