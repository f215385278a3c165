//! Order and flavour of kernel releases.
//!
//! The menu of the boot loader has the newest version first, as Debian's version numbers are ordered
//! (linux-version(1), and `sort -V` of grub-mkconfig). A default that a person saved is not read.

use std::cmp::Ordering;

use longshore_debian::version;

/// Returns the kernel of the next boot: the newest release of the running one's flavour that is newer than
/// it; None where the running kernel is the newest.
pub fn next<'a>(running: &str, installed: impl IntoIterator<Item = &'a String>) -> Option<&'a str> {
    let own = Release::parse(running);
    let newer = installed.into_iter().map(|name| (Release::parse(name), name.as_str()));
    let newer = newer.filter(|(release, _)| {
        release.flavour == own.flavour && release.compare(&own) == Ordering::Greater
    });
    newer.max_by(|(a, _), (b, _)| a.compare(b)).map(|(_, name)| name)
}

/// A release in two parts.
#[derive(Debug, PartialEq, Eq)]
struct Release {
    /// Version, with a release candidate before its release.
    version: String,
    /// Parts that every release of one flavour has: `amd64`, `cloud-amd64`, `generic`, `el.x86_64`.
    flavour: String,
}

impl Release {
    /// Divides a release. Debian's, Ubuntu's and SUSE's flavour are the last words between hyphens; Red Hat's
    /// begins with the distribution's mark, whose number changes with each minor release.
    fn parse(release: &str) -> Self {
        let words: Vec<&str> = release.split('-').collect();
        let is_of_flavour =
            |word: &&&str| begins_with_letter(word) && !is_candidate(word) || is_page_size(word);
        let count = words.iter().skip(1).rev().take_while(is_of_flavour).count();
        let (version, flavour) = words.split_at(words.len() - count);
        let version = version.join("-");
        if count > 0 {
            return Self { version: ordered(&version), flavour: flavour.join("-") };
        }
        let mark = version.match_indices('.').find(|(at, _)| {
            let after = version.get(at + 1..).unwrap_or_default();
            begins_with_letter(after)
        });
        match mark {
            Some((at, _)) => {
                let (version, mark) = version.split_at(at);
                Self { version: ordered(version), flavour: without_number(&mark[1..]) }
            }
            None => Self { version: ordered(&version), flavour: String::new() },
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        version::compare(&self.version, &other.version)
    }
}

fn begins_with_letter(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// True for `rc1` of 6.17-rc1.
fn is_candidate(word: &str) -> bool {
    let number = word.strip_prefix("rc").unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit())
}

/// True for `64k` of 6.8.0-51-generic-64k.
fn is_page_size(word: &str) -> bool {
    let number = word.strip_suffix('k').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a version in which candidates are older than their release.
fn ordered(version: &str) -> String {
    let mut words = version.split('-');
    let mut text = words.next().unwrap_or_default().to_owned();
    for word in words {
        text.push(if is_candidate(word) { '~' } else { '-' });
        text.push_str(word);
    }
    text
}

/// Returns the mark of a distribution without its number: `el9_4.x86_64` gives `el.x86_64`.
fn without_number(mark: &str) -> String {
    let (name, rest) = mark.split_once('.').unwrap_or((mark, ""));
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    if rest.is_empty() { name.to_owned() } else { format!("{name}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("6.1.0-51-amd64", "6.1.0-51", "amd64")]
    #[case("6.1.0-51-cloud-amd64", "6.1.0-51", "cloud-amd64")]
    #[case("6.1.0-51-rt-amd64", "6.1.0-51", "rt-amd64")]
    #[case("6.12.57+deb13-amd64", "6.12.57+deb13", "amd64")]
    #[case("5.10.0-0.deb10.30-amd64", "5.10.0-0.deb10.30", "amd64")]
    #[case("6.17-rc1-amd64", "6.17~rc1", "amd64")]
    #[case("6.8.0-51-generic", "6.8.0-51", "generic")]
    #[case("6.8.0-1021-nvidia-64k", "6.8.0-1021", "nvidia-64k")]
    #[case("6.4.0-150600.23.7-default", "6.4.0-150600.23.7", "default")]
    #[case("5.14.0-427.13.1.el9_4.x86_64", "5.14.0-427.13.1", "el.x86_64")]
    #[case("5.14.0-427.13.1.el9_4.x86_64+rt", "5.14.0-427.13.1", "el.x86_64+rt")]
    #[case("6.11.4-301.fc41.x86_64", "6.11.4-301", "fc.x86_64")]
    #[case("6.1.119-129.201.amzn2023.x86_64", "6.1.119-129.201", "amzn.x86_64")]
    #[case("6.9.7-1.el9.elrepo.x86_64", "6.9.7-1", "el.elrepo.x86_64")]
    #[case("6.6.30-flatcar", "6.6.30", "flatcar")]
    #[case("6.10.3-arch1-1", "6.10.3-arch1-1", "")]
    #[case("6.6.44-1-lts", "6.6.44-1", "lts")]
    #[case("6.1.75+", "6.1.75+", "")]
    #[case("6.12.0", "6.12.0", "")]
    #[case("6.1.0-51-amd64.old", "6.1.0-51", "amd64.old")]
    #[case("0-rescue-1f00", "0-rescue-1f00", "")]
    #[case("", "", "")]
    fn parts(#[case] release: &str, #[case] version: &str, #[case] flavour: &str) {
        let wanted = Release { version: version.into(), flavour: flavour.into() };
        assert_eq!(Release::parse(release), wanted);
    }

    #[rstest]
    #[case::none("6.1.0-50-amd64", &[], None)]
    #[case::running_alone("6.1.0-50-amd64", &["6.1.0-50-amd64"], None)]
    #[case::older("6.1.0-50-amd64", &["6.1.0-9-amd64", "6.1.0-50-amd64"], None)]
    #[case::newer("6.1.0-50-amd64", &["6.1.0-50-amd64", "6.1.0-51-amd64"], Some("6.1.0-51-amd64"))]
    #[case::by_number("6.1.0-9-amd64", &["6.1.0-10-amd64", "6.1.0-9-amd64"], Some("6.1.0-10-amd64"))]
    #[case::newest(
        "6.1.0-50-amd64",
        &["6.1.0-51-amd64", "6.12.9+bpo-amd64", "6.5.0-0.deb12.4-amd64"],
        Some("6.12.9+bpo-amd64")
    )]
    #[case::other_flavour("6.1.0-50-amd64", &["6.1.0-51-cloud-amd64", "6.1.0-51-rt-amd64"], None)]
    #[case::own_flavour(
        "6.1.0-50-cloud-amd64",
        &["6.1.0-52-amd64", "6.1.0-51-cloud-amd64"],
        Some("6.1.0-51-cloud-amd64")
    )]
    #[case::candidate("6.17-amd64", &["6.17-rc7-amd64"], None)]
    #[case::release_after_candidate("6.17-rc7-amd64", &["6.17-amd64"], Some("6.17-amd64"))]
    #[case::minor_release(
        "5.14.0-427.13.1.el9_4.x86_64",
        &["5.14.0-503.11.1.el9_5.x86_64", "5.14.0-362.8.1.el9_3.x86_64", "5.14.0-503.11.1.el9_5.x86_64+rt"],
        Some("5.14.0-503.11.1.el9_5.x86_64")
    )]
    #[case::rescue("5.14.0-427.13.1.el9_4.x86_64", &["0-rescue-1f00"], None)]
    #[case::rescue_beside_a_kernel_without_flavour("6.1.75+", &["0-rescue-1f00"], None)]
    #[case::kept_image("6.1.0-50-amd64", &["6.1.0-51-amd64.old", "6.1.0-51-amd64.dpkg-tmp"], None)]
    fn kernels_of_the_next_boot(
        #[case] running: &str,
        #[case] installed: &[&str],
        #[case] wanted: Option<&str>,
    ) {
        let installed: Vec<String> = installed.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(next(running, &installed), wanted);
    }

    proptest::proptest! {
        #[test]
        fn no_name_makes_it_panic(name in "[ -~]{0,70}|\\PC{0,20}") {
            let _ = Release::parse(&name);
        }
    }
}
