//! Parts of a cell that the archives do not have.

use longshore_lab::host::error::Error;

use crate::results::Part;
use crate::rules::lock::Missing;

/// Returns the answer that a part is missing, for an error that says why.
pub(super) fn missing(part: Part) -> impl Fn(Error) -> Missing {
    move |error| {
        let why = match &error {
            Error::Longshore(failure) => failure.one_line(),
            other => other.to_string(),
        };
        Missing { part, why: without_addresses(&why) }
    }
}

/// Returns a text with the path below the archive instead of each URL: the lock is of an archive, not
/// of the mirror that served it.
pub(super) fn without_addresses(text: &str) -> String {
    let path = |word: &str| {
        let (before, url) = word.split_once("://")?;
        let scheme = before.rfind(|c: char| !c.is_ascii_alphabetic()).map_or(0, |at| at + 1);
        let below = ["/dists/", "/pool/"].iter().find_map(|dir| url.find(dir)).map(|at| at + 1);
        let shown = below.map_or("an archive", |at| &url[at..]);
        Some(format!("{}{shown}", &before[..scheme]))
    };
    let words = text.split(' ').map(|word| path(word).unwrap_or_else(|| word.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}
