//! kernel-matrix outside of a checkout: no text of it has a path of the machine that built it, and a file that it cannot
//! find is named with the option for it.

use std::io;
use std::path::Path;
use std::process::{Command, Output};

const BUILT_IN: &str = env!("CARGO_MANIFEST_DIR");

fn kernel_matrix(dir: &Path, arguments: &str) -> io::Result<Output> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kernel-matrix"));
    program.current_dir(dir).env("LONGSHORE_CACHE", dir.join("cache"));
    program.args(arguments.split_whitespace()).output()
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|of| String::from_utf8_lossy(of)).concat()
}

#[test]
fn no_help_has_a_path_of_the_machine_that_built_it() {
    let dir = tempfile::tempdir().unwrap();
    let help = text(&kernel_matrix(dir.path(), "--help").unwrap());
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  "))
        .filter_map(|line| line.split_whitespace().next().filter(|_| !line.starts_with(' ')))
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.contains(&"run") && commands.len() > 8, "{commands:?}: {help}");
    let own = std::iter::once("--help".to_owned());
    for arguments in own.chain(commands.iter().map(|command| format!("{command} --help"))) {
        let output = kernel_matrix(dir.path(), &arguments).unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{arguments}: {said}");
        assert!(!said.contains(BUILT_IN), "{arguments}: {said}");
    }
}

#[test]
fn a_file_of_the_checkout_that_cannot_be_found_is_named_with_its_option() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        ("list", "lab/matrix.toml: name yours by --matrix"),
        ("run no-such-cell", "lab/matrix.toml: name yours by --matrix"),
        ("resolve", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("build", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("list name=noble*", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("list --json", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("list --lock matrix.lock", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("run driver=535", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("run --locked", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("run --cache-limit 5", "kernel-matrix/rules.toml: name your rules by --rules"),
        ("run --core --locked", "cannot be used with"),
    ] {
        let output = kernel_matrix(dir.path(), arguments).unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(expected), "{arguments}: {said}");
        assert!(!said.contains(BUILT_IN), "{arguments}: {said}");
    }
}
