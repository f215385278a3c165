//! Headers of a kernel by its name, in several suites.

use longshore_debian::archive::{Archive, Package, compare};
use longshore_sources::headers::{
    InArchive, all_parts, find_in_archive, flavour_of, nearest_in_archives,
};

use crate::results::Part;
use crate::rules::lock::Missing;
use crate::rules::missing::missing;
use longshore_lab::host::error::Error;

/// Returns the packages of the headers of `release` and the suite that has them: the newest, and of several of one
/// version the first. A suite that cannot be read counts where no other has them.
///
/// # Errors
/// A suite cannot be read, or none has them: the nearest releases are named.
pub(super) fn headers_of<'a>(
    release: &str,
    suites: Vec<(&'a str, Result<&Archive, Error>)>,
) -> Result<(&'a str, Vec<Package>), Missing> {
    let mut best: Option<(&str, &Archive, InArchive)> = None;
    let (mut read, mut unread) = (Vec::new(), None);
    let names: Vec<&str> = suites.iter().map(|(suite, _)| *suite).collect();
    for (suite, archive) in suites {
        let archive = match archive {
            Ok(archive) => archive,
            Err(error) => {
                unread.get_or_insert(error);
                continue;
            }
        };
        read.push(archive);
        let Ok(found) = find_in_archive(archive, release, None) else { continue };
        let is_newer = |known: &(&str, &Archive, InArchive)| {
            compare(&found.package.version, &known.2.package.version).is_gt()
        };
        if best.as_ref().is_none_or(is_newer) {
            best = Some((suite, archive, found));
        }
    }
    match (best, unread) {
        (Some((suite, archive, found)), _) => Ok((suite, all_parts(archive, &found))),
        (None, Some(error)) => Err(missing(Part::Suite)(error)),
        (None, None) => Err(no_headers(release, &names, read)),
    }
}

fn no_headers(release: &str, suites: &[&str], archives: Vec<&Archive>) -> Missing {
    let there = match nearest_in_archives(archives, release).as_slice() {
        [] => format!("there are none of a kernel like {}", flavour_of(release)),
        nearest => format!("the nearest are of {}", nearest.join(", ")),
    };
    let suites = suites.join(", ");
    Missing { part: Part::Headers, why: format!("no headers of {release} in {suites}; {there}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the index of a suite with headers of Ubuntu's form of these ABIs, each with the version `ABI.UPLOAD`.
    fn index(abis: &[(&str, &str)]) -> String {
        let one = |(abi, upload): &(&str, &str)| {
            let stanza = |name: &str, depends: &str| {
                format!(
                    "Package: {name}\nSource: linux-hwe-6.8\nVersion: {abi}.{upload}\nArchitecture: amd64\n\
                     Depends: {depends}\nFilename: {name}.deb\nSize: 1\nSHA256: {}\n\n",
                    "0".repeat(64)
                )
            };
            let common = format!("linux-hwe-6.8-headers-{abi}");
            let depends = format!("{common}, libc6 (>= 2.38)");
            stanza(&common, "coreutils")
                + &stanza(&format!("linux-headers-{abi}-generic"), &depends)
        };
        abis.iter().map(one).collect()
    }

    #[test]
    fn headers_of_a_release_are_found_in_the_suites_or_the_nearest_are_named() {
        let of = |abis: &[(&str, &str)]| Archive::of_suites(&[("noble", &index(abis))]);
        let release = of(&[("6.8.0-31", "31"), ("6.8.0-45", "45")]);
        let updates = of(&[("6.8.0-45", "45.1"), ("6.8.0-142", "142")]);
        let gone = || Err(Error::Unexpected("the suite noble-security cannot be read: 404".into()));
        let both = || vec![("noble", Ok(&release)), ("noble-updates", Ok(&updates))];
        let with_gone = || {
            let mut suites = both();
            suites.push(("noble-security", gone()));
            suites
        };
        for (wanted, suites, expected) in [
            ("6.8.0-31-generic", both(), Ok(("noble", "6.8.0-31.31"))),
            ("6.8.0-45-generic", both(), Ok(("noble-updates", "6.8.0-45.45.1"))),
            ("6.8.0-31-generic", with_gone(), Ok(("noble", "6.8.0-31.31"))),
            (
                "6.8.0-46-generic",
                both(),
                Err((
                    Part::Headers,
                    "no headers of 6.8.0-46-generic in noble, noble-updates; the nearest are of \
                     6.8.0-31-generic, 6.8.0-45-generic, 6.8.0-142-generic",
                )),
            ),
            (
                "6.8.0-45-aws",
                both(),
                Err((
                    Part::Headers,
                    "no headers of 6.8.0-45-aws in noble, noble-updates; there are none of a kernel like aws",
                )),
            ),
            (
                "6.8.0-46-generic",
                with_gone(),
                Err((Part::Suite, "the suite noble-security cannot be read: 404")),
            ),
        ] {
            match (headers_of(wanted, suites), expected) {
                (Ok((suite, packages)), Ok((of, version))) => {
                    assert_eq!((suite, packages[0].version.as_str()), (of, version), "{wanted}");
                    let names: Vec<&str> = packages.iter().map(|p| p.name.as_str()).collect();
                    let abi = wanted.trim_end_matches("-generic");
                    let common = format!("linux-hwe-6.8-headers-{abi}");
                    assert_eq!(names, [format!("linux-headers-{wanted}"), common]);
                }
                (Err(missing), Err((part, why))) => {
                    assert_eq!((missing.part, missing.why.as_str()), (part, why));
                }
                (found, expected) => panic!("{wanted}: {found:?}, not {expected:?}"),
            }
        }
    }
}
