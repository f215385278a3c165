//! The command line of a service, with its environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::environment;
use super::lines::{self, Assignment};
use super::words::{self, Variables};
use crate::files::Files;

/// Directories of units, the first ones before the later ones (systemd.unit(5), table 1).
const DIRECTORIES: [&str; 12] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
    "/etc/systemd/system.attached",
];
/// Number of drop-ins above which a unit is not read, and of files of variables.
const MOST: usize = 256;

/// A place in a unit file.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}, line {line}", file.display())]
pub struct Setting {
    /// File.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
}

/// A service, as its files have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name of the unit, with `.service`.
    pub unit: String,
    /// Place of the effective `ExecStart=`.
    pub at: Setting,
    /// Words of the command line, variables put in. The first is the program's path.
    pub argv: Vec<String>,
    /// Variables that the unit sets.
    pub variables: BTreeMap<String, String>,
}

/// True if a directory has this unit, and it is not masked; also where it has drop-ins alone, because the
/// unit itself may be in a directory that is not visible here.
pub fn exists(files: &dyn Files, unit: &str) -> bool {
    match first(files, unit) {
        Some((_, text)) => !text.trim().is_empty(),
        None => DIRECTORIES.iter().any(|dir| {
            let names = files.names(&Path::new(dir).join(format!("{unit}.d")));
            names.is_ok_and(|names| names.iter().any(|name| name.ends_with(".conf")))
        }),
    }
}

/// Returns the first file of this name. An unreadable or empty one (a link to /dev/null masks a unit) hides
/// those of later directories.
fn first(files: &dyn Files, name: &str) -> Option<(PathBuf, String)> {
    DIRECTORIES.iter().find_map(|dir| {
        let path = Path::new(dir).join(name);
        match files.read(&path) {
            Ok(None) => None,
            Ok(Some(bytes)) => Some((path, String::from_utf8_lossy(&bytes).into_owned())),
            Err(_) => Some((path, String::new())),
        }
    })
}

impl Service {
    /// Reads a service; None where no directory has it, or it is masked or has no command.
    ///
    /// # Errors
    /// The reason why systemd does not start it, or it is not read here.
    pub fn read(files: &dyn Files, unit: &str) -> Result<Option<Self>, String> {
        if !exists(files, unit) {
            return Ok(None);
        }
        let mut made = Made { unit, ..Made::default() };
        if let Some((path, text)) = first(files, unit) {
            made.add(&path, &text);
        }
        for (path, text) in drop_ins(files, unit)? {
            made.add(&path, &text);
        }
        made.finish(files)
    }
}

/// Returns the drop-ins in the order in which they apply. One that is masked or unreadable has no text.
fn drop_ins(files: &dyn Files, unit: &str) -> Result<Vec<(PathBuf, String)>, String> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in folders(unit) {
        for dir in DIRECTORIES {
            let dir = Path::new(dir).join(&folder);
            let names = files.names(&dir).map_err(|e| format!("reading {}: {e}", dir.display()))?;
            for name in names.into_iter().filter(|name| name.ends_with(".conf")) {
                let path = dir.join(&name);
                found.entry(name).or_insert(path);
            }
            if found.len() > MOST {
                return Err(format!("{unit} has more than {MOST} drop-ins"));
            }
        }
    }
    let text = |path: &Path| match files.read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned(),
        Err(_) => String::new(),
    };
    Ok(found.into_values().map(|path| (path.clone(), text(&path))).collect())
}

/// Returns the names of the directories of a unit's drop-ins, the most specific first: `a-b.service.d`,
/// `a-.service.d`, `service.d`.
fn folders(unit: &str) -> Vec<String> {
    let (name, kind) = unit.rsplit_once('.').unwrap_or((unit, "service"));
    let prefixes = name.rmatch_indices('-').map(|(at, _)| format!("{}.{kind}.d", &name[..=at]));
    let own = std::iter::once(format!("{unit}.d"));
    own.chain(prefixes).chain([format!("{kind}.d")]).collect()
}

/// Settings of a unit while its files are read.
#[derive(Debug, Default)]
struct Made<'a> {
    unit: &'a str,
    commands: Vec<(Setting, String)>,
    is_oneshot: bool,
    environment: Vec<String>,
    files: Vec<String>,
    unset: Vec<String>,
}

