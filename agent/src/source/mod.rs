//! Where bits come from: Debian-format archives, driver packages, headers.
