//! Tests of completions and manual pages.

use std::process::{Command as Process, Stdio};

use rstest::rstest;

use super::*;

/// Runs a shell with a script; returns its standard output.
fn output_of(shell: &str, script: &str) -> String {
    let ran = Process::new(shell).arg("-c").arg(script).stdin(Stdio::null()).output();
    let ran = ran.unwrap_or_else(|error| panic!("{shell}: {error}; scripts/setup --checks has it"));
    let errors = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && errors.is_empty(), "{shell}: {errors}");
    String::from_utf8(ran.stdout).expect("text")
}

/// Writes the completions to a file; returns its directory and path.
fn script_of(shell: Shell, name: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join(name);
    std::fs::write(&path, completions_of(shell).expect("made")).expect("written");
    let path = path.display().to_string();
    (dir, path)
}

/// Words that a shell offers behind `longshore WORDS`, of which the last is to be completed.
#[rstest]
#[case::commands(&["pl"], &["plan"])]
#[case::nested(&["fleet", "st"], &["status"])]
#[case::options(&["status", "--re"], &["--ready"])]
#[case::settings(&["run", "--driver"], &["--driver", "--driver-root"])]
#[case::values(&["completions", ""], &["bash", "zsh", "fish"])]
fn bash_completes(#[case] words: &[&str], #[case] wanted: &[&str]) {
    let (_dir, path) = script_of(Shell::Bash, "longshore");
    let last = words.len();
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = format!(
        "source {path}; COMP_WORDS=(longshore {}); COMP_CWORD={last}; \
         _longshore longshore \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" ")
    );
    let offered = output_of("bash", &script);
    let offered: Vec<&str> = offered.lines().collect();
    for word in wanted {
        assert!(offered.contains(word), "{offered:?}");
    }
}

#[rstest]
#[case::commands("longshore pl", "plan")]
#[case::nested("longshore fleet st", "status")]
#[case::options("longshore status --re", "--ready")]
#[case::settings("longshore run --driver-r", "--driver-root")]
fn fish_completes(#[case] line: &str, #[case] wanted: &str) {
    let (dir, path) = script_of(Shell::Fish, "longshore.fish");
    // Its own files are not to go into the home directory.
    let home = dir.path().display();
    let script = format!(
        "HOME={home} XDG_CONFIG_HOME={home} XDG_DATA_HOME={home} \
         fish --no-config -c 'source {path}; complete -C \"{line}\"'"
    );
    let offered = output_of("bash", &script);
    let offered: Vec<&str> = offered.lines().map(|l| l.split('\t').next().unwrap_or(l)).collect();
    assert!(offered.contains(&wanted), "{offered:?}");
}

#[test]
fn zsh_takes_the_completions() {
    let (_dir, path) = script_of(Shell::Zsh, "_longshore");
    let script = format!(
        "zsh -n {path} && zsh -f -c 'autoload -Uz compinit && compinit -D -u && source {path} && \
         print ${{_comps[longshore]}} && whence -w _longshore _longshore_commands'"
    );
    let reported = output_of("bash", &script);
    let functions = ["_longshore\n", "_longshore: function\n", "_longshore_commands: function\n"];
    assert!(functions.iter().all(|line| reported.contains(line)), "{reported}");
}

#[test]
fn manual_pages_are_formatted_without_a_warning() {
    let dir = tempfile::tempdir().expect("dir");
    for (name, page) in pages(ProgramVersion::default()).expect("made") {
        let path = dir.path().join(name);
        std::fs::write(&path, page).expect("written");
        let shown =
            output_of("bash", &format!("MANWIDTH=120 man --warnings -l {} | cat", path.display()));
        assert!(shown.contains("NAME") && shown.contains("SEE ALSO"), "{shown}");
    }
}

#[rstest]
#[case::bash(Shell::Bash)]
#[case::zsh(Shell::Zsh)]
#[case::fish(Shell::Fish)]
fn completions_have_no_hidden_option(#[case] shell: Shell) {
    let script = completions_of(shell).expect("made");
    for hidden in ["__sandbox", "called-as-nvidia-driver", "background"] {
        assert!(!script.contains(hidden), "{hidden}");
    }
    assert!(script.contains("store-max-size") && script.contains("docker-args"));
}

#[rstest]
#[case::nothing(&[], &["status\tShow the driver on each node"], "run")]
#[case::command(&["st"], &["status\t"], "plan")]
#[case::options(&["status", "--"], &["--json\tAs JSON", "--context\t"], "--build-deadline")]
#[case::settings(&["plan", "--dri"], &["--driver\t"], "--json")]
fn kubectl_is_given_lines_and_a_directive(
    #[case] words: &[&str],
    #[case] wanted: &[&str],
    #[case] absent: &str,
) {
    let text = candidates(words.iter().map(OsString::from).collect()).expect("completed");
    for start in wanted {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
    assert!(!text.lines().any(|line| line.starts_with(&format!("{absent}\t"))), "{text}");
    assert!(text.ends_with("\n:4\n"), "{text}");
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("dir");
    let out = dir.path().join("man");
    man(&Man { out: out.clone() }, ProgramVersion::default()).expect("written");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    assert!(read("longshore.1").contains("longshore\\-fleet(1)"));
    let run = read("longshore-run.1");
    assert!(run.contains("\\-\\-store\\-max\\-size") && run.contains("EXAMPLES"), "{run}");
    assert!(read("longshore-fleet-status.1").contains("longshore fleet status"));
    let fetch = read("longshore-fetch.1");
    assert!(!fetch.contains("background") && !fetch.contains("build\\-deadline"), "{fetch}");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let failed = man(&Man { out: file }, ProgramVersion::default()).expect_err("no directory");
    assert_eq!(failed.code(), ExitCode::Usage);
}
