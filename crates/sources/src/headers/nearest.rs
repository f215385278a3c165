//! Releases nearest to one that is not available.

use longshore_debian::version;

/// Maximum number of releases that a message names.
const NAMED: usize = 6;

/// Returns the releases of `wanted`'s own flavour around it. Those of other flavours are other distributions', other
/// architectures' or other machines' kernels.
pub(super) fn nearest(releases: &[String], wanted: &str) -> Vec<String> {
    let flavour = flavour_of(wanted);
    let mut sorted: Vec<&String> = releases.iter().filter(|r| flavour_of(r) == flavour).collect();
    sorted.sort_by(|a, b| version::compare(a, b));
    let at = sorted.partition_point(|r| version::compare(r, wanted).is_lt());
    let from = at.saturating_sub(NAMED / 2).min(sorted.len().saturating_sub(NAMED));
    sorted.into_iter().skip(from).take(NAMED).cloned().collect()
}

/// Returns the flavour at the end of a release: `cloud-amd64` of `6.1.0-50-cloud-amd64`.
pub fn flavour_of(release: &str) -> String {
    let words: Vec<&str> = release.split('-').collect();
    let flavour = |word: &&&str| !word.starts_with(|c: char| c.is_ascii_digit());
    let mut words: Vec<&str> = words.iter().rev().take_while(flavour).copied().collect();
    words.reverse();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("6.1.0-50-amd64", "amd64")]
    #[case("6.1.0-50-cloud-amd64", "cloud-amd64")]
    #[case("6.12.117+deb13-rt-amd64", "rt-amd64")]
    #[case("5.15.0-91-generic", "generic")]
    fn flavours_are_the_end_of_a_release(#[case] release: &str, #[case] wanted: &str) {
        assert_eq!(flavour_of(release), wanted);
    }

    #[test]
    fn the_nearest_releases_are_around_the_wanted_one() {
        let releases: Vec<String> = (40..60)
            .flat_map(|n| [format!("6.1.0-{n}-amd64"), format!("6.1.0-{n}-cloud-amd64")])
            .filter(|r| !r.starts_with("6.1.0-50"))
            .collect();
        let near = nearest(&releases, "6.1.0-50-amd64");
        let wanted = [47, 48, 49, 51, 52, 53].map(|n| format!("6.1.0-{n}-amd64"));
        assert_eq!(near, wanted);
        assert_eq!(nearest(&releases, "9.9.0-1-amd64").last().expect("some"), "6.1.0-59-amd64");
        assert!(nearest(&[], "6.1.0-50-amd64").is_empty());
        assert!(nearest(&releases, "6.14.11-2-pve").is_empty());
        assert!(nearest(&releases, "6.18.8-current-rockchip64").is_empty());
    }
}