impl Made<'_> {
    fn add(&mut self, path: &Path, text: &str) {
        for Assignment { section, key, value, line } in lines::parse(text) {
            if section != "Service" {
                continue;
            }
            let list = match key.as_str() {
                "ExecStart" if value.is_empty() => {
                    self.commands.clear();
                    continue;
                }
                // systemd leaves it out, with a line in its log.
                "ExecStart" if names_no_program(&value) && value.contains('-') => continue,
                "ExecStart" => {
                    self.commands.push((Setting { file: path.to_path_buf(), line }, value));
                    continue;
                }
                "Type" => {
                    self.is_oneshot = value == "oneshot";
                    continue;
                }
                "Environment" => &mut self.environment,
                "EnvironmentFile" => &mut self.files,
                "UnsetEnvironment" => &mut self.unset,
                _ => continue,
            };
            match value.is_empty() {
                true => list.clear(),
                false => list.push(value),
            }
        }
    }

    fn finish(self, files: &dyn Files) -> Result<Option<Service>, String> {
        let unit = self.unit;
        let Some((at, command)) = self.commands.last() else { return Ok(None) };
        if let (false, [(first, _), (second, _), ..]) = (self.is_oneshot, self.commands.as_slice())
        {
            return Err(format!(
                "systemd refuses {unit}: it has more than one ExecStart= ({first}; {second}); a drop-in that \
                 replaces it begins with an empty `ExecStart=`"
            ));
        }
        let variables = self.variables(files)?;
        let unread = || format!("the command line of {unit} ({at}) cannot be read");
        let (command, expands) = without_prefixes(command);
        let mut words = words::split(&command.rest).ok_or_else(unread)?;
        if let Some(end) = words.iter().position(|word| word == ";") {
            words.truncate(end);
        }
        if command.has_name && words.len() > 1 {
            // The program's path, then its name as it is told to it.
            words.remove(1);
        }
        let words = words.into_iter().map(|word| match word.as_str() {
            "\\;" => ";".to_owned(),
            word => words::specified(word, unit),
        });
        let argv = match expands {
            true => words::expanded(words.collect(), &variables).ok_or_else(unread)?,
            false => words.collect(),
        };
        // Of prefixes alone, or of an empty word or variable.
        if argv.first().is_none_or(String::is_empty) {
            return Err(format!("systemd refuses {unit}: its command ({at}) names no program"));
        }
        Ok(Some(Service { unit: unit.to_owned(), at: at.clone(), argv, variables }))
    }

    fn variables(&self, files: &dyn Files) -> Result<Variables, String> {
        let mut found = Variables::new();
        for line in &self.environment {
            for word in words::split(line).unwrap_or_default() {
                if let Some((name, value)) = words::specified(&word, self.unit).split_once('=') {
                    found.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        if self.files.len() > MOST {
            return Err(format!("{} has more than {MOST} EnvironmentFile=", self.unit));
        }
        for path in &self.files {
            let path = words::specified(path.trim_matches('"'), self.unit);
            let (path, may_lack) = match path.strip_prefix('-') {
                Some(path) => (path.to_owned(), true),
                None => (path, false),
            };
            match files.read(Path::new(&path)) {
                Ok(Some(bytes)) => {
                    found.extend(environment::parse(&String::from_utf8_lossy(&bytes)));
                }
                _ if may_lack => {}
                Ok(None) => {
                    return Err(format!(
                        "systemd does not start {}: its EnvironmentFile={path} is absent",
                        self.unit
                    ));
                }
                Err(error) => {
                    return Err(format!("reading {path}, which {} names: {error}", self.unit));
                }
            }
        }
        for name in self.unset.iter().flat_map(|line| line.split_ascii_whitespace()) {
            found.remove(name);
        }
        Ok(found)
    }
}

/// Command without its prefixes.
struct Command {
    rest: String,
    /// `@`: the second word is the program's name, not an argument.
    has_name: bool,
}

/// True for a command of prefixes alone.
fn names_no_program(command: &str) -> bool {
    without_prefixes(command).0.rest.trim().is_empty()
}

/// Takes the prefixes off (systemd.service(5)); also returns true where variables are put in.
fn without_prefixes(command: &str) -> (Command, bool) {
    let rest = command.trim_start_matches(['@', '-', ':', '+', '!', '|']);
    let prefixes = &command[..command.len() - rest.len()];
    let made = Command { rest: rest.to_owned(), has_name: prefixes.contains('@') };
    (made, !prefixes.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::memory::Memory;
    use rstest::rstest;

    const UNIT: &str = "/usr/lib/systemd/system/docker.service";
    const BASE: &str = "[Unit]\nDescription=x\n[Service]\nExecStart=/usr/bin/dockerd -H fd://\n";

    fn argv(files: &[(&str, &str)]) -> String {
        match Service::read(&Memory::new(files), "docker.service") {
            Ok(Some(service)) => format!("{} ({})", service.argv.join("|"), service.at),
            Ok(None) => "none".to_owned(),
            Err(why) => why,
        }
    }

    #[rstest]
    #[case::plain(&[(UNIT, BASE)], "/usr/bin/dockerd|-H|fd:// (/usr/lib/systemd/system/docker.service, line 4)")]
    #[case::none(&[], "none")]
    #[case::masked(&[(UNIT, BASE), ("/etc/systemd/system/docker.service", "")], "none")]
    #[case::a_prefix_alone(&[(UNIT, "[Service]\nExecStart=@\n")], "systemd refuses docker.service: its command (/usr/lib/systemd/system/docker.service, line 2) names no program")]
    #[case::a_prefix_that_ignores_failures(&[(UNIT, "[Service]\nExecStart=-\n")], "none")]
    #[case::such_a_prefix_before_the_command(&[(UNIT, "[Service]\nExecStart=-\nExecStart=/bin/true\n")], "/bin/true (/usr/lib/systemd/system/docker.service, line 3)")]
    #[case::an_empty_word(&[(UNIT, "[Service]\nExecStart=\"\"\n")], "systemd refuses docker.service: its command (/usr/lib/systemd/system/docker.service, line 2) names no program")]
    #[case::an_earlier_directory(
        &[(UNIT, BASE), ("/run/systemd/system/docker.service", "[Service]\nExecStart=/opt/dockerd\n")],
        "/opt/dockerd (/run/systemd/system/docker.service, line 2)"
    )]
    #[case::a_drop_in(
        &[(UNIT, BASE), ("/etc/systemd/system/docker.service.d/override.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/dockerd \\\n  # of the site\n  --debug\n")],
        "/usr/bin/dockerd|--debug (/etc/systemd/system/docker.service.d/override.conf, line 3)"
    )]
    #[case::the_name_decides(
        &[
            (UNIT, BASE),
            ("/etc/systemd/system/docker.service.d/10.conf", "[Service]\nExecStart=\nExecStart=/a\n"),
            ("/usr/lib/systemd/system/docker.service.d/20.conf", "[Service]\nExecStart=\nExecStart=/b\n"),
            ("/usr/lib/systemd/system/docker.service.d/10.conf", "[Service]\nExecStart=/c\n"),
        ],
        "/b (/usr/lib/systemd/system/docker.service.d/20.conf, line 3)"
    )]
    #[case::a_masked_drop_in(
        &[
            (UNIT, BASE),
            ("/etc/systemd/system/docker.service.d/10.conf", ""),
            ("/usr/lib/systemd/system/docker.service.d/10.conf", "[Service]\nExecStart=/c\n"),
        ],
        "/usr/bin/dockerd|-H|fd:// (/usr/lib/systemd/system/docker.service, line 4)"
    )]
    #[case::of_all_services(
        &[(UNIT, BASE), ("/etc/systemd/system/service.d/x.conf", "[Service]\nEnvironment=A=1\nExecStart=\nExecStart=/a ${A}\n")],
        "/a|1 (/etc/systemd/system/service.d/x.conf, line 4)"
    )]
    #[case::a_drop_in_alone(
        &[("/etc/systemd/system/docker.service.d/x.conf", "[Service]\nExecStart=\nExecStart=/a\n")],
        "/a (/etc/systemd/system/docker.service.d/x.conf, line 3)"
    )]
    #[case::one_of_all_services_alone(
        &[("/etc/systemd/system/service.d/x.conf", "[Service]\nExecStart=/a\n")],
        "none"
    )]
    #[case::two_commands(
        &[(UNIT, BASE), ("/etc/systemd/system/docker.service.d/x.conf", "[Service]\nExecStart=/a\n")],
        "systemd refuses docker.service: it has more than one ExecStart= (/usr/lib/systemd/system/docker.service, line 4; /etc/systemd/system/docker.service.d/x.conf, line 2); a drop-in that replaces it begins with an empty `ExecStart=`"
    )]
    #[case::variables(
        &[
            (UNIT, "[Service]\nEnvironment=\"OPTS=--a 'b c'\" X=%%y\nEnvironmentFile=-/etc/none\nEnvironmentFile=/etc/default/docker\nExecStart=-/usr/bin/dockerd $OPTS $NONE x${X} $$X ; /bin/other\n"),
            ("/etc/default/docker", "X=z # no comment\n"),
        ],
        "/usr/bin/dockerd|--a|b c|xz # no comment|$X (/usr/lib/systemd/system/docker.service, line 5)"
    )]
    #[case::without_variables(&[(UNIT, "[Service]\nExecStart=:/a $X\n")], "/a|$X (/usr/lib/systemd/system/docker.service, line 2)")]
    #[case::a_name(&[(UNIT, "[Service]\nExecStart=@/a b c\n")], "/a|c (/usr/lib/systemd/system/docker.service, line 2)")]
    #[case::an_absent_file(
        &[(UNIT, "[Service]\nEnvironmentFile=/etc/none\nExecStart=/a\n")],
        "systemd does not start docker.service: its EnvironmentFile=/etc/none is absent"
    )]
    #[case::no_command(&[(UNIT, "[Service]\nExecStart=/a \"b\n")], "the command line of docker.service (/usr/lib/systemd/system/docker.service, line 2) cannot be read")]
    fn command_lines(#[case] files: &[(&str, &str)], #[case] wanted: &str) {
        assert_eq!(argv(files), wanted);
    }

    #[test]
    fn the_drop_ins_of_a_prefix_count() {
        assert_eq!(
            folders("k3s-agent.service"),
            ["k3s-agent.service.d", "k3s-.service.d", "service.d"]
        );
    }

    #[test]
    fn more_drop_ins_than_anybody_has_are_refused() {
        let many: Vec<_> = (0..=MOST)
            .map(|n| (format!("/etc/systemd/system/docker.service.d/{n}.conf"), "[Service]\n"))
            .collect();
        let mut files: Vec<(&str, &str)> =
            many.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        files.push((UNIT, BASE));
        assert_eq!(argv(&files), "docker.service has more than 256 drop-ins");
    }
}
