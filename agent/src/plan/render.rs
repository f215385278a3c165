//! Plan as text.

use std::collections::BTreeMap;

use super::acquisition::{Acquire, BuildSet};
use super::outcome::Plan;
use super::values::name_of;
use crate::catalog::{Item, SetPlace};
use crate::console::{Form, Text, Tone};
use crate::steps::MountRoot;
use longshore_core::finding::{Finding, Verdict};
use longshore_host::HostFacts;
use longshore_host::facts::{DeviceKind, ModuleLoading, PciDevice, Probe};
use longshore_sources::runfile::AvailableRunFile;
use longshore_support::{Generation, SupportTable};

/// Form of a plan as text.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Columns and colours.
    pub form: Form,
    /// Also list what a refused plan does not do.
    pub steps: bool,
    /// Table with the generations of the GPUs.
    pub table: &'a SupportTable,
}

/// Column at which reasons begin.
const REASON: usize = 31;
/// Column at which facts of the host begin.
const FACT: usize = 12;

/// Formats verdict, host, devices, choices with reasons, acquisitions, steps and findings.
pub fn render(plan: &Plan, facts: &HostFacts, view: View<'_>) -> String {
    let mut text = Text::new(view.form);
    write_head(&mut text, plan);
    write_host(&mut text, facts, view.table);
    write_reasons(&mut text, plan);
    let refused = plan.refusal().is_some();
    let (acquire, steps) = (acquire_lines(plan), step_lines(plan));
    if refused && !view.steps {
        write_left_out(&mut text, acquire.len(), steps.len());
        return text.finish();
    }
    let not = if refused { " (not done: refused)" } else { "" };
    write_numbered(&mut text, &format!("To the store first{not}"), &acquire);
    write_numbered(&mut text, &format!("Then on the host{not}"), &steps);
    let prepared = plan.next_kernel.iter().filter(|next| next.prepares);
    let prepared = prepared.map(|next| {
        format!(
            "fetch or compile everything for kernel {}, which is installed and not booted",
            next.release
        )
    });
    let prepared: Vec<String> = prepared.collect();
    write_numbered(&mut text, &format!("Once the driver is ready{not}"), &prepared);
    text.finish()
}

/// Formats verdict, findings, choices with reasons, and acquisitions of a plan for a kernel that need not run on the
/// host, with the command that carries them out.
pub fn render_for_kernel(plan: &Plan, _: &HostFacts, view: View<'_>) -> String {
    let mut text = Text::new(view.form);
    write_head(&mut text, plan);
    write_reasons(&mut text, plan);
    if plan.refusal().is_some() {
        return text.finish();
    }
    write_numbered(&mut text, "To the store", &acquire_lines(plan));
    let Plan { driver_version, kernel_release, .. } = plan;
    let builds = plan.acquire.iter().any(|item| matches!(item, Acquire::BuildSet(_)));
    let (line, command) = match (builds, plan.acquire.is_empty()) {
        (_, true) => ("The store has everything for this kernel.", None),
        (true, _) => ("If it compiles is known once it is compiled:", Some("build")),
        (false, _) => ("Nothing is compiled. To have it in the store:", Some("fetch")),
    };
    text.line("");
    text.line(line);
    if let Some(command) = command {
        text.line(&format!(
            "  longshore {command} --kernel {kernel_release} --driver {driver_version}"
        ));
    }
    text.finish()
}

fn write_reasons(text: &mut Text, plan: &Plan) {
    text.line("");
    text.line("Decisions");
    for reason in &plan.reasons {
        let head = format!("  {:<28} ", reason.heading());
        text.item(&head, Tone::Plain, REASON, &reason.reason);
    }
}

/// Says how much a refused plan would have done.
fn write_left_out(text: &mut Text, acquisitions: usize, steps: usize) {
    let counted = |count: usize, one: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        n => Some(format!("{n} {one}s")),
    };
    let parts = [counted(acquisitions, "acquisition"), counted(steps, "step")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        text.line("");
        text.line(&format!(
            "Not done, as it is refused: {} (--steps lists them)",
            parts.join(", ")
        ));
    }
}

