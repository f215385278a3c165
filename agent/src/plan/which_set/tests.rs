//! Each preference among sets, and each alternative.

use std::fs;
use std::path::Path;

use super::*;
use crate::catalog::{Catalog, SetPlace};
use crate::config::Config;
use crate::plan::tests::finished::finished as package;
use crate::plan::tests::{archives, config, facts, set};
use longshore_build::mofed::Mofed;
use longshore_core::flavour::Flavour;
use longshore_host::HostFacts;
use longshore_host::facts::Probe;
use longshore_modules::module_signing::{Hash, SignedBy, Signer};

const DRIVER: &str = "535.261.03";
const WANTED: [&str; 3] = ["nvidia", "nvidia_modeset", "nvidia_uvm"];

/// A host whose kernel has the wanted modules loaded and requires no signature, and inputs that compile nothing.
struct Scene {
    config: Config,
    facts: HostFacts,
    catalog: Catalog,
    choice: Choice,
    mofed: Mofed,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let (dir, mut facts) = (tempfile::tempdir().unwrap(), facts("bookworm-t4-live"));
        facts.security.lockdown = Probe::Read("none".into());
        facts.security.sig_enforce = Probe::Read(false);
        facts.loaded.get_mut("nvidia").expect("nvidia").srcversion = Some("SRCnvidia".into());
        let tree = dir.path().join("usr/src/ofa_kernel").join(&facts.kernel.release);
        fs::create_dir_all(tree.join("include")).unwrap();
        fs::write(tree.join("Module.symvers"), "").unwrap();
        let mofed = Mofed::find(dir.path(), &facts.kernel.release, "x86_64").unwrap().unwrap();
        let mut config = config(DRIVER, "open");
        config.compile = false;
        let choice = Choice {
            version: DRIVER.into(),
            flavour: Flavour::Open,
            live: false,
            reasons: Vec::new(),
            findings: Vec::new(),
        };
        Self { config, facts, catalog: archives(), choice, mofed, _dir: dir }
    }

    fn alternatives(&self) -> Alternatives<'_, '_> {
        let Self { config, facts, catalog, choice, .. } = self;
        Alternatives::gather(Inputs { config, facts, catalog }, choice, &WANTED)
    }

    /// Returns a complete set, the loaded build, as compiled: unsigned, without MOFED's headers.
    fn set(&self) -> AvailableSet {
        set(&self.facts, Flavour::Open, SetPlace::store())
    }

    fn incomplete(&self) -> AvailableSet {
        let mut available = self.set();
        available.set.modules.retain(|module| module.name != "nvidia_uvm");
        available
    }

    fn package(&self) -> FinishedModules {
        package(&self.facts, DRIVER)
    }
}

fn sign(available: &mut AvailableSet) {
    available.set.key.signed_by = Some(SignedBy {
        certificate: "1".repeat(64),
        name: "Example".into(),
        key_ids: vec!["1".into()],
        hash: Hash::Sha512,
    });
}

fn signer() -> Option<Signer> {
    let (certificate, key_id) = ("1".repeat(64), "1".to_owned());
    Some(Signer { certificate, name: "Example".into(), key_id, detached: false })
}

/// Two sets of which the first is preferred by one preference, and where possible the second by those after it.
struct Case {
    decides: Preference,
    scene: fn(&mut Scene),
    preferred: fn(&Scene, &mut AvailableSet),
    other: fn(&Scene, &mut AvailableSet),
}

const CASES: [Case; 5] = [
    Case {
        decides: Preference::LoadedBuild,
        scene: |scene| {
            scene.choice.live = true;
            scene.catalog.signer = signer();
            scene.catalog.mofed = Probe::Read(Some(scene.mofed.clone()));
        },
        preferred: |_, _| {},
        other: |scene, set| {
            set.set.modules[0].srcversion = Some("another".into());
            set.set.key.headers.extend([scene.mofed.keyed()]);
            sign(set);
        },
    },
    Case {
        decides: Preference::SignatureStatus,
        scene: |scene| {
            scene.catalog.signer = signer();
            scene.catalog.mofed = Probe::Read(Some(scene.mofed.clone()));
        },
        preferred: |_, set| sign(set),
        other: |scene, set| set.set.key.headers.extend([scene.mofed.keyed()]),
    },
    Case {
        decides: Preference::MofedHeaders,
        scene: |scene| scene.catalog.mofed = Probe::Read(Some(scene.mofed.clone())),
        preferred: |scene, set| {
            set.set.key.headers.extend([scene.mofed.keyed()]);
            sign(set);
        },
        other: |_, _| {},
    },
    Case {
        decides: Preference::SignatureAsConfigured,
        scene: |_| {},
        preferred: |_, _| {},
        other: |_, set| sign(set),
    },
    Case {
        decides: Preference::SignatureAsConfigured,
        scene: |scene| scene.catalog.no_sign_file = Some("no archive has it".into()),
        preferred: |_, set| sign(set),
        other: |_, _| {},
    },
];

