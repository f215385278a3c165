//! Release files: a suite's signed metadata, as InRelease, or Release with Release.gpg.

use std::collections::HashMap;

use super::control::{self, Paragraph};
use super::keyring::{Keyring, SignatureError};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::redact::redacted;
use longshore_fetch::http::{FetchError, Fetcher};

/// Maximum size: the largest known InRelease has 400 KB.
const MOST_BYTES: u64 = 4 << 20;

/// Endings of the suites that share an Ubuntu release's codename.
const POCKETS: [&str; 4] = ["-updates", "-security", "-backports", "-proposed"];

/// A suite's verified metadata.
#[derive(Debug, Clone)]
pub struct Release {
    /// For example `Debian`.
    pub origin: Option<String>,
    /// For example `NVIDIA CUDA`.
    pub label: Option<String>,
    /// For example `oldstable-security`.
    pub suite: Option<String>,
    /// For example `bookworm-security`.
    pub codename: Option<String>,
    /// Date, in seconds since 1970.
    pub date: Option<i64>,
    /// Valid-Until, in seconds since 1970.
    pub valid_until: Option<i64>,
    /// Components, for example `main`; security archives write `updates/main`.
    pub components: Vec<String>,
    /// Architectures.
    pub architectures: Vec<String>,
    /// True if indexes can be fetched by their digest.
    pub by_hash: bool,
    /// Path below the suite -> digest and size.
    files: HashMap<String, IndexFile>,
}

/// A file that a Release lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFile {
    /// sha256 (hex).
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

impl Release {
    /// Returns a file of the suite, by its path below it.
    pub fn file(&self, path: &str) -> Option<&IndexFile> {
        self.files.get(path)
    }

    /// Parses a Release.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let paragraphs = control::paragraphs(text)
            .map_err(|bad| format!("line {} of it: {}", bad.line, bad.what))?;
        let [fields] = &paragraphs[..] else {
            return Err(format!("it has {} paragraphs instead of one", paragraphs.len()));
        };
        let text = |name| fields.get(name).filter(|v| !v.is_empty()).map(str::to_owned);
        let list = fields.get("SHA256").ok_or("it lists no SHA256 digests")?;
        Ok(Self {
            origin: text("Origin"),
            label: text("Label"),
            suite: text("Suite"),
            codename: text("Codename"),
            date: time(fields, "Date")?,
            valid_until: time(fields, "Valid-Until")?,
            components: fields.words("Components"),
            architectures: fields.words("Architectures"),
            by_hash: fields.truth("Acquire-By-Hash").unwrap_or(false),
            files: files(list)?,
        })
    }

    /// True if this describes the requested suite: by suite or codename. A mirror, or an attacker
    /// on the way, must not answer with another suite, though that is signed all the same.
    fn is_of(&self, wanted: &str) -> bool {
        // Old security archives are requested as `buster/updates` and call themselves `buster`.
        let wanted = wanted.strip_suffix("/updates").unwrap_or(wanted);
        if let Some(pocket) = self.pocket() {
            return pocket == wanted;
        }
        let own = [&self.suite, &self.codename];
        own.iter().all(|name| name.is_none())
            || own
                .into_iter()
                .flatten()
                .any(|name| name.strip_suffix("/updates").unwrap_or(name) == wanted)
    }

    /// Returns the suite where it is a pocket of the codename: all pockets of an Ubuntu release have the
    /// codename `noble`, so only the suite tells `noble-updates` from `noble`.
    fn pocket(&self) -> Option<&str> {
        let (suite, codename) = (self.suite.as_deref()?, self.codename.as_deref()?);
        suite.strip_prefix(codename).filter(|pocket| POCKETS.contains(pocket)).map(|_| suite)
    }

    /// Returns the name of this suite in plans and messages: its codename, or its pocket's.
    pub(super) fn name(&self) -> Option<&str> {
        self.pocket().or(self.codename.as_deref())
    }

    fn expired(&self, now: u64) -> bool {
        self.valid_until.is_some_and(|until| until < now.try_into().unwrap_or(i64::MAX))
    }
}

/// Rules for accepting metadata.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Seconds since 1970.
    pub now: u64,
    /// True to accept metadata past its Valid-Until or its limit of age, or older than known before.
    pub frozen: bool,
}

