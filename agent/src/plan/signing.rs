//! Module signatures: the kernel's requirements, and the available sets that meet them.

use super::values::{Inputs, Supply, has_headers};
use longshore_core::finding::{Code, Finding, Severity};
use longshore_host::HostFacts;
use longshore_host::facts::Probe;
use longshore_modules::artifact::{HeadersFrom, ModuleKey};
use longshore_modules::module_signing::{SignedBy, Signer};

/// Signature status of a set on this host's kernel, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// Loadable as it is.
    Ready,
    /// Signed; trust of the kernel in the signer is unknown.
    Unsure,
    /// To be signed first, with the configured signer.
    ToSign,
    /// Signed by a signer whom the kernel does not trust.
    Untrusted,
    /// Unsigned, and the kernel requires a signature.
    Unsigned,
}

impl Standing {
    pub(super) fn may_load(self) -> bool {
        self <= Self::ToSign
    }
}

/// Returns the signature status of the set with this key.
pub(super) fn standing(key: &ModuleKey, facts: &HostFacts, signer: Option<&Signer>) -> Standing {
    if enforced_by(facts).is_empty() {
        let to_sign = signer.is_some() && key.signed_by.is_none();
        return if to_sign { Standing::ToSign } else { Standing::Ready };
    }
    match (&key.signed_by, signer) {
        (Some(by), signer) => match trusts_signer(facts, by) {
            Probe::Read(true) => Standing::Ready,
            Probe::Read(false) => Standing::Untrusted,
            // The own signature is surer than one whose certificate is unknown.
            Probe::Unreadable(_) if signer.is_some() && !by.has_certificate() => {
                Standing::Untrusted
            }
            Probe::Unreadable(_) => Standing::Unsure,
        },
        (None, Some(signer)) if may_sign(facts, signer) => Standing::ToSign,
        (None, _) => Standing::Unsigned,
    }
}

/// True if modules compiled here can be loaded, once signed as configured.
pub(super) fn may_load_compiled(facts: &HostFacts, signer: Option<&Signer>) -> bool {
    enforced_by(facts).is_empty() || signer.is_some_and(|signer| may_sign(facts, signer))
}

fn may_sign(facts: &HostFacts, signer: &Signer) -> bool {
    trusts(facts, std::slice::from_ref(&signer.key_id)) != Probe::Read(false)
}

/// Reports if the kernel has the key of a signer. One whose certificate is unknown is told by the
/// issuer's name: kernels' own signers are their issuers.
fn trusts_signer(facts: &HostFacts, by: &SignedBy) -> Probe<bool> {
    match trusts(facts, &by.key_ids) {
        Probe::Read(false) if !by.has_certificate() => {
            if matches!(&facts.security.keys, Probe::Read(keys) if keys.iter().any(|key| key.name == by.name))
            {
                return Probe::Read(true);
            }
            let why = format!(
                "the signature states no more than this, and the kernel's keys are of {}",
                known_names(facts)
            );
            Probe::Unreadable(why)
        }
        known => known,
    }
}

/// Reports if the kernel has one of these keys.
fn trusts(facts: &HostFacts, ids: &[String]) -> Probe<bool> {
    // A serial number used as key id may begin with a zero byte, or not.
    let plain = |id: &str| id.trim_start_matches('0').to_ascii_lowercase();
    match &facts.security.keys {
        Probe::Read(keys) => {
            Probe::Read(keys.iter().any(|key| ids.iter().any(|id| plain(id) == plain(&key.id))))
        }
        Probe::Unreadable(why) => Probe::Unreadable(why.clone()),
    }
}

/// Returns the settings by which the kernel refuses modules without a trusted signature; none where
/// it accepts them.
fn enforced_by(facts: &HostFacts) -> Vec<String> {
    let security = &facts.security;
    let mut by = Vec::new();
    if security.sig_enforce == Probe::Read(true) {
        by.push("sig_enforce is set".to_owned());
    }
    match &security.lockdown {
        Probe::Read(mode) if mode != "none" => by.push(format!("kernel lockdown is {mode}")),
        _ => {}
    }
    if !by.is_empty() && security.secure_boot == Probe::Read(true) {
        by.push("Secure Boot is on".into());
    }
    by
}

