//! The shell scripts that longshore is compared with.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A package on the server.
pub(crate) struct Wanted {
    pub(crate) url: String,
    pub(crate) sha256: String,
}

/// A way of fetching.
pub(crate) enum Rival {
    /// One package after the other.
    OneByOne,
    /// This many packages at a time.
    AtATime(usize),
    /// One curl for all, which keeps its connections, this many at a time; then one sha256sum, and as many dpkg-deb.
    OneCurl(usize),
}

/// `$1` is a URL, `$2` a digest.
const EACH: &str = r#"#!/bin/sh
set -e
file=debs/${1##*/}
curl -sSf -o "$file" "$1"
echo "$2  $file" | sha256sum --check --quiet
dpkg-deb -x "$file" root
"#;

impl Rival {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::OneByOne => "curl, sha256sum, dpkg-deb".to_owned(),
            Self::AtATime(n) => format!("the same, {n} at a time"),
            Self::OneCurl(n) => format!("curl --parallel, {n}"),
        }
    }

    /// Fetches, verifies and unpacks below `work`, and syncs to the disk, as longshore does.
    pub(crate) fn run(&self, wanted: &[Wanted], work: &Path) {
        for dir in ["debs", "root/usr/bin", "root/usr/sbin", "root/usr/lib", "root/usr/lib64"] {
            fs::create_dir_all(work.join(dir)).expect("a directory");
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            let link = work.join("root").join(name);
            std::os::unix::fs::symlink(format!("usr/{name}"), link).expect("a link");
        }
        fs::write(work.join("each"), EACH).expect("a script");
        let mut list = String::new();
        for Wanted { url, sha256 } in wanted {
            let _ = writeln!(list, "{url} {sha256}");
        }
        fs::write(work.join("list"), list).expect("a list");
        let each = |parallel: usize| format!("xargs -P {parallel} -L 1 sh each < list");
        let script = match self {
            Self::OneByOne => each(1),
            Self::AtATime(n) => each(*n),
            Self::OneCurl(n) => {
                let (mut urls, mut sums) = (String::new(), String::new());
                for Wanted { url, sha256 } in wanted {
                    let file = format!("debs/{}", url.rsplit('/').next().unwrap_or_default());
                    let _ = writeln!(urls, "url = \"{url}\"\noutput = \"{file}\"");
                    let _ = writeln!(sums, "{sha256}  {file}");
                }
                fs::write(work.join("urls"), urls).expect("a list");
                fs::write(work.join("sums"), sums).expect("a list");
                format!(
                    "curl --no-progress-meter -Sf --fail-early --parallel --parallel-max {n} --config urls && \
                     sha256sum --check --quiet sums && \
                     find debs -name '*.deb' -print0 | xargs -0 -P {n} -I FILE dpkg-deb -x FILE root"
                )
            }
        };
        let script = format!("{script} && sync -f root");
        let status = Command::new("sh").arg("-c").arg(script).current_dir(work).status();
        assert!(status.expect("sh runs").success(), "curl, sha256sum and dpkg-deb do it");
    }
}
