//! Plan as text.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::driver::name_of;
use super::{Acquire, BuildSet, Plan, gpu};
use crate::steps::MountRoot;
use longshore_build::source::runfile::AvailableRunFile;
use longshore_core::finding::{Finding, Severity, Verdict};
use longshore_host::HostFacts;
use longshore_host::facts::{DeviceKind, ModuleLoading, PciDevice, Probe};

/// Formats verdict, host, devices, choices with reasons, acquisitions, steps and findings.
pub fn render(plan: &Plan, facts: &HostFacts) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_all(&mut text, plan, facts);
    text
}

fn write_all(out: &mut String, plan: &Plan, facts: &HostFacts) -> fmt::Result {
    writeln!(out, "{}", verdict(plan))?;
    write_findings(out, &plan.findings)?;
    write_host(out, facts)?;
    writeln!(out, "\nDecisions")?;
    for reason in &plan.reasons {
        writeln!(out, "  {:<28} {}", reason.topic, reason.reason)?;
    }
    let refused = plan.findings.iter().any(|f| f.severity == Severity::Refusal);
    let not = if refused { " (not done: refused)" } else { "" };
    let acquire = plan.acquire.iter().map(acquire_line).collect();
    write_numbered(out, &format!("To the store first{not}"), acquire)?;
    write_numbered(out, &format!("Then on the host{not}"), step_lines(plan))?;
    let prepared = plan.next_kernel.iter().filter(|next| next.prepares);
    let prepared = prepared.map(|next| {
        format!(
            "fetch or compile everything for kernel {}, which is installed and not booted",
            next.release
        )
    });
    write_numbered(out, &format!("Once the driver is ready{not}"), prepared.collect())
}

/// Formats verdict, findings, choices with reasons, and acquisitions of a plan for a kernel that need not run on the
/// host, with the command that carries them out.
pub fn render_for_kernel(plan: &Plan, _: &HostFacts) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write_for_kernel(&mut text, plan);
    text
}

fn write_for_kernel(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(out, "{}", verdict(plan))?;
    write_findings(out, &plan.findings)?;
    writeln!(out, "\nDecisions")?;
    for reason in &plan.reasons {
        writeln!(out, "  {:<28} {}", reason.topic, reason.reason)?;
    }
    if plan.refusal().is_some() {
        return Ok(());
    }
    write_numbered(out, "To the store", plan.acquire.iter().map(acquire_line).collect())?;
    let Plan { driver_version, kernel_release, .. } = plan;
    let builds = plan.acquire.iter().any(|item| matches!(item, Acquire::BuildSet(_)));
    match (builds, plan.acquire.is_empty()) {
        (_, true) => writeln!(out, "\nThe store has everything for this kernel."),
        (true, _) => writeln!(
            out,
            "\nIf it compiles is known once it is compiled:\n  longshore build --kernel {kernel_release} --driver {driver_version}"
        ),
        (false, _) => writeln!(
            out,
            "\nNothing is compiled. To have it in the store:\n  longshore fetch --kernel {kernel_release} --driver {driver_version}"
        ),
    }
}

/// Formats the steps, with placeholders for those that are known only after the acquisition.
fn step_lines(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let acquires = |kind: fn(&Acquire) -> bool| plan.acquire.iter().any(kind);
    for step in &plan.install {
        let is_root = MountRoot::of(step).is_some();
        if is_root {
            if acquires(|a| matches!(a, Acquire::SignSet { .. })) {
                lines.push("(once signed) load the signed modules instead".into());
            }
            if acquires(|a| matches!(a, Acquire::ReadPackage(_))) {
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

fn verdict(plan: &Plan) -> String {
    let what = format!(
        "driver {} ({}) for kernel {}",
        plan.driver_version, plan.flavour, plan.kernel_release
    );
    let exit = plan.exit_code().number();
    let gravest = plan.findings.first().map_or("", |gravest| gravest.code.as_str());
    match plan.verdict() {
        _ if plan.idle => {
            format!("NOTHING TO DO  no GPU for kernel {}: `run` waits for one", plan.kernel_release)
        }
        Verdict::Refused => format!("REFUSED  {what}: {gravest} (exit code {exit})"),
        Verdict::Undecided => format!(
            "CANNOT BE DECIDED HERE  {what}: the tree was captured on another machine, and no source answered \
             here (exit code {exit})"
        ),
        Verdict::Warned => format!("TO BE DONE, WITH WARNINGS  {what}"),
        Verdict::Passed => format!("TO BE DONE  {what}"),
    }
}

fn write_findings(out: &mut String, findings: &[Finding]) -> fmt::Result {
    for finding in findings {
        let severity = finding.severity.as_str();
        writeln!(out, "\n  {severity} {}: {}", finding.code, finding.detail)?;
        writeln!(out, "    remedy: {}", finding.remedy)?;
    }
    Ok(())
}

fn write_host(out: &mut String, facts: &HostFacts) -> fmt::Result {
    let os = facts.os.pretty_name.as_deref().unwrap_or(&facts.os.id);
    let os = if os.is_empty() { "unknown distribution" } else { os };
    writeln!(out, "\nHost")?;
    writeln!(out, "  system    {os}, {}", facts.kernel.arch)?;
    writeln!(out, "  kernel    {} {}", facts.kernel.release, facts.kernel.version)?;
    writeln!(out, "  security  {}", security_line(facts))?;
    for line in device_lines(&facts.devices) {
        writeln!(out, "  device    {line}")?;
    }
    if facts.devices.is_empty() {
        writeln!(out, "  device    none")?;
    }
    if let Some(live) = &facts.live_driver {
        let flavour = live.flavour.map_or_else(String::new, |flavour| format!(" ({flavour})"));
        writeln!(out, "  loaded    driver {}{flavour}", live.version)?;
    }
    for (what, why) in &facts.unread {
        writeln!(out, "  unread    {what}: {why}")?;
    }
    Ok(())
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
pub(crate) fn device_lines(devices: &[PciDevice]) -> Vec<String> {
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
        .map(|((kind, id, driver), group)| device_line(kind, *id, *driver, group))
        .collect()
}

fn device_line(kind: &str, id: u16, driver: Option<&str>, group: &[&PciDevice]) -> String {
    let generation = match (kind, gpu::generation_of(id)) {
        ("GPU", Some(generation)) => format!(" {generation}"),
        _ => String::new(),
    };
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

fn write_numbered(out: &mut String, title: &str, lines: Vec<String>) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for (n, line) in lines.iter().enumerate() {
        writeln!(out, "  {:>2}. {line}", n + 1)?;
    }
    Ok(())
}

fn acquire_line(acquire: &Acquire) -> String {
    match acquire {
        Acquire::ImportSet { dir, manifest } => {
            format!("import the prebuilt modules {manifest} from {}", dir.display())
        }
        Acquire::PullSet { registry, manifest } => {
            format!("fetch the prebuilt modules {}@{manifest}", registry.reference)
        }
        Acquire::FetchRunFile(AvailableRunFile { name, sha256, .. }) => {
            format!("fetch and unpack {name} (sha256 {})", sha256.get(..12).unwrap_or(sha256))
        }
        Acquire::ReadPackage(finished) => {
            let package = &finished.package;
            let suite = &package.suite;
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
