//! Logins of servers: user and password for the URLs below a host and path.

use std::fmt;
use std::sync::Arc;

use reqwest::Url;

/// User and password for the URLs of one server.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Scheme of the URLs: `https` or `http`.
    pub scheme: String,
    /// Host name or address.
    pub host: String,
    /// Port; None for any.
    pub port: Option<u16>,
    /// Beginning of the URLs' paths; empty for any.
    pub path: String,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
}

impl fmt::Debug for Login {
    /// Writes where it counts, and neither user nor password: tokens are given as either.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}://{}{})", self.scheme, self.host, self.path)
    }
}

impl Login {
    fn is_for(&self, url: &Url) -> bool {
        url.scheme() == self.scheme
            && url.host_str().is_some_and(|host| host.eq_ignore_ascii_case(&self.host))
            && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
            && is_below(url.path(), &self.path)
    }
}

/// True if `path` is `above` or below it: `/debian` is not below `/deb`.
fn is_below(path: &str, above: &str) -> bool {
    let rest = path.strip_prefix(above.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Logins of servers; the first that is for a URL counts.
#[derive(Debug, Clone, Default)]
pub struct Logins(Arc<[Login]>);

impl Logins {
    /// Makes a list of these.
    pub fn new(logins: Vec<Login>) -> Self {
        Self(logins.into())
    }

    /// Returns the login for a URL; None also where the URL names a user itself.
    pub(super) fn login_for(&self, url: &Url) -> Option<&Login> {
        let names_user = !url.username().is_empty() || url.password().is_some();
        self.0.iter().find(|login| login.is_for(url)).filter(|_| !names_user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn login(scheme: &str, port: Option<u16>, path: &str) -> Login {
        let [scheme, host, path, user, password] =
            [scheme, "archive.example.com", path, "user", "secret"].map(str::to_owned);
        Login { scheme, host, port, path, user, password }
    }

    #[rstest]
    #[case::host("https", None, "", "https://archive.example.com/a/b", true)]
    #[case::capitals("https", None, "", "https://ARCHIVE.example.com/a", true)]
    #[case::any_port("https", None, "", "https://archive.example.com:8443/a", true)]
    #[case::its_port("https", Some(443), "", "https://archive.example.com/a", true)]
    #[case::other_port("https", Some(443), "", "https://archive.example.com:8443/a", false)]
    #[case::below_the_path("https", None, "/deb", "https://archive.example.com/deb/a", true)]
    #[case::with_a_slash("https", None, "/deb/", "https://archive.example.com/deb/a", true)]
    #[case::other_path("https", None, "/deb", "https://archive.example.com/debian/a", false)]
    #[case::climbing("https", None, "/deb", "https://archive.example.com/deb/../x", false)]
    #[case::plain("https", None, "", "http://archive.example.com/a", false)]
    #[case::plain_as_stated("http", None, "", "http://archive.example.com/a", true)]
    #[case::other_host("https", None, "", "https://archive.example.com.evil.example/a", false)]
    #[case::host_in_front("https", None, "", "https://x.archive.example.com/a", false)]
    #[case::own_user("https", None, "", "https://me@archive.example.com/a", false)]
    #[case::file("https", None, "", "file:///archive.example.com/a", false)]
    fn a_login_counts_for_its_own_urls(
        #[case] scheme: &str,
        #[case] port: Option<u16>,
        #[case] path: &str,
        #[case] url: &str,
        #[case] counts: bool,
    ) {
        let logins = Logins::new(vec![login(scheme, port, path)]);
        let url = Url::parse(url).expect("a URL");
        assert_eq!(logins.login_for(&url).is_some(), counts);
    }

    #[test]
    fn a_login_is_not_shown() {
        let shown = format!("{:?}", Logins::new(vec![login("https", None, "/deb")]));
        assert!(shown.contains("https://archive.example.com/deb"), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains("user"), "{shown}");
    }
}
