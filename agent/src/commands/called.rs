//! Other names that this program is called by, and command lines translated to longshore's own: names
//! and commands of NVIDIA's driver image, for the GPU operator (docs/cluster/gpu-operator.md), and a plugin of
//! kubectl (docs/cluster/fleet.md).

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::peermem::SideCar;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::sanitize::in_line;

/// Name of NVIDIA's entry point.
const NVIDIA_DRIVER: &str = "nvidia-driver";
/// Name of the entry point for OpenShift's Driver Toolkit.
const TOOLKIT: &str = "ocp_dtk_entrypoint";
/// Name of kubectl's plugin `kubectl longshore`: its commands are those of `longshore fleet`.
const PLUGIN: &str = "kubectl-longshore";
/// Name by which kubectl asks for completions of that plugin.
const PLUGIN_COMPLETER: &str = "kubectl_complete-longshore";
/// Flag that a translated `init` begins with: a default, which flags, variables and the file outrank.
const OPERATOR: &str = "--called-as-nvidia-driver";

/// Commands of NVIDIA's entry point, for the refusal of others.
const LIST: &str = "nvidia-driver takes: init, load, build, update [-k KERNEL], \
    reload_nvidia_peermem and probe_nvidia_peermem; with -a (--accept-license), -m (--max-threads \
    N or --kernel-module-type auto|open|proprietary), and longshore's own flags (`longshore settings`)";

/// Command that this process was started for.
#[derive(Debug, PartialEq, Eq)]
pub enum Called {
    /// A command line of longshore's own, with the program's name.
    Longshore(Vec<OsString>),
    /// Command of the side container for nvidia_peermem.
    SideCar(SideCar),
    /// Words of a command line of `kubectl longshore`, of which the last is to be completed.
    Completer(Vec<OsString>),
}

impl Called {
    /// Returns the command of this command line, by the name that the program was called with.
    ///
    /// # Errors
    /// Exit code 2 for an unknown command or option of `nvidia-driver`; 10 for the entry point of
    /// OpenShift's Driver Toolkit, which longshore does not use.
    pub fn by(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Failure> {
        let mut arguments = arguments.into_iter();
        let Some(program) = arguments.next() else { return Ok(Self::Longshore(Vec::new())) };
        let name = Path::new(&program).file_name().unwrap_or_default();
        if name == TOOLKIT {
            return Err(no_toolkit());
        }
        if name == PLUGIN_COMPLETER {
            return Ok(Self::Completer(arguments.collect()));
        }
        if name == PLUGIN {
            let mut arguments = arguments.peekable();
            if arguments.peek().is_some_and(|word| word == "--version" || word == "-V") {
                return Ok(Self::Longshore(vec![program, "--version".into()]));
            }
            let line = [program, "fleet".into()].into_iter().chain(arguments);
            return Ok(Self::Longshore(line.collect()));
        }
        if name != NVIDIA_DRIVER {
            return Ok(Self::Longshore([program].into_iter().chain(arguments).collect()));
        }
        let Some(command) = arguments.next() else { return Err(refused("a command is missing")) };
        translated(program, &command, arguments.collect())
    }
}

fn no_toolkit() -> Failure {
    let cause = "this image has no modules for OpenShift's Driver Toolkit: longshore compiles in a \
                 build root of its own, or takes built modules from a registry";
    Failure::new(FailureKind::HostUnsupported, cause)
        .remedy("set operator.use_ocp_driver_toolkit to false in the ClusterPolicy")
}

fn refused(what: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Usage, format!("nvidia-driver: {what}")).remedy(LIST)
}

fn translated(program: OsString, command: &OsStr, rest: Vec<OsString>) -> Result<Called, Failure> {
    let own = |words: &[&str]| -> Vec<OsString> {
        [program.clone()].into_iter().chain(words.iter().map(OsString::from)).collect()
    };
    let mut line = match command.to_str() {
        Some("reload_nvidia_peermem") => return alone(SideCar::Reload, &rest),
        Some("probe_nvidia_peermem") => return alone(SideCar::Probe, &rest),
        Some("init") => own(&["run"]),
        // Modules of a precompiled image: nothing is compiled.
        Some("load") => own(&["run", "--compile=false"]),
        Some("build" | "update") => own(&["fetch"]),
        Some(page @ ("-h" | "--help" | "-V" | "--version")) => own(&[page]),
        _ => return Err(refused(format!("unknown command {}", shown(command)))),
    };
    if line.get(1).is_some_and(|word| word == "run") {
        line.push(OPERATOR.into());
    }
    options(&mut line, rest)?;
    Ok(Called::Longshore(line))
}

fn alone(command: SideCar, rest: &[OsString]) -> Result<Called, Failure> {
    match rest.first() {
        None => Ok(Called::SideCar(command)),
        Some(word) => Err(refused(format!("{command} takes no argument, and got {}", shown(word)))),
    }
}

/// Appends the options, with NVIDIA's short ones as longshore's flags.
fn options(line: &mut Vec<OsString>, rest: Vec<OsString>) -> Result<(), Failure> {
    let mut rest = rest.into_iter();
    while let Some(word) = rest.next() {
        let (name, value) = split(&word);
        let mut value = || {
            let value = value.clone().or_else(|| rest.next()).filter(|value| !value.is_empty());
            value.ok_or_else(|| refused(format!("{} needs a value", shown(&word))))
        };
        match name.as_str() {
            // The licence of the driver: the operator's chart has it accepted.
            "-a" | "--accept-license" => {}
            "-m" | "--max-threads" | "--kernel-module-type" => {
                line.push(threads_or_type(&value()?))
            }
            "-k" | "--kernel" => line.extend(["--kernel".into(), value()?]),
            // Tag of a precompiled package: longshore finds modules by the kernel.
            "-t" | "--tag" => drop(value()?),
            name if name.starts_with("--") => line.push(word),
            name if !name.starts_with('-') => line.push(word),
            _ => return Err(refused(format!("unknown option {}", shown(&word)))),
        }
    }
    Ok(())
}

