//! Check of the kernel configuration, as far as it matters to external modules.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;

use super::{Checked, Input, found_or, skipped};
use crate::doctor::Look;
use longshore_core::finding::{Code, Finding};
use longshore_core::module_dir::module_dir;
use longshore_core::root::is_absent;

/// Upper bound of a kernel's configuration (Debian's has 260 kB).
const LARGEST: u64 = 8 << 20;

/// Enabled options.
struct KernelConfig {
    /// Path that it was read from.
    path: String,
    on: BTreeSet<String>,
}

impl KernelConfig {
    fn has(&self, option: &str) -> bool {
        self.on.contains(option)
    }

    fn parse(path: String, text: &str) -> Self {
        let on = text.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.strip_suffix("=y"));
        Self { path, on: on.map(str::to_owned).collect() }
    }
}

pub(super) fn configuration(input: &Input<'_>) -> Checked {
    match read(input.look) {
        Ok(config) => found_or(findings(input.look, &config), || {
            format!("modules can be unloaded, no random layout, not pinned ({})", config.path)
        }),
        Err(why) => skipped(why),
    }
}

/// Reads the configuration from the distributions' path or from the kernel; else returns the
/// reason.
fn read(look: &Look<'_>) -> Result<KernelConfig, String> {
    let release = &look.facts.kernel.release;
    if let Ok(bytes) = look.root.read("proc/config.gz") {
        let mut text = String::new();
        let unpacked = GzDecoder::new(bytes.as_slice()).take(LARGEST).read_to_string(&mut text);
        return match unpacked {
            Ok(_) => Ok(KernelConfig::parse("/proc/config.gz".to_owned(), &text)),
            Err(e) => Err(format!("/proc/config.gz: {e}")),
        };
    }
    let modules = module_dir(look.host, release);
    for path in [
        PathBuf::from(format!("boot/config-{release}")),
        modules.join("config"),
        modules.join("build/.config"),
    ] {
        match look.host.read_small_text(&path, LARGEST) {
            Ok(text) => return Ok(KernelConfig::parse(format!("/{}", path.display()), &text)),
            Err(e) if is_absent(&e) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Err(format!("neither /proc/config.gz nor /boot/config-{release} exists"))
}

/// Returns findings for options that will cause trouble.
fn findings(look: &Look<'_>, config: &KernelConfig) -> Vec<Finding> {
    let mut found = Vec::new();
    let path = &config.path;
    if config.has("MODULES") && !config.has("MODULE_UNLOAD") {
        let detail = format!("{path} has no CONFIG_MODULE_UNLOAD");
        found.push(Finding::warning(Code::CannotUnload, detail));
    }
    let random = ["RANDSTRUCT_FULL", "RANDSTRUCT_PERFORMANCE", "GCC_PLUGIN_RANDSTRUCT"];
    if let Some(option) = random.into_iter().find(|option| config.has(option)) {
        let detail = format!("{path} has CONFIG_{option}");
        found.push(Finding::warning(Code::LayoutRandomized, detail));
    }
    let pinned = pinned_by(look, config);
    if !pinned.is_empty() {
        found.push(Finding::warning(Code::ModulesPinned, pinned.join(", ")));
    }
    found
}

fn pinned_by(look: &Look<'_>, config: &KernelConfig) -> Vec<String> {
    let mut by = Vec::new();
    let line = look.root.read_to_string("proc/cmdline").unwrap_or_default();
    let says = |word: &str| line.split_ascii_whitespace().any(|w| w == word);
    // The sysctl, where it exists, overrides the rest (security/loadpin/loadpin.c).
    let now = look.root.read_to_string("proc/sys/kernel/loadpin/enforce").ok();
    let enforced = match now.as_deref().map(str::trim) {
        Some(value) => value == "1",
        None if says("loadpin.enforce=0") => false,
        None => config.has("SECURITY_LOADPIN_ENFORCE") || says("loadpin.enforce=1"),
    };
    if config.has("SECURITY_LOADPIN") && enforced {
        by.push("LoadPin is enforced".to_owned());
    }
    if config.has("IMA_APPRAISE_REQUIRE_MODULE_SIGS") && !says("ima_appraise=off") {
        by.push(format!("{} has CONFIG_IMA_APPRAISE_REQUIRE_MODULE_SIGS", config.path));
    }
    by
}
