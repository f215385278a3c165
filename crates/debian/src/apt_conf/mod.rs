//! Proxies of the host's apt, and its limits of age: apt.conf(5), read below a root path.
//!
//! Files are those of apt.conf.d in their order, then apt.conf (apt-pkg/init.cc), with the grammar of
//! apt-pkg/contrib/configuration.cc. Of a server counts `Acquire::SCHEME::Proxy::HOST`, then
//! `Acquire::SCHEME::Proxy`, for https also those of http (apt-transport-https(1)); they come before the
//! variables, but not before `no_proxy` (methods/http.cc, HttpServerState::Open).

mod grammar;
mod valid_time;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use grammar::Statement;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::root::{Root, is_absent};
use longshore_fetch::http::{Proxy, ProxyRule};
use reqwest::Url;
pub(super) use valid_time::AptMaxAges;

const FILE: &str = "/etc/apt/apt.conf";
const DIRECTORY: &str = "/etc/apt/apt.conf.d";
/// Maximum number of files that are read, and size of one.
const MOST_FILES: usize = 1000;
const MOST_BYTES: u64 = 1 << 20;
/// Depth of `#include` above which apt reads no further.
const DEEPEST: usize = 10;
/// Port of a proxy whose setting names none: that of the server's scheme (methods/http.cc).
const PORTS: [(&str, u16); 2] = [("http", 80), ("https", 443)];

/// The proxies of some servers, with a line for each setting that is used or not.
#[derive(Debug, Clone, Default)]
pub(super) struct AptProxies {
    pub(super) rules: Vec<ProxyRule>,
    pub(super) notes: Vec<String>,
}

/// A value, with the file that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    value: String,
    file: PathBuf,
}

/// Settings by name in small letters, as apt finds them.
#[derive(Debug, Default)]
struct Settings {
    values: BTreeMap<String, Setting>,
    problems: Vec<String>,
    read: usize,
}

/// Reads apt's configuration below `root`; returns the proxies of the servers of these URLs.
///
/// # Errors
/// Exit code 2 for a proxy of one of them that cannot be used.
pub(super) fn read(root: &Path, urls: &[Url]) -> Result<AptProxies, Failure> {
    let settings = Settings::read(root);
    let mut made = AptProxies { notes: settings.problems.clone(), ..AptProxies::default() };
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for url in urls {
        let (Some(host), scheme) = (url.host_str(), url.scheme()) else { continue };
        if made.rules.iter().any(|rule| rule.scheme == scheme && rule.host == host) {
            continue;
        }
        let Some(setting) = settings.proxy(scheme, host) else { continue };
        let proxy = setting.proxy(scheme)?;
        let shown = match &proxy {
            Some(proxy) => format!("apt's proxy {} of {}", proxy.shown(), setting.file.display()),
            None => format!("apt's setting of {} to use no proxy", setting.file.display()),
        };
        used.entry(shown).or_default().push(host.to_owned());
        made.rules.push(ProxyRule { scheme: scheme.to_owned(), host: host.to_owned(), proxy });
    }
    made.notes.extend(used.into_iter().map(|(what, hosts)| {
        format!("{what} is used for the host's apt sources ({})", hosts.join(", "))
    }));
    made.notes.extend(settings.detectors(urls));
    Ok(made)
}

impl Settings {
    /// Reads apt's configuration below `root`; none where that cannot be opened.
    fn read(root: &Path) -> Self {
        let mut settings = Self::default();
        if let Ok(root) = Root::open(root) {
            settings.read_all(&root);
        }
        settings
    }

    fn read_all(&mut self, root: &Root) {
        let names = root.read_small_dir(DIRECTORY, MOST_FILES).unwrap_or_else(|error| {
            if !is_absent(&error) {
                let problem = format!("apt's proxies in {DIRECTORY} are not known: {error}");
                self.problems.push(problem);
            }
            Vec::new()
        });
        for name in names.iter().filter(|name| is_part(name)) {
            self.read_file(root, &Path::new(DIRECTORY).join(name), 0);
        }
        self.read_file(root, Path::new(FILE), 0);
    }

