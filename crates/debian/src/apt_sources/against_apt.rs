//! Files of sources, in some hundreds of forms, as apt reads them and as they are read here.
//!
//! apt is the judge: each target that `apt-get indextargets` prints is a source here, or is left out with its
//! line and a reason, and nothing else is a source. Where apt refuses a file, nothing is demanded: apt reads no
//! source at all then, and the sound lines of it are of use here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::read;

/// A target: site, suite, component; the component of a flat archive is empty.
type Target = (String, String, String);

/// Returns apt's targets for amd64; None where it refuses the file.
fn of_apt(root: &Path) -> Option<BTreeSet<Target>> {
    let output = Command::new("apt-get")
        .arg("-o")
        .arg(format!("Dir={}", root.display()))
        .arg("-o")
        .arg(format!("Dir::State::status={}", root.join("status").display()))
        .args(["-o", "APT::Architecture=amd64", "-o", "APT::Architectures::=amd64"])
        .args(["indextargets", "--no-release-info"])
        .args([
            "--format",
            "$(SITE)|$(RELEASE)|$(COMPONENT)|$(ARCHITECTURE)",
            "Created-By: Packages",
        ])
        .env("LC_ALL", "C")
        .output()
        .expect("apt-get runs");
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let targets = text.lines().filter_map(|line| {
        let [site, suite, component, arch] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}: four parts")
        };
        let is_flat = component == "$(COMPONENT)";
        let component = if is_flat { "" } else { component };
        (is_flat || arch == "amd64")
            .then(|| (site.to_owned(), suite.to_owned(), component.to_owned()))
    });
    Some(targets.collect())
}

