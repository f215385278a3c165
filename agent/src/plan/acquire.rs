//! Selection of modules and user-mode tree, and the steps that acquire them into the store.

use super::acquisition::{Acquire, BuildSet};
use super::distribution::with_build_root;
use super::finished;
use super::live;
use super::mofed;
use super::own_signature::{may_load_own, why_not_own};
use super::signing::{self, Standing};
use super::sources;
use super::values::{Choice, Supply, has_headers, is_for_kernel, run_file_of, sources_of};
use crate::catalog::{AvailableSet, Catalog, Lack, SetPlace};
use crate::config::{Config, PublishConfig};
use longshore_build::build;
use longshore_build::source::driver::AvailableDriver;
use longshore_build::source::headers::{self, AvailableHeaders, WITHOUT_PACKAGE};
use longshore_build::source::runfile::AvailableRunFile;
use longshore_build::source::userspace::AvailableUserspace;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_host::HostFacts;
use longshore_host::facts::Probe;
use longshore_modules::artifact::{HeadersFrom, ModuleSet, PACKAGING_PATCHES, SetQuery};
use longshore_modules::module_signing::Signer;

/// Selects modules and user-mode tree for the choice. `wanted` are the modules to be loaded.
pub(super) fn supply<'a>(
    config: &Config,
    facts: &HostFacts,
    catalog: &'a Catalog,
    choice: &Choice,
    wanted: &[&str],
) -> Supply<'a> {
    let mut supply = Supply::default();
    supply.modules(config, facts, catalog, choice, wanted);
    supply.userspace(config, facts, catalog, choice);
    supply.run_file(catalog, choice);
    supply
}

impl<'a> Supply<'a> {
    fn modules(
        &mut self,
        config: &Config,
        facts: &HostFacts,
        catalog: &'a Catalog,
        choice: &Choice,
        wanted: &[&str],
    ) {
        let query = SetQuery {
            kernel: facts.kernel.id(),
            driver_version: &choice.version,
            flavour: Some(choice.flavour),
        };
        let of_choice = |s: &&AvailableSet| query.matches(&s.set.key);
        let live_with_all =
            choice.live && wanted.iter().all(|name| live::has_parameters(config, facts, name));
        let complete = |s: &&AvailableSet| of_choice(s) && s.set.has_all(wanted);
        let buildable = may_load_own(config, catalog) && has_headers(catalog);
        let signer = catalog.signer.as_ref();
        let compiles = buildable && signing::may_load_compiled(facts, signer);
        let finished = finished::of_choice(config, facts, catalog, choice)
            .filter(|_| !(compiles && mofed::is_missed(config, catalog)));
        // A set that lacks a wanted module is only reported, where there is no other.
        let is_last = !buildable && finished.is_none();
        let incomplete = || catalog.sets.iter().find(of_choice).filter(|_| is_last);
        let standing = |s: &&AvailableSet| signing::standing(&s.set.key, facts, signer);
        // Of equal sets, unsigned ones as compiled win, or signed ones where these were to be signed and cannot
        // be, and of those the first: min_by_key keeps it.
        let is_other =
            |s: &AvailableSet| s.set.key.signed_by.is_some() != catalog.no_sign_file.is_some();
        let best = catalog.sets.iter().filter(complete);
        // The loaded build is kept even where another one is as good.
        let is_live = |s: &AvailableSet| choice.live && is_loaded(&s.set, facts);
        let lacks = |s: &AvailableSet| mofed::lacks(catalog, &s.set);
        let best = best.min_by_key(|s| (!is_live(s), standing(s), lacks(s), is_other(s)));
        let has_better =
            |s: &&AvailableSet| !standing(s).may_load() && (compiles || finished.is_some());
        let gives_way = |s: &&AvailableSet| compiles && mofed::gives_way(config, catalog, &s.set);
        let best = best.filter(|s| !has_better(s) && !gives_way(s));
        if let Some(at_hand) = best.or_else(incomplete) {
            self.use_set(at_hand, facts);
            self.findings.extend(mofed::left_out(catalog, &at_hand.set));
            self.sign(at_hand, standing(&at_hand), catalog);
        } else if live_with_all {
            self.add_choice("modules", "loaded", "all wanted modules are loaded already");
        } else if let Some(finished) = finished {
            self.unread(false, catalog);
            self.read_package(finished);
        } else {
            // If compiling is not possible either, it was the last source.
            self.unread(!config.may_compile(), catalog);
            self.build(config, facts, catalog, choice, wanted);
        }
        let has_modules = self.set.is_some() || self.builds || self.reads || live_with_all;
        self.findings.extend(denied(facts, catalog, has_modules));
    }

