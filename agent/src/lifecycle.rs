//! From Probing to Ready and, on SIGTERM, to Removed.