/// Fetches and verifies the Release of `suite` (`base` is the URL of the archive).
///
/// # Errors
/// [`FetchError::Missing`] where the archive has no such suite; exit code 12 where it cannot be
/// fetched, 13 where the keyring did not sign it, or it is too old or another suite's.
pub async fn fetch(
    fetcher: &Fetcher,
    base: &str,
    suite: &str,
    keyring: &Keyring,
    rules: Rules,
) -> Result<Release, FetchError> {
    let dir = suite_url(base, suite);
    let (url, text) = match signed_text(fetcher, &dir, keyring, rules.now).await {
        Err(FetchError::Missing(absent)) if is_flat(suite) => return Err(no_release(&dir, absent)),
        found => found?,
    };
    let release =
        Release::parse(&text).map_err(|what| refused(&url, what, "report it to the archive"))?;
    // A flat archive has no suites that could be exchanged for each other.
    if !is_flat(suite) && !release.is_of(suite) {
        let own = release.codename.as_deref().or(release.suite.as_deref()).unwrap_or_default();
        let what = format!("{suite} was requested, and it describes {own}");
        return Err(refused(
            &url,
            what,
            "name the suite as the archive does, or use another mirror",
        ));
    }
    if release.expired(rules.now) && !rules.frozen {
        let until = release.valid_until.map(date_text).unwrap_or_default();
        return Err(refused(
            &url,
            format!("it was valid until {until}"),
            "check the clock and the mirror; for a mirror that is frozen on purpose give --archive-frozen",
        ));
    }
    if release.date.is_some_and(|date| date > rules.now.try_into().unwrap_or(i64::MAX)) {
        tracing::warn!(
            url = redacted(&url),
            "the Release's date is in the future: check this host's clock"
        );
    }
    Ok(release)
}

/// Returns the URL of a suite's files.
pub(crate) fn suite_url(base: &str, suite: &str) -> String {
    let base = base.trim_end_matches('/');
    match suite.strip_suffix('/') {
        None => format!("{base}/dists/{suite}"),
        Some("" | ".") => base.to_owned(),
        Some(path) => format!("{base}/{}", path.trim_start_matches("./").trim_matches('/')),
    }
}

/// True if a source's suite is a directory of a flat archive: `/`, `./`, `path/` (sources.list(5)). Its
/// Release and Packages lie beside each other, and it has no components.
pub(crate) fn is_flat(suite: &str) -> bool {
    suite.ends_with('/')
}

fn no_release(dir: &str, absent: Failure) -> FetchError {
    let dir = redacted(dir);
    let cause =
        format!("the flat archive {dir}/ has neither InRelease nor Release: nothing is signed");
    FetchError::Failed(Failure::new(FailureKind::Verification, cause).with_source(absent).remedy(
        "check the address; an archive that has none needs a signed Release beside its Packages",
    ))
}

/// Returns the signed text, and its URL.
async fn signed_text(
    fetcher: &Fetcher,
    dir: &str,
    keyring: &Keyring,
    now: u64,
) -> Result<(String, String), FetchError> {
    let url = format!("{dir}/InRelease");
    match fetcher.bytes(&url, MOST_BYTES).await {
        Ok(message) => {
            let text = keyring.verify_cleartext(&message, now).map_err(|e| unsigned(&url, e))?;
            return Ok((url, text));
        }
        Err(FetchError::Missing(_)) => {}
        Err(failed) => return Err(failed),
    }
    let url = format!("{dir}/Release");
    let data = fetcher.bytes(&url, MOST_BYTES).await?;
    let signature_url = format!("{url}.gpg");
    let signature = match fetcher.bytes(&signature_url, MOST_BYTES).await {
        Ok(signature) => signature,
        Err(FetchError::Missing(_)) => return Err(unsigned(&url, SignatureError::Unsigned)),
        Err(failed) => return Err(failed),
    };
    keyring.verify(&data, &signature, now).map_err(|e| unsigned(&signature_url, e))?;
    let text = String::from_utf8(data)
        .map_err(|_| refused(&url, "it is not UTF-8".to_owned(), "report it to the archive"))?;
    Ok((url, text))
}

fn unsigned(url: &str, error: SignatureError) -> FetchError {
    let cause = format!("the signature of {} is not accepted", redacted(url));
    let remedy =
        "check the keyring of this source, the proxy and the mirror; nothing of it was used";
    Failure::new(FailureKind::Verification, cause).with_source(error).remedy(remedy).into()
}

fn refused(url: &str, what: String, remedy: &str) -> FetchError {
    let cause = format!("{} cannot be used: {what}", redacted(url));
    Failure::new(FailureKind::Verification, cause).remedy(remedy).into()
}

fn time(fields: &Paragraph, name: &str) -> Result<Option<i64>, String> {
    let Some(text) = fields.get(name) else { return Ok(None) };
    // RFC 2822 has no "UTC"; the archive's tools write nothing else.
    let standard = text.strip_suffix("UTC").map(|t| format!("{t}+0000"));
    match jiff::fmt::rfc2822::parse(standard.as_deref().unwrap_or(text)) {
        Ok(time) => Ok(Some(time.timestamp().as_second())),
        Err(error) => Err(format!("its {name} is not a date ({text}: {error})")),
    }
}

