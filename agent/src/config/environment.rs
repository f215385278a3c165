//! Variables of the environment: `LONGSHORE_*`, and those of NVIDIA's driver containers.

use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};

/// Reads the variable `name`; an empty one counts as absent, because containers often set it so.
pub(super) fn get<T, E: std::fmt::Display>(
    env: Env<'_>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let Some(text) = env(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    parse(&text).map(Some).map_err(|e| in_env(name, &text, &e))
}

fn in_env(name: &str, text: &str, error: &dyn std::fmt::Display) -> Failure {
    // A list of URLs cannot be split reliably, and they may hold secrets: the error names the wrong
    // one only.
    let value = if text.contains(['@', '?']) { String::new() } else { format!("={text}") };
    Failure::new(FailureKind::Usage, format!("environment variable {name}{value}: {error}"))
        .remedy("correct or unset it; `longshore run --help` lists every setting")
}

#[cfg(test)]
mod tests {
    use crate::config::layer::FromEnv;
    use crate::config::{FlavourSelector, Fragment};
    use longshore_core::failure::ExitCode;
    use longshore_core::flavour::Flavour;
    use rstest::rstest;

    fn env_of(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
    }

    #[rstest]
    #[case(&[("LONGSHORE_FLAVOUR", "closed")], "LONGSHORE_FLAVOUR=closed")]
    #[case(&[("DRIVER_VERSION", "latest!")], "DRIVER_VERSION=latest!")]
    #[case(&[("LONGSHORE_JOBS", "0")], "LONGSHORE_JOBS=0")]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "perhaps")], "OPEN_KERNEL_MODULES_ENABLED=perhaps")]
    #[case(&[("LONGSHORE_PREBUILT", "/a,b")], "LONGSHORE_PREBUILT=/a,b")]
    #[case(&[("LONGSHORE_INSECURE_REGISTRIES", "http://a.b")], "a host is wanted here")]
    fn a_bad_variable_is_named(
        #[case] pairs: &'static [(&'static str, &'static str)],
        #[case] wanted: &str,
    ) {
        let failure = Fragment::from_env(&env_of(pairs), &[]).expect_err("refused");
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert_eq!(failure.code(), ExitCode::Usage);
    }

    #[test]
    fn a_secret_in_a_bad_variable_is_not_shown() {
        const ENV: &[(&str, &str)] =
            &[("LONGSHORE_REGISTRIES", "a.example.com/b https://secret@b.example.com/c")];
        let failure = Fragment::from_env(&env_of(ENV), &[]).expect_err("refused").report();
        assert!(failure.contains("b.example.com") && !failure.contains("secret"), "{failure}");
    }

    #[rstest]
    #[case(&[("KERNEL_MODULE_TYPE", "open")], Some(Flavour::Open))]
    #[case(&[("KERNEL_MODULE_TYPE", "auto"), ("OPEN_KERNEL_MODULES_ENABLED", "true")], None)]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "true")], Some(Flavour::Open))]
    #[case(&[("OPEN_KERNEL_MODULES_ENABLED", "false")], None)]
    #[case(&[("LONGSHORE_FLAVOUR", "proprietary"), ("KERNEL_MODULE_TYPE", "open")], Some(Flavour::Proprietary))]
    #[case(&[("KERNEL_MODULE_TYPE", "")], None)]
    fn flavours_from_the_environment(
        #[case] pairs: &'static [(&'static str, &'static str)],
        #[case] wanted: Option<Flavour>,
    ) {
        let fragment = Fragment::from_env(&env_of(pairs), &[]).expect("accepted");
        assert_eq!(fragment.flavour.and_then(FlavourSelector::flavour), wanted);
    }
}
