//! Builds of a kernel release, as `uname -v` names them.

/// The build of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelBuild<'a> {
    /// Version of Debian's package.
    Debian(&'a str),
    /// End of the version of Ubuntu's package, after `A.B.C-ABI.`; its packaging calls it the upload.
    Ubuntu(&'a str),
}

impl<'a> KernelBuild<'a> {
    /// Reads `uname -v`: `#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)`, or Ubuntu's
    /// `#33~22.04.1-Ubuntu SMP ...`. None for other forms, which do not name a package.
    pub(super) fn named(kernel_version: &'a str) -> Option<Self> {
        let mut words = kernel_version.split_ascii_whitespace();
        let upload = words.next()?.strip_prefix('#').and_then(|w| w.strip_suffix("-Ubuntu"));
        match upload.filter(|upload| !upload.is_empty()) {
            Some(upload) => Some(Self::Ubuntu(upload)),
            None => words.skip_while(|word| *word != "Debian").nth(1).map(Self::Debian),
        }
    }

    /// True if headers of the kernel `release` are of this build, by the version of their package:
    /// Ubuntu's is `A.B.C-ABI.UPLOAD`, and the release `A.B.C-ABI-FLAVOUR`.
    pub(super) fn is_of(self, release: &str, package_version: &str) -> bool {
        match self {
            Self::Debian(version) => package_version == version,
            Self::Ubuntu(upload) => {
                let base = package_version.strip_suffix(upload).and_then(|v| v.strip_suffix('.'));
                let after = base.and_then(|base| release.strip_prefix(base));
                after.is_some_and(|after| after.starts_with('-'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)",
        Some(KernelBuild::Debian("6.1.176-1"))
    )]
    #[case("#91-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023", Some(KernelBuild::Ubuntu("91")))]
    #[case("#33~22.04.1-Ubuntu SMP PREEMPT_DYNAMIC Wed", Some(KernelBuild::Ubuntu("33~22.04.1")))]
    #[case("#15~24.04.1+1-Ubuntu SMP", Some(KernelBuild::Ubuntu("15~24.04.1+1")))]
    #[case("#1 SMP Debian", None)]
    #[case("#-Ubuntu SMP", None)]
    #[case("#1 SMP PREEMPT_DYNAMIC Thu Nov 5 2026", None)]
    #[case("", None)]
    fn builds_are_read_from_uname(#[case] uname: &str, #[case] wanted: Option<KernelBuild<'_>>) {
        assert_eq!(KernelBuild::named(uname), wanted);
    }

    #[rstest]
    #[case::release("142", "6.8.0-142-generic", "6.8.0-142.142", true)]
    #[case::upload_beyond_the_abi("101", "5.15.0-91-generic", "5.15.0-91.101", true)]
    #[case::hwe("53~22.04.1", "6.8.0-52-generic", "6.8.0-52.53~22.04.1", true)]
    #[case::rebuilt("35~24.04.1+1", "6.14.0-35-generic", "6.14.0-35.35~24.04.1+1", true)]
    #[case::two_numbers("52.1", "6.8.0-51-lowlatency", "6.8.0-51.52.1", true)]
    #[case::other_upload("142", "6.8.0-142-generic", "6.8.0-142.143", false)]
    #[case::other_release("142", "6.8.0-142-generic", "6.8.0-142.142~22.04.1", false)]
    #[case::end_of_a_number("2", "6.8.0-142-generic", "6.8.0-142.142", false)]
    #[case::other_abi("142", "6.8.0-141-generic", "6.8.0-142.142", false)]
    #[case::start_of_an_abi("142", "6.8.0-1421-generic", "6.8.0-142.142", false)]
    #[case::of_debian("1", "6.1.0-50-amd64", "6.1.176-1", false)]
    fn ubuntus_packages_are_of_one_upload(
        #[case] upload: &str,
        #[case] release: &str,
        #[case] package: &str,
        #[case] wanted: bool,
    ) {
        assert_eq!(KernelBuild::Ubuntu(upload).is_of(release, package), wanted);
    }
}
