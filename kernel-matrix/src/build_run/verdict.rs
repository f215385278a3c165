//! Verdict on a `longshore build`: exit code, error and module set in the results' terms.

use std::time::Duration;

use longshore_modules::artifact::{ModuleSet, PACKAGING_PATCHES};
use serde::Deserialize;

use crate::build_run::capture::Captured;
use crate::results::{Line, Part, Verdict};
use crate::rules::resolve::is_outage;

/// Classes of failed compiles that lie in the machine and not in kernel or driver.
const OF_MACHINE: [&str; 5] =
    ["out-of-memory", "out-of-processes", "out-of-time", "no-space", "compiler-crashed"];

/// longshore's last line of a log in JSON.
#[derive(Debug, Deserialize)]
struct FailureLine {
    exit_code: i32,
    cause: String,
    #[serde(default)]
    caused_by: Vec<String>,
    remedy: String,
    /// Class of a failed compile.
    #[serde(default)]
    class: Option<String>,
    /// Interface or header that the class is about.
    #[serde(default)]
    name: Option<String>,
}

impl FailureLine {
    fn from_log(log: &str) -> Option<Self> {
        log.lines().rev().find_map(|line| serde_json::from_str(line).ok())
    }

    /// Returns cause and chain in one line.
    fn reason(&self) -> String {
        let chain = self.caused_by.iter().map(|cause| format!(": {cause}"));
        std::iter::once(self.cause.clone()).chain(chain).collect()
    }
}

/// Returns the reason that longshore gave in its log, in JSON.
pub(crate) fn failure_reason(log: &str) -> Option<String> {
    FailureLine::from_log(log).map(|failure| failure.reason())
}

/// Packages that a build may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed<'a> {
    /// `uname -r`.
    pub release: &'a str,
    /// sha256 of the driver's packages.
    pub drivers: &'a [&'a str],
}

/// Returns the verdict on a build, and the module set where it gave one.
pub(crate) fn judge(
    captured: &Captured,
    limit: Duration,
    allowed: Allowed<'_>,
) -> (Verdict, Option<ModuleSet>) {
    if captured.code == Some(0) {
        return match set(captured, allowed) {
            Ok(set) => {
                let patches = of_longshore(set.key.patches.keys());
                (Verdict::Compiled { patches }, Some(set))
            }
            Err(why) => (faulty(&why), None),
        };
    }
    (failed(captured, limit), None)
}

/// Returns the module set that the build printed.
fn set(captured: &Captured, allowed: Allowed<'_>) -> Result<ModuleSet, String> {
    if captured.out.missing() > 0 {
        let missing = captured.out.missing();
        return Err(format!("longshore build printed more than a set: {missing} bytes too many"));
    }
    let set: ModuleSet = serde_json::from_str(&captured.out.text())
        .map_err(|e| format!("longshore build printed no module set: {e}"))?;
    let key = &set.key;
    if key.kernel_release != allowed.release {
        return Err(format!("the set is for {}, not {}", key.kernel_release, allowed.release));
    }
    if !allowed.drivers.contains(&key.driver_digest.as_str()) {
        let digest = &key.driver_digest;
        return Err(format!("the set is of a package that the lock does not name: {digest}"));
    }
    Ok(set)
}

fn failed(captured: &Captured, limit: Duration) -> Verdict {
    if captured.is_overdue {
        return faulty(&format!("longshore build was killed after {} s", limit.as_secs()));
    }
    let Some(code) = captured.code else {
        return faulty("a signal ended longshore build");
    };
    let Some(failure) = FailureLine::from_log(&captured.err.text()) else {
        return faulty(&format!("longshore build ended with {code} and named no error"));
    };
    if failure.exit_code != code {
        let said = failure.exit_code;
        return faulty(&format!("longshore build ended with {code} and said {said}"));
    }
    let reason = failure.reason();
    let is_of_machine = failure.class.as_deref().is_some_and(|class| OF_MACHINE.contains(&class));
    match code {
        14 if !is_of_machine => Verdict::DoesNotCompile {
            class: Line::new(failure.class.as_deref().unwrap_or("unknown")),
            name: Line::new(failure.name.as_deref().unwrap_or_default()),
            line: Line::new(compile_error(&failure.cause)),
            remedy: Line::new(&failure.remedy),
        },
        // The archive may have it.
        11 | 12 if is_outage(&reason) => Verdict::NotRun { why: Line::new(&reason) },
        11 | 12 => Verdict::Unavailable { part: part_of(code, &reason), why: Line::new(&reason) },
        2 | 10 => Verdict::Refused {
            code: Line::new(if code == 2 { "usage" } else { "host-unsupported" }),
            reason: Line::new(&reason),
            remedy: Line::new(&failure.remedy),
        },
        code => faulty(&format!("longshore build ended with {code}: {reason}")),
    }
}