    fn use_set(&mut self, at_hand: &'a AvailableSet, facts: &HostFacts) {
        self.set = Some(&at_hand.set);
        let patches: Vec<&str> = at_hand.set.key.patches.keys().map(|name| named(name)).collect();
        if !patches.is_empty() {
            self.add_reason(
                "patches",
                format!("the modules are compiled with {}", patches.join(", ")),
            );
        }
        if at_hand.set.headers_origin() == HeadersFrom::Package {
            self.reasons.push(finished::origin(&at_hand.set));
        } else if at_hand.place != SetPlace::Store || !at_hand.set.has_signed_headers() {
            self.add_reason("headers of the modules", headers_of(&at_hand.set));
        }
        let kernel = &facts.kernel.release;
        match &at_hand.place {
            SetPlace::Store | SetPlace::Package { .. } => {
                self.add_choice("modules", "from the store", format!("built for exactly {kernel}"));
            }
            SetPlace::Layout { dir, manifest } => {
                let why = format!("built for exactly {kernel}, in {}", dir.display());
                self.add_choice("modules", "prebuilt", why);
                self.acquire
                    .push(Acquire::ImportSet { dir: dir.clone(), manifest: manifest.clone() });
            }
            SetPlace::Registry { registry, manifest } => {
                let why = format!("built for exactly {kernel}, in {}", registry.reference);
                self.add_choice("modules", "from a registry", why);
                self.acquire.push(Acquire::PullSet {
                    registry: registry.clone(),
                    manifest: manifest.clone(),
                });
            }
        }
    }

    fn sign(&mut self, at_hand: &AvailableSet, standing: Standing, catalog: &Catalog) {
        if let Some(by) = &at_hand.set.key.signed_by {
            self.add_reason("signed for the kernel", format!("by {by}, {}", by.hash));
        }
        let Some(signer) = catalog.signer.as_ref().filter(|_| standing == Standing::ToSign) else {
            return;
        };
        self.add_reason("signed for the kernel", will_sign(signer));
        self.signs = true;
        let (set, by) = (Box::new(at_hand.set.clone()), signer.clone());
        self.acquire.push(Acquire::SignSet { set, by });
    }

