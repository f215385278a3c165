//! Search for sets by their tags: listing of tags, and reading of the sets under them.

use reqwest::header::LINK;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;

use super::SetRequest;
use super::call::{Call, RegistryResponse, unexpected};
use super::content::described;
use super::session::Session;
use crate::artifact::core_objects::is_core_tag;
use crate::artifact::image::Described;
use crate::artifact::{legal, tag};
use crate::signature::set_index;
use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::flavour::Flavour;
use longshore_core::redact::redacted;

/// Maximum number of pages of tags; at a thousand tags each that is more than any fleet has.
const MOST_PAGES: usize = 50;
/// Maximum number of sets read from one repository, of the newest drivers: each costs two requests
/// or more. A kernel has one set for each driver and flavour.
const MOST_SETS: usize = 64;

/// Returns the sets of one repository that match `requested`.
pub(super) async fn find_in(
    session: &Session,
    requested: SetRequest<'_>,
) -> Result<Vec<Described>, Failure> {
    let mut found = Vec::new();
    for tag in tags_for(session, requested).await? {
        match described(session, &tag).await {
            Ok(set) => found.extend(set),
            Err(failure) if failure.kind() == FailureKind::Verification => {
                tracing::warn!("skipping {}:{tag}: {}", session.repository, failure.one_line());
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(found)
}

/// Returns the tags of a wish: computed for a complete version, listed for a branch.
async fn tags_for(session: &Session, requested: SetRequest<'_>) -> Result<Vec<String>, Failure> {
    let flavours = match requested.flavour {
        Some(flavour) => vec![flavour],
        None => vec![Flavour::Open, Flavour::Proprietary],
    };
    match requested.driver {
        Some(version) if DriverVersion::new(version).is_complete() => Ok(flavours
            .into_iter()
            .map(|flavour| tag(version, flavour, requested.kernel_release, requested.arch))
            .collect()),
        driver => {
            let fits = |tag: &str| is_requested(tag, driver, &flavours, requested);
            let (tags, left_out) = list_tags(session, fits, MOST_SETS).await?;
            if left_out > 0 {
                tracing::warn!(
                    "{} has {left_out} more sets for this kernel, of older drivers, which are not \
                     looked at: name the driver's whole version to have one of them",
                    session.repository
                );
            }
            Ok(tags)
        }
    }
}

/// Returns the tags of all sets of a repository, whatever kernel they are for.
///
/// # Errors
/// Exit code 12 where it cannot be read, 13 where it has more than an index lists.
pub(super) async fn set_tags(session: &Session) -> Result<Vec<String>, Failure> {
    let (tags, left_out) = list_tags(session, is_of_set, set_index::MOST_SETS).await?;
    if left_out > 0 {
        let most = set_index::MOST_SETS;
        let cause = format!("{} has more than {most} sets", session.repository);
        return Err(Failure::new(FailureKind::Verification, cause)
            .remedy("remove the tags of old sets, or keep others in another repository"));
    }
    Ok(tags)
}

/// True if a tag is a `DRIVER-FLAVOUR-RELEASE-ARCH`.
fn is_of_set(candidate: &str) -> bool {
    let Some((version, rest)) = candidate.split_once('-') else { return false };
    let is_version = DriverVersion::new(version).is_complete() && version == legal(version);
    let mut flavours = [Flavour::Open, Flavour::Proprietary].into_iter();
    let kernel = flavours.find_map(|flavour| rest.strip_prefix(&format!("{flavour}-")));
    is_version && kernel.is_some_and(|kernel| kernel.contains('-'))
}

/// True if a tag is a `DRIVER-FLAVOUR-RELEASE-ARCH` that matches the wish.
fn is_requested(
    candidate: &str,
    driver: Option<&str>,
    flavours: &[Flavour],
    requested: SetRequest<'_>,
) -> bool {
    let Some((version, _)) = candidate.split_once('-') else { return false };
    let within = driver.is_none_or(|driver| DriverVersion::new(version).is_within(driver));
    let of = |flavour: &Flavour| {
        candidate == tag(version, *flavour, requested.kernel_release, requested.arch)
    };
    within && version == legal(version) && flavours.iter().any(of)
}

/// Version of the driver in a tag.
fn driver_of(tag: &str) -> DriverVersion<'_> {
    DriverVersion::new(tag.split('-').next().unwrap_or_default())
}

/// Keeps the tags of the newest drivers, at most `most`; returns the number of the others.
fn keep_newest(tags: &mut Vec<String>, most: usize) -> usize {
    let newest_first =
        |a: &String, b: &String| driver_of(b).cmp(&driver_of(a)).then_with(|| a.cmp(b));
    tags.sort_by(newest_first);
    tags.dedup();
    let others = tags.len().saturating_sub(most);
    tags.truncate(most);
    others
}

#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

/// Lists the matching tags, `most` of the newest drivers, and the number of those left out. However many
/// tags a registry lists, no more are kept.
async fn list_tags(
    session: &Session,
    fits: impl Fn(&str) -> bool,
    most: usize,
) -> Result<(Vec<String>, usize), Failure> {
    let mut url = session.url("tags/list")?;
    url.query_pairs_mut().append_pair("n", "1000");
    let (mut tags, mut left_out) = (Vec::new(), 0);
    for _ in 0..MOST_PAGES {
        let call = Call::new(Method::GET, url.clone());
        let answer = session.exchange(&call).await?;
        match answer.status {
            StatusCode::OK => {}
            // A repository is created by the first push.
            StatusCode::NOT_FOUND => return Ok((tags, left_out)),
            _ => return Err(unexpected(&call, &answer)),
        }
        let page: Tags = serde_json::from_slice(&answer.body).map_err(|e| {
            let cause = format!("{} is not a list of tags", redacted(url.as_str()));
            Failure::new(FailureKind::Verification, cause)
                .with_source(e)
                .remedy("check that this is a registry")
        })?;
        let is_wanted = |tag: &String| !is_core_tag(tag) && fits(tag);
        tags.extend(page.tags.unwrap_or_default().into_iter().filter(is_wanted));
        left_out += keep_newest(&mut tags, most);
        match next_page(&url, &answer) {
            Some(next) => url = next,
            None => return Ok((tags, left_out)),
        }
    }
    tracing::warn!("{} has more tags than are looked at", session.repository);
    Ok((tags, left_out))
}

/// Parses `Link: </v2/...>; rel="next"` (RFC 8288), on the same host.
fn next_page(url: &Url, answer: &RegistryResponse) -> Option<Url> {
    let link = answer.headers.get(LINK)?.to_str().ok()?;
    let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let next = url.join(target).ok()?;
    let is_next = parameters.contains("rel=\"next\"") || parameters.contains("rel=next");
    (is_next && next.origin() == url.origin()).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_newest_drivers_are_asked_for_and_not_all_that_are_listed() {
        let tag = |n: usize| format!("535.{n}.1-open-6.1.0-50-amd64-x86_64");
        let mut tags: Vec<String> = (1..=50_000).map(tag).collect();
        assert_eq!(keep_newest(&mut tags, MOST_SETS), 50_000 - MOST_SETS);
        assert_eq!(tags.len(), MOST_SETS);
        assert_eq!(tags[..2], [tag(50_000), tag(49_999)]);
        let mut few = vec![tag(9), tag(10), tag(9)];
        assert_eq!(keep_newest(&mut few, MOST_SETS), 0);
        assert_eq!(few, [tag(10), tag(9)]);
    }

    #[rstest]
    #[case("535.261.03-open-6.1.0-50-amd64-x86_64", true)]
    #[case("535.261.03-proprietary-6.1.0-50-amd64-aarch64", true)]
    #[case("535-open-6.1.0-50-amd64-x86_64", false)]
    #[case("535.261.03-other-6.1.0-x86_64", false)]
    #[case("535.261.03-open-6.1.0", false)]
    #[case("claim-535.261.03-open-6.1.0-50-amd64-x86_64", false)]
    #[case("longshore-index", false)]
    #[case("sha256-97fc222cee7991b5b061d4d4afdb5f34.sig", false)]
    fn tags_of_sets(#[case] candidate: &str, #[case] expected: bool) {
        assert_eq!(is_of_set(candidate), expected);
    }

    #[rstest]
    #[case("535.261.03-open-6.1.0-50-amd64-x86_64", Some("535"), None, true)]
    #[case("535.261.03-open-6.1.0-50-amd64-x86_64", None, Some(Flavour::Open), true)]
    #[case("535.261.03-open-6.1.0-50-amd64-x86_64", None, Some(Flavour::Proprietary), false)]
    #[case("535.261.03-proprietary-6.1.0-50-amd64-x86_64", Some("535.261"), None, true)]
    #[case("550.163.01-open-6.1.0-50-amd64-x86_64", Some("535"), None, false)]
    #[case("5350.1.1-open-6.1.0-50-amd64-x86_64", Some("535"), None, false)]
    #[case("535.261.03-open-6.1.0-51-amd64-x86_64", Some("535"), None, false)]
    #[case("535.261.03-open-6.1.0-50-amd64-aarch64", Some("535"), None, false)]
    #[case("sha256-97fc222cee7991b5b061d4d4afdb5f34.sig", None, None, false)]
    #[case("latest", None, None, false)]
    fn tags_are_told_apart(
        #[case] candidate: &str,
        #[case] driver: Option<&str>,
        #[case] flavour: Option<Flavour>,
        #[case] expected: bool,
    ) {
        let requested =
            SetRequest { driver, flavour, kernel_release: "6.1.0-50-amd64", arch: "x86_64" };
        let flavours = flavour.map_or(vec![Flavour::Open, Flavour::Proprietary], |f| vec![f]);
        assert_eq!(is_requested(candidate, driver, &flavours, requested), expected);
    }
}
