//! Logins of the host's apt: apt_auth.conf(5), read below a root path.
//!
//! ```text
//! machine [https://|http://]HOST[:PORT][/PATH] login USER password PASSWORD
//! ```

use std::io;
use std::path::{Path, PathBuf};

use longshore_core::root::{Root, is_absent, read_below};
use longshore_fetch::http::{Login, Logins};

const FILE: &str = "/etc/apt/auth.conf";
const DIRECTORY: &str = "/etc/apt/auth.conf.d";

/// Maximum number of files in [`DIRECTORY`].
const MOST_FILES: usize = 1000;

/// Maximum size of a file; a login takes some hundred bytes.
const MOST_BYTES: usize = 1 << 20;

/// Reads /etc/apt/auth.conf and auth.conf.d below `root`. A file that cannot be read is logged: its
/// server then refuses, which names the URL.
pub(super) fn read(root: &Path) -> Logins {
    let logins = files(root).into_iter().filter_map(|file| match text(root, &file) {
        Ok(text) => Some(parse(&text)),
        Err(e) if is_absent(&e) => None,
        Err(e) => {
            tracing::warn!("the logins in {} are not used: {e}", file.display());
            None
        }
    });
    Logins::new(logins.flatten().collect())
}

/// Lists the files that may exist, in apt's order.
fn files(root: &Path) -> Vec<PathBuf> {
    let listed = Root::open(root).and_then(|root| root.read_small_dir(DIRECTORY, MOST_FILES));
    let names = listed.unwrap_or_else(|e| {
        if !is_absent(&e) {
            tracing::warn!("the logins in {DIRECTORY} are not used: {e}");
        }
        Vec::new()
    });
    let parts =
        names.iter().filter(|name| is_part(name)).map(|name| Path::new(DIRECTORY).join(name));
    [PathBuf::from(FILE)].into_iter().chain(parts).collect()
}

/// True for a name that apt reads: `.conf`, or without an extension, as `90ubuntu-advantage`.
fn is_part(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    plain && (name.ends_with(".conf") || !name.contains('.'))
}

fn text(root: &Path, file: &Path) -> io::Result<String> {
    let bytes = read_below(root, file)?;
    if bytes.len() > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it has more than 1 MiB"));
    }
    // The bytes of a file with logins are in no message.
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text"))
}

/// Parses a file's words. Those that are unknown are skipped, as by apt; a machine that cannot be read
/// has no login.
fn parse(text: &str) -> Vec<Login> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut words = lines.flat_map(str::split_whitespace);
    let mut logins: Vec<Login> = Vec::new();
    let mut within = false;
    while let Some(word) = words.next() {
        match (word, logins.last_mut()) {
            ("machine", _) => {
                let login = words.next().and_then(machine);
                within = login.is_some();
                logins.extend(login);
            }
            ("login", Some(login)) if within => {
                login.user = words.next().unwrap_or_default().to_owned();
            }
            ("password", Some(login)) if within => {
                login.password = words.next().unwrap_or_default().to_owned();
            }
            _ => {}
        }
    }
    logins.retain(|login| !login.user.is_empty());
    logins
}

/// Parses `[protocol://]host[:port][/path]`; without a protocol it is for https alone.
fn machine(text: &str) -> Option<Login> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
    let at = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let port = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = port.map_or((authority, None), |(host, port)| (host, Some(port)));
    let [scheme, host, path] = [scheme, host, path].map(str::to_owned);
    let known = matches!(scheme.as_str(), "http" | "https") && !host.is_empty();
    let (user, password) = Default::default();
    known.then_some(Login { scheme, host, port, path, user, password })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    /// Describes logins as `scheme host port path user:password`.
    fn parsed(text: &str) -> Vec<String> {
        let logins = parse(text).into_iter();
        let describe = |l: Login| {
            let port = l.port.map(|port| port.to_string()).unwrap_or_default();
            format!("{} {} {port} {} {}:{}", l.scheme, l.host, l.path, l.user, l.password)
        };
        logins.map(describe).collect()
    }

    #[rstest]
    #[case::one_line("machine a.example.com login u password p", &["https a.example.com   u:p"])]
    #[case::many_lines("machine a.example.com\n\tlogin u\n  password p\n", &["https a.example.com   u:p"])]
    #[case::port_and_path("machine a.example.com:8443/deb/ login u password p", &["https a.example.com 8443 /deb/ u:p"])]
    #[case::http("machine http://a.example.com/x login u password p", &["http a.example.com  /x u:p"])]
    #[case::address("machine [::1]:80 login u password p", &["https [::1] 80  u:p"])]
    #[case::two("machine a login u password p machine b login v password q", &["https a   u:p", "https b   v:q"])]
    #[case::comment("# machine a login u password p\nmachine b login v password q", &["https b   v:q"])]
    #[case::unknown_words("machine a account x login u password p", &["https a   u:p"])]
    #[case::other_protocol("machine ftp://a login u password p", &[])]
    #[case::not_given_to_the_one_before("machine a login u password p machine ftp://b login v password q", &["https a   u:p"])]
    #[case::no_login("machine a password p", &[])]
    #[case::no_machine("login u password p", &[])]
    #[case::cut_off("machine a login", &[])]
    #[case::nothing("machine", &[])]
    fn logins_are_read(#[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(parsed(text), expected);
    }

    #[rstest]
    #[case("90ubuntu-advantage", true)]
    #[case("site.conf", true)]
    #[case("site.conf.bak", false)]
    #[case("odd name", false)]
    fn names_are_those_that_apt_reads(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_part(name), expected);
    }

    #[test]
    fn files_are_read_below_the_root_and_one_that_is_no_text_spoils_no_other() {
        let (root, outside) =
            (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        let apt = root.path().join("etc/apt");
        fs::create_dir_all(apt.join("auth.conf.d")).expect("dirs");
        let entry = |host: &str| format!("machine {host} login u password p\n");
        fs::write(apt.join("auth.conf"), entry("first")).expect("written");
        fs::write(apt.join("auth.conf.d/90pro"), entry("pro")).expect("written");
        fs::write(apt.join("auth.conf.d/bad.conf"), b"machine x \xff").expect("written");
        fs::write(outside.path().join("x"), entry("outside")).expect("written");
        let link = apt.join("auth.conf.d/link.conf");
        std::os::unix::fs::symlink(outside.path().join("x"), link).expect("link");
        let shown = format!("{:?}", read(root.path()));
        assert!(shown.contains("first") && shown.contains("pro"), "{shown}");
        assert!(!shown.contains("outside"), "{shown}");
        let empty = tempfile::tempdir().expect("dir");
        assert!(!format!("{:?}", read(empty.path())).contains("Login("));
    }
}
