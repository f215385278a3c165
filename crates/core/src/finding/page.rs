//! Generates docs/reference/errors.md from the table of codes.

use std::fmt::{self, Write};

use super::{Area, Code};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");

const HEAD: &str = "\
<!-- Generated from crates/core/src/finding/table.rs: `WRITE_DOCS=1 cargo test -p longshore-core --lib errors_page` writes it anew. -->

# Findings

All codes of findings by `longshore doctor`, `longshore plan` and the preflight of `longshore run`.
Codes and exit codes never change their meaning.

- A *refusal* ends `run` with the code's [exit code](exit-codes.md), before anything on the host is
  touched. Of several refusals the gravest ends it; this page, and every list, has the gravest first.
- A *warning* names a possible problem; the command continues. Its exit code counts only where the
  same code refuses.
- A *note* is information only.

`plan` and `run` check what prevents an installation now. `doctor` also checks what will matter later
(the next boot, an unload, a compile); those codes are marked with a star. A dagger marks codes that
only an agent in the phase Ready finds, and reports in its log and in `longshore status`. A finding's
own remedy is more specific than this page.

";

/// Codes that only `doctor` checks.
const OF_DOCTOR: [Code; 17] = [
    Code::StateUnreadable,
    Code::StateOutOfReach,
    Code::StoreUnusable,
    Code::SourcesUnread,
    Code::AgentFailed,
    Code::DriverRefusedBefore,
    Code::StoreDamaged,
    Code::ClockWrong,
    Code::DeviceAccessDenied,
    Code::CannotUnload,
    Code::LayoutRandomized,
    Code::ModulesPinned,
    Code::NouveauAtBoot,
    Code::NodesStale,
    Code::DevCharLinksMissing,
    Code::DriverInUse,
    Code::AgentAlive,
];

/// Codes that only an agent in the phase Ready finds.
const OF_AGENT: [Code; 5] = [
    Code::ModuleReplaced,
    Code::ExposureLost,
    Code::OperatorFileUnwritten,
    Code::FeaturesUnwritten,
    Code::WatchLimited,
];

fn page() -> Result<String, fmt::Error> {
    let mut page = HEAD.to_owned();
    writeln!(page, "| Code | Severity | Exit code | About |\n|---|---|---|---|")?;
    for code in Code::ALL {
        let entry = code.entry();
        let star = match code {
            code if OF_DOCTOR.contains(code) => "\\*",
            code if OF_AGENT.contains(code) => "†",
            _ => "",
        };
        writeln!(
            page,
            "| [`{0}`](#{0}){star} | {1} | {2} | {3} |",
            entry.name,
            entry.severities.as_str(),
            entry.kind.exit_code().number(),
            entry.area.title().to_lowercase()
        )?;
    }
    for area in Area::ALL {
        writeln!(page, "\n## {}", area.title())?;
        for entry in Code::ALL.iter().map(|code| code.entry()).filter(|e| e.area == area) {
            writeln!(page, "\n### {}\n", entry.name)?;
            writeln!(page, "- Means: {}.", entry.means)?;
            writeln!(page, "- Why it matters: {}.", entry.matters)?;
            writeln!(page, "- Remedy: {}.", entry.remedy)?;
        }
    }
    Ok(page)
}

#[test]
fn errors_page_is_what_the_table_says() {
    let page = page().expect("writing to a string");
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(PAGE).expect("docs/reference/errors.md is there");
    assert!(
        committed == page,
        "docs/reference/errors.md is not what the table says: WRITE_DOCS=1 renews it"
    );
}

#[test]
fn names_are_what_they_are_for_ever_and_nothing_is_left_unsaid() {
    for code in Code::ALL {
        let entry = code.entry();
        assert_eq!(Code::from_name(entry.name), Some(*code), "{} is there twice", entry.name);
        let kebab = |b: u8| b.is_ascii_lowercase() || b == b'-' || b.is_ascii_digit();
        assert!(entry.name.bytes().all(kebab), "{}", entry.name);
        for text in [entry.means, entry.matters, entry.remedy] {
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('|'), "{text}");
            // No page of docs is in the image.
            assert!(!text.contains("docs/"), "{text}");
        }
    }
}

#[test]
fn every_exit_code_of_a_finding_is_on_the_page_of_exit_codes() {
    let page = include_str!("../../../../docs/reference/exit-codes.md");
    for code in Code::ALL {
        let row = format!("\n| {} |", code.entry().kind.exit_code().number());
        assert!(page.contains(&row), "docs/reference/exit-codes.md has no row for {}", code);
    }
}