    fn read_file(&mut self, root: &Root, path: &Path, depth: usize) {
        self.read += 1;
        if depth > DEEPEST || self.read > MOST_FILES {
            self.problems
                .push(format!("{} is not read: apt's files include too many", path.display()));
            return;
        }
        let text = match root.read_small_text(path, MOST_BYTES) {
            Ok(text) => text,
            Err(error) if is_absent(&error) => return,
            Err(error) => {
                self.problems
                    .push(format!("apt's proxies in {} are not known: {error}", path.display()));
                return;
            }
        };
        let (statements, problem) = grammar::parse(&text);
        for statement in statements {
            match statement {
                Statement::Set { name, value } => {
                    let setting = Setting { value, file: path.to_path_buf() };
                    self.values.insert(name.to_ascii_lowercase(), setting);
                }
                Statement::Clear(name) => {
                    let name = name.to_ascii_lowercase();
                    let below = format!("{name}::");
                    self.values.retain(|known, _| *known != name && !known.starts_with(&below));
                }
                Statement::Include(file) if file.len() > 2 && file.ends_with('/') => {
                    let names = root.read_small_dir(&file, MOST_FILES).unwrap_or_default();
                    for name in names.iter().filter(|name| is_part(name)) {
                        self.read_file(root, &Path::new(&file).join(name), depth + 1);
                    }
                }
                Statement::Include(file) => self.read_file(root, Path::new(&file), depth + 1),
            }
        }
        if let Some(why) = problem {
            self.problems.push(format!(
                "apt refuses {}: {why}; what it says of proxies is not known",
                path.display()
            ));
        }
    }

    /// Returns the setting of a server's proxy.
    fn proxy(&self, scheme: &str, host: &str) -> Option<&Setting> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let get = |name: String| self.values.get(&name).filter(|setting| !setting.value.is_empty());
        let schemes: &[&str] = if scheme == "https" { &["https", "http"] } else { &["http"] };
        let of_host =
            || schemes.iter().find_map(|scheme| get(format!("acquire::{scheme}::proxy::{host}")));
        let of_all = || schemes.iter().find_map(|scheme| get(format!("acquire::{scheme}::proxy")));
        of_host().or_else(of_all)
    }

    /// Returns notes about programs that tell apt a proxy: no program of the host's is run for that.
    fn detectors(&self, urls: &[Url]) -> Vec<String> {
        let uses = |scheme: &str| urls.iter().any(|url| url.scheme() == scheme);
        let names = ["proxy-auto-detect", "proxyautodetect"];
        let found = PORTS.iter().filter(|(scheme, _)| uses(scheme)).filter_map(|(scheme, _)| {
            let setting = names.iter().find_map(|name| {
                self.values.get(&format!("acquire::{scheme}::{name}")).filter(|set| !set.value.is_empty())
            })?;
            Some(format!(
                "apt asks the program {} of {} for the proxy of {scheme}, which longshore does not run: set {scheme}_proxy",
                setting.value,
                setting.file.display()
            ))
        });
        found.collect()
    }
}

impl Setting {
    /// Parses the proxy; None for a value without a scheme, such as DIRECT or false, which apt takes for no
    /// proxy (apt-pkg/contrib/strutl.cc, URI::CopyFrom).
    fn proxy(&self, scheme: &str) -> Result<Option<Proxy>, Failure> {
        if !self.value.contains(':') {
            return Ok(None);
        }
        let port = PORTS.iter().find(|(known, _)| *known == scheme).map_or(80, |(_, port)| *port);
        Proxy::parse(&self.value, port).map(Some).map_err(|why| {
            let cause = format!(
                "apt's proxy for {scheme} in {} cannot be used for the host's apt sources: {why}",
                self.file.display()
            );
            Failure::new(FailureKind::Usage, cause).remedy(
                "correct it (in user and password write @ as %40), or name the archives as [[archive]] and set \
                 host-apt = false",
            )
        })
    }
}

/// True for a name that apt reads in a directory (apt-pkg/contrib/fileutl.cc, GetListOfFilesInDir).
fn is_part(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b));
    plain && !name.starts_with('.') && (name.ends_with(".conf") || !name.contains('.'))
}

#[cfg(test)]
mod tests;
