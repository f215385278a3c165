//! NVIDIA .run files of flags and variables.

use longshore_core::failure::{Failure, FailureKind};
use longshore_sources::runfile::RunFileSource;

/// Remedy for a .run file in a form that is none of those of docs/supply-chain/run-files.md.
const FORMS: &str = "name http, https or file URLs, oci://HOST/REPOSITORY or absolute paths of one file (--run-file), and its sha256 \
                     (--run-file-sha256), or a path, file or https URL of a text with it (--run-file-checksum)";

/// Returns the .run file of the flags or variables, where they name one.
pub(super) fn from_parts(
    urls: Vec<String>,
    sha256: Option<String>,
    checksum: Option<String>,
) -> Result<Option<RunFileSource>, Failure> {
    if urls.is_empty() {
        if sha256.is_some() || checksum.is_some() {
            return Err(Failure::new(
                FailureKind::Usage,
                "a digest of a .run file, and no .run file",
            )
            .remedy("name it with --run-file (LONGSHORE_RUN_FILE)"));
        }
        return Ok(None);
    }
    let source = RunFileSource::new(&urls, sha256.as_deref(), checksum.as_deref());
    source.map(Some).map_err(|what| Failure::new(FailureKind::Usage, what).remedy(FORMS))
}

/// Returns a flag's path as an absolute one: it may be relative to the working directory.
pub(super) fn absolute_place(text: &str) -> Result<String, std::io::Error> {
    if text.contains("://") {
        return Ok(text.to_owned());
    }
    std::path::absolute(text).map(|path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;

    const HEX: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    #[test]
    fn a_digest_without_a_file_is_a_mistake() {
        let refused = from_parts(Vec::new(), Some(HEX.into()), None).expect_err("refused");
        assert_eq!(refused.code(), ExitCode::Usage);
    }
}
