//! Variables of the environment: `LONGSHORE_*`, and those of NVIDIA's driver containers.

use std::net::{IpAddr, SocketAddr};

use longshore_core::environment::Env;
use longshore_core::failure::{Failure, FailureKind};

/// Protocols of a Service's port, as in the names of its variables.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

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

/// True for a variable that Kubernetes sets in a pod for a Service of its namespace, by name and by
/// value: `NAME_SERVICE_HOST`, `NAME_SERVICE_PORT`, `NAME_SERVICE_PORT_PORTNAME`, `NAME_PORT`, and
/// `NAME_PORT_80_TCP` with `_PROTO`, `_PORT` and `_ADDR` (pkg/kubelet/envvars/envvars.go). Whoever
/// may create a Service chooses the beginning of the name, and no more than that.
pub fn is_of_service(name: &str, value: &str) -> bool {
    let is_number = || value.parse::<u16>().is_ok();
    let is_address = || value.parse::<IpAddr>().is_ok();
    let is_url = |protocol: Option<&str>| {
        value.split_once("://").is_some_and(|(scheme, rest)| {
            PROTOCOLS
                .into_iter()
                .filter(|one| protocol.is_none_or(|wanted| wanted == *one))
                .any(|one| one.to_lowercase() == scheme)
                && rest.parse::<SocketAddr>().is_ok()
        })
    };
    // A port may have any name, one that looks like another variable's end included.
    let is_named = |(_, port): (&str, &str)| port.is_empty() || port.starts_with('_');
    if name.split_once("_SERVICE_PORT").is_some_and(is_named) && is_number() {
        return true;
    }
    if name.ends_with("_SERVICE_HOST") {
        return is_address();
    }
    if let Some((protocol, field)) = of_port(name) {
        return match field {
            "" => is_url(Some(protocol)),
            "_PROTO" => protocol.to_lowercase() == value,
            "_PORT" => is_number(),
            "_ADDR" => is_address(),
            _ => false,
        };
    }
    name.ends_with("_PORT") && is_url(None)
}

/// Splits `NAME_PORT_80_TCP_ADDR` into its protocol and its last part; None for another name.
fn of_port(name: &str) -> Option<(&str, &str)> {
    let (at, mark) = name.match_indices("_PORT_").find(|(at, mark)| {
        name[at + mark.len()..].starts_with(|first: char| first.is_ascii_digit())
    })?;
    let (number, rest) = name[at + mark.len()..].split_once('_')?;
    number.parse::<u16>().ok()?;
    let protocol = PROTOCOLS.into_iter().find(|one| rest.starts_with(one))?;
    Some((protocol, &rest[protocol.len()..]))
}

#[cfg(test)]
mod tests {
    use super::is_of_service;
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

    /// A Service of this name, with a named and an unnamed port, and one with an IPv6 address.
    #[rstest]
    #[case("NVFM_CONFIG_SERVICE_HOST", "10.96.0.7")]
    #[case("NVFM_CONFIG_SERVICE_HOST", "fd00::7")]
    #[case("NVFM_CONFIG_SERVICE_PORT", "4")]
    #[case("NVFM_CONFIG_SERVICE_PORT_HTTPS", "443")]
    #[case("NVFM_CONFIG_SERVICE_PORT_SERVICE_HOST", "443")]
    #[case("NVFM_CONFIG_PORT", "tcp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT", "udp://[fd00::7]:53")]
    #[case("NVFM_CONFIG_PORT_4_TCP", "tcp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_4_SCTP", "sctp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_4_TCP_PROTO", "tcp")]
    #[case("NVFM_CONFIG_PORT_4_TCP_PORT", "4")]
    #[case("NVFM_CONFIG_PORT_4_UDP_ADDR", "1.1.1.1")]
    #[case("NVFM_CONFIG_X_PORT_4_UDP_ADDR", "1.1.1.1")]
    #[case("LONGSHORE_SIGNATURE_SERVICE_HOST", "10.96.0.7")]
    fn a_variable_of_a_service_is_told_by_name_and_value(#[case] name: &str, #[case] value: &str) {
        assert!(is_of_service(name, value));
    }

    #[rstest]
    #[case("NVFM_CONFIG_LOG_FILE_NAME", "/etc/passwd")]
    #[case("NVFM_CONFIG_SERVICE_HOST", "/etc/passwd")]
    #[case("NVFM_CONFIG_SERVICE_PORT", "/etc/passwd")]
    #[case("NVFM_CONFIG_SERVICE_PORTS", "4")]
    #[case("NVFM_CONFIG_PORT", "4")]
    #[case("NVFM_CONFIG_PORT", "tcp://1.1.1.1:4/x")]
    #[case("NVFM_CONFIG_PORT", "tcp://a.example.com:4")]
    #[case("NVFM_CONFIG_PORT", "http://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_4_TCP", "udp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_4_TCP_PROTO", "udp")]
    #[case("NVFM_CONFIG_PORT_4_TCP_FILE", "4")]
    #[case("NVFM_CONFIG_PORT_4_ICMP", "tcp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_X_TCP", "tcp://1.1.1.1:4")]
    #[case("NVFM_CONFIG_PORT_4_TCP_ADDR", "a.example.com")]
    #[case("LONGSHORE_SIGNATURE_PORT", "required")]
    fn a_setting_is_none(#[case] name: &str, #[case] value: &str) {
        assert!(!is_of_service(name, value));
    }

    /// A Service could else set a setting of the agent's.
    #[test]
    fn no_setting_has_the_name_of_a_services_variable() {
        let asked = std::cell::RefCell::new(Vec::new());
        let env = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            None
        };
        Fragment::from_env(&env, &[]).expect("nothing is set");
        let values = ["10.96.0.7", "443", "tcp://10.96.0.7:443", "tcp"];
        let asked = asked.into_inner();
        assert!(asked.len() > 50, "{asked:?}");
        let of_service = |name: &&String| values.iter().any(|value| is_of_service(name, value));
        assert_eq!(asked.iter().find(of_service), None);
    }
}
