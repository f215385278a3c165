//! Check of the registries of the configuration.

use super::Config;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::image_reference::{Host, Repository};
use longshore_modules::registry::RegistrySource;
use longshore_sources::pinned::repository_of;

/// Refuses registries that modules, or files of drivers, would come from without TLS and without a signature, except
/// those on this machine and those in `insecure-registries`.
///
/// # Errors
/// Exit code 2, naming the first one.
pub(super) fn refuse_plain_http(config: &Config) -> Result<(), Failure> {
    let insecure = &config.logins.insecure;
    if let Some(place) = of_sets(&config.registries).find(|place| is_plain(place, insecure)) {
        let cause = format!(
            "the registry {place} is used without TLS, and no signature is required: every host on \
             the way could put its own kernel modules in place of the registry's"
        );
        return Err(refusal(cause, place));
    }
    let files = of_files(config).find(|(_, place)| is_plain(place, insecure));
    let Some((setting, place)) = files else { return Ok(()) };
    let cause = format!(
        "{setting}: the registry {place} is used without TLS, and neither a signature is required nor is it named as \
         one without TLS"
    );
    Err(refusal(cause, &place))
}

fn of_sets(registries: &[RegistrySource]) -> impl Iterator<Item = &Repository> {
    registries.iter().flat_map(|source| source.mirrors.iter().chain([&source.reference]))
}

/// Returns the repositories of .run files and source trees, each with its setting.
fn of_files(config: &Config) -> impl Iterator<Item = (&'static str, Repository)> {
    let run_files = config.run_files.iter().flat_map(|file| &file.urls);
    let trees = config.source_trees.iter().flat_map(|tree| &tree.urls);
    let named = run_files.map(|url| ("run-file", url)).chain(trees.map(|url| ("source-tree", url)));
    named.filter_map(|(setting, url)| Some((setting, repository_of(url)?)))
}

fn is_plain(place: &Repository, insecure: &[Host]) -> bool {
    place.plain_http() && !place.is_loopback() && !insecure.iter().any(|host| host.has(place))
}

fn refusal(cause: String, place: &Repository) -> Failure {
    Failure::new(FailureKind::Usage, cause).remedy(format!(
        "use TLS, or require signatures (signature-keys); where the network is to be trusted, say so: \
         insecure-registries = [\"{}\"], --insecure-registry or LONGSHORE_INSECURE_REGISTRIES",
        place.host()
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::tests::load_with;
    use longshore_core::failure::ExitCode;

    /// Settings that make registries the places of files, and the exit code 2 with a text, or none.
    #[rstest]
    #[case::tls("", "oci://registry.example.com/files", None)]
    #[case::loopback("", "oci://http://127.0.0.1:5000/files", None)]
    #[case::plain(
        "",
        "oci://http://registry.example.com:5000/files",
        Some("SETTING: the registry")
    )]
    #[case::insecure(
        "insecure-registries = ['registry.example.com:5000']",
        "oci://http://registry.example.com:5000/files",
        None
    )]
    #[case::signed(
        "signature-keys = ['/k.pub']",
        "oci://http://registry.example.com:5000/files",
        None
    )]
    #[case::tag("", "oci://registry.example.com/files:1", Some("without tag and digest"))]
    #[case::user("", "oci://http://user:secret@registry.example.com/files", Some("//***@registry"))]
    fn a_registry_may_have_run_files_and_source_trees(
        #[case] settings: &str,
        #[case] url: &str,
        #[case] refused: Option<&str>,
        #[values("run-file", "source-tree")] setting: &str,
    ) {
        let sha256 = "a".repeat(64);
        let pin = match setting {
            "run-file" => format!("'{sha256}'"),
            _ => format!("{{ '580.142' = '{sha256}' }}"),
        };
        let entry = format!("{settings}\n[[{setting}]]\nurls = ['{url}']\nsha256 = {pin}\n");
        let flags = match setting {
            "run-file" => ["--run-file".to_owned(), url.into(), "--run-file-sha256".into(), sha256],
            _ => {
                let pinned = format!("580.142={sha256}");
                ["--source-tree".to_owned(), url.into(), "--source-tree-sha256".into(), pinned]
            }
        };
        let flags = flags.each_ref().map(String::as_str);
        for loaded in [load_with(&[], &[], Some(&entry)), load_with(&flags, &[], Some(settings))] {
            let failure = loaded.err();
            assert_eq!(failure.is_none(), refused.is_none(), "{failure:?}");
            let (Some(failure), Some(said)) = (failure, refused) else { continue };
            assert_eq!(failure.code(), ExitCode::Usage);
            let report = failure.report();
            assert!(report.contains(&said.replace("SETTING", setting)), "{report}");
            assert!(report.contains(setting) && !report.contains("secret"), "{report}");
        }
    }
}
