//! Selection of modules and user-mode tree, and the steps that acquire them into the store.

use super::acquisition::Acquire;
use super::compile::will_sign;
use super::finished;
use super::mofed;
use super::signing::Standing;
use super::values::{Choice, Inputs, Supply, is_for_kernel, listed, run_file_of};
use super::which_set::{Alternative, Alternatives};
use crate::catalog::{AvailableSet, Catalog, Item, SourceFailure};
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::source_id::SourceId;
use longshore_host::HostFacts;
use longshore_modules::artifact::{HeadersFrom, ModuleSet, PACKAGING_PATCHES};

/// Selects modules and user-mode tree for the choice. `wanted` are the modules to be loaded.
pub(super) fn supply<'a>(inputs: Inputs<'a>, choice: &Choice, wanted: &[&str]) -> Supply<'a> {
    let mut supply = Supply::default();
    supply.modules(inputs, choice, wanted);
    supply.userspace(inputs, choice);
    supply.run_file(inputs.catalog, choice);
    supply
}

impl<'a> Supply<'a> {
    fn modules(&mut self, inputs: Inputs<'a>, choice: &Choice, wanted: &[&str]) {
        let Inputs { config, facts, catalog } = inputs;
        let alternatives = Alternatives::gather(inputs, choice, wanted);
        let chosen = alternatives.first();
        match chosen {
            Alternative::Set(available) => {
                self.use_set(available, facts);
                self.findings.extend(mofed::left_out(catalog, &available.set));
                self.sign(available, alternatives.standing(available), catalog);
            }
            Alternative::LoadedModules => {
                self.add_choice("modules", "loaded", "all wanted modules are loaded already");
            }
            Alternative::Package(finished) => {
                self.unread(false, catalog);
                self.read_package(finished);
            }
            Alternative::Compile => {
                // If compiling is not possible either, it was the last source.
                self.unread(!config.may_compile(), catalog);
                self.compile(inputs, choice, wanted);
            }
        }
        let has_modules = self.builds || !matches!(chosen, Alternative::Compile);
        self.findings.extend(denied(facts, catalog, has_modules));
    }

    fn use_set(&mut self, available: &'a AvailableSet, facts: &HostFacts) {
        self.set = Some(&available.set);
        let patches: Vec<&str> = available.set.key.patches.keys().map(|name| named(name)).collect();
        if !patches.is_empty() {
            self.add_reason(
                "patches",
                format!("the modules are compiled with {}", patches.join(", ")),
            );
        }
        if available.set.headers_origin() == HeadersFrom::Package {
            self.reasons.push(finished::origin(&available.set));
        } else if !available.place.is_store() || !available.set.has_signed_headers() {
            self.add_reason("headers of the modules", headers_of(&available.set));
        }
        let (kernel, place) = (&facts.kernel.release, &available.place);
        let value = place.source.of_sets().map_or("from a source", |words| words.value);
        let built = format!("built for exactly {kernel}");
        if place.is_store() {
            self.add_choice("modules", value, built);
        } else {
            self.add_choice("modules", value, format!("{built}, in {place}"));
            self.acquire.push(Acquire::Fetch(Item::Set(place.clone())));
        }
    }

    fn sign(&mut self, available: &AvailableSet, standing: Standing, catalog: &Catalog) {
        if let Some(by) = &available.set.key.signed_by {
            self.add_reason("signed for the kernel", format!("by {by}, {}", by.hash));
        }
        let Some(signer) = catalog.signer.as_ref().filter(|_| standing == Standing::ToSign) else {
            return;
        };
        self.add_reason("signed for the kernel", will_sign(signer));
        self.signs = true;
        let (set, by) = (Box::new(available.set.clone()), signer.clone());
        self.acquire.push(Acquire::SignSet { set, by });
    }

    /// Adds a finding for each unreadable registry that might have had the missing set.
    fn unread(&mut self, is_last: bool, catalog: &Catalog) {
        let severity = if is_last { Severity::Refusal } else { Severity::Warning };
        for SourceFailure { name, failure, .. } in catalog.failures_of(SourceId::Registry) {
            let detail = format!("{name} could not be read: {}", failure.one_line());
            self.findings.push(Finding::new(severity, Code::RegistryUnread, detail));
        }
    }

    /// Adds the fetch of the .run file, which compiling or assembling needs first.
    fn run_file(&mut self, catalog: &Catalog, choice: &Choice) {
        let Some(file) = run_file_of(catalog, choice) else { return };
        let needed = self.builds || self.userspace.is_none();
        if needed && !file.stored {
            let why = format!("the store does not have {} unpacked", file.name);
            self.add_reason("driver fetched", why);
            self.acquire.insert(0, Acquire::Fetch(Item::RunFile(file.clone())));
        }
    }
}

/// Describes a patch in a set's key.
fn named(patch: &str) -> &str {
    match patch {
        PACKAGING_PATCHES => "the patches of the driver's package (debian/patches/series)",
        name => name,
    }
}

/// Returns the finding about sets for this kernel that the configuration takes back; it refuses where there are no other
/// modules.
fn denied(facts: &HostFacts, catalog: &Catalog, has_modules: bool) -> Option<Finding> {
    let sets = catalog.denied.iter().filter(|available| is_for_kernel(available, facts));
    let named = listed(sets.map(|available| {
        let key = &available.set.key;
        format!("{} {} from {}", key.driver_version, key.flavour, available.place)
    }));
    if named.is_empty() {
        return None;
    }
    let severity = if has_modules { Severity::Warning } else { Severity::Refusal };
    Some(Finding::new(severity, Code::SetDenied, format!("denied-sets has {named}")))
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
