//! Proxies: the variables as curl means them, and rules for single servers before them.
//!
//! The outcome of every value in the tests is that of curl 7.88.1. A value that curl refuses is refused here
//! too: going direct, or to another server, would be an answer to a question that was not asked.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Once;

use reqwest::Url;
use serde::{Deserialize, Serialize};

use longshore_core::failure::{Failure, FailureKind};

/// Port of a proxy whose variable names none (curl's CURL_DEFAULT_PROXY_PORT).
const PORT: u16 = 1080;
/// Port of a proxy that is asked over TLS, and of none else.
const TLS_PORT: u16 = 443;
/// Characters that a host name cannot have (curl's urlapi.c, hostname_check).
const NO_HOST: &str = " \r\n\t/:#?!@{}[]\\$'\"^`*<>=;,+&()%";

/// A proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Proxy(Url);

impl From<Proxy> for String {
    fn from(proxy: Proxy) -> Self {
        proxy.0.into()
    }
}

impl TryFrom<String> for Proxy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Url::parse(&text).map(Self).map_err(|error| error.to_string())
    }
}

impl Proxy {
    /// Parses a proxy's URL as curl does: without a scheme it is http; `port` is that of a value without one.
    ///
    /// # Errors
    /// The reason why it is no usable proxy. It has nothing of the value.
    pub fn parse(value: &str, port: u16) -> Result<Self, String> {
        if value.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err("it has a blank or a control character".to_owned());
        }
        let (scheme, rest) = scheme_of(value)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        if after.contains('@') || authority.matches('@').count() > 1 {
            return Err("its user or password has an @, /, ? or # that is not escaped".to_owned());
        }
        let (login, server) = match authority.split_once('@') {
            Some((login, server)) => (Some(login), server),
            None => (None, authority),
        };
        let (host, given) = host_and_port(server)?;
        if matches!(host, "http" | "https") && after.starts_with("//") {
            return Err("the : behind its scheme is missing".to_owned());
        }
        let port = given.unwrap_or(if scheme == "https" { TLS_PORT } else { port });
        let login = login.map(escaped_login).transpose()?.unwrap_or_default();
        let url = format!("{scheme}://{login}{host}:{port}");
        Url::parse(&url).map(Self).map_err(|error| format!("its server is not one: {error}"))
    }

    /// Returns it without user and password, for messages.
    pub fn shown(&self) -> String {
        longshore_core::redact::redacted(self.0.as_str()).trim_end_matches('/').to_owned()
    }
}

/// Returns the scheme, and the text behind its slashes.
fn scheme_of(value: &str) -> Result<(&'static str, &str), String> {
    let name = value.split_once(':').filter(|(name, rest)| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(is_part)
            && rest.starts_with('/')
    });
    let Some((name, rest)) = name else { return Ok(("http", value)) };
    let bare = rest.trim_start_matches('/');
    if rest.len() - bare.len() > 3 {
        return Err("it has more than three slashes behind its scheme".to_owned());
    }
    match name.to_ascii_lowercase().as_str() {
        "http" => Ok(("http", bare)),
        "https" => Ok(("https", bare)),
        name if name.starts_with("socks") => Err("longshore has no SOCKS".to_owned()),
        name => Err(format!("proxies of the scheme {name} are not known")),
    }
}

fn host_and_port(server: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inner, port)) => {
            inner.parse::<Ipv6Addr>().map_err(|_| "its IPv6 address is none".to_owned())?;
            (&server[..inner.len() + 2], port)
        }
        None => {
            let at = server.find(':').unwrap_or(server.len());
            let (host, port) = server.split_at(at);
            if host.is_empty() {
                return Err("it has no server".to_owned());
            }
            if host.contains(|c: char| NO_HOST.contains(c)) {
                return Err("its server has a character that no name has".to_owned());
            }
            (host, port)
        }
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            let port = digits.parse::<u16>().ok().filter(|port| *port > 0);
            Some(port.ok_or("its port is none")?)
        }
        _ => return Err("its port is none".to_owned()),
    };
    Ok((host, port))
}

/// Returns user and password, each byte but letters and digits escaped.
fn escaped_login(login: &str) -> Result<String, String> {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let mut text = String::new();
    for (part, end) in [(user, ':'), (password, '@')] {
        for byte in unescaped(part) {
            if byte == 0 {
                return Err("its user or password has a zero byte".to_owned());
            }
            match byte.is_ascii_alphanumeric() {
                true => text.push(char::from(byte)),
                // A String takes all.
                false => drop(write!(text, "%{byte:02X}")),
            }
        }
        text.push(end);
    }
    Ok(text)
}

/// Resolves `%XX`; a `%` before anything else stays, as in curl.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut made, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        let hex = match more {
            [a, b, ..] if *first == b'%' => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                digit(a).zip(digit(b)).and_then(|(a, b)| u8::try_from(a * 16 + b).ok())
            }
            _ => None,
        };
        made.push(hex.unwrap_or(*first));
        rest = &more[if hex.is_some() { 2 } else { 0 }..];
    }
    made
}