    fn build(
        &mut self,
        config: &Config,
        facts: &HostFacts,
        catalog: &Catalog,
        choice: &Choice,
        wanted: &[&str],
    ) {
        let release = &facts.kernel.release;
        if config.signatures.required && !may_load_own(config, catalog) {
            self.findings.push(unsigned(config, facts, catalog, choice));
            return;
        }
        if !config.compile {
            self.findings.push(Finding::refusal(
                Code::NothingBuilt,
                format!(
                    "no set of {} {} is built for {release} and compiling is switched off",
                    choice.version, choice.flavour
                ),
            ));
            return;
        }
        if let Err(unknown) = build::check_modules(wanted) {
            let remedy = unknown.remedy_text().unwrap_or_default().to_owned();
            self.findings
                .push(Finding::refusal(Code::ModuleNotBuilt, unknown.to_string()).remedy(remedy));
        }
        self.builds = true;
        if let Some(signer) = &catalog.signer {
            self.add_reason("signed for the kernel", will_sign(signer));
        }
        let driver = sources_of(config, catalog, choice);
        self.reasons.extend(sources::phased(driver.as_ref()));
        self.reasons.extend(sources::revisions(driver.as_ref(), catalog));
        self.acquire.push(Acquire::BuildSet(Box::new(BuildSet {
            driver_version: choice.version.clone(),
            flavour: choice.flavour,
            kernel_release: release.clone(),
            kernel_version: facts.kernel.id().version.map(str::to_owned),
            driver,
            headers: match &catalog.headers {
                Probe::Read(headers) => Some(headers.clone()),
                Probe::Unreadable(_) => None,
            },
            mofed: mofed::headers(catalog).cloned(),
            signs: catalog.no_sign_file.is_none(),
        })));
        if let Some(mofed) = mofed::headers(catalog) {
            self.reasons.push(mofed::reason(mofed));
        } else if let Some(publish) = &config.publish {
            self.published(publish, &catalog.headers);
        }
        let none = "no built set with all wanted modules for exactly this kernel (release and version \
                    string) is available";
        match &catalog.headers {
            Probe::Read(AvailableHeaders::Archive { package, version, compiler, passed_over }) => {
                let why = match compiler {
                    Some(compiler) => {
                        format!("{package} {version} and {compiler} are in the archive")
                    }
                    None => format!(
                        "{package} {version} is in the archive; the compiler is the kernel's own, \
                         stated in the headers"
                    ),
                };
                let why = format!("{none}; {why}");
                self.add_choice("modules", "compiled", why);
                self.passed_over(passed_over);
            }
            Probe::Read(AvailableHeaders::Local { place, compiler, passed_over }) => {
                let why = format!("{none}; headers from {place}, with {compiler} of the archive");
                self.add_choice("modules", "compiled", why);
                self.passed_over(passed_over);
            }
            Probe::Read(AvailableHeaders::BuildRoot { place, digest, compiler }) => {
                let with = compiler.as_deref().unwrap_or("the compiler in it");
                let digest = digest.get(..12).unwrap_or_default();
                let why = format!(
                    "{none}; headers from the build root {place} (sha256 {digest}), with {with}"
                );
                self.add_choice("modules", "compiled", why);
            }
            Probe::Read(AvailableHeaders::Missing { passed_over, .. })
                if config.build_root.is_some() =>
            {
                self.add_choice("modules", "compiled", none);
                let unfit = Finding::refusal(Code::HeadersMissing, passed_over.join("; "));
                self.findings.push(unfit.remedy(
                    "make a build root with the headers of exactly this kernel; `longshore build-root inspect` \
                     lists those of one",
                ));
            }
            Probe::Read(AvailableHeaders::Missing { nearest, passed_over }) => {
                self.add_choice("modules", "compiled", none);
                self.passed_over(passed_over);
                self.findings.push(with_build_root(headers_missing(release, nearest), facts));
            }
            Probe::Unreadable(why) => {
                self.add_choice("modules", "compiled", none);
                let seen =
                    format!("the search for headers and compiler for {release} failed: {why}");
                let definite = catalog.failures.definite().filter(|_| config.build_root.is_none());
                let unknown = match definite {
                    Some(failure) => Finding::refusal(Code::HeadersUnknown, seen)
                        .remedy(failure.remedy_or_default()),
                    None => Finding::warning(Code::HeadersUnknown, seen),
                };
                self.findings.push(with_build_root(unknown, facts));
            }
        }
    }

    /// Adds the reason why compiled modules are published, or not.
    fn published(&mut self, publish: &PublishConfig, headers: &Probe<AvailableHeaders>) {
        match headers {
            Probe::Read(
                AvailableHeaders::Local { place, .. } | AvailableHeaders::BuildRoot { place, .. },
            ) if !publish.unsigned_headers => {
                let why =
                    format!("the headers from {place} are unsigned (publish-unsigned-headers)");
                self.add_choice("publication", "off", why);
            }
            _ => {
                let reference = &publish.reference;
                let why = format!("one host compiles for all that publish to {reference}");
                self.add_choice("publication", "on", why);
            }
        }
    }

    /// Adds the reasons why headers from elsewhere were not used.
    fn passed_over(&mut self, reasons: &[String]) {
        for why in reasons {
            self.add_reason("headers passed over", why.as_str());
        }
    }

    /// Adds a finding for each unreadable registry that might have had the missing set.
    fn unread(&mut self, is_last: bool, catalog: &Catalog) {
        let severity = if is_last { Severity::Refusal } else { Severity::Warning };
        for registry in &catalog.unread {
            self.findings.push(Finding::new(
                severity,
                Code::RegistryUnread,
                format!("{} could not be read: {}", registry.name, registry.why),
            ));
        }
    }

    /// Adds the fetch of the .run file, which compiling or assembling needs first.
    fn run_file(&mut self, catalog: &Catalog, choice: &Choice) {
        let Some(file) = run_file_of(catalog, choice) else { return };
        let needed = self.builds || self.userspace.is_none();
        if needed && !file.stored {
            let why = format!("the store does not have {} unpacked", file.name);
            self.add_reason("driver fetched", why);
            self.acquire.insert(0, Acquire::FetchRunFile(file.clone()));
        }
    }
}

