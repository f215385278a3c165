//! Files with a known sha256, from URLs and from repositories of registries.
//!
//! A place `oci://HOST/REPOSITORY` names the blob `sha256:HEX` of that repository, where HEX is the file's own digest:
//! `oras push` and all other tools that make an artifact of a file put it there, and no manifest has to be read.

use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::Repository;
use longshore_core::progress::Task;
use longshore_core::redact::redacted;
use longshore_core::store::Store;
use longshore_fetch::http::{Expected, Fetcher, Reader};
use longshore_modules::registry::{OpenRegistry, Registry};

/// Scheme of a repository.
pub(crate) const SCHEME: &str = "oci://";

/// Returns the repository that an `oci://` URL names; None for all others.
pub fn repository_of(url: &str) -> Option<Repository> {
    url.strip_prefix(SCHEME)?.parse().ok()
}

/// Returns http, https and file URLs unchanged, absolute paths as file URLs, and repositories as they are shown.
///
/// # Errors
/// A message without passwords, for all other texts.
pub(crate) fn url_of(place: &str) -> Result<String, String> {
    if let Some(reference) = place.strip_prefix(SCHEME) {
        let repository = reference.parse::<Repository>().map_err(|e| {
            format!("{e}; write {SCHEME}HOST/REPOSITORY alone: the sha256 chooses the file in it")
        })?;
        return Ok(format!("{SCHEME}{repository}"));
    }
    plain_url_of(place).ok_or_else(|| {
        format!(
            "`{}` is no http, https or file URL, no {SCHEME}HOST/REPOSITORY and no absolute path",
            redacted(place)
        )
    })
}

/// Returns http, https and file URLs unchanged, and absolute paths as file URLs; None for all other texts.
pub(crate) fn plain_url_of(place: &str) -> Option<String> {
    if ["http://", "https://", "file:///"].iter().any(|scheme| place.starts_with(scheme)) {
        return Some(place.to_owned());
    }
    reqwest::Url::from_file_path(place).ok().map(String::from)
}

/// Keeps the failure of several places that is reported: the first one, or the first of other bytes, which is more than a
/// place that lacks the file.
pub fn keep_failure(kept: &mut Option<Failure>, failure: Failure) {
    let is_other_bytes = |failure: &Failure| failure.kind() == FailureKind::Verification;
    if kept.as_ref().is_none_or(|kept| is_other_bytes(&failure) && !is_other_bytes(kept)) {
        *kept = Some(failure);
    }
}

/// Client for files whose sha256 (hex) is known.
#[derive(Clone, Copy)]
pub struct PinnedFetcher<'a> {
    fetcher: &'a Fetcher,
    open: OpenRegistry<'a>,
}

impl<'a> PinnedFetcher<'a> {
    /// Fetches URLs with `fetcher`, and blobs from the registries that `open` opens.
    pub fn new(fetcher: &'a Fetcher, open: OpenRegistry<'a>) -> Self {
        Self { fetcher, open }
    }

