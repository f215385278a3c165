use std::time::Duration;

use jiff::Timestamp;
use rstest::rstest;

use super::*;
use crate::steps::{MakeDir, Step};
use crate::telemetry::exposition::{Format, write};
use crate::telemetry::{
    BuilderSets, Condition, DaemonState, DriverInfo, GpuCount, NextKernel, NodeDrain, StepOutcome,
    Telemetry, Unprepared,
};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::finding::{Code, Finding};
use longshore_core::source_id::SourceId;

/// Returns an agent with every part of its state set.
fn state() -> Live {
    let telemetry = Telemetry::default();
    telemetry.starts(2);
    telemetry.enter(Phase::Installing);
    let step = Step::MakeDir(MakeDir { path: "/run".into() });
    telemetry.begin(&step, false).end(StepOutcome::Done);
    let peermem = Finding::warning(Code::PeermemMissing, "nvidia_peermem: refused");
    let refused = Finding::refusal(Code::DriverNotOffered, "no source has it");
    telemetry.planned(&[refused, peermem.clone()], vec!["gcc-14".to_owned()]);
    telemetry.wanted("535.1", Some(true));
    telemetry.driver(DriverInfo {
        version: "535.1".into(),
        flavour: "open".into(),
        kernel: "6.1".into(),
        module_digest: Some("ab".into()),
        origin: Some(Origin::Compiled),
    });
    telemetry.daemon("nvidia-persistenced", true, DaemonState::Live);
    let gpus = Some(GpuCount { expected: 2, bound: 1 });
    let findings = vec![peermem];
    telemetry.condition(Condition { gpus, findings, ..Condition::default() });
    let release = "6.1.0-51-amd64".to_owned();
    let failure = Some(Unprepared { cause: "no headers".into(), remedy: None });
    telemetry.next_kernel(Some(NextKernel { release, failure, ..NextKernel::default() }));
    telemetry.compiled(Duration::from_secs(90));
    telemetry.store_limit(Some(5 << 30));
    let failure = Failure::new(FailureKind::Download, "no answer");
    telemetry.source_failed(SourceId::Registry, &failure);
    telemetry.drain(|drain| *drain = NodeDrain { evicted: 2, blocked: 1, ..NodeDrain::default() });
    telemetry.reused(longshore_core::progress::Reused::Conftest, 3, 1);
    telemetry.failed(&Failure::new(FailureKind::InUse, "in use"));
    telemetry.enter(Phase::Ready);
    // No agent is a builder, too; the table has the metrics of both.
    telemetry.builder_asked(BuilderSets { served: 3, waiting: 1, failing: 1 }, 2);
    telemetry.builder_builds(Some("535.1 (open) for 6.1".into()));
    telemetry.builder_tried(true);
    let timer = telemetry.begin(&step, true);
    let live = telemetry.live();
    timer.end(StepOutcome::Undone);
    live
}

fn seen() -> HostSample {
    HostSample {
        references: vec![("nvidia".into(), 4)],
        holders: Some(1),
        loaded_version: Some("535.1".into()),
        store: Some(StoreSample { bytes: 3 << 30, free: 9 << 30 }),
        process: ProcessSample {
            resident_bytes: Some(20 << 20),
            virtual_bytes: Some(80 << 20),
            cpu_seconds: Some(0.5),
            open_fds: Some(17),
            max_fds: Some(1024),
        },
    }
}

#[test]
fn names_end_with_their_units_and_help_is_a_sentence() {
    for family in families(&state(), &seen()) {
        assert!(family.name.ends_with(family.unit), "{}", family.name);
        assert!(!family.samples.is_empty(), "{} has no sample", family.name);
        assert!(!family.help.is_empty() && !family.help.ends_with('.'), "{}", family.name);
    }
}

#[test]
fn exactly_one_phase_is_the_present_one() {
    let all = families(&state(), &seen());
    let phase = all.iter().find(|family| family.name == "longshore_phase").expect("phase");
    assert_eq!(phase.samples.len(), Phase::ALL.len());
    let now: Vec<_> = phase.samples.iter().filter(|s| s.value == 1.0).collect();
    assert_eq!(now.len(), 1);
    assert_eq!(now[0].labels, [("phase", "ready".to_owned())]);
}

/// Codes of the support table with their values, after a plan of `version` with these findings.
fn support_of(version: &str, findings: &[Finding]) -> Vec<(String, f64)> {
    let telemetry = Telemetry::default();
    telemetry.planned(findings, Vec::new());
    telemetry.wanted(version, Some(true));
    let all = families(&telemetry.live(), &HostSample::default());
    let support = all.iter().find(|family| family.name == "longshore_driver_support").unwrap();
    support.samples.iter().map(|sample| (sample.labels[0].1.clone(), sample.value)).collect()
}

#[test]
fn the_support_of_the_planned_driver_is_told_by_code() {
    let ended = Finding::warning(Code::DriverEnded, "over");
    let wanted = [
        ("gpu-needs-driver", 0.0),
        ("driver-excluded", 0.0),
        ("driver-vulnerable", 0.0),
        ("driver-ended", 1.0),
    ];
    let wanted = wanted.map(|(code, value)| (code.to_owned(), value));
    assert_eq!(support_of("535.1", &[ended]), wanted);
    assert_eq!(support_of("newest", &[]), []);
}

