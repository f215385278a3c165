//! The configuration file, and the settings of a layer that belong together.

use std::collections::BTreeSet;
use std::path::Path;

use super::malformed::Malformed;
use super::operator::OperatorConfig;
use super::parameters::{self, Parameters};
use super::run_file::from_parts;
use super::source_tree;
use super::table::Fragment;
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::ownership;
use longshore_sources::runfile::RunFileSource;
use longshore_sources::source_tree::SourceTree;

/// Upper bound of a configuration file's size: a larger file is not a configuration.
pub(super) const MOST_BYTES: u64 = 1 << 20;

impl Fragment {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// Exit code 2 with file, line and key where the file cannot be read or is not valid.
    pub fn from_file(path: &Path) -> Result<Self, Failure> {
        check_owners(path)?;
        let text = bounded_read::read_text(path, MOST_BYTES)
            .or_fail(FailureKind::Usage, || {
                format!("reading the configuration file {}", path.display())
            })
            .map_err(|failure| failure.remedy("name a TOML file with --config"))?;
        Self::from_toml(&text).map_err(|e| e.into_failure(path))
    }

    fn from_toml(text: &str) -> Result<Self, Malformed> {
        toml::from_str(text).map_err(|e| Malformed::new(text, &e))
    }

    /// Returns the .run files of the flags or the environment, else those of the file.
    ///
    /// # Errors
    /// Exit code 2 for a .run file without a digest, or a digest without a file.
    pub fn all_run_files(&self) -> Result<Vec<RunFileSource>, Failure> {
        let (sha256, checksum) = (self.run_file_sha256.clone(), self.run_file_checksum.clone());
        let one = from_parts(self.run_file.clone().unwrap_or_default(), sha256, checksum)?;
        Ok(one.map_or_else(|| self.run_files.clone().unwrap_or_default(), |one| vec![one]))
    }

    /// Returns the source trees of the flags or the environment, else those of the file.
    ///
    /// # Errors
    /// Exit code 2 for a tree without a digest, a digest without a tree, or a version that is named twice.
    pub fn all_source_trees(&self) -> Result<Vec<SourceTree>, Failure> {
        let urls = self.source_tree.clone().unwrap_or_default();
        let sha256 = self.source_tree_sha256.clone().unwrap_or_default();
        let places = match source_tree::from_parts(&urls, &sha256)? {
            Some(one) => vec![one],
            None => self.source_trees.clone().unwrap_or_default(),
        };
        let trees: Vec<SourceTree> = places.into_iter().flat_map(|place| place.0).collect();
        let mut seen = BTreeSet::new();
        match trees.iter().find(|tree| !seen.insert(&tree.version)) {
            Some(twice) => {
                let cause = format!("two source trees of version {}", twice.version);
                Err(Failure::new(FailureKind::Usage, cause)
                    .remedy("leave out one; `urls` may name several places of the same bytes"))
            }
            None => Ok(trees),
        }
    }

    /// Module parameters by the module's kernel name, from `parameter` and `parameters`.
    pub fn kernel_parameters(&self) -> Parameters {
        let mut all: Parameters =
            self.parameters.iter().map(|(m, line)| (m.to_string(), line.clone())).collect();
        for one in &self.parameter {
            let above = Parameters::from([(one.module.to_string(), one.setting.clone())]);
            parameters::merge(&mut all, &above);
        }
        all
    }

    /// Returns the settings of the GPU operator: evictions are for a change that waits.
    pub(super) fn operator_config(&self) -> OperatorConfig {
        OperatorConfig::from_fragment(&self.operator, self.cluster.evict.unwrap_or(false))
    }

