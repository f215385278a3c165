//! Link commands and digests of a package's objects, read as text; no script of a package is run.
//!
//! The commands are only bounded, not trusted: the modules count only with the SHA-256 that the package
//! states. So a line whose first word is not the linker is passed over, and a linker's line with anything
//! but the few options and plain paths below refuses the package.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use longshore_core::driver_modules;

/// Maximum size of a script; Canonical's lines name some 60 files each.
pub(super) const MOST_SCRIPT: usize = 1 << 20;
/// Maximum length of a link command, and number of them: a driver has five modules, of two commands each.
const MOST_LINE: usize = 64 << 10;
const MOST_COMMANDS: usize = 64;
/// Maximum number of lines with digests.
const MOST_SUMS: usize = 1000;
/// Options without a value, or joined with one.
const OPTIONS: [&str; 3] = ["-r", "-d", "--build-id"];
/// Beginnings of options with a value of letters and digits (`--build-id=sha1`), or of nothing else.
const BEGINNINGS: [&str; 3] = ["--build-id=", "--package-metadata=", "--no-warn-"];
/// Machines, after `-m`.
const EMULATIONS: [&str; 2] = ["elf_x86_64", "aarch64linux"];
/// Keywords, after `-z`.
const KEYWORDS: [&str; 2] = ["noexecstack", "norelro"];
/// Names of the linker, also after a path or a machine (`/usr/bin/ld.bfd`, `x86_64-linux-gnu-ld`), and variables
/// for it.
const LINKERS: [&str; 2] = ["ld", "ld.bfd"];
const VARIABLES: [&str; 4] = ["$LD", "${LD}", "$ld", "${ld}"];

/// One run of the linker, in the directory of the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCommand {
    /// Arguments, without the program.
    pub arguments: Vec<String>,
    /// Path that it writes: below the objects' directory, or a module in the directory above (`../nvidia.ko`).
    pub output: String,
}

/// Reads the link commands of a script, in their order.
///
/// # Errors
/// The reason why the script is not used.
pub fn commands(script: &[u8]) -> Result<Vec<LinkCommand>, String> {
    if script.len() > MOST_SCRIPT {
        return Err(format!("its link script has more than {} MiB", MOST_SCRIPT >> 20));
    }
    let script = std::str::from_utf8(script).map_err(|_| "its link script is no text")?;
    let mut found = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let mut words = line.split_ascii_whitespace();
        if !words.next().is_some_and(is_linker) {
            continue;
        }
        if line.len() > MOST_LINE {
            return Err(format!("a link command has more than {} KiB", MOST_LINE >> 10));
        }
        if found.len() == MOST_COMMANDS {
            return Err(format!("it has more than {MOST_COMMANDS} link commands"));
        }
        found.push(command(words)?);
    }
    if found.is_empty() {
        return Err("it has no link command".to_owned());
    }
    Ok(found)
}

fn is_linker(word: &str) -> bool {
    let word = word.trim_matches('"');
    let name = word.rsplit('/').next().unwrap_or_default();
    let of_machine = |linker: &str| name.strip_suffix(linker).is_some_and(|m| m.ends_with('-'));
    VARIABLES.contains(&word)
        || LINKERS.contains(&name)
        || LINKERS.iter().any(|linker| of_machine(linker))
}

fn command<'a>(words: impl Iterator<Item = &'a str>) -> Result<LinkCommand, String> {
    let mut words = words.peekable();
    let (mut arguments, mut inputs, mut output) = (Vec::new(), BTreeSet::new(), None);
    while let Some(word) = words.next() {
        check_plain(word)?;
        arguments.push(word.to_owned());
        let takes_value = ["-m", "-z", "-T", "-o"].contains(&word);
        if takes_value {
            let value = words.next().ok_or_else(|| format!("{word} without a value"))?;
            check_plain(value)?;
            check_value(word, value)?;
            arguments.push(value.to_owned());
            if word == "-o" && output.replace(value.to_owned()).is_some() {
                return Err("a link command with two outputs".to_owned());
            }
        } else if word.starts_with('-') {
            check_option(word)?;
        } else {
            check_inside(word)?;
            if !inputs.insert(word) {
                return Err(format!("a link command that names {word} twice"));
            }
        }
    }
    if !arguments.iter().any(|word| word == "-r") {
        return Err("a link command without -r".to_owned());
    }
    if inputs.is_empty() {
        return Err("a link command without a file".to_owned());
    }
    let output = output.ok_or("a link command without -o")?;
    Ok(LinkCommand { arguments, output })
}