fn acquire_lines(plan: &Plan) -> Vec<String> {
    plan.acquire.iter().map(acquire_line).collect()
}

/// Formats the steps, with placeholders for those that are known only after the acquisition.
fn step_lines(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let acquires = |kind: fn(&Acquire) -> bool| plan.acquire.iter().any(kind);
    for step in &plan.install {
        let is_root = MountRoot::from_step(step).is_some();
        if is_root {
            if acquires(|a| matches!(a, Acquire::SignSet { .. })) {
                lines.push("(once signed) load the signed modules instead".into());
            }
            if acquires(|a| matches!(a, Acquire::Fetch(Item::Package(_)))) {
                lines.push("(once fetched) load the modules, after their dependencies".into());
            }
            if acquires(|a| matches!(a, Acquire::BuildSet { .. })) {
                lines.push("(once compiled) load the modules, after their dependencies".into());
            }
        }
        lines.push(step.planned());
        if is_root && acquires(|a| matches!(a, Acquire::AssembleUserspace { .. })) {
            lines.push("(once assembled) mount the user-mode files in the driver root".into());
        }
    }
    lines
}

/// Writes the verdict and the findings.
fn write_head(text: &mut Text, plan: &Plan) {
    let what = format!(
        "driver {} ({}) for kernel {}",
        plan.driver_version, plan.flavour, plan.kernel_release
    );
    let exit = plan.exit_code().number();
    let gravest = plan.findings.first().map_or("", |gravest| gravest.code.as_str());
    let (word, words) = match plan.verdict() {
        _ if plan.idle => (
            "NOTHING TO DO",
            format!("no GPU for kernel {}: `run` waits for one", plan.kernel_release),
        ),
        Verdict::Refused => ("REFUSED", format!("{what}: {gravest} (exit code {exit})")),
        Verdict::Undecided => (
            "CANNOT BE DECIDED HERE",
            format!(
                "{what}: the tree was captured on another machine, and no source answered here (exit code {exit})"
            ),
        ),
        Verdict::Warned => ("TO BE DONE, WITH WARNINGS", what),
        Verdict::Passed => ("TO BE DONE", what),
    };
    text.item(&format!("{word}  "), plan.verdict().into(), 2, &words);
    for Finding { code, severity, detail, remedy } in &plan.findings {
        text.line("");
        let head = format!("  {} ", severity.as_str());
        text.item(&head, (*severity).into(), 4, &format!("{code}: {detail}"));
        text.item("    remedy: ", Tone::Plain, 6, remedy);
    }
}

fn write_host(text: &mut Text, facts: &HostFacts, table: &SupportTable) {
    let os = facts.os.pretty_name.as_deref().unwrap_or(&facts.os.id);
    let os = if os.is_empty() { "unknown distribution" } else { os };
    text.line("");
    text.line("Host");
    let mut fact = |label: &str, words: &str| {
        text.item(&format!("  {label:<9} "), Tone::Plain, FACT, words);
    };
    fact("system", &format!("{os}, {}", facts.kernel.arch));
    fact("kernel", &format!("{} {}", facts.kernel.release, facts.kernel.version));
    fact("security", &security_line(facts));
    for line in device_lines(&facts.devices, table) {
        fact("device", &line);
    }
    if facts.devices.is_empty() {
        fact("device", "none");
    }
    if let Some(live) = &facts.live_driver {
        let flavour = live.flavour.map_or_else(String::new, |flavour| format!(" ({flavour})"));
        fact("loaded", &format!("driver {}{flavour}", live.version));
    }
    for (what, why) in facts.unread.reasons() {
        fact("unread", &format!("{what}: {why}"));
    }
}

