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
        let parallel = match self {
            Self::OneByOne => 1,
            Self::AtATime(n) => *n,
        };
        let script = format!("xargs -P {parallel} -L 1 sh each < list && sync -f root");
        let status = Command::new("sh").arg("-c").arg(script).current_dir(work).status();
        assert!(status.expect("sh runs").success(), "curl, sha256sum and dpkg-deb do it");
    }
}
