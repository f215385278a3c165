//! Decompression by a process without rights: the streams it gives, the rights it has, and its end.

mod packed;
mod process;
mod rights;
mod streams;
