//! The compile of the modules: its acquisition, reasons, and findings about what it lacks.

use std::collections::BTreeSet;

use super::acquisition::{Acquire, BuildSet};
use super::distribution::with_build_root;
use super::mofed;
use super::own_signature::{may_load_own, why_not_own};
use super::sources;
use super::values::{Choice, Inputs, Reason, Supply, is_for_kernel, sources_of, tree_of};
use crate::catalog::{Catalog, Item, Lack};
use crate::config::Config;
use longshore_build as build;
use longshore_core::finding::{Code, Finding};
use longshore_host::facts::Probe;
use longshore_modules::module_signing::Signer;
use longshore_sources::driver::AvailableDriver;
use longshore_sources::headers::{self, AvailableHeaders, WITHOUT_PACKAGE};
use longshore_sources::source_tree::SourceTree;

impl Supply<'_> {
    /// Adds the compile of the modules, or the finding that none may be compiled.
    pub(super) fn compile(&mut self, inputs: Inputs<'_>, choice: &Choice, wanted: &[&str]) {
        let Inputs { config, catalog, .. } = inputs;
        if let Some(refusal) = refused(inputs, choice) {
            self.findings.push(refusal);
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
        let driver = sources_of(inputs, choice);
        self.reasons.extend(sources::phased(driver.as_ref()));
        self.reasons.extend(sources::revisions(driver.as_ref(), catalog));
        if let Some(tree) = tree_of(catalog, choice) {
            self.add_reason("core objects", core_objects(inputs, tree));
            self.acquire.push(Acquire::Fetch(Item::SourceTree(tree.clone())));
        }
        self.acquire.push(Acquire::BuildSet(Box::new(build_set(inputs, choice, driver))));
        self.reasons.extend(publication(config, catalog));
        self.add_choice("modules", "compiled", compiled_with(&catalog.headers));
        for why in passed_over(config, &catalog.headers) {
            self.add_reason("headers passed over", why.as_str());
        }
        self.findings.extend(without_headers(inputs));
    }
}

/// Returns the refusal where the settings permit no compile.
fn refused(inputs: Inputs<'_>, choice: &Choice) -> Option<Finding> {
    let Inputs { config, facts, catalog } = inputs;
    if config.signatures.required && !may_load_own(config, catalog) {
        return Some(unsigned(inputs, choice));
    }
    let detail = format!(
        "no set of {} {} is built for {} and compiling is switched off",
        choice.version, choice.flavour, facts.kernel.release
    );
    (!config.compile).then(|| Finding::refusal(Code::NothingBuilt, detail))
}

/// Returns the origin of the parts of a tree that depend on no kernel. The compiler that they are by is known when it
/// runs, so that the registries are asked then.
fn core_objects(inputs: Inputs<'_>, tree: &SourceTree) -> String {
    let Inputs { config, catalog, .. } = inputs;
    let of_tree = catalog.core_objects.iter().filter(|core| core.tree == tree.sha256);
    let compilers: BTreeSet<&str> = of_tree.map(|core| core.compiler.as_str()).collect();
    let compilers: Vec<&str> = compilers.into_iter().collect();
    let registries: Vec<String> =
        config.registries.iter().map(|one| one.reference.to_string()).collect();
    let mut origins = Vec::new();
    if !compilers.is_empty() {
        origins.push(format!("the store has those by {}", compilers.join("; ")));
    }
    if !registries.is_empty() {
        let others = if compilers.is_empty() { "those" } else { "others" };
        origins.push(format!("{others} are pulled where {} has them", registries.join(" or ")));
    }
    origins.push("else they are compiled once for a compiler, and kept in the store".to_owned());
    let origins = origins.join("; ");
    let origins = origins.strip_prefix("else ").unwrap_or(&origins);
    format!("{} has sources alone; of the parts that depend on no kernel: {origins}", tree.name())
}

fn build_set(inputs: Inputs<'_>, choice: &Choice, driver: Option<AvailableDriver>) -> BuildSet {
    let Inputs { facts, catalog, .. } = inputs;
    BuildSet {
        driver_version: choice.version.clone(),
        flavour: choice.flavour,
        kernel_release: facts.kernel.release.clone(),
        kernel_version: facts.kernel.id().version.map(str::to_owned),
        driver,
        headers: match &catalog.headers {
            Probe::Read(headers) => Some(headers.clone()),
            Probe::Unreadable(_) => None,
        },
        mofed: mofed::headers(catalog).cloned(),
        signs: catalog.no_sign_file.is_none(),
    }
}

