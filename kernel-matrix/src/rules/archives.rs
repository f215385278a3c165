//! `[[archive]]`: archives that the machine's apt sources do not name.

use std::path::{Path, PathBuf};

use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::ArchiveSource;
use serde::{Deserialize, Serialize};
use toml::{Spanned, Table};

use super::Text;
use super::axes::at_line;

/// An archive as in longshore's configuration, but for its keyring.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NamedArchive {
    url: String,
    pub(super) suites: Vec<String>,
    #[serde(default)]
    components: Vec<String>,
    /// OpenPGP keyring; a relative path begins in the directory of the rules.
    keyring: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_age: Option<MaxAge>,
}

/// Returns the archives, with absolute paths of their keyrings.
pub(super) fn sources(
    archives: &[Spanned<NamedArchive>],
    dir: &Path,
    text: &Text<'_>,
) -> Result<Vec<ArchiveSource>, String> {
    let source = |spanned: &Spanned<NamedArchive>| {
        let archive = spanned.get_ref();
        let absolute = NamedArchive { keyring: dir.join(&archive.keyring), ..archive.clone() };
        let table = Table::try_from(absolute).map_err(|e| e.to_string());
        let read = table.and_then(|table| table.try_into().map_err(|e| e.to_string()));
        read.map_err(|e| at_line(text.line(spanned), e.trim_end()))
    };
    archives.iter().map(source).collect()
}
