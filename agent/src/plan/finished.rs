//! Finished modules of packages: their choice before they are fetched, and the judgement afterwards.

use super::acquisition::Acquire;
use super::signing;
use super::values::{Choice, Inputs, Reason, Supply, names_run_files, wanted_modules};
use crate::catalog::{Fit, Item, SetPlace};
use crate::config::Config;
use longshore_host::HostFacts;
use longshore_modules::artifact::ModuleSet;
use longshore_modules::layout::elsewhere::LINKED_WITH;
use longshore_modules::module_signing::Signer;
use longshore_sources::finished::FinishedModules;

/// Returns the packages that may be used; none where drivers come from .run files.
pub(super) fn offered(inputs: Inputs<'_>) -> impl Iterator<Item = &FinishedModules> {
    let Inputs { config, catalog, .. } = inputs;
    let usable = config.takes_module_packages() && !names_run_files(config, catalog);
    catalog.finished.iter().filter(move |_| usable)
}

/// True if the kernel may accept a package's modules, as far as its name says.
pub(super) fn may_load(inputs: Inputs<'_>, finished: &FinishedModules) -> bool {
    let signer = inputs.catalog.signer.as_ref();
    finished.may_be_signed || signing::may_load_compiled(inputs.facts, signer)
}

/// Returns the best package with the chosen driver.
pub(super) fn of_choice<'a>(inputs: Inputs<'a>, choice: &Choice) -> Option<&'a FinishedModules> {
    offered(inputs).find(|one| {
        one.driver_version == choice.version
            && one.flavour == choice.flavour
            && may_load(inputs, one)
    })
}

/// Returns the reason that names the package of a set.
pub(super) fn origin(set: &ModuleSet) -> Reason {
    let names: Vec<&str> = set.key.headers.keys().map(String::as_str).collect();
    let linker = set.key.options.iter().find_map(|option| option.strip_prefix(LINKED_WITH));
    let linked =
        linker.map_or(String::new(), |linker| format!("; linked here with ld of {linker}"));
    let reason = format!("compiled elsewhere, in {}{linked}", names.join(", "));
    Reason::new("modules of a package", reason)
}

impl Supply<'_> {
    /// Adds the fetch of a package, after which the plan is made again.
    pub(super) fn read_package(&mut self, finished: &FinishedModules) {
        let (place, release) = (SetPlace::from(finished), &finished.kernel.release);
        let linked = finished.linked.as_deref();
        let linked = linked.map_or(String::new(), |linked| format!(", {}", linked.describe()));
        let why = format!("{place} has them for {release}{linked}; nothing is compiled");
        self.add_choice("modules", "from a package", why);
        self.reads = true;
        self.acquire.push(Acquire::Fetch(Item::Package(Box::new(finished.clone()))));
    }
}

/// Returns the reason why a package's modules are not for this host: another kernel or build of it,
/// too few modules, or a signature that the kernel does not accept.
pub(crate) fn unfit(
    set: &ModuleSet,
    finished: &FinishedModules,
    fit: &Fit,
    host: (&Config, &HostFacts, Option<&Signer>),
) -> Option<String> {
    let (config, facts, signer) = host;
    if !set.key.is_for(&facts.kernel.id()) {
        let (release, arch) = (&set.key.kernel_release, &set.key.arch);
        return Some(format!("its modules are for {release} on {arch}"));
    }
    let lacks = |name: &&str| !set.has_all(&[*name]);
    if let Some(lacking) = wanted_modules(config).into_iter().find(lacks) {
        return Some(format!("it has no {lacking}"));
    }
    match fit {
        Fit::Differs { place, lines, .. } => {
            return Some(format!(
                "its modules were compiled for another build of this kernel (compared with \
                 {place}): {}",
                lines.join("; ")
            ));
        }
        Fit::Unchecked { why } if finished.of_build == Some(false) => {
            return Some(format!(
                "its version is that of another build of this kernel ({}), and the symbols could \
                 not be compared: {why}",
                facts.kernel.version
            ));
        }
        Fit::Fits { .. } | Fit::Unchecked { .. } => {}
    }
    let loadable = signing::standing(&set.key, facts, signer).may_load();
    (!loadable).then(|| match &set.key.signed_by {
        Some(by) => format!("the kernel does not trust {by}, the signer of its modules"),
        None => "its modules are unsigned, and the kernel requires a signature".to_owned(),
    })
}