/// Checks that the kernel will accept the modules' signature, or its absence.
pub(super) fn finding(inputs: Inputs<'_>, supply: &Supply<'_>) -> Option<Finding> {
    let Inputs { facts, catalog, .. } = inputs;
    let signer = catalog.signer.as_ref();
    let signed_by = supply.set.and_then(|set| set.key.signed_by.as_ref());
    let by = match (signed_by, signer) {
        // They are judged once they are read.
        (None, _) if supply.reads => return None,
        (Some(by), _) => Some((by.to_string(), trusts_signer(facts, by))),
        (None, Some(signer)) => {
            let key = std::slice::from_ref(&signer.key_id);
            Some((signer.to_string(), trusts(facts, key)))
        }
        (None, None) => None,
    };
    let enforced = enforced_by(facts);
    if enforced.is_empty() {
        return if by.is_none() { perhaps_enforced(facts) } else { None };
    }
    let enforced = enforced.join(", ");
    let Some((name, trusted)) = by else {
        if catalog.no_sign_file.is_some() {
            // Judged by `unsignable`.
            return None;
        }
        let what = "the kernel refuses modules without a trusted signature";
        return Some(Finding::refusal(Code::SignatureRequired, format!("{what}: {enforced}")));
    };
    let (severity, seen) = match trusted {
        Probe::Read(true) if !may_be_of_platform_alone(facts) || is_of_distribution(supply) => {
            return None;
        }
        Probe::Read(true) => (
            Severity::Warning,
            format!(
                "the kernel requires a trusted signature ({enforced}) and lists the key of {name}, the signer of \
                 the modules, but perhaps in .platform alone: .machine is absent or empty, and {} is not known to \
                 verify modules by .platform",
                facts.os.pretty_name.as_deref().unwrap_or(&facts.os.id)
            ),
        ),
        Probe::Read(false) => (
            Severity::Refusal,
            format!(
                "the kernel requires a trusted signature ({enforced}), and its keys do not include \
                 that of {name}, the signer of the modules; it has {}",
                known_names(facts)
            ),
        ),
        Probe::Unreadable(why) => (
            Severity::Warning,
            format!(
                "the kernel requires a trusted signature ({enforced}), and it could not be \
                 checked for the key of {name}, the signer of the modules: {why}"
            ),
        ),
    };
    Some(Finding::new(severity, Code::ModuleKeyUntrusted, seen))
}

/// Reports modules that stay unsigned because the configured key cannot sign them.
pub(super) fn unsignable(inputs: Inputs<'_>, supply: &Supply<'_>) -> Option<Finding> {
    let Inputs { facts, catalog, .. } = inputs;
    let why = catalog.no_sign_file.as_ref()?;
    let is_unsigned = match supply.set {
        Some(set) => set.key.signed_by.is_none(),
        // Without headers nothing is compiled, and a package's modules are judged once they are read.
        None => supply.builds && has_headers(catalog),
    };
    if !is_unsigned {
        return None;
    }
    let enforced = enforced_by(facts);
    if enforced.is_empty() {
        let seen = format!(
            "the modules stay unsigned, and the kernel is not known to require signatures; they cannot \
             be signed with the configured key: {why}"
        );
        return Some(Finding::warning(Code::SignFileMissing, seen));
    }
    let seen = format!(
        "the kernel requires a trusted signature ({}), and the modules cannot be signed with the configured \
         key: {why}",
        enforced.join(", ")
    );
    Some(Finding::refusal(Code::SignFileMissing, seen))
}

/// Distributions whose kernels verify modules by `.platform` too, by a patch of their own: Debian's "KEYS: Make use of
/// platform keyring for module signature verify", which Red Hat's and Fedora's kernels have as well (docs/supply-chain/module-signing.md).
const VERIFY_BY_PLATFORM: [&str; 8] =
    ["debian", "rhel", "rhcos", "centos", "rocky", "almalinux", "ol", "fedora"];

/// True if the firmware's certificates may be in a keyring by which this kernel verifies no modules. Only the kernel
/// knows: /proc/keys does not tell a key's keyring.
fn may_be_of_platform_alone(facts: &HostFacts) -> bool {
    facts.security.only_platform_keys && !VERIFY_BY_PLATFORM.contains(&facts.os.id.as_str())
}

/// True for modules of a package, whose signer is the kernel's own.
fn is_of_distribution(supply: &Supply<'_>) -> bool {
    supply.set.is_some_and(|set| set.headers_origin() == HeadersFrom::Package)
}

fn perhaps_enforced(facts: &HostFacts) -> Option<Finding> {
    let Probe::Unreadable(why) = &facts.security.lockdown else { return None };
    (facts.security.secure_boot == Probe::Read(true)).then(|| {
        let seen = format!("Secure Boot is on, and the kernel's lockdown mode is unknown: {why}");
        Finding::warning(Code::SignatureRequired, seen).remedy(
            "mount securityfs on /sys/kernel/security to make it readable, or sign the modules",
        )
    })
}

fn known_names(facts: &HostFacts) -> String {
    let Probe::Read(keys) = &facts.security.keys else { return String::new() };
    if keys.is_empty() {
        return "none".to_owned();
    }
    let names: Vec<String> = keys.iter().map(|key| format!("{} ({})", key.name, key.id)).collect();
    names.join(", ")
}
