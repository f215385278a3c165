//! Readers of a host's apt that the fuzz targets call.

use std::path::Path;

use longshore_core::failure::Failure;
use longshore_fetch::http::Logins;
use reqwest::Url;

use crate::{apt_conf, auth_conf};

/// Returns apt's logins below `root`.
pub fn logins(root: &Path) -> Logins {
    auth_conf::read(root)
}

/// Returns the number of rules for the proxies of these URLs in apt's settings below `root`.
///
/// # Errors
/// Exit code 2 for a proxy that cannot be used.
///
/// # Panics
/// If one of `urls` is none.
pub fn proxies(root: &Path, urls: &[&str]) -> Result<usize, Failure> {
    let urls: Vec<Url> = urls.iter().map(|url| url.parse().expect("a URL")).collect();
    apt_conf::read(root, &urls).map(|proxies| proxies.rules.len())
}