/// A server with a proxy of its own, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyRule {
    /// Scheme of its URLs.
    pub scheme: String,
    /// Its host name.
    pub host: String,
    /// The proxy; None to ask it directly.
    pub proxy: Option<Proxy>,
}

/// The proxies of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Proxies {
    rules: Vec<ProxyRule>,
    http: Option<Proxy>,
    https: Option<Proxy>,
    direct: String,
}

impl Proxies {
    /// Reads the variables of this process; `rules` come before them, but not before `no_proxy`.
    ///
    /// # Errors
    /// Exit code 2 for a variable that is no usable proxy.
    pub(super) fn from_process_env(rules: Vec<ProxyRule>) -> Result<Self, Failure> {
        static WARNED: Once = Once::new();
        let env =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let unread = env("HTTP_PROXY").is_some_and(|value| !value.is_empty());
        if unread && env("http_proxy").is_none_or(|value| value.is_empty()) {
            WARNED.call_once(|| {
                tracing::warn!("HTTP_PROXY is not read, as by curl: set http_proxy in its place");
            });
        }
        Ok(Self { rules, ..Self::from_env(&env)? })
    }

    /// Reads the variables (curl's lib/url.c, detect_proxy): small letters come before capital ones, the
    /// scheme's own before that of all, and HTTP_PROXY is not read, because a CGI program gets it from its
    /// client. An empty one counts as absent.
    fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| {
                let value = env(name).filter(|value| !value.is_empty())?;
                Some(Proxy::parse(&value, PORT).map_err(|why| unusable(name, &why)))
            })
        };
        Ok(Self {
            rules: Vec::new(),
            http: first(&["http_proxy", "all_proxy", "ALL_PROXY"]).transpose()?,
            https: first(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]).transpose()?,
            direct: ["no_proxy", "NO_PROXY"]
                .into_iter()
                .find_map(|name| env(name).filter(|value| !value.is_empty()))
                .unwrap_or_default(),
        })
    }

    /// Returns the hosts of the proxies that variables name.
    pub(super) fn hosts(&self) -> Vec<String> {
        let proxies = [&self.http, &self.https].into_iter().flatten();
        proxies.filter_map(|proxy| proxy.0.host_str().map(str::to_owned)).collect()
    }

    /// Returns the proxy of a URL; None to go direct.
    pub(super) fn for_url(&self, url: &Url) -> Option<Url> {
        let host = url.host_str()?;
        if is_direct(&self.direct, host) {
            return None;
        }
        let is_for =
            |rule: &&ProxyRule| rule.scheme == url.scheme() && rule.host.eq_ignore_ascii_case(host);
        let proxy = match self.rules.iter().find(is_for) {
            Some(rule) => rule.proxy.as_ref(),
            None if url.scheme() == "https" => self.https.as_ref(),
            None => self.http.as_ref(),
        };
        proxy.map(|proxy| proxy.0.clone())
    }
}

/// Returns the failure of a variable that is no proxy. Its value is not shown: one that cannot be taken apart may have a
/// password anywhere.
fn unusable(name: &str, why: &str) -> Failure {
    let cause = format!("the variable {name} is no usable proxy: {why}");
    Failure::new(FailureKind::Usage, cause).remedy(
        "write http://USER:PASSWORD@HOST:PORT without quotation marks, in user and password @ as %40, : as %3A, / \
         as %2F, # as %23 and ? as %3F; or unset it",
    )
}

/// True if `no_proxy` has a host (curl's lib/noproxy.c): its name or a domain above it, with or without a dot
/// before; an address, or a network in CIDR; or `*` alone for all. Ports are not known there.
fn is_direct(list: &str, host: &str) -> bool {
    let list = list.trim();
    if list == "*" {
        return true;
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut tokens = list.split([',', ' ', '\t']).filter(|token| !token.is_empty());
    if let Ok(address) = host.parse::<IpAddr>() {
        return tokens.any(|token| has_address(token, address));
    }
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    tokens.any(|token| {
        let token = token.strip_suffix('.').unwrap_or(token);
        let token = token.strip_prefix('.').unwrap_or(token).to_ascii_lowercase();
        let is_below = || host.strip_suffix(&token).is_some_and(|rest| rest.ends_with('.'));
        !token.is_empty() && (host == token || is_below())
    })
}

/// True if a token is this address, or a network of at least one bit that has it. As in C's atoi, what
/// follows the digits does not count, and no digits are 0: the address alone.
fn has_address(token: &str, address: IpAddr) -> bool {
    let (text, length) = token.split_once('/').unwrap_or((token, ""));
    let digits = length.len() - length.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let length = length[..digits].parse::<u32>().unwrap_or(0);
    let (difference, width) = match (address, text.parse::<IpAddr>()) {
        (IpAddr::V4(own), Ok(IpAddr::V4(network))) => {
            (u128::from(u32::from(own) ^ u32::from(network)), 32)
        }
        (IpAddr::V6(own), Ok(IpAddr::V6(network))) => (u128::from(own) ^ u128::from(network), 128),
        _ => return false,
    };
    let length = if length == 0 { width } else { length };
    length <= width && difference >> (width - length) == 0
}

#[cfg(test)]
mod tests;
