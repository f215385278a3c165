//! Limit of the hosts that a server's answers lead to: redirections, locations of uploads, and what issues its tokens.
//!
//! A server may name any URL, and the client asks it from its own place in the network (server-side request forgery,
//! CWE-918). So none of its answers leads to the metadata services of clouds, which are on link-local addresses, or to
//! this machine, unless the server is there itself. Names are checked by the addresses that they resolve to, at each
//! connection. Private addresses are not refused: registries and their storage in a cluster have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Action, Attempt, Policy};
use serde::{Deserialize, Serialize};

/// Maximum number of redirections that are followed.
pub(super) const MOST_REDIRECTIONS: usize = 10;

/// Names of metadata services, for requests through a proxy, which resolves them itself.
const METADATA_NAMES: [&str; 5] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Addresses of metadata services that are not link-local: of Alibaba, Azure (its wire server), EC2, Google and
/// Scaleway.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// A host that a server's answer led to, and must not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{host} is {zone}, and {home} is not: its answers must not lead there")]
pub struct OutOfReach {
    host: String,
    zone: &'static str,
    home: String,
}

/// Part of the network, as far as it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    Ordinary,
    /// This machine.
    Loopback,
    /// Neighbours on the same link, metadata services among them.
    LinkLocal,
}

impl Zone {
    /// Returns the zone of an address; that of the IPv4 address in a mapped or translated (RFC 6052) one.
    fn from_address(address: IpAddr) -> Self {
        let address = match address {
            IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), v6.segments()) {
                (Some(v4), _) => IpAddr::V4(v4),
                (None, [0x64, 0xff9b, 0, 0, 0, 0, high, low]) => {
                    IpAddr::V4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
                }
                _ => address,
            },
            v4 => v4,
        };
        let is_link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        match address {
            _ if is_link_local || METADATA.contains(&address) => Self::LinkLocal,
            // The kernel connects to this machine for 0.0.0.0 and ::.
            _ if address.is_loopback() || address.is_unspecified() => Self::Loopback,
            _ => Self::Ordinary,
        }
    }

    /// Returns the zone of a name or address as text; that of a name by which this machine or a metadata service goes.
    fn from_text(host: &str) -> Self {
        match host.parse::<IpAddr>() {
            Ok(address) => Self::from_address(address),
            Err(_) if METADATA_NAMES.contains(&host) => Self::LinkLocal,
            Err(_) if host == "localhost" || host.ends_with(".localhost") => Self::Loopback,
            Err(_) => Self::Ordinary,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Ordinary => "elsewhere",
            Self::Loopback => "this machine (loopback)",
            Self::LinkLocal => "a link-local address or a metadata service",
        }
    }
}

/// Returns a URL's or a setting's host as it is compared: in small letters, without brackets and final dot.
fn plain(host: &str) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

/// Hosts that the answers of one server may lead to. Clones share what is known of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct Reach(Arc<Home>);

impl From<Reach> for String {
    /// Returns the server's host.
    fn from(reach: Reach) -> Self {
        reach.0.host.clone()
    }
}

impl From<String> for Reach {
    fn from(host: String) -> Self {
        Self::from_host(&host)
    }
}

/// The server itself.
#[derive(Debug)]
struct Home {
    host: String,
    zone: Zone,
    /// True if its name resolved to this machine when it was first asked: later answers of the name server do not
    /// change it (DNS rebinding).
    resolves_to_loopback: OnceLock<bool>,
}

impl Reach {
    /// Makes the limit of the server with this name or address.
    pub fn from_host(host: &str) -> Self {
        let host = plain(host);
        let zone = Zone::from_text(&host);
        Self(Arc::new(Home { host, zone, resolves_to_loopback: OnceLock::new() }))
    }

    /// Returns whether the server's name resolved to this machine; None before it was first asked.
    pub(super) fn resolves_to_loopback(&self) -> Option<bool> {
        self.0.resolves_to_loopback.get().copied()
    }

    /// Takes over what another process knows of the server; what is known here stays.
    pub(super) fn learn(&self, resolves_to_loopback: Option<bool>) {
        if let Some(it_does) = resolves_to_loopback {
            let _ = self.0.resolves_to_loopback.set(it_does);
        }
    }

