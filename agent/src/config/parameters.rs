//! Module parameters: one line per module as insmod takes it, merged by parameter name.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::ownership;

/// Upper bound of a parameter file's size.
const MOST_BYTES: u64 = 1 << 20;

/// Files of the GPU operator's ConfigMap (mounted at `/drivers`), with their modules.
const OPERATOR_FILES: [(&str, &str); 4] = [
    ("nvidia.conf", "nvidia"),
    ("nvidia-uvm.conf", "nvidia_uvm"),
    ("nvidia-modeset.conf", "nvidia_modeset"),
    ("nvidia-peermem.conf", "nvidia_peermem"),
];

/// Parameters by the module's kernel name, as on insmod's command line.
pub type Parameters = BTreeMap<String, String>;

/// Splits a parameter line at the blanks outside double quotes, as the kernel's `next_arg` does
/// (lib/cmdline.c).
pub fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        if c == '"' {
            quoted = !quoted;
        }
        match words.last_mut() {
            Some(word) if quoted || !c.is_whitespace() => word.push(c),
            _ => words.push(String::new()),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Returns the part of a parameter before its `=`; the kernel treats `-` and `_` alike.
fn name_of(word: &str) -> String {
    word.split('=').next().unwrap_or("").replace('-', "_")
}

/// Sets the parameters of `above` over those of `below`, by parameter name.
pub fn merge(below: &mut Parameters, above: &Parameters) {
    for (module, line) in above {
        let mut words = below.get(module).map(|line| split(line)).unwrap_or_default();
        for word in split(line) {
            words.retain(|old| name_of(old) != name_of(&word));
            words.push(word);
        }
        below.insert(module.clone(), words.join(" "));
    }
}

/// Reads the GPU operator's parameter files from `dir`, where they exist.
///
/// # Errors
/// Exit code 2 where a file exists and cannot be read, or others than root may write to it.
pub fn read_operator_files(dir: &Path) -> Result<Parameters, Failure> {
    let mut parameters = Parameters::new();
    // The normal case outside of the GPU operator.
    if matches!(fs::symlink_metadata(dir), Err(e) if e.kind() == io::ErrorKind::NotFound) {
        return Ok(parameters);
    }
    for (file, module) in OPERATOR_FILES {
        let path = dir.join(file);
        match ownership::file(&path).and_then(|()| bounded_read::read_text(&path, MOST_BYTES)) {
            Ok(text) => {
                let words = words_of_file(&text);
                if !words.is_empty() {
                    parameters.insert(module.to_owned(), words.join(" "));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                let cause = format!("reading module parameters from {}", path.display());
                let remedy = "mount it as a readable text file, or leave it out";
                return Err(ownership::failure(FailureKind::Usage, cause, e, remedy));
            }
        }
    }
    Ok(parameters)
}

/// Checks that the parameters can be passed to the kernel.
///
/// # Errors
/// Exit code 2 where a line holds a NUL, which ends the line in the kernel.
pub fn check(parameters: &Parameters) -> Result<(), Failure> {
    match parameters.iter().find(|(_, line)| line.contains('\0')) {
        None => Ok(()),
        Some((module, line)) => {
            let cause = format!("the parameters of {module} hold a NUL: {line:?}");
            Err(Failure::new(FailureKind::Usage, cause).remedy("take it out"))
        }
    }
}

fn words_of_file(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.trim_start().starts_with('#')).flat_map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::failure::ExitCode;
    use rstest::rstest;
    use std::os::unix::fs::PermissionsExt;

    #[rstest]
    #[case("", &[])]
    #[case("a=1  b=2", &["a=1", "b=2"])]
    #[case("d=\"x=1; y=2\" e", &["d=\"x=1; y=2\"", "e"])]
    #[case("open=\"never closed", &["open=\"never closed"])]
    fn splits_like_the_kernel(#[case] line: &str, #[case] words: &[&str]) {
        assert_eq!(split(line), words);
    }

    #[test]
    fn a_later_value_replaces_the_earlier_of_the_same_name() {
        let mut below = Parameters::from([("nvidia".into(), "a=1 b=2".into())]);
        let above = Parameters::from([
            ("nvidia".into(), "a=3 c=4".into()),
            ("nvidia_uvm".into(), "d=5".into()),
        ]);
        merge(&mut below, &above);
        assert_eq!(below["nvidia"], "b=2 a=3 c=4");
        assert_eq!(below["nvidia_uvm"], "d=5");
    }

    #[test]
    fn operator_files_are_one_parameter_a_line_and_absent_ones_are_fine() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("nvidia.conf"), "# off\nNVreg_A=0\n\nNVreg_B=\"x y\"\n").unwrap();
        let read = read_operator_files(dir.path()).unwrap();
        assert_eq!(read, Parameters::from([("nvidia".into(), "NVreg_A=0 NVreg_B=\"x y\"".into())]));
        assert!(read_operator_files(&dir.path().join("none")).unwrap().is_empty());
    }

    #[test]
    fn an_operator_file_that_others_may_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nvidia.conf");
        fs::write(&file, "NVreg_A=0\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let failure = read_operator_files(dir.path()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.report().contains("can be written to by others"), "{}", failure.report());
        assert!(failure.remedy_or_default().contains("chmod go-w"));
    }

    #[test]
    fn what_no_kernel_could_be_given_is_refused() {
        let line = |line: &str| Parameters::from([("nvidia".to_owned(), line.to_owned())]);
        check(&line("a=1 b=\"x y\"")).unwrap();
        assert_eq!(check(&line("a=1\0b=2")).unwrap_err().code(), ExitCode::Usage);
    }

    #[test]
    fn an_unreadable_operator_file_is_a_usage_failure() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("nvidia.conf")).unwrap();
        assert_eq!(read_operator_files(dir.path()).unwrap_err().code(), ExitCode::Usage);
    }
}