fn row(family: &Family) -> String {
    let (kind, suffix) = match family.kind {
        MetricType::Gauge => ("gauge", ""),
        MetricType::Counter => ("counter", "_total"),
        MetricType::Info => ("info", "_info"),
    };
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let labels: Vec<_> =
        family.samples[0].labels.iter().map(|(name, _)| format!("`{name}`")).collect();
    let (labels, unit) = (or_none(labels.join(", ")), or_none(family.unit.to_owned()));
    format!("| `{}{suffix}` | {kind} | {unit} | {labels} | {} |\n", family.name, family.help)
}

/// Compares a file of the repository, or writes it where WRITE_DOCS is set.
fn assert_is(name: &str, content: &dyn Fn(&str) -> String) {
    let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let wanted = content(&committed);
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("writes");
        return;
    }
    assert!(
        committed == wanted,
        "{name} is not as the agent's metrics are: WRITE_DOCS=1 cargo test -p longshore --lib metrics_page renews it"
    );
}

#[test]
fn metrics_page_has_every_one_and_no_other() {
    const BEGIN: &str = "<!-- Generated from agent/src/telemetry/metrics/mod.rs: `WRITE_DOCS=1 cargo test -p longshore --lib metrics_page` writes it anew. -->\n";
    const END: &str = "<!-- End of the generated part. -->\n";
    let mut table =
        "\n| Name | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n".to_owned();
    table.extend(families(&state(), &seen()).iter().map(row));
    let kinds: Vec<String> = Step::KINDS.iter().map(|kind| format!("`{kind}`")).collect();
    table.push_str(&format!("\nKinds of steps, for the label `step`: {}.\n", kinds.join(", ")));
    assert_is("docs/operate/observability.md", &|page| {
        let (before, rest) = page.split_once(BEGIN).expect("the begin of the generated part");
        let (_, after) = rest.split_once(END).expect("the end of the generated part");
        format!("{before}{BEGIN}{table}\n{END}{after}")
    });
}

/// ci/monitoring takes the names and labels of all metrics from it, and evaluates the dashboard and the alerts over it.
#[test]
fn metrics_page_and_the_exposition_of_the_monitoring_checks_are_of_one_agent() {
    let mut live = state();
    // Times and the program's version differ with each run.
    live.started = Timestamp::UNIX_EPOCH;
    live.version = "0".to_owned();
    live.phase_since = Some(Timestamp::UNIX_EPOCH);
    live.phase_seconds.values_mut().for_each(|seconds| *seconds = 1.0);
    live.steps.iter_mut().for_each(|step| step.seconds = 1.0);
    if let Some(step) = &mut live.current_step {
        step.seconds = 1.0;
    }
    if let Some((_, seconds)) = live.builder.as_mut().and_then(|b| b.building.as_mut()) {
        *seconds = 1.0;
    }
    if let Some(failure) = &mut live.last_failure {
        failure.time = Timestamp::UNIX_EPOCH;
    }
    let text = write(&families(&live, &seen()), Format::Prometheus);
    assert_is("tests/monitoring/exposition.txt", &|_| {
        text.replace(std::env::consts::ARCH, "x86_64")
    });
}

#[test]
fn a_finding_of_the_plan_and_of_the_recheck_is_one_series() {
    let all = families(&state(), &seen());
    let found = all.iter().find(|family| family.name == "longshore_finding").expect("findings");
    let labels: Vec<String> = found.samples.iter().map(|s| format!("{:?}", s.labels)).collect();
    assert_eq!(
        labels,
        [
            r#"[("code", "peermem-missing"), ("severity", "warning")]"#,
            r#"[("code", "next-kernel-unprepared"), ("severity", "warning")]"#,
            r#"[("code", "driver-not-offered"), ("severity", "refusal")]"#,
        ]
    );
}

#[rstest]
#[case::ready(Phase::Ready, "535.1", 1)]
#[case::without_a_gpu(Phase::Idle, "535.1", 0)]
#[case::unknown(Phase::Planning, "newest", 0)]
#[case::branch(Phase::Planning, "535", 0)]
fn a_driver_is_wanted_where_its_version_is_known(
    #[case] phase: Phase,
    #[case] wanted: &str,
    #[case] samples: usize,
) {
    let live = Live { phase: Some(phase), wanted: Some(wanted.to_owned()), ..state() };
    let all = families(&live, &seen());
    let family = all.iter().find(|family| family.name == "longshore_wanted_driver");
    assert_eq!(family.expect("the family").samples.len(), samples);
}

/// Series grow with modules, daemons and steps of a plan alone, and no text of a finding, process or failure is a label.
#[test]
fn the_number_of_series_is_bounded() {
    let telemetry = Telemetry::default();
    for n in 0..500 {
        telemetry.enter(Phase::ALL[n % Phase::ALL.len()]);
        let step = Step::MakeDir(MakeDir { path: format!("/run/{n}").into() });
        telemetry.begin(&step, false).end(StepOutcome::Done);
        let detail = format!("text {n}");
        let findings = [Finding::warning(Code::PeermemMissing, detail.clone())];
        telemetry.planned(&findings, Vec::new());
        let condition = Condition { findings: findings.to_vec(), ..Condition::default() };
        telemetry.condition(condition);
        let failure = Failure::new(FailureKind::Download, detail);
        telemetry.source_failed(SourceId::Registry, &failure);
        telemetry.failed(&failure);
    }
    let text = write(&families(&telemetry.live(), &seen()), Format::Prometheus);
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < 130 && !text.contains("text "), "{series}\n{text}");
    assert!(
        text.contains("longshore_source_errors_total{source=\"registry\",code=\"12\"} 500\n"),
        "{text}"
    );
}