/// True if the kernel has loaded this very build of the driver.
fn is_loaded(set: &ModuleSet, facts: &HostFacts) -> bool {
    let own = set.modules.iter().find(|module| module.name == "nvidia");
    let own = own.and_then(|module| module.srcversion.as_ref());
    let loaded = facts.loaded.get("nvidia").and_then(|module| module.srcversion.as_ref());
    own.is_some() && own == loaded
}

/// Describes a patch in a set's key.
fn named(patch: &str) -> &str {
    match patch {
        PACKAGING_PATCHES => "the patches of the driver's package (debian/patches/series)",
        name => name,
    }
}

fn will_sign(signer: &Signer) -> String {
    let with = if signer.detached { "signatures made elsewhere" } else { "the key configured" };
    format!("by {signer}, with {with}")
}

/// Returns the finding that signatures are required, an index and attestations where configured, and no
/// available set has them.
fn unsigned(config: &Config, facts: &HostFacts, catalog: &Catalog, choice: &Choice) -> Finding {
    let release = &facts.kernel.release;
    let refused = || catalog.refused.iter().filter(|r| is_for_kernel(&r.at_hand, facts));
    // That lacks least which lacks an attestation alone.
    let least = refused().map(|r| r.lacks).max();
    let refused: Vec<String> = refused()
        .map(|r| {
            let key = &r.at_hand.set.key;
            let set = format!("{} {}", key.driver_version, key.flavour);
            format!("{set} from {}: {}", r.at_hand.place, r.why)
        })
        .collect();
    if refused.is_empty() {
        return Finding::refusal(
            Code::NothingBuilt,
            format!(
                "no signed set of {} {} is available for {release}, and {}",
                choice.version,
                choice.flavour,
                why_not_own(config, catalog)
            ),
        )
        .remedy("push a signed one (`longshore push --sign-key`), or require no signature");
    }
    let (code, cause) = match least.unwrap_or(Lack::Signature) {
        Lack::Attestation => (
            Code::AttestationMissing,
            format!("attestations are required, and no set for {release} has all of them"),
        ),
        Lack::Listing => {
            (Code::IndexRefused, format!("an index is required, and lists no set for {release}"))
        }
        Lack::Signature => (
            Code::SignatureMissing,
            format!("a signature is required, and no set for {release} has one"),
        ),
    };
    Finding::refusal(code, format!("{cause}: {}", refused.join("; ")))
}

/// Returns the finding about sets for this kernel that the configuration takes back; it refuses where there are no other
/// modules.
fn denied(facts: &HostFacts, catalog: &Catalog, has_modules: bool) -> Option<Finding> {
    let sets = catalog.denied.iter().filter(|at_hand| is_for_kernel(at_hand, facts));
    let mut named: Vec<String> = sets
        .map(|at_hand| {
            let key = &at_hand.set.key;
            format!("{} {} from {}", key.driver_version, key.flavour, at_hand.place)
        })
        .collect();
    named.sort();
    named.dedup();
    if named.is_empty() {
        return None;
    }
    let severity = if has_modules { Severity::Warning } else { Severity::Refusal };
    Some(Finding::new(severity, Code::SetDenied, format!("denied-sets has {}", named.join(", "))))
}

fn headers_missing(release: &str, nearest: &[String]) -> Finding {
    let seen = format!("neither an archive nor the host has the headers of kernel {release}");
    if nearest.is_empty() {
        let flavour = headers::flavour_of(release);
        let seen = format!("{seen}; the archives have none of kernels like {flavour}");
        return Finding::refusal(Code::HeadersMissing, seen).remedy(WITHOUT_PACKAGE);
    }
    let nearest = nearest.join(", ");
    Finding::refusal(Code::HeadersMissing, format!("{seen}; nearest: {nearest}"))
}

/// Describes the headers that a set was compiled with.
fn headers_of(set: &ModuleSet) -> String {
    let names: Vec<&str> = set.key.headers.keys().map(String::as_str).collect();
    let names = names.join(", ");
    if set.headers_origin() == HeadersFrom::Unknown {
        return format!("from {}", set.headers_origin());
    }
    match set.has_signed_headers() {
        true => format!("from {}: {names}", set.headers_origin()),
        false => format!("from {}, unsigned: {names}", set.headers_origin()),
    }
}
