//! Setting about the kernel of the next boot.

use serde::Deserialize;

use super::Config;
use super::values::words;

/// Conduct towards a newer kernel that is installed on the host and not booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum NextKernelMode {
    /// Fetch or compile its modules before the reboot.
    Prepare,
    /// Report whether the store has its modules.
    Report,
    /// Do not look for it.
    Off,
}

words! {
    NextKernelMode, "prepare, report or off";
    "prepare" => Self::Prepare,
    "report" => Self::Report,
    "off" => Self::Off,
}

impl Config {
    /// Returns the conduct towards the next kernel. Without a setting it is prepared where modules can come
    /// from anywhere but the store: from a compile, a registry or a prebuilt directory.
    pub fn next_kernel(&self) -> NextKernelMode {
        let has_source =
            self.may_compile() || !self.registries.is_empty() || !self.prebuilt.is_empty();
        self.next_kernel.unwrap_or(match has_source {
            true => NextKernelMode::Prepare,
            false => NextKernelMode::Report,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fragment, load};
    use super::NextKernelMode::{self, Off, Prepare, Report};
    use rstest::rstest;

    #[rstest]
    #[case::usual(&[], Prepare)]
    #[case::nothing_is_compiled(&[("LONGSHORE_COMPILE", "false")], Report)]
    #[case::from_a_registry(
        &[("LONGSHORE_COMPILE", "false"), ("LONGSHORE_REGISTRIES", "registry.example.com/drivers")],
        Prepare
    )]
    #[case::from_a_directory(
        &[("LONGSHORE_COMPILE", "false"), ("LONGSHORE_PREBUILT", "/prebuilt")],
        Prepare
    )]
    #[case::set_all_the_same(
        &[("LONGSHORE_COMPILE", "false"), ("LONGSHORE_NEXT_KERNEL", "prepare")],
        Prepare
    )]
    #[case::off(&[("LONGSHORE_NEXT_KERNEL", "off")], Off)]
    fn conduct(#[case] variables: &[(&str, &str)], #[case] wanted: NextKernelMode) {
        let env = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let config = load(Fragment::default(), &env, None).expect("a configuration");
        assert_eq!(config.next_kernel(), wanted);
    }

    #[test]
    fn other_words_are_refused() {
        let error = "yes".parse::<NextKernelMode>().expect_err("refused").to_string();
        assert_eq!(error, "`yes` is not prepare, report or off");
    }
}