    /// Checks the host of a URL, as far as its text tells; see [`Reach::resolver`] for names.
    ///
    /// # Errors
    /// The host, and why it is refused.
    pub fn check(&self, url: &Url) -> Result<(), OutOfReach> {
        let host = plain(url.host_str().unwrap_or_default());
        if host == self.0.host {
            return Ok(());
        }
        self.check_zone(&host, Zone::from_text(&host))
    }

    fn check_zone(&self, host: &str, zone: Zone) -> Result<(), OutOfReach> {
        let at_home = self.0.zone == zone
            || zone == Zone::Loopback && self.0.resolves_to_loopback.get() == Some(&true);
        if zone == Zone::Ordinary || at_home {
            return Ok(());
        }
        let (host, home) = (host.to_owned(), self.0.host.clone());
        Err(OutOfReach { host, zone: zone.describe(), home })
    }

    /// Keeps those of the addresses of `name` that may be connected to.
    ///
    /// # Errors
    /// The first that may not, where none may.
    fn permitted(&self, name: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, OutOfReach> {
        let name = plain(name);
        let zone = |address: &SocketAddr| Zone::from_address(address.ip());
        if name == self.0.host {
            let loopback = || found.iter().any(|address| zone(address) == Zone::Loopback);
            self.0.resolves_to_loopback.get_or_init(loopback);
        }
        let check = |address: &SocketAddr| {
            self.check_zone(&format!("{name} ({})", address.ip()), zone(address))
        };
        match found.iter().map(check).find_map(Result::err) {
            Some(refused) if found.iter().all(|address| check(address).is_err()) => Err(refused),
            _ => Ok(found.into_iter().filter(|address| check(address).is_ok()).collect()),
        }
    }

    /// Returns a resolver that refuses names by their addresses. `proxies` are the hosts of proxies, which the server
    /// does not choose.
    pub(super) fn resolver(&self, proxies: Vec<String>) -> Arc<dyn Resolve> {
        Arc::new(Resolver { reach: self.clone(), proxies })
    }

    /// Returns the policy that follows redirections within reach.
    pub(super) fn redirections(&self) -> Policy {
        let (reach, limited) = (self.clone(), Policy::limited(MOST_REDIRECTIONS));
        Policy::custom(move |attempt: Attempt<'_>| -> Action {
            match reach.check(attempt.url()) {
                Ok(()) => limited.redirect(attempt),
                Err(refused) => attempt.error(refused),
            }
        })
    }
}

