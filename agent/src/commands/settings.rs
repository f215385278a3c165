//! `longshore settings`: the agent's settings, without a host, a network or a configuration.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use super::output::{print_answer, print_styled};
use super::{form, help, print};
use crate::config::settings::{Change, Setting, plain};
use crate::console::{Text, Tone};
use crate::nearest::by_nearness;
use longshore_core::failure::{ExitCode, Failure, FailureKind};
use longshore_core::finding::Verdict;
use longshore_core::sanitize::in_line;

/// Format of the JSON.
const FORMAT: u32 = 1;
/// Number of nearest names in the failure about an unknown name.
const NEAREST: usize = 3;

/// Arguments of `settings`.
#[derive(Debug, Args)]
pub(super) struct Settings {
    /// Flag (with or without --), variable, key in the file (publish.sign-key), or section of the file
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// A setting in the JSON.
#[derive(Debug, Serialize)]
struct Described {
    flag: Option<&'static str>,
    variables: &'static [&'static str],
    key: Option<String>,
    default: String,
    r#type: &'static str,
    repeatable: bool,
    group: &'static str,
    section: Option<&'static str>,
    sighup: &'static str,
    text: String,
}

#[derive(Debug, Serialize)]
struct SettingsOutput {
    settings: Vec<Described>,
}

/// Prints all settings, or those of one name.
///
/// # Errors
/// Exit code 2, with the nearest names, for a name that no setting has.
pub(super) fn settings(asked: &Settings) -> Result<ExitCode, Failure> {
    let chosen = match &asked.name {
        Some(name) => of_name(name)?,
        None => Setting::all().into_iter().filter(|one| !one.is_internal()).collect(),
    };
    if asked.json {
        let answer =
            SettingsOutput { settings: chosen.iter().map(Described::from_setting).collect() };
        print_answer(FORMAT, Verdict::Passed, ExitCode::Done, &answer)?;
    } else if asked.name.is_some() {
        print(&chosen.iter().map(render).collect::<Vec<_>>().join("\n"))?;
    } else {
        print_styled(&help::settings_list())?;
        print("\n\n`longshore settings NAME` has everything about one\n")?;
    }
    Ok(ExitCode::Done)
}

/// Returns the settings with a name; without one, those of the file's section of that name.
fn of_name(name: &str) -> Result<Vec<Setting>, Failure> {
    let wanted = name.trim().trim_start_matches('-');
    let wanted = wanted.split('=').next().unwrap_or_default();
    let all = Setting::all();
    let named = |one: &Setting| one.names().iter().any(|name| name == wanted);
    let mut found: Vec<Setting> = all.iter().copied().filter(named).collect();
    if found.is_empty() {
        let in_section = |one: &Setting| one.section() == Some(wanted) && !one.is_internal();
        found = all.iter().copied().filter(in_section).collect();
    }
    if found.is_empty() { Err(unknown(name, wanted)) } else { Ok(found) }
}

fn unknown(name: &str, wanted: &str) -> Failure {
    let names: Vec<String> = Setting::all().iter().flat_map(Setting::names).collect();
    let near = by_nearness(wanted, names.iter().map(String::as_str));
    let near: Vec<String> =
        near.into_iter().take(NEAREST).map(|near| format!("`{near}`")).collect();
    let shown: String = name.chars().take(60).collect();
    Failure::new(FailureKind::Usage, format!("no setting is named {}", in_line(&shown)))
        .remedy(format!("did you mean {}? `longshore settings` lists all", near.join(", ")))
}

/// Returns the consequence of SIGHUP for a setting, in words.
fn sighup(change: Change) -> &'static str {
    match change {
        Change::Followed => "a running agent follows the file",
        Change::Restart => "kept until the agent is started again",
        Change::OnlyAtStart => "not followed: no file has it",
    }
}

fn render(setting: &Setting) -> String {
    let mut lines = Text::new(form());
    let mut item = |label: &str, words: &str| {
        if !words.is_empty() {
            lines.item(&format!("  {label:<10}"), Tone::Plain, 12, words);
        }
    };
    item("", &plain(&setting.text()));
    item("flag", &setting.flag_with_value().unwrap_or_default());
    item("variable", &variables(setting));
    item("file", &plain(&setting.written_key()));
    item("default", &plain(setting.default()));
    let list = if setting.is_repeatable() { "; several may be given" } else { "" };
    item("type", &format!("{}{list}", setting.kind()));
    item("group", setting.group());
    item("SIGHUP", sighup(setting.change()));
    let mut text = setting.names().into_iter().next().unwrap_or_default();
    // Writing to a string does not fail.
    let _ = write!(text, "\n{}", lines.finish());
    text
}

fn variables(setting: &Setting) -> String {
    let between = if setting.has_variables_of_parts() { ", " } else { ", else " };
    setting.variables().join(between)
}

impl Described {
    fn from_setting(setting: &Setting) -> Self {
        Self {
            flag: setting.flag(),
            variables: setting.variables(),
            key: setting.key(),
            default: plain(setting.default()),
            r#type: setting.kind(),
            repeatable: setting.is_repeatable(),
            group: setting.group(),
            section: setting.section(),
            sighup: match setting.change() {
                Change::Followed => "followed",
                Change::Restart => "restart",
                Change::OnlyAtStart => "no",
            },
            text: plain(&setting.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("--driver", &["driver"])]
    #[case("DRIVER_VERSION", &["driver"])]
    #[case("--cluster-taint=true", &["cluster-taint"])]
    #[case("publish.sign-key", &["publish-key"])]
    #[case("publish", &["publish"])]
    #[case("downloads", &["download-connect", "download-stall", "download-busy"])]
    fn names(#[case] name: &str, #[case] wanted: &[&str]) {
        let found = of_name(name).expect("known");
        assert_eq!(found.iter().filter_map(Setting::flag).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest() {
        let refused = of_name("store-max-sise").expect_err("unknown");
        assert_eq!(refused.code(), ExitCode::Usage);
        let remedy = refused.remedy_text().unwrap_or_default().to_owned();
        assert!(remedy.starts_with("did you mean `store-max-size`, "), "{remedy}");
    }

    #[test]
    fn everything_about_one() {
        let found = of_name("missing-gpus").expect("known");
        let text = render(&found[0]);
        for line in [
            "missing-gpus\n",
            "  flag      --missing-gpus warn|refuse\n",
            "  variable  LONGSHORE_MISSING_GPUS\n",
            "  file      missing-gpus\n",
            "  default   warn\n",
            "  type      warn or refuse\n",
            "  group     Conduct\n",
            "  SIGHUP    a running agent follows the file\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains(['`', '[']), "{text}");
    }
}
