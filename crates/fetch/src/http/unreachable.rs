//! Servers that were found unreachable, and are not asked again for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Url;

/// Time during which an unreachable server is not tried again.
const REMEMBERED: Duration = Duration::from_secs(300);

/// Servers that did not answer at all recently, with the error. Copies share the list: an
/// unreachable source costs a run its timeout once.
#[derive(Debug, Clone)]
pub struct UnreachableHosts {
    known: Arc<Mutex<HashMap<String, (Instant, String)>>>,
    remembered: Duration,
}

impl Default for UnreachableHosts {
    fn default() -> Self {
        Self { known: Arc::default(), remembered: REMEMBERED }
    }
}

impl UnreachableHosts {
    /// An empty list that remembers nothing: for a caller that needs this one server, and has time.
    pub fn forgetful() -> Self {
        Self { remembered: Duration::ZERO, ..Self::default() }
    }

    /// Remembers that the URL's server could not be reached, and why.
    pub(super) fn note(&self, url: &Url, why: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(server_of(url), (Instant::now(), why.to_owned()));
    }

    /// Returns the error of a server that is not to be tried now.
    pub(super) fn why(&self, url: &Url) -> Option<String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (since, _)| since.elapsed() < self.remembered);
        let (since, why) = known.get(&server_of(url))?;
        let ago = since.elapsed().as_secs();
        Some(format!("not asked again, because it did not answer {ago} seconds ago: {why}"))
    }
}

fn server_of(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_know_of_the_same_servers() {
        let (away, url) =
            (UnreachableHosts::default(), |text: &str| Url::parse(text).expect("a URL"));
        away.clone().note(&url("http://a.example.com/x"), "no connection");
        let why = away.why(&url("http://a.example.com:80/other")).expect("known");
        assert!(why.contains("no connection"), "{why}");
        assert_eq!(away.why(&url("http://a.example.com:81/x")), None);
        assert_eq!(away.why(&url("https://a.example.com/x")), None);
        let away = UnreachableHosts::forgetful();
        away.note(&url("http://a.example.com/x"), "no connection");
        assert_eq!(away.why(&url("http://a.example.com/x")), None);
    }
}
