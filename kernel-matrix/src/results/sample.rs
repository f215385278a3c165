//! Results with every kind of verdict and hostile texts, for tests.

use super::{
    AgentUsed, CellResult, Digest, DriverAxis, Exclusion, KernelAxis, KernelState, Line,
    LogExcerpt, Machine, Measured, Part, Phase, PlannedCell, RefusedRevision, ResolvedCell,
    Results, Revision, Run, Times, Verdict,
};

/// Texts that break out of HTML, JSON, Markdown or a terminal where they are not escaped.
pub(crate) const HOSTILE: &str = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \" ' ` | \x1b[31m\u{202e}";

fn line(text: &str) -> Line {
    Line::new(text)
}

fn digest(digit: u8) -> Digest {
    Digest::from_sha256(&[digit; 32])
}

/// Returns the sample: two drivers by four kernels, a cell of each kind of verdict.
pub(crate) fn results() -> Results {
    let mut results = Results::new(run());
    results.kernels = vec![
        kernel("bookworm-security", None, "generic", "6.1.0-56-amd64", KernelState::Available),
        kernel("bookworm-security", None, "rt", "6.1.0-56-rt-amd64", KernelState::Available),
        kernel(
            "bullseye-security",
            Some("6.1"),
            "generic",
            "6.1.0-0.deb11.52",
            KernelState::HeadersMissing,
        ),
        kernel("trixie-backports", None, "generic", "7.3.4+deb13-amd64", KernelState::Available),
    ];
    results.drivers = vec![driver("470", "proprietary"), driver("550", "open")];
    results.excluded = vec![Exclusion {
        condition: [(line("branch"), line("..515")), (line("flavour"), line("open"))].into(),
        reason: line("NVIDIA has no open modules before 515"),
        count: 12,
    }];
    for driver in &results.drivers {
        for kernel in &results.kernels {
            results.planned.push(PlannedCell {
                name: line(&format!("{}-{}", kernel.id, driver.id)),
                set: line("product"),
                rule: line("works"),
                scenario: line("works"),
                kernel: kernel.id.clone(),
                driver: driver.id.clone(),
                gpus: vec![line("t4")],
            });
        }
    }
    let names: Vec<Line> = results.planned.iter().map(|cell| cell.name.clone()).collect();
    results.cells =
        names.into_iter().zip(verdicts()).map(|(name, verdict)| cell(name, verdict)).collect();
    results.cells[2].log = None;
    results.cells[2].resolved = None;
    results.cells[2].key = None;
    results.cells[4].reused_from = Some(line("20261122T010000Z-00c0ffee"));
    results
}

fn run() -> Run {
    Run {
        id: line("20261123T010000Z-0badcafe"),
        nonce: line("00112233445566778899aabbccddeeff"),
        began: "2026-11-23T01:00:00Z".parse().unwrap(),
        ended: "2026-11-23T07:12:30Z".parse().unwrap(),
        complete: true,
        changed_only: false,
        machine: Machine { cores: 2, qemu: line("7.2.19"), backend: line("x-remote") },
        agent: AgentUsed {
            version: line("0.1.0"),
            program: Some(digest(2)),
            commit: Some(line("0123456789abcdef0123456789abcdef01234567")),
            image: Some(digest(1)),
        },
        lock: Some(digest(2)),
        shard: None,
    }
}

fn kernel(
    suite: &str,
    of: Option<&str>,
    flavour: &str,
    release: &str,
    state: KernelState,
) -> KernelAxis {
    let line_part = of.map(|of| format!("-{of}")).unwrap_or_default();
    KernelAxis {
        id: line(&format!("{suite}{line_part}-{flavour}")),
        suite: line(suite),
        line: of.map(line),
        flavour: line(flavour),
        release: line(release),
        version: line("6.1.192-2"),
        state,
    }
}

fn driver(branch: &str, flavour: &str) -> DriverAxis {
    DriverAxis {
        id: line(&format!("{branch}-{flavour}")),
        branch: line(branch),
        flavour: line(flavour),
        revisions: vec![Revision {
            package: line("nvidia-kernel-source"),
            version: line("550.163.01-5.1"),
            suite: line("sid"),
            sha256: Some(digest(3)),
        }],
    }
}

fn verdicts() -> Vec<Verdict> {
    vec![
        Verdict::Works {},
        Verdict::Refused {
            code: line("preempt-rt"),
            reason: line("NVIDIA does not support realtime kernels"),
            remedy: line("boot the generic kernel"),
        },
        Verdict::Unavailable { part: Part::Headers, why: line("linux-headers-6.1: 404 Not Found") },
        Verdict::DoesNotCompile {
            class: line("interface-gone"),
            name: line("strncpy"),
            line: line(&format!("nv-linux.h:12: error: {HOSTILE}")),
            remedy: line("take a newer revision"),
        },
        Verdict::WorksPatched { patches: vec![line("strncpy-gone")] },
        Verdict::Compiled { patches: Vec::new() },
        Verdict::NotRun { why: line("the run ended before it") },
        Verdict::Faulty { why: vec![line("guest: kernel panic"), line(HOSTILE)] },
    ]
}

fn cell(name: Line, verdict: Verdict) -> CellResult {
    CellResult {
        name,
        key: Some(digest(4)),
        verdict,
        resolved: Some(ResolvedCell {
            kernel_release: line("6.1.0-56-amd64"),
            kernel_version: line("6.1.192-2"),
            headers: line("linux-headers-6.1.0-56-amd64 6.1.192-2"),
            compiler: line("gcc-12 12.2.0"),
            driver_version: line("550.163.01"),
            revision: line("nvidia-kernel-source 550.163.01-4~bpo13+1 in trixie-backports"),
            refused_revisions: vec![RefusedRevision {
                revision: line("nvidia-kernel-source 550.163.01-5.1 in sid"),
                line: line("error: implicit declaration of function 'strncpy'"),
            }],
            set: Some(digest(7)),
            compile_key: None,
            patches: vec![line("strncpy-gone")],
            notes: vec![line(HOSTILE)],
        }),
        phases: vec![Phase { name: line("ready"), after_ms: 31_240 }],
        measured: Measured::from([(line("agent VmRSS"), line("11 MiB"))]),
        times: Times { prepare_ms: 4000, compile_ms: 41_000, guest_ms: 66_000, other_ms: 900 },
        log: Some(LogExcerpt {
            file: line("runs/a/build.log"),
            sha256: digest(5),
            bytes: 1 << 30,
            failing_line: Some(1),
            excerpt: vec![
                line("make[1]: Entering directory"),
                line(HOSTILE),
                line(&"x".repeat(1_000_000)),
            ],
        }),
        reused_from: None,
        unproven: false,
    }
}