struct Resolver {
    reach: Reach,
    proxies: Vec<String>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, name) = (self.reach.clone(), name.as_str().to_owned());
        let is_proxy = self.proxies.iter().any(|proxy| plain(proxy) == plain(&name));
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((&*name, 0)).await?.collect();
            let permitted = if is_proxy { found } else { reach.permitted(&name, found)? };
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::elsewhere("https://auth.example.com/token", true)]
    #[case::private("https://10.96.0.7/token", true)]
    #[case::metadata("http://169.254.169.254/latest/meta-data/iam", false)]
    #[case::as_a_number("http://2852039166/", false)]
    #[case::in_hex("http://0xa9fea9fe/", false)]
    #[case::mapped("http://[::ffff:169.254.169.254]/", false)]
    #[case::translated("http://[64:ff9b::a9fe:a9fe]/", false)]
    #[case::link_local("https://[fe80::1]/", false)]
    #[case::link_local_end("https://[febf::1]/", false)]
    #[case::metadata_of_ec2("http://[fd00:ec2::254]/", false)]
    #[case::metadata_of_alibaba("http://100.100.100.200/", false)]
    #[case::metadata_by_name("http://metadata.google.internal/", false)]
    #[case::metadata_with_a_dot("http://METADATA.google.internal./", false)]
    #[case::loopback("http://127.0.0.1:9470/", false)]
    #[case::all_of_loopback("http://127.8.9.1/", false)]
    #[case::loopback_6("http://[::1]/", false)]
    #[case::localhost("http://localhost:5000/", false)]
    #[case::below_localhost("http://a.localhost/", false)]
    #[case::unspecified("http://0.0.0.0:9470/", false)]
    #[case::unspecified_6("http://[::]:9470/", false)]
    fn answers_of_a_registry_lead(#[case] url: &str, #[case] permitted: bool) {
        let checked =
            Reach::from_host("registry.example.com").check(&Url::parse(url).expect("a URL"));
        assert_eq!(checked.is_ok(), permitted, "{checked:?}");
        if let Err(refused) = checked {
            assert!(refused.to_string().contains("registry.example.com is not"), "{refused}");
        }
    }

    #[rstest]
    #[case::loopback("127.0.0.1", "http://127.0.0.1:1/", true)]
    #[case::loopback_by_another_name("127.0.0.1", "http://localhost:1/", true)]
    #[case::loopback_6("[::1]", "http://127.0.0.1:1/", true)]
    #[case::localhost("localhost", "http://[::1]:1/", true)]
    #[case::from_loopback_to_metadata("localhost", "http://169.254.169.254/", false)]
    #[case::link_local("169.254.1.1", "http://169.254.1.1/", true)]
    #[case::from_link_local_to_loopback("169.254.1.1", "http://127.0.0.1/", false)]
    fn a_server_may_lead_to_where_it_is(
        #[case] home: &str,
        #[case] url: &str,
        #[case] permitted: bool,
    ) {
        assert_eq!(
            Reach::from_host(home).check(&Url::parse(url).expect("a URL")).is_ok(),
            permitted
        );
    }

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().expect("an address"), 0)).collect()
    }

    #[rstest]
    #[case::elsewhere("auth.example.com", &["192.0.2.1"], Some(1))]
    #[case::private("auth.example.com", &["10.0.0.1"], Some(1))]
    #[case::metadata("auth.example.com", &["169.254.169.254"], None)]
    #[case::this_machine("auth.example.com", &["127.0.0.1", "::1"], None)]
    #[case::one_of_two("auth.example.com", &["169.254.169.254", "192.0.2.1"], Some(1))]
    #[case::nothing("auth.example.com", &[], Some(0))]
    #[case::home_on_loopback("registry.example.com", &["127.0.0.1"], Some(1))]
    #[case::home_at_the_metadata("registry.example.com", &["169.254.169.254"], None)]
    fn names_are_refused_by_their_addresses(
        #[case] name: &str,
        #[case] found: &[&str],
        #[case] count: Option<usize>,
    ) {
        let permitted = Reach::from_host("registry.example.com").permitted(name, addresses(found));
        assert_eq!(permitted.ok().map(|permitted| permitted.len()), count);
    }

    #[tokio::test]
    async fn the_client_resolves_names_so_and_those_of_proxies_freely() {
        let reach = Reach::from_host("registry.example.com");
        let name = || "localhost".parse().expect("a name");
        let refused = reach.resolver(Vec::new()).resolve(name()).await.err().expect("refused");
        assert!(refused.is::<OutOfReach>(), "{refused}");
        let proxies = vec!["LOCALHOST".to_owned()];
        assert!(reach.resolver(proxies).resolve(name()).await.is_ok());
        let local = Reach::from_host("127.0.0.1");
        assert!(local.resolver(Vec::new()).resolve(name()).await.is_ok());
    }

    #[test]
    fn a_name_that_is_bound_anew_does_not_lead_to_this_machine() {
        let reach = Reach::from_host("registry.example.com");
        let resolve = |texts| reach.permitted("Registry.example.com.", addresses(texts));
        assert!(resolve(&["192.0.2.1"]).is_ok());
        assert!(resolve(&["127.0.0.1"]).is_err());
        let local = Reach::from_host("registry.example.com");
        assert!(local.permitted("registry.example.com", addresses(&["127.0.0.1"])).is_ok());
        assert!(local.permitted("auth.example.com", addresses(&["127.0.0.1"])).is_ok());
        assert!(local.permitted("auth.example.com", addresses(&["169.254.169.254"])).is_err());
    }
}