/// Refuses shell syntax, response files, and everything else that is not a plain word.
fn check_plain(word: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.,:+=%/-".contains(c);
    match word.chars().all(plain) {
        true => Ok(()),
        false => Err(format!("a link command with {}", shown(word))),
    }
}

fn check_value(option: &str, value: &str) -> Result<(), String> {
    let is_known = match option {
        "-m" => EMULATIONS.contains(&value),
        "-z" => KEYWORDS.contains(&value),
        "-T" => return check_inside(value),
        _ => return check_output(value),
    };
    if is_known { Ok(()) } else { Err(format!("a link command with {option} {}", shown(value))) }
}

fn check_option(word: &str) -> Result<(), String> {
    let plain = |value: &str| !value.contains('/');
    let mut values = BEGINNINGS.iter().filter_map(|beginning| word.strip_prefix(beginning));
    let is_known = OPTIONS.contains(&word) || values.any(plain);
    if is_known { Ok(()) } else { Err(format!("a link command with {}", shown(word))) }
}

/// Checks that a path leads to a place below the objects' directory.
fn check_inside(path: &str) -> Result<(), String> {
    let parts = || Path::new(path).components();
    let inside = parts().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let named = parts().any(|part| matches!(part, Component::Normal(_)));
    match inside && named && !path.starts_with('-') {
        true => Ok(()),
        false => Err(format!("a link command with {}, outside of its directory", shown(path))),
    }
}

/// Checks that an output is an object below the objects' directory, or a module of the driver there or
/// in the directory above.
fn check_output(path: &str) -> Result<(), String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let below = path.strip_prefix("../").filter(|rest| *rest == name).unwrap_or(path);
    check_inside(below)?;
    match is_module(name) || (name.ends_with(".o") && below == path) {
        true => Ok(()),
        false => Err(format!("a link command that writes {}", shown(path))),
    }
}

/// True for the file name of a module of the driver.
pub fn is_module(name: &str) -> bool {
    name.strip_suffix(".ko").is_some_and(|stem| driver_modules::is_one(&stem.replace('-', "_")))
}

/// Reads the digests of the modules: SHA-256 (hex) by file name, as `sha256sum` writes them. Lines about other
/// files are passed over.
///
/// # Errors
/// The reason why the digests are not used.
pub fn digests(sums: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let sums = std::str::from_utf8(sums).map_err(|_| "its SHA256SUMS is no text")?;
    let mut found = BTreeMap::new();
    let lines = sums.lines().filter(|line| !line.trim().is_empty());
    for (number, line) in lines.enumerate() {
        let bad = || format!("its SHA256SUMS has the line {}", shown(line));
        if number == MOST_SUMS {
            return Err(format!("its SHA256SUMS has more than {MOST_SUMS} lines"));
        }
        let (digest, name) = line.split_once(' ').ok_or_else(bad)?;
        if digest.len() != 64 || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let name = name.trim_start_matches([' ', '*']);
        let name = name.rsplit('/').next().unwrap_or_default();
        if is_module(name) && found.insert(name.to_owned(), digest.to_ascii_lowercase()).is_some() {
            return Err(format!("its SHA256SUMS has {name} twice"));
        }
    }
    Ok(found)
}

/// Returns a word for a message: cut, and without control characters.
fn shown(word: &str) -> String {
    let cut: String = word.chars().take(80).collect();
    format!("{cut:?}")
}

#[cfg(test)]
mod tests;