/// Message of longshore's log.
#[derive(Debug, Deserialize)]
struct MessageLine {
    message: String,
}

/// Returns the packages that did not compile, as the log has them, before another revision was tried: name and
/// version, and the reason with the compiler's line.
pub(crate) fn refused_revisions(log: &str) -> Vec<(String, String)> {
    let messages = log.lines().filter_map(|line| serde_json::from_str::<MessageLine>(line).ok());
    let refused = messages.filter_map(|MessageLine { message }| {
        let (_, rest) = message.strip_prefix("continuing with ")?.split_once(" instead of ")?;
        let (package, cause) = rest.split_once(": ")?;
        // Others hold no sources.
        cause
            .starts_with("compiling the ")
            .then(|| (package.to_owned(), compile_error(cause).to_owned()))
    });
    refused.collect()
}

/// Returns the class and the compiler's line of `compiling the F modules of D for R: CLASS: LINE (log: PATH)`.
fn compile_error(cause: &str) -> &str {
    let about = cause.strip_prefix("compiling the ").and_then(|rest| rest.split_once(": "));
    let error = about.map_or(cause, |(_, error)| error);
    error.rfind(" (log: ").map_or(error, |at| &error[..at])
}

/// Returns the part that a failure with exit code 11 or 12 is about.
fn part_of(code: i32, reason: &str) -> Part {
    let has = |texts: &[&str]| texts.iter().any(|text| reason.contains(text));
    if has(&["linux-headers", "linux-kbuild", "headers of", "headers for"]) {
        Part::Headers
    } else if has(&["InRelease", "the suite "]) {
        Part::Suite
    } else if has(&["-kernel-source", "has the driver"]) {
        Part::Driver
    } else if code == 11 {
        Part::Compiler
    } else {
        Part::Kernel
    }
}

fn faulty(why: &str) -> Verdict {
    Verdict::Faulty { why: vec![Line::new(why)] }
}

