//! A transitional package that the index does not show to be one, in a whole build.

use longshore_tests::archive::{self, ARCH};
use longshore_tests::packages::{DRIVER, Item, KERNEL, deb};
use longshore_tests::scene::{Scene as Host, finish};

use super::*;

const NAME: &str = "nvidia-kernel-source-525";
const GOOD: &str = "Package: nvidia-kernel-source\n";

/// Makes the archive of a build with a package that has only a changelog, and comes before the one with sources.
fn suite() -> archive::Suite {
    let mut suite = together::archive(0, false);
    let stanza = format!("Package: {NAME}\nVersion: {DRIVER}-2\nArchitecture: {ARCH}\n");
    let path = format!("./usr/share/doc/{NAME}/changelog.Debian.gz");
    suite.packages.push((stanza, deb(&[Item::File(&path, b"changelog")])));
    suite
}

#[test]
fn a_package_that_turns_out_to_hold_no_sources_is_followed_by_the_next() {
    let suite = suite();
    let good = suite.packages.iter().find(|(stanza, _)| stanza.starts_with(GOOD));
    let good = archive::digest(&good.expect("the sources").1);
    let host = Host::with(suite);
    for passes_over in [true, false] {
        let ended = finish(&mut host.agent(&["build", "--kernel", KERNEL, "--driver", DRIVER]));
        ended.assert_done();
        let set: ModuleSet = serde_json::from_str(&ended.out).expect("a set");
        assert_eq!(set.key.driver_digest, good, "{ended}");
        let said = format!("{NAME} {DRIVER}-2 holds no kernel sources");
        let warned = ended.err.contains("continuing with ") && ended.err.contains(&said);
        assert!(warned || !passes_over, "{ended}");
        host.assert_sound();
    }
}

#[test]
fn alone_it_is_refused_by_name() {
    let mut suite = suite();
    suite.packages.retain(|(stanza, _)| !stanza.starts_with(GOOD));
    let host = Host::with(suite);
    let build = host.agent(&["build", "--kernel", KERNEL, "--driver", DRIVER]);
    host.refuses(build, 13, &[&format!("{NAME} {DRIVER}-2 holds no kernel sources")]);
}