/// Returns a site as apt prints it: without a password and without slashes at its end.
fn site(url: &str) -> String {
    let url = url.trim_end_matches('/');
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

struct Read {
    targets: BTreeSet<Target>,
    left_out: Vec<String>,
    problems: Vec<String>,
}

fn of_longshore(root: &Path) -> Read {
    let found = read(root, "amd64");
    let mut targets = BTreeSet::new();
    for source in &found.sources {
        let below = format!("file://{}", root.display());
        let url = source.url.replace(&below, "file:");
        for suite in &source.suites {
            let components = if source.components.is_empty() {
                vec![String::new()]
            } else {
                source.components.clone()
            };
            targets.extend(components.into_iter().map(|c| (site(&url), suite.clone(), c)));
        }
    }
    Read {
        targets,
        left_out: found.left_out.iter().map(ToString::to_string).collect(),
        problems: found.problems.iter().map(ToString::to_string).collect(),
    }
}

/// Returns what differs; None where nothing does.
fn difference(extension: &str, text: &str) -> Option<String> {
    let root = tempfile::tempdir().expect("directory");
    let lists = root.path().join("etc/apt/sources.list.d");
    for dir in [
        lists.clone(),
        root.path().join("var/lib/apt/lists"),
        root.path().join("etc/apt/trusted.gpg.d"),
    ] {
        fs::create_dir_all(dir).expect("directory");
    }
    fs::write(root.path().join("status"), "").expect("written");
    fs::write(lists.join(format!("a.{extension}")), text).expect("written");
    let own = of_longshore(root.path());
    let of_apt = of_apt(root.path())?;
    // A target that is left out: one line of it names the site and the suite.
    let is_left_out = |(site, suite, _): &Target| {
        own.left_out
            .iter()
            .any(|line| line.contains(site.trim_end_matches('/')) && line.contains(suite.as_str()))
            || own.left_out.iter().any(|line| site.starts_with("cdrom:") && line.contains("cdrom:"))
    };
    let missing: Vec<_> = of_apt
        .iter()
        .filter(|target| !own.targets.contains(*target) && !is_left_out(target))
        .collect();
    let added: Vec<_> = own.targets.iter().filter(|target| !of_apt.contains(*target)).collect();
    let is_same = missing.is_empty() && added.is_empty();
    (!is_same).then(|| {
        format!(
            "{text:?}: missing {missing:?}, added {added:?}, left out {:?}, problems {:?}",
            own.left_out, own.problems
        )
    })
}

/// All combinations of parts of a line.
fn lines() -> Vec<String> {
    let beginnings = ["deb ", "deb\t", "  deb ", "deb-src ", "# deb ", ""];
    let options = [
        "",
        "[arch=amd64] ",
        "[ arch=amd64,i386 ]",
        "[arch=i386] ",
        "[arch=i386 arch+=amd64] ",
        "[arch-=amd64] ",
        "[arch=amd64 arch=i386] ",
        "[Arch=i386] ",
        "[signed-by=/k.gpg,/l.gpg trusted=yes] ",
        "[lang=de  target=Packages] ",
        "[target=Translations] ",
        "[target-=Packages] ",
        "[arch] ",
        "[arch=amd64]",
        "[arch=all] ",
        "[by-hash=\"force\"] ",
    ];
    let places = [
        "http://a.example.com/debian bookworm main",
        "https://u:p@a.example.com:8443/x/ bookworm main contrib main",
        "\"http://a.example.com/debian\" bookworm \"main\"",
        "http://a.example.com/de%20bian a/b main",
        "http://a.example.com/$(ARCH) x-$(ARCH) main",
        "http://a.example.com/debian stable/$(ARCH)/",
        "http://a.example.com ./",
        "http://a.example.com / main",
        "http://a.example.com bookworm",
        "file:/srv/debian bookworm main",
        "copy:/srv/debian bookworm main",
        "cdrom:[Debian GNU/Linux 12 _Bookworm_ - #1]/ bookworm main",
        "mirror://a.example.com/m.txt noble main",
        "mirror+https://a.example.com/m.txt noble main",
        "tor+http://a.example.com/debian bookworm main",
        "http://a.example.com/debian $(lsb_release -cs) main",
        "a.example.com/debian bookworm main",
        "http://a.example.com/debian bookworm main#contrib",
        "http://a.example.com/debian  bookworm\tmain   # a comment\r",
        "HTTP://a.example.com/debian bookworm main",
    ];
    let mut lines = Vec::new();
    for place in places {
        lines.extend(options.iter().map(|options| format!("deb {options}{place}\n")));
        lines.extend(beginnings.iter().map(|beginning| format!("\n{beginning}{place}\n\n")));
    }
    lines
}

/// All combinations of changes of a stanza.
fn stanzas() -> Vec<String> {
    let stanza = |types: &str, places: &str, more: &str| format!("{types}{places}{more}");
    let all_types = [
        "Types: deb\n",
        "types: deb deb-src\n",
        "Types: deb-src\n",
        "# c\n\nTypes: deb\n",
        "Types : deb\n",
        "Types:deb\n",
        "Types: rpm\n",
        " Types: deb\n",
        "Types: deb\nTypes: deb-src\n",
        "",
    ];
    let all_places = [
        "URIs: http://a.example.com/debian\nSuites: bookworm\nComponents: main\n",
        "URIs: http://a.example.com/debian http://b.example.com\nSuites: bookworm bookworm-updates\nComponents: main\n contrib\n",
        "URIs:\n http://a.example.com/$(ARCH)\n# c\n http://b.example.com\nSuites: x-$(ARCH)\nComponents: main\n",
        "URIs: http://a.example.com/\nSuites: ./ stable/$(ARCH)/\n",
        "URIs: http://a.example.com/\nSuites: a/ b\nComponents: main\n",
        "URIs: http://a.example.com/debian\r\nSuites: bookworm\r\nComponents: main\r\n",
        "URIs: http://a.example.com/debian\nSuites: bookworm\nComponents: main # contrib\n",
        "URIs: mirror://a.example.com/m.txt\nSuites: noble\nComponents: main\n",
        "URIs: \"http://a.example.com\"\nSuites: bookworm\nComponents: main\n",
        "URIs: a.example.com\nSuites: bookworm\nComponents: main\n",
    ];
    let more = [
        "",
        "Enabled: no\n",
        "Enabled: Maybe\n",
        "Enabled:\n",
        "Architectures: amd64 i386\n",
        "Architectures: i386,amd64\n",
        "Architectures: i386\n",
        "Architectures: i386\nArchitectures-Add: amd64\n",
        "Architectures-Remove: amd64\n",
        "Targets: Translations\n",
        "Targets: Packages\n",
        "Suites: trixie\n",
        " \t \nX-Other: y\n",
        "  \nTypes: deb\nURIs: http://c.example.com\nSuites: c\nComponents: c\n",
        "\n\n\nTypes: deb\nURIs: http://c.example.com\nSuites: c\nComponents: c\n",
        "Signed-By: /k.gpg , /l.gpg\n",
        "Signed-By:\n    -----BEGIN PGP PUBLIC KEY BLOCK-----\n \n    abcd\n    -----END PGP PUBLIC KEY BLOCK-----\n",
    ];
    let mut stanzas = Vec::new();
    for places in all_places {
        stanzas.extend(all_types.iter().map(|types| stanza(types, places, "")));
        stanzas.extend(more.iter().map(|more| stanza("Types: deb\n", places, more)));
    }
    stanzas
}

#[test]
fn what_apt_reads_is_read_or_left_out_for_a_reason() {
    let lines = lines().into_iter().map(|line| ("list", line));
    let forms: BTreeSet<(&str, String)> =
        lines.chain(stanzas().into_iter().map(|stanza| ("sources", stanza))).collect();
    assert!(forms.len() > 600, "{}", forms.len());
    let differences: Vec<String> =
        forms.iter().filter_map(|(extension, text)| difference(extension, text)).collect();
    assert!(
        differences.is_empty(),
        "{} of {}:\n{}",
        differences.len(),
        forms.len(),
        differences.join("\n")
    );
}