pub(crate) fn security_line(facts: &HostFacts) -> String {
    let on = |fact: &Probe<bool>| match fact {
        Probe::Read(true) => "on",
        Probe::Read(false) => "off",
        Probe::Unreadable(_) => "not known",
    };
    let security = &facts.security;
    let lockdown = match &security.lockdown {
        Probe::Read(mode) => mode.as_str(),
        Probe::Unreadable(_) => "not known",
    };
    let modules = match &security.module_loading {
        Probe::Read(ModuleLoading::Allowed) => "allowed",
        Probe::Read(ModuleLoading::Disabled) => "switched off",
        Probe::Read(ModuleLoading::Unsupported) => "not supported by the kernel",
        Probe::Unreadable(_) => "not known",
    };
    let selinux = match &security.selinux {
        Some(selinux) if selinux.enforcing => ", SELinux enforcing",
        Some(_) => ", SELinux permissive",
        None => "",
    };
    format!(
        "Secure Boot {}, lockdown {lockdown}, sig_enforce {}, loading modules {modules}{selinux}",
        on(&security.secure_boot),
        on(&security.sig_enforce)
    )
}

/// Formats one line for all devices of the same kind, id and driver.
pub(crate) fn device_lines(devices: &[PciDevice], table: &SupportTable) -> Vec<String> {
    let mut groups: BTreeMap<(&str, u16, Option<&str>), Vec<&PciDevice>> = BTreeMap::new();
    for device in devices {
        let kind = match device.kind {
            DeviceKind::Gpu => "GPU",
            DeviceKind::NvSwitch => "NVSwitch",
        };
        groups.entry((kind, device.device, device.driver.as_deref())).or_default().push(device);
    }
    groups
        .iter()
        .map(|((kind, id, driver), group)| {
            let generation = table.generation(*id).filter(|_| *kind == "GPU");
            device_line(kind, generation, *driver, group)
        })
        .collect()
}

fn device_line(
    kind: &str,
    generation: Option<&Generation>,
    driver: Option<&str>,
    group: &[&PciDevice],
) -> String {
    let id = group.first().map_or(0, |device| device.device);
    let generation = generation.map(|generation| format!(" {generation}")).unwrap_or_default();
    let bound = driver.map_or_else(|| "unbound".to_owned(), |name| format!("bound to {name}"));
    match group {
        [one] => format!("{kind}{generation} {}, {bound}", name_of(one)),
        many => {
            let addresses: Vec<&str> = many.iter().map(|d| d.address.as_str()).collect();
            format!(
                "{} x {kind}{generation} (10de:{id:04x}), {bound}: {}",
                many.len(),
                addresses.join(" ")
            )
        }
    }
}

fn write_numbered(text: &mut Text, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    text.line("");
    text.line(title);
    for (n, line) in lines.iter().enumerate() {
        text.item(&format!("  {:>2}. ", n + 1), Tone::Plain, 6, line);
    }
}

fn acquire_line(acquire: &Acquire) -> String {
    match acquire {
        Acquire::Fetch(Item::Set(place)) => {
            let SetPlace { at, digest, .. } = place;
            match place.is_pulled() {
                true => format!("fetch the prebuilt modules {at}@{digest}"),
                false => format!("import the prebuilt modules {digest} from {at}"),
            }
        }
        Acquire::Fetch(Item::RunFile(AvailableRunFile { name, sha256, .. })) => {
            format!("fetch and unpack {name} (sha256 {})", sha256.get(..12).unwrap_or(sha256))
        }
        Acquire::Fetch(Item::SourceTree(tree)) => {
            let sha256 = tree.sha256.get(..12).unwrap_or(&tree.sha256);
            format!("fetch {} (sha256 {sha256})", tree.name())
        }
        Acquire::Fetch(Item::Package(finished)) => {
            let package = &finished.package;
            let suite = &package.origin.text;
            let whole = "for its finished modules".to_owned();
            let how = finished
                .linked
                .as_deref()
                .map_or(whole, |linked| format!("for modules {}", linked.describe()));
            format!("fetch {} from {suite}, {how}", finished.describe())
        }
        Acquire::BuildSet(build) => {
            let BuildSet { driver_version, flavour, kernel_release, .. } = build.as_ref();
            format!("compile {driver_version} ({flavour}) for {kernel_release}")
        }
        Acquire::SignSet { by, .. } => format!("sign the modules: {by}"),
        Acquire::AssembleUserspace { driver_version, sources, .. } => {
            let with =
                sources.map(|flavour| format!(", with the sources of its {flavour} modules"));
            let with = with.unwrap_or_default();
            format!("fetch and assemble the user-mode files of {driver_version}{with}")
        }
    }
}