pub(super) fn date_text(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}

fn files(list: &str) -> Result<HashMap<String, IndexFile>, String> {
    let mut files = HashMap::new();
    for line in list.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(sha256), Some(size), Some(path), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(format!("its SHA256 list has the line {line:?}"));
        };
        if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("its SHA256 list has the digest {sha256:?}"));
        }
        let size = size.parse().map_err(|_| format!("its SHA256 list has the size {size:?}"))?;
        // Flat archives are listed as `./Packages`, too.
        let path = path.strip_prefix("./").unwrap_or(path);
        files.insert(path.to_owned(), IndexFile { sha256: sha256.to_ascii_lowercase(), size });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn text(rest: &str) -> String {
        format!(
            "Origin: Debian\nSuite: oldstable-security\nCodename: bookworm-security\n\
             Date: Wed, 18 Nov 2026 22:17:41 UTC\n{rest}SHA256:\n {DIGEST}        0 main/x\n"
        )
    }

    #[test]
    fn a_release_is_read() {
        let release = Release::parse(&text(
            "Valid-Until: Wed, 25 Nov 2026 22:17:41 UTC\nAcquire-By-Hash: yes\n\
             Components: updates/main updates/non-free\n",
        ))
        .expect("reads");
        assert!(release.by_hash);
        assert_eq!(release.valid_until, Some(release.date.expect("date") + 7 * 86_400));
        assert_eq!(release.components, ["updates/main", "updates/non-free"]);
        assert_eq!(release.file("main/x").expect("listed").sha256, DIGEST);
        let until = release.valid_until.expect("valid until") as u64;
        assert!(!release.expired(until));
        assert!(release.expired(until + 1));
    }

    #[rstest]
    #[case("bookworm-security", true)]
    #[case("oldstable-security", true)]
    #[case("trixie-security", false)]
    #[case("bookworm", false)]
    fn it_must_describe_the_suite_asked_for(#[case] wanted: &str, #[case] expected: bool) {
        let release = Release::parse(&text("")).expect("reads");
        assert_eq!(release.is_of(wanted), expected);
    }

    #[rstest]
    #[case::release("noble", "noble", true)]
    #[case::pocket("noble-updates", "noble-updates", true)]
    #[case::a_pocket_for_the_release("noble", "noble-proposed", false)]
    #[case::another_pocket("noble-security", "noble-updates", false)]
    #[case::a_suite_of_a_site("noble", "noble-site", true)]
    fn a_pocket_is_told_by_its_suite_and_not_by_the_codename(
        #[case] wanted: &str,
        #[case] suite: &str,
        #[case] expected: bool,
    ) {
        let text = format!("Origin: Ubuntu\nSuite: {suite}\nCodename: noble\nSHA256:\n");
        let release = Release::parse(&text).expect("reads");
        assert_eq!(release.is_of(wanted), expected);
        let pocket = ["noble-updates", "noble-proposed"].contains(&suite);
        assert_eq!(release.name(), Some(if pocket { suite } else { "noble" }));
    }

    #[rstest]
    #[case("stable", "https://archive.example.com/cuda/dists/stable")]
    #[case("/", "https://archive.example.com/cuda")]
    #[case("./", "https://archive.example.com/cuda")]
    #[case("amd64/", "https://archive.example.com/cuda/amd64")]
    #[case("./a/b/", "https://archive.example.com/cuda/a/b")]
    fn a_suite_has_a_directory(#[case] suite: &str, #[case] expected: &str) {
        assert_eq!(suite_url("https://archive.example.com/cuda/", suite), expected);
        assert_eq!(is_flat(suite), suite != "stable");
    }

    #[test]
    fn names_of_a_flat_archive_are_relative_to_it() {
        let release = Release::parse(&format!("SHA256:\n {DIGEST} 0 ./Packages\n"));
        assert!(release.expect("reads").file("Packages").is_some());
    }

    #[rstest]
    #[case::empty("")]
    #[case::no_digests("Suite: a\n")]
    #[case::two_paragraphs("Suite: a\n\nSHA256:\n x\n")]
    #[case::bad_date("Date: yesterday\nSHA256:\n")]
    #[case::bad_line("SHA256:\n abc 1\n")]
    #[case::bad_digest("SHA256:\n abc 1 x\n")]
    #[case::bad_size(
        "SHA256:\n e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 -1 x\n"
    )]
    fn nonsense_is_refused(#[case] text: &str) {
        assert!(Release::parse(text).is_err());
    }
}