/// Returns the flag for `-m`: a number is the number of compile jobs, a word the flavour.
fn threads_or_type(value: &OsStr) -> OsString {
    let is_number = value.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let mut flag = OsString::from(if is_number { "--jobs=" } else { "--flavour=" });
    flag.push(value);
    flag
}

/// Splits NVIDIA's options from a value that is written with them: `-m4`, `--max-threads=4`.
fn split(word: &OsStr) -> (String, Option<OsString>) {
    let text = word.to_string_lossy();
    let ours = ["--accept-license", "--max-threads", "--kernel-module-type", "--kernel", "--tag"];
    if let Some((name, value)) = text.split_once('=')
        && ours.contains(&name)
    {
        return (name.to_owned(), Some(value.into()));
    }
    match text.split_at_checked(2) {
        Some((name @ ("-m" | "-k" | "-t"), value)) if !value.is_empty() => {
            (name.to_owned(), Some(value.into()))
        }
        _ => (text.into_owned(), None),
    }
}

fn shown(word: &OsStr) -> String {
    in_line(&word.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::super::Cli;
    use super::*;
    use longshore_core::failure::ExitCode;

    fn called(line: &str) -> Result<Called, Failure> {
        Called::by(line.split(' ').map(OsString::from))
    }

    #[rstest]
    #[case("longshore run", "longshore run")]
    #[case("/usr/local/bin/longshore status --json", "/usr/local/bin/longshore status --json")]
    #[case("kubectl-longshore status --all", "kubectl-longshore fleet status --all")]
    #[case("kubectl-longshore --version", "kubectl-longshore --version")]
    #[case("/opt/bin/kubectl-longshore plan", "/opt/bin/kubectl-longshore fleet plan")]
    #[case("nvidia-driver init", "nvidia-driver run @")]
    #[case("/usr/local/bin/nvidia-driver init -a", "/usr/local/bin/nvidia-driver run @")]
    #[case("nvidia-driver init --gpu-operator=false", "nvidia-driver run @ --gpu-operator=false")]
    #[case("nvidia-driver init -m 4", "nvidia-driver run @ --jobs=4")]
    #[case("nvidia-driver init -m4", "nvidia-driver run @ --jobs=4")]
    #[case("nvidia-driver init -m open", "nvidia-driver run @ --flavour=open")]
    #[case(
        "nvidia-driver init --accept-license --kernel-module-type=auto",
        "nvidia-driver run @ --flavour=auto"
    )]
    #[case("nvidia-driver init --driver 535", "nvidia-driver run @ --driver 535")]
    #[case("nvidia-driver load -t x", "nvidia-driver run --compile=false @")]
    #[case("nvidia-driver update -k 6.1.0-50-amd64", "nvidia-driver fetch --kernel 6.1.0-50-amd64")]
    fn lines_that_are_translated(#[case] line: &str, #[case] wanted: &str) {
        let wanted = wanted.replace('@', OPERATOR);
        let words: Vec<OsString> = wanted.split(' ').map(OsString::from).collect();
        assert_eq!(called(line).expect("known"), Called::Longshore(words.clone()));
        if !line.ends_with("--version") {
            Cli::try_parse_from(words).expect("longshore takes it");
        }
    }

    #[test]
    fn kubectl_asks_for_completions() {
        let words = vec![OsString::from("status"), OsString::from("--")];
        assert_eq!(
            called("kubectl_complete-longshore status --").ok(),
            Some(Called::Completer(words))
        );
    }

    #[rstest]
    #[case("nvidia-driver reload_nvidia_peermem", SideCar::Reload)]
    #[case("nvidia-driver probe_nvidia_peermem", SideCar::Probe)]
    fn commands_of_the_side_container(#[case] line: &str, #[case] wanted: SideCar) {
        assert_eq!(called(line).expect("known"), Called::SideCar(wanted));
    }

    #[rstest]
    #[case("nvidia-driver", "a command is missing")]
    #[case("nvidia-driver \x1b[2Jx", "unknown command")]
    #[case("nvidia-driver install", "unknown command install")]
    #[case("nvidia-driver init -x", "unknown option -x")]
    #[case("nvidia-driver init -m", "-m needs a value")]
    #[case("nvidia-driver init --max-threads=", "needs a value")]
    #[case("nvidia-driver probe_nvidia_peermem -a", "takes no argument")]
    fn lines_that_are_refused_with_the_list(#[case] line: &str, #[case] wanted: &str) {
        let failure = called(line).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Usage);
        assert!(failure.to_string().contains(wanted), "{failure}");
        assert!(!failure.to_string().contains('\x1b'));
        assert!(failure.remedy_text().is_some_and(|list| list.contains("reload_nvidia_peermem")));
    }

    #[test]
    fn the_driver_toolkits_entry_point_explains_itself() {
        let failure = called("ocp_dtk_entrypoint nv-ctr-run-with-dtk").expect_err("refused");
        assert_eq!(failure.code().number(), 10);
        assert!(failure.remedy_text().is_some_and(|r| r.contains("use_ocp_driver_toolkit")));
    }
}