/// Returns the patches of longshore's: those of the driver's package are part of its sources.
fn of_longshore<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<Line> {
    let own = names.into_iter().filter(|name| *name != PACKAGING_PATCHES);
    own.map(|name| Line::new(name)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rstest::rstest;

    use super::*;
    use crate::build_run::capture::capture;

    const CAUSE: &str = "compiling the open modules of 550.1 for 7.3: the kernel has no strncpy: a.c:1:1: error: implicit declaration (log: /store/a.log)";

    /// Runs a program that writes these and ends with `code`.
    fn ended(code: i32, out: &str, err: &str) -> Captured {
        let mut command = Command::new("sh");
        let script = r#"printf %s "$1"; printf %s "$2" >&2; exit "$3""#;
        command.args(["-c", script, "sh", out, err, &code.to_string()]);
        capture(&command, Duration::from_secs(60), 1 << 20).unwrap()
    }

    fn log(code: i32, cause: &str, more: &str) -> String {
        let cause = serde_json::to_string(cause).unwrap();
        format!(
            "{{\"level\":\"INFO\",\"message\":\"m\"}}\n{{\"timestamp\":\"t\",\"exit_code\":{code},\
             \"cause\":{cause},\"caused_by\":[\"below\"],\"remedy\":\"do\"{more}}}\n"
        )
    }

    fn kind(verdict: &Verdict) -> String {
        let json = serde_json::to_value(verdict).unwrap();
        let text =
            |key: &str| json.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
        let [kind, part, class, name, code] = ["kind", "part", "class", "name", "code"].map(text);
        format!("{kind} {part}{class}{code} {name}").trim_end().to_owned()
    }

    const GONE: &str = ",\"class\":\"interface-gone\",\"name\":\"strncpy\"";

    #[rstest]
    #[case(14, CAUSE, GONE, "does-not-compile interface-gone strncpy")]
    #[case(14, CAUSE, "", "does-not-compile unknown")]
    #[case(14, CAUSE, ",\"class\":\"out-of-memory\"", "faulty")]
    #[case(14, CAUSE, ",\"class\":\"compiler-crashed\"", "faulty")]
    #[case(11, "no archive has linux-headers-6.1.0-0", "", "unavailable headers")]
    #[case(11, "no archive has gcc-16", "", "unavailable compiler")]
    #[case(12, "no archive has the driver 555 (open)", "", "unavailable driver")]
    #[case(
        12,
        "fetching pool/n/nvidia-kernel-source_1.deb failed: the server says 404 Not Found",
        "",
        "unavailable driver"
    )]
    #[case(
        12,
        "fetching dists/sid/InRelease failed: the server says 404 Not Found",
        "",
        "unavailable suite"
    )]
    #[case(
        12,
        "fetching dists/sid/InRelease failed: the server says 503 Service Unavailable",
        "",
        "not-run"
    )]
    #[case(11, "fetching pool/l/linux-headers-6.1_1.deb failed: connection refused", "", "not-run")]
    #[case(10, "no such architecture", "", "refused host-unsupported")]
    #[case(15, "no space", "", "faulty")]
    #[case(70, "a fault", "", "faulty")]
    fn each_failure_has_its_verdict(
        #[case] code: i32,
        #[case] cause: &str,
        #[case] more: &str,
        #[case] expected: &str,
    ) {
        let verdict = failed(&ended(code, "", &log(code, cause, more)), Duration::ZERO);
        assert_eq!(kind(&verdict), expected, "{verdict:?}");
    }

    #[test]
    fn the_patches_of_the_package_are_none_of_longshore() {
        let names = [PACKAGING_PATCHES.to_owned(), "strncpy".to_owned()];
        assert_eq!(of_longshore(&names), [Line::new("strncpy")]);
    }

    #[test]
    fn revisions_that_did_not_compile_are_those_of_the_log() {
        let line = |message: &str| {
            format!("{}\n", serde_json::json!({"message": message, "level": "WARN"}))
        };
        let log = [
            line("reading"),
            line(&format!("continuing with a 1-1 (sid) instead of a 1-2 (sid): {CAUSE}")),
            line("continuing with b 1 instead of a 1-1: it holds no sources"),
            "no JSON: continuing with".into(),
        ];
        let why = "the kernel has no strncpy: a.c:1:1: error: implicit declaration".to_owned();
        assert_eq!(refused_revisions(&log.concat()), [("a 1-2 (sid)".to_owned(), why)]);
    }

    #[test]
    fn a_failed_compile_is_told_by_the_compilers_line_alone() {
        let expected = "the kernel has no strncpy: a.c:1:1: error: implicit declaration";
        assert_eq!(compile_error(CAUSE), expected);
        assert_eq!(compile_error("something else"), "something else");
    }

    #[rstest]
    #[case(0, "", "", "no module set")]
    #[case(0, "{}", "", "no module set")]
    #[case(14, "", "Segmentation fault\n", "named no error")]
    #[case(3, "", &log(14, CAUSE, GONE), "ended with 3 and said 14")]
    fn an_output_that_is_not_longshores_is_a_fault(
        #[case] code: i32,
        #[case] out: &str,
        #[case] err: &str,
        #[case] expected: &str,
    ) {
        let allowed = Allowed { release: "6.1", drivers: &["00"] };
        let (verdict, set) = judge(&ended(code, out, err), Duration::ZERO, allowed);
        assert!(format!("{verdict:?}").contains(expected) && set.is_none(), "{verdict:?}");
    }
}