    /// Returns the client of URLs.
    pub(crate) fn of_urls(&self) -> &'a Fetcher {
        self.fetcher
    }

    /// Opens the registry of an `oci://` URL; None for all others.
    fn registry(&self, url: &str) -> Result<Option<Registry>, Failure> {
        let Some(reference) = url.strip_prefix(SCHEME) else { return Ok(None) };
        let repository = reference.parse().map_err(|e| {
            Failure::new(FailureKind::Usage, format!("{SCHEME} without a repository"))
                .with_source(e)
        })?;
        (self.open)(&repository).map(Some)
    }

    /// Fetches the first bytes of a file, at most `most`; they are not verified.
    ///
    /// # Errors
    /// Exit code 12 where it cannot be downloaded.
    pub(crate) async fn head(
        &self,
        url: &str,
        sha256: &str,
        most: u64,
    ) -> Result<Vec<u8>, Failure> {
        match self.registry(url)? {
            Some(registry) => registry.blob_head(sha256, most).await,
            None => Ok(self.fetcher.head(url, most).await?),
        }
    }

    /// Passes a file to `reader` while it is downloaded, as [`Fetcher::stream`] does.
    ///
    /// # Errors
    /// As [`Fetcher::stream`] and [`Registry::stream_blob`].
    pub(crate) async fn stream(
        &self,
        url: &str,
        sha256: &str,
        limit: u64,
        reader: &Reader,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        match self.registry(url)? {
            Some(registry) => registry.stream_blob(sha256, limit, reader, task).await,
            None => Ok(self.fetcher.stream(url, sha256, limit, reader, task).await?),
        }
    }

    /// Fetches a file into the store, as the blob `sha256`.
    ///
    /// # Errors
    /// As [`Fetcher::blob`] and [`Registry::pull_blob`].
    pub async fn blob(
        &self,
        url: &str,
        sha256: &str,
        store: &Store,
        task: &dyn Task,
    ) -> Result<(), Failure> {
        if let Some(registry) = self.registry(url)? {
            return registry.pull_blob(sha256, store, task).await;
        }
        let expected = Expected { sha256: Some(sha256.to_owned()), size: None };
        self.fetcher.blob(url, &expected, store, task).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first_of_a_kind(&[FailureKind::Download, FailureKind::Download], 0)]
    #[case::other_bytes_after_it(&[FailureKind::Download, FailureKind::Verification], 1)]
    #[case::other_bytes_before_it(&[FailureKind::Verification, FailureKind::Download], 0)]
    #[case::other_bytes_twice(&[FailureKind::Verification, FailureKind::Verification], 0)]
    fn other_bytes_are_reported_before_a_missing_file(
        #[case] kinds: &[FailureKind],
        #[case] reported: usize,
    ) {
        let mut kept = None;
        for (n, kind) in kinds.iter().enumerate() {
            keep_failure(&mut kept, Failure::new(*kind, n.to_string()));
        }
        assert_eq!(kept.expect("one").to_string(), reported.to_string());
    }

    #[rstest]
    #[case::repository("oci://registry.example.com/nvidia/run-files", None)]
    #[case::port("oci://registry.example.com:5000/a", None)]
    #[case::plain("oci://http://127.0.0.1:5000/a", None)]
    #[case::tls("oci://https://registry.example.com/a", Some("oci://registry.example.com/a"))]
    #[case::version("oci://registry.example.com/sources/580.142", None)]
    #[case::http("http://archive.example.com/a.run", None)]
    #[case::path("/srv/a b.run", Some("file:///srv/a%20b.run"))]
    fn places_are_taken(#[case] place: &str, #[case] expected: Option<&str>) {
        let url = url_of(place).expect("taken");
        assert_eq!(url, expected.unwrap_or(place));
        let repository = repository_of(&url).map(|repository| format!("oci://{repository}"));
        assert_eq!(repository, url.starts_with("oci://").then_some(url));
    }

    #[rstest]
    #[case::tag("oci://registry.example.com/a:580.142", "without tag and digest")]
    #[case::digest("oci://registry.example.com/a@sha256:HEX", "without tag and digest")]
    #[case::no_repository("oci://registry.example.com", "give host and repository")]
    #[case::empty_repository("oci://registry.example.com/", "a repository's name")]
    #[case::no_host("oci://nvidia/a", "begin with the registry's host")]
    #[case::nothing("oci://", "give host and repository")]
    #[case::placeholder("oci://registry.example.com/{version}", "a repository's name")]
    #[case::upper_case("oci://registry.example.com/A.run", "a repository's name")]
    #[case::query("oci://registry.example.com/a?b=secret", "a repository's name")]
    #[case::user("oci://user:secret@registry.example.com/a", "oci://HOST/REPOSITORY alone")]
    #[case::plain_user("oci://http://user:secret@registry.example.com/a", "//***@registry")]
    #[case::other_scheme("docker://registry.example.com/a", "no oci://HOST/REPOSITORY")]
    fn other_texts_are_refused_without_their_passwords(#[case] place: &str, #[case] said: &str) {
        let refused = url_of(&place.replace("HEX", &"a".repeat(64))).expect_err("refused");
        assert!(refused.contains(said), "{refused}");
        assert!(!refused.contains("secret"), "{refused}");
    }
}