/// Returns the reason why compiled modules are published, or not.
fn publication(config: &Config, catalog: &Catalog) -> Option<Reason> {
    if let Some(mofed) = mofed::headers(catalog) {
        return Some(mofed::reason(mofed));
    }
    let publish = config.publish.as_ref()?;
    Some(match &catalog.headers {
        Probe::Read(
            AvailableHeaders::Local { place, .. } | AvailableHeaders::BuildRoot { place, .. },
        ) if !publish.unsigned_headers => {
            let why = format!("the headers from {place} are unsigned (publish-unsigned-headers)");
            Reason::chosen("publication", "off", why)
        }
        _ => {
            let reference = &publish.reference;
            let why = format!("one host compiles for all that publish to {reference}");
            Reason::chosen("publication", "on", why)
        }
    })
}

/// Returns the reason for the compile, with its headers and compiler where they are known.
fn compiled_with(headers: &Probe<AvailableHeaders>) -> String {
    let none = "no built set with all wanted modules for exactly this kernel (release and version \
                string) is available";
    match headers {
        Probe::Read(AvailableHeaders::Archive {
            package,
            version,
            compiler: Some(compiler),
            ..
        }) => format!("{none}; {package} {version} and {compiler} are in the archive"),
        Probe::Read(AvailableHeaders::Archive { package, version, compiler: None, .. }) => format!(
            "{none}; {package} {version} is in the archive; the compiler is the kernel's own, stated \
             in the headers"
        ),
        Probe::Read(AvailableHeaders::Local { place, compiler, .. }) => {
            format!("{none}; headers from {place}, with {compiler} of the archive")
        }
        Probe::Read(AvailableHeaders::BuildRoot { place, digest, compiler }) => {
            let with = compiler.as_deref().unwrap_or("the compiler in it");
            let digest = digest.get(..12).unwrap_or_default();
            format!("{none}; headers from the build root {place} (sha256 {digest}), with {with}")
        }
        Probe::Read(AvailableHeaders::Missing { .. }) | Probe::Unreadable(_) => none.to_owned(),
    }
}

/// Returns the reasons why headers from elsewhere were not used. Those of a build root are part of the finding.
fn passed_over<'a>(config: &Config, headers: &'a Probe<AvailableHeaders>) -> &'a [String] {
    match headers {
        Probe::Read(AvailableHeaders::Missing { .. }) if config.build_root.is_some() => &[],
        Probe::Read(
            AvailableHeaders::Archive { passed_over, .. }
            | AvailableHeaders::Local { passed_over, .. }
            | AvailableHeaders::Missing { passed_over, .. },
        ) => passed_over,
        Probe::Read(AvailableHeaders::BuildRoot { .. }) | Probe::Unreadable(_) => &[],
    }
}

/// Returns the finding that headers are missing, or unknown.
fn without_headers(inputs: Inputs<'_>) -> Option<Finding> {
    let Inputs { config, facts, catalog } = inputs;
    let release = &facts.kernel.release;
    match &catalog.headers {
        Probe::Read(AvailableHeaders::Missing { passed_over, .. })
            if config.build_root.is_some() =>
        {
            let unfit = Finding::refusal(Code::HeadersMissing, passed_over.join("; "));
            Some(unfit.remedy(
                "make a build root with the headers of exactly this kernel; `longshore build-root inspect` \
                 lists those of one",
            ))
        }
        Probe::Read(AvailableHeaders::Missing { nearest, .. }) => {
            Some(with_build_root(headers_missing(release, nearest), facts))
        }
        Probe::Read(_) => None,
        Probe::Unreadable(why) => {
            let seen = format!("the search for headers and compiler for {release} failed: {why}");
            let definite = catalog.definite_failure().filter(|_| config.build_root.is_none());
            let unknown = match definite {
                Some(failure) => {
                    Finding::refusal(Code::HeadersUnknown, seen).remedy(failure.remedy_or_default())
                }
                None => Finding::warning(Code::HeadersUnknown, seen),
            };
            Some(with_build_root(unknown, facts))
        }
    }
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

/// Describes the signer of modules that are to be signed.
pub(super) fn will_sign(signer: &Signer) -> String {
    let with = if signer.detached { "signatures made elsewhere" } else { "the key configured" };
    format!("by {signer}, with {with}")
}

/// Returns the finding that signatures are required, an index and attestations where configured, and no
/// available set has them.
fn unsigned(inputs: Inputs<'_>, choice: &Choice) -> Finding {
    let Inputs { config, facts, catalog } = inputs;
    let release = &facts.kernel.release;
    let refused = || catalog.refused.iter().filter(|r| is_for_kernel(&r.available, facts));
    // That lacks least which lacks an attestation alone.
    let least = refused().map(|r| r.lacks).max();
    let refused: Vec<String> = refused()
        .map(|r| {
            let key = &r.available.set.key;
            let set = format!("{} {}", key.driver_version, key.flavour);
            format!("{set} from {}: {}", r.available.place, r.why)
        })
        .collect();
    if refused.is_empty() {
        let Choice { version, flavour, .. } = choice;
        let why = why_not_own(config, catalog);
        let seen =
            format!("no signed set of {version} {flavour} is available for {release}, and {why}");
        return Finding::refusal(Code::NothingBuilt, seen)
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