    /// Makes of two layers what the merge of each setting cannot see: parameters are merged by name, the
    /// settings of one .run file go together, `--no-compile` is `compile = false`, and a build root takes the place of
    /// headers.
    pub(super) fn decided(mut above: Self, mut below: Self) -> (Self, Self) {
        let mut parameters = below.kernel_parameters();
        parameters::merge(&mut parameters, &above.kernel_parameters());
        above.parameters = parameters
            .into_iter()
            .filter_map(|(module, line)| Some((module.parse().ok()?, line)))
            .collect();
        above.parameter.clear();
        below.parameter.clear();
        if above.run_file.is_some() {
            // Another file has another digest.
            above.run_files = None;
            (below.run_files, below.run_file_sha256, below.run_file_checksum) = (None, None, None);
        }
        if above.source_tree.is_some() {
            above.source_trees = None;
            (below.source_trees, below.source_tree_sha256) = (None, None);
        }
        // Each names the place of the headers.
        if above.build_root.is_some() {
            below.headers = None;
        } else if above.headers.is_some() {
            below.build_root = None;
        }
        if above.no_compile {
            above.compile = Some(false);
        }
        (above.no_compile, below.no_compile) = (false, false);
        (above, below)
    }
}

/// Checks that nobody but root, or this process's user, decides what a configuration file says.
fn check_owners(path: &Path) -> Result<(), Failure> {
    let what = format!("reading the configuration file {}", path.display());
    ownership::file(path).map_err(|error| {
        ownership::failure(FailureKind::Usage, what, error, "name a TOML file with --config")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;

    #[rstest]
    #[case(
        "driver = \"535\"\nflavor = \"open\"\n",
        "line 2, key flavor: unknown field `flavor`; did you mean `flavour`?"
    )]
    #[case("host_apt = true\n", "unknown field `host_apt`; did you mean `host-apt`?")]
    #[case("[publish]\nrefrence = 'a'\n", "unknown field `refrence`; did you mean `reference`?")]
    #[case(
        "driver = 535\n",
        "line 1, key driver: invalid type: integer `535`, expected a string; write \"535\""
    )]
    #[case("[daemons]\nfabricmanager = true\n", "expected a string; write \"true\"")]
    #[case("jobs = -1\n", "`-1` is not a number of jobs")]
    #[case("[archive]\nurl = \"a\"\n", "expected a sequence; write [[archive]]")]
    #[case("flavour = \"closed\"\n", "line 1, key flavour: `closed` is not auto, open")]
    #[case("jobs = 0\n", "line 1, key jobs: `0` is not a number of jobs from 1 to 65535")]
    #[case("build-uid = 65534\n", "line 1, key build-uid: `65534` is not a user id")]
    #[case("store = \"relative\"\n", "line 1, key store: `relative` is not an absolute path")]
    #[case("unload-deadline = 20\n", "line 1, key unload-deadline: invalid type")]
    #[case("prebuilt = [\n  \"/a\",\n  \"b\",\n]\n", "key prebuilt: `b` is not an absolute path")]
    #[case("driver = \"535\n", "line 1, key driver: ")]
    #[case(
        "[[archive]]\nurl = \"ftp://a\"\nsuites = [\"s\"]\ncomponents = [\"main\"]\nkeyring = \"/k\"\n",
        "line 2, key url: "
    )]
    #[case(
        "archive-max-age = \"30m\"\n",
        "key archive-max-age: `30m` is not a span of time from 1h"
    )]
    #[case(
        "[[archive]]\nurl = \"https://a\"\nsuites = [\"s\"]\nkeyring = \"/k\"\nmax-age = \"14\"\n",
        "line 5, key max-age: `14` is not a span of time from 1h to 3650d"
    )]
    #[case(
        "jobs = 1\n[[archive]]\nurl = \"https://archive.example.com/debian\"\n",
        "line 2, key archive: missing field `suites`"
    )]
    #[case("jobs = 1\n[archives]\nx = 1\n", "line 2, key archives: unknown field")]
    #[case("[parameters]\n\"a/b\" = \"c=1\"\n", "line 2, key \"a/b\": `a/b` is not the name")]
    #[case("prebuilt = [\n  \"a=b\",\n]\n", "key prebuilt: `a=b` is not an absolute path")]
    fn a_bad_file_names_line_and_key(#[case] text: &str, #[case] wanted: &str) {
        let Err(fault) = Fragment::from_toml(text) else { panic!("accepted: {text}") };
        let failure = fault.into_failure(Path::new("/c.toml"));
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert!(failure.to_string().contains("/c.toml"), "{failure}");
        assert_eq!(failure.code(), ExitCode::Usage);
    }
}
