//! Every source with every fault: the outcome is the one in the table, within a time limit, and
//! afterwards every file in the store matches its name.

mod connections;
mod full;
mod scene;
mod unreachable;

use std::time::{Duration, Instant};

use longshore_core::failure::ExitCode;
use longshore_fetch::http::Policy;

use longshore_tests::archive;
use longshore_tests::server::Fault;
use scene::{Scene, Source};

/// Time limit of every fault, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Factor by which time passes faster here; the time limit for a busy server is scaled, too (the tests
/// of `longshore_fetch::http` check that its default covers a minute).
const SCALE: u32 = 15;
const MINUTE: Duration = Duration::from_secs(60 / SCALE as u64);
const A_MINUTE: &str = "busy for a minute, then fine";

/// Outcome of a fault.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The file was fetched.
    Fetched,
    /// Nothing was.
    Refused(ExitCode),
}

use ExitCode::{Download, Verification};
use Outcome::{Fetched, Refused};

/// Faults of a server: for its next answers, or for every one.
enum Faults {
    Next(Vec<Fault>),
    Every(Fault),
    /// It has another file instead, made from the original.
    Instead(fn(Vec<u8>) -> Vec<u8>),
    /// It does not have the file.
    Gone,
}

use Faults::{Every, Gone, Instead, Next};

fn faults() -> Vec<(&'static str, Faults, Outcome)> {
    let changed = |mut bytes: Vec<u8>| {
        let at = bytes.len() / 4 * 3;
        bytes[at] ^= 1;
        bytes
    };
    vec![
        ("404", Gone, Refused(Download)),
        ("410", Every(Fault::Status(410)), Refused(Download)),
        ("401", Every(Fault::Status(401)), Refused(Download)),
        ("403", Every(Fault::Status(403)), Refused(Download)),
        ("busy twice, then fine", Next(vec![Fault::Status(503), Fault::Busy(502, "0")]), Fetched),
        (A_MINUTE, Every(Fault::BusyFor(MINUTE)), Fetched),
        ("too many requests, then fine", Next(vec![Fault::Busy(429, "0")]), Fetched),
        ("busy for ever", Every(Fault::Status(500)), Refused(Download)),
        ("busy for an hour", Every(Fault::Busy(503, "3600")), Refused(Download)),
        ("cut at 90 %, then fine", Next(vec![Fault::CutAt(90)]), Fetched),
        ("cut, then without ranges", Next(vec![Fault::CutAt(90), Fault::NoRange]), Fetched),
        ("cut again and again", Every(Fault::CutAt(90)), Refused(Download)),
        ("cut before anything", Every(Fault::CutAt(0)), Refused(Download)),
        ("silent in the middle", Every(Fault::Stall), Refused(Download)),
        ("a byte now and then", Every(Fault::Trickle), Refused(Download)),
        (
            "too short",
            Instead(|bytes| bytes[..bytes.len() * 9 / 10].to_vec()),
            Refused(Verification),
        ),
        ("too long", Every(Fault::Unmeasured(archive::noise(5_000_000))), Refused(Verification)),
        ("one bit changed", Instead(changed), Refused(Verification)),
        (
            "a page instead",
            Instead(|_| b"<html>log in first</html>".to_vec()),
            Refused(Verification),
        ),
        ("nothing instead", Instead(|_| Vec::new()), Refused(Verification)),
        ("a redirect to itself", Every(Fault::Redirect(String::new())), Refused(Download)),
        ("a redirect to ftp", Every(Fault::Redirect("ftp://127.0.0.1/".into())), Refused(Download)),
    ]
}

/// Tests a source with every fault, each in a scene of its own.
async fn sweep(source: Source) {
    for (name, faults, outcome) in faults() {
        let case = format!("{source:?}: {name}");
        // For a manifest that names an absent file, the manifest is the fault.
        let outcome = match (source, name) {
            (Source::Config, "404") => Refused(Verification),
            _ => outcome,
        };
        let mut scene = Scene::new(source);
        if matches!(name, "silent in the middle" | "a byte now and then") {
            (scene.policy.stall, scene.policy.silence) =
                (Duration::from_secs(1), Duration::from_millis(1500));
        }
        if name == A_MINUTE {
            let usual = Policy::default();
            scene.policy.busy = usual.busy / SCALE;
            scene.policy.backoff = usual.backoff / SCALE;
            scene.policy.longest_backoff = usual.longest_backoff / SCALE;
        }
        apply(&scene, faults);
        let since = Instant::now();
        let fetched = scene.fetch().await;
        assert!(since.elapsed() < SOON, "{case}: {:?}", since.elapsed());
        match (outcome, fetched) {
            (Fetched, Ok(())) => scene.assert_fetched(&case),
            (Fetched, Err(failure)) => panic!("{case}: {}", failure.report()),
            (Refused(code), Ok(())) => panic!("{case}: fetched, and not refused with {code:?}"),
            (Refused(code), Err(failure)) => {
                assert_eq!(failure.code(), code, "{case}: {}", failure.report());
                assert!(failure.remedy_text().is_some(), "{case}: {}", failure.report());
                assert!(failure.report().contains(&scene.server.url()), "{}", failure.report());
                scene.assert_nothing(&case);
            }
        }
    }
}

fn apply(scene: &Scene, faults: Faults) {
    let (server, path) = (&scene.server, scene.path.as_str());
    match faults {
        Next(faults) => faults.into_iter().for_each(|fault| server.once(path, fault)),
        Every(Fault::Redirect(to)) if to.is_empty() => {
            server.always(path, Fault::Redirect(path.to_owned()));
        }
        Every(fault) => server.always(path, fault),
        Instead(make) => server.put(path, make(server.remove(path))),
        Gone => drop(server.remove(path)),
    }
}

#[tokio::test]
async fn a_suites_release() {
    sweep(Source::Release).await;
}

#[tokio::test]
async fn a_suites_index() {
    sweep(Source::Index).await;
}

#[tokio::test]
async fn a_package() {
    sweep(Source::Package).await;
}

#[tokio::test]
async fn a_run_file() {
    sweep(Source::RunFile).await;
}

#[tokio::test]
async fn a_checksum_beside_a_run_file() {
    sweep(Source::Checksum).await;
}

#[tokio::test]
async fn a_sets_manifest_in_a_registry() {
    sweep(Source::Manifest).await;
}

#[tokio::test]
async fn a_sets_config_in_a_registry() {
    sweep(Source::Config).await;
}

#[tokio::test]
async fn a_module_in_a_registry() {
    sweep(Source::Module).await;
}