#[test]
fn each_preference_decides_whatever_those_after_it_say() {
    for Case { decides, scene: change, preferred: make, other: make_other } in CASES {
        let mut scene = Scene::new();
        change(&mut scene);
        let (mut preferred, mut other) = (scene.set(), scene.set());
        make(&scene, &mut preferred);
        make_other(&scene, &mut other);
        for order in [[&preferred, &other], [&other, &preferred]] {
            scene.catalog.sets = Vec::from(order.map(AvailableSet::clone));
            let of = scene.alternatives();
            let differs = |p: &Preference| p.rank(&preferred, &of) != p.rank(&other, &of);
            assert_eq!(PREFERENCES.into_iter().find(differs), Some(decides));
            let used = of.complete_set().map(|available| &available.set);
            assert_eq!(used, Some(&preferred.set), "{decides:?}");
        }
    }
    for preference in PREFERENCES {
        assert!(CASES.iter().any(|case| case.decides == preference), "{preference:?}");
    }
}

#[test]
fn of_equal_sets_the_first_is_used() {
    let mut scene = Scene::new();
    let elsewhere = SetPlace::layout(Path::new("/prebuilt"), "sha256:1");
    let (stored, layout) = (scene.set(), AvailableSet { place: elsewhere, ..scene.set() });
    for sets in [[&stored, &layout], [&layout, &stored]] {
        scene.catalog.sets = Vec::from(sets.map(AvailableSet::clone));
        let used = scene.alternatives().complete_set().map(|available| &available.place);
        assert_eq!(used, Some(&sets[0].place));
    }
}

fn name_of(alternative: Alternative<'_>) -> &'static str {
    match alternative {
        Alternative::Set(available) if available.set.has_all(&WANTED) => "complete set",
        Alternative::Set(_) => "incomplete set",
        Alternative::LoadedModules => "loaded modules",
        Alternative::Package(_) => "package",
        Alternative::Compile => "compile",
    }
}

/// Alternative that is taken, and what of everything is left out.
type AlternativeCase = (&'static str, fn(&mut Scene));

/// Makes everything available: an incomplete set, a complete one, loaded modules, a package, and a compile.
fn with_all(scene: &mut Scene) {
    scene.catalog.sets = vec![scene.incomplete(), scene.set()];
    scene.choice.live = true;
    scene.catalog.finished = vec![scene.package()];
    scene.config.compile = true;
}

#[test]
fn the_first_alternative_with_its_condition_is_taken() {
    let cases: [AlternativeCase; 10] = [
        ("complete set", |_| {}),
        // Another source remains, so an incomplete set is none.
        ("loaded modules", |scene| scene.catalog.sets.truncate(1)),
        ("package", |scene| {
            scene.catalog.sets.truncate(1);
            scene.choice.live = false;
        }),
        ("package", |scene| {
            scene.catalog.sets.truncate(1);
            scene.choice.live = false;
            scene.config.compile = false;
        }),
        ("compile", |scene| {
            scene.catalog.sets.truncate(1);
            scene.choice.live = false;
            scene.catalog.finished.clear();
        }),
        ("incomplete set", |scene| {
            scene.catalog.sets.truncate(1);
            scene.catalog.finished.clear();
            scene.config.compile = false;
        }),
        ("loaded modules", |scene| {
            scene.catalog.sets.clear();
            scene.catalog.finished.clear();
            scene.config.compile = false;
        }),
        // A compile takes MOFED's headers, which neither the set nor the package has.
        ("compile", |scene| {
            scene.choice.live = false;
            scene.catalog.mofed = Probe::Read(Some(scene.mofed.clone()));
        }),
        // The kernel refuses the unsigned set, and may accept the package's modules.
        ("package", |scene| {
            scene.choice.live = false;
            scene.facts.security.sig_enforce = Probe::Read(true);
        }),
        ("complete set", |scene| {
            scene.choice.live = false;
            scene.facts.security.sig_enforce = Probe::Read(true);
            scene.catalog.finished.clear();
        }),
    ];
    for (at, (expected, change)) in cases.into_iter().enumerate() {
        let mut scene = Scene::new();
        with_all(&mut scene);
        change(&mut scene);
        assert_eq!(name_of(scene.alternatives().first()), expected, "case {at}");
    }
}
