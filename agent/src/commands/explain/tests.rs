//! Texts of `longshore explain`, and the pages that name its commands.

use super::*;
use crate::kept::assert_kept;
use longshore_core::testing::pages::commands;
use rstest::rstest;

fn text(name: &str) -> String {
    Explained::from_name(name).expect("a code").render()
}

#[test]
fn every_code_is_explained_with_its_texts_in_lines_of_bounded_length() {
    let names = ExitCode::ALL.iter().map(|code| code.number().to_string());
    let names = names.chain(ExitCode::ALL.iter().map(|code| code.entry().name.to_owned()));
    for name in names.chain(Code::ALL.iter().map(|code| code.as_str().to_owned())) {
        let text = text(&name);
        let is_command = |line: &str| line.starts_with("    podman");
        let longest = text.lines().filter(|line| !is_command(line)).map(str::len).max();
        assert!(longest.is_some_and(|length| length <= 80), "{text}");
    }
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for code in Code::ALL {
        let text = plain(&text(code.as_str()));
        for part in [code.entry().means, code.entry().matters, code.entry().remedy] {
            assert!(text.contains(&plain(part)), "{text}");
        }
    }
}

#[test]
fn a_finding_names_its_exit_code_and_an_exit_code_its_findings() {
    let finding = text("signature-required");
    assert!(finding.starts_with("signature-required  finding, refusal or warning; exit code 15\n"));
    for name in ["15", "preflight", " PREFLIGHT "] {
        let code = text(name);
        assert!(code.starts_with("preflight  exit code 15\n"), "{code}");
        assert!(code.contains("signature-required") && code.contains(IN_CLUSTER), "{code}");
    }
    let both = text("no-device");
    assert!(both.contains("no-device  finding") && both.contains("no-device  exit code 17"));
    // No agent ends with it.
    assert!(!text("31").contains("podman"));
}

/// The list, and an answer of each form: a finding's, an exit code's of an agent, another one's, and both.
#[test]
fn its_answers_are_the_kept_ones() {
    assert_kept("commands/explain/reports/list.txt", &Explained::all().list());
    for name in ["signature-required", "15", "31", "no-device"] {
        assert_kept(&format!("commands/explain/reports/{name}.txt"), &text(name));
    }
}

#[rstest]
#[case("signature-requird", "`longshore explain signature-required`")]
#[case("headers", "`longshore explain headers-missing`")]
#[case("99", "`longshore explain` lists all")]
#[case("", "`longshore explain` lists all")]
#[case("\u{1b}[2Jin-us", "`longshore explain in-use`")]
fn an_unknown_code_is_a_wrong_usage_with_the_nearest_names(
    #[case] name: &str,
    #[case] wanted: &str,
) {
    let failure = Explained::from_name(name).expect_err("no code");
    assert_eq!(failure.code(), ExitCode::Usage);
    let text = failure.report();
    assert!(text.contains(wanted) && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn the_list_and_the_json_have_each_code_once() {
    let all = Explained::all();
    let list = all.list();
    let json = serde_json::to_value(&all).expect("json");
    for code in Code::ALL {
        let lines = list.lines().filter(|line| line.split(' ').next() == Some(code.as_str()));
        assert_eq!(lines.count(), 1, "{code}");
    }
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(Code::ALL.len()));
    assert_eq!(json["exit_codes"].as_array().map(Vec::len), Some(ExitCode::ALL.len()));
    let signature = Explained::from_name("signature-required").expect("a code");
    let json = serde_json::to_value(&signature).expect("json");
    assert_eq!(json["exit_codes"], serde_json::json!([]));
    assert_eq!(json["findings"][0]["severities"], serde_json::json!(["refusal", "warning"]));
}

const RUNBOOK: &str = include_str!("../../../../docs/operate/runbook.md");

/// Headings of this level, in their order.
fn headings(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("### ")).collect()
}

#[test]
fn the_runbook_has_an_entry_with_a_command_for_each_exit_code_and_each_state() {
    let (states, codes) = RUNBOOK.split_once("\n## Exit codes\n").expect("two parts");
    let wanted: Vec<String> = ExitCode::ALL
        .iter()
        .filter(|code| **code != ExitCode::Done)
        .map(|code| format!("{} {}", code.number(), code.entry().name))
        .collect();
    assert_eq!(headings(codes), wanted);
    let named = ["The agent has ended", "Crash loop", "In use", "Stuck", "Not Ready", "No agent"];
    assert_eq!(headings(states), named);
    for entry in RUNBOOK.split("\n### ").skip(1) {
        let has_command = entry.contains("```sh") || entry.contains("](#");
        assert!(has_command, "{entry}");
    }
}

#[test]
fn the_runbook_has_the_command_beside_an_ended_agent() {
    let wanted: Vec<&str> = BESIDE.split_whitespace().collect();
    assert!(commands(RUNBOOK).iter().any(|words| *words == wanted));
}

/// The command has the options of README's agent, which `scripts/check-deploy` compares with the units.
#[test]
fn the_command_beside_an_ended_agent_is_the_agent_s_own_with_another_word() {
    let page = include_str!("../../../../README.md").replace("\\\n", " ");
    let agent =
        page.lines().find(|line| line.trim_start().starts_with("podman run --name longshore"));
    let agent = agent
        .expect("README has the agent's command")
        .replace("--name longshore -d --stop-timeout 30", "--rm");
    let agent: Vec<&str> = agent.split_whitespace().chain(["doctor"]).collect();
    assert_eq!(BESIDE.split_whitespace().collect::<Vec<_>>(), agent);
}
