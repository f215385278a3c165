//! Lines of a compile's output: errors, make's reports, progress, and the rest.

/// Directory of the driver's sources in the sandbox.
pub(super) const BUILD_DIR: &str = "/build/driver/";

/// Kinds of programs that a build calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// One of the kernel's headers: fixdep, modpost, objtool.
    OfHeaders,
    /// Compiler, assembler or linker.
    Compiler,
    /// Another one.
    Other,
}

/// Endings of a message that a program could not be started.
const NOT_STARTED: [&str; 8] = [
    ": not found",
    ": command not found",
    ": Command not found",
    ": Exec format error",
    ": Permission denied",
    ": No such file or directory",
    ": cannot execute: required file not found",
    ": cannot execute binary file: Exec format error",
];

/// Texts of the dynamic linker about a program that it could not start.
const NOT_LINKED: [&str; 2] =
    ["error while loading shared libraries:", "' not found (required by "];

/// Returns the program that could not be started, where a line says so.
pub(super) fn failed_program(line: &str) -> Option<(Program, String)> {
    let path = not_started(line)?;
    let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
    let kind = match () {
        () if is_of_headers(path) => Program::OfHeaders,
        () if is_compiler(name) => Program::Compiler,
        () => Program::Other,
    };
    Some((kind, name.to_owned()))
}

fn not_started(line: &str) -> Option<&str> {
    if NOT_LINKED.iter().any(|text| line.contains(text)) {
        return line.split(": ").next();
    }
    // gcc of its own parts: `gcc-12: fatal error: cannot execute 'cc1': execvp: No such file or directory`.
    if let Some((_, rest)) = line.split_once("cannot execute '") {
        return rest.split('\'').next();
    }
    let before = NOT_STARTED.iter().find_map(|ending| line.strip_suffix(ending))?;
    let (by, path) = before.rsplit_once(": ")?;
    (is_shells(by) || is_makes(by) || by.contains("execvp")).then_some(path)
}

/// True for the words before the colon of a shell's message: `/bin/sh: 1`, `/bin/bash: line 1`, `sh`.
fn is_shells(by: &str) -> bool {
    let shell = by.split(": ").next().unwrap_or_default();
    matches!(shell.rsplit('/').next(), Some("sh" | "bash" | "dash" | "env"))
}

/// True for a program below the kernel's headers: their tools have no place elsewhere.
pub(super) fn is_of_headers(path: &str) -> bool {
    ["scripts/", "tools/", "arch/", "include/"].iter().any(|dir| {
        path.strip_prefix("./").unwrap_or(path).starts_with(dir)
            || path.contains(&format!("/{dir}"))
    })
}

fn is_compiler(name: &str) -> bool {
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let last = plain.rsplit('-').next().unwrap_or(plain);
    ["cc", "gcc", "g++", "clang", "cc1", "as", "ld", "lld", "collect2", "cpp"].contains(&last)
        || plain.starts_with("ld.")
}

/// True for a line of make itself: `make[2]: Entering directory ...`.
pub(super) fn is_makes(line: &str) -> bool {
    line.strip_prefix("make").is_some_and(|rest| rest.starts_with([':', '[']) || rest.is_empty())
}

/// True for make's report of a command that failed: `make[3]: *** [Makefile:229: nvidia/nv.o] Error 1`.
pub(super) fn is_failed_target(line: &str) -> bool {
    is_makes(line) && line.contains("*** [")
}

/// Returns the target that make has no rule for.
pub(super) fn without_rule(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("*** No rule to make target ")?;
    rest.trim_start_matches(['\'', '`']).split(['\'', ',']).next()
}

/// `FILE:LINE[:COLUMN]: [fatal ]error: MESSAGE`.
pub(super) fn compiler_error(line: &str) -> Option<&str> {
    let (place, message) =
        line.split_once(": error: ").or_else(|| line.split_once(": fatal error: "))?;
    place.rsplit(':').next()?.parse::<u32>().ok()?;
    Some(message)
}

/// `gcc-12: fatal error: MESSAGE`: an error of a program about no line of a file.
fn is_programs_error(line: &str) -> bool {
    let place = line.split_once(": error: ").or_else(|| line.split_once(": fatal error: "));
    place.is_some_and(|(program, _)| !program.contains([' ', ':']) && program != "note")
}

/// True for a message of a linker that is no warning.
pub(super) fn is_linkers(line: &str) -> bool {
    let Some((program, message)) = line.split_once(": ") else { return false };
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_linker = name == "ld" || name.ends_with("-ld") || name.starts_with("ld.");
    is_linker
        && !program.contains(' ')
        && !message.starts_with("warning")
        && !message.contains(": warning: ")
}

/// True for an error of modpost. Before 5.8 it named itself in none, and in some of them later, too.
pub(super) fn is_modposts(line: &str) -> bool {
    line.starts_with("ERROR: modpost:")
        || line.starts_with("FATAL: modpost:")
        || (line.starts_with("ERROR: \"") && line.contains("] undefined!"))
        || line.starts_with("FATAL: module ")
        || line.starts_with("ERROR: module ")
}

/// True for an error of a tool that reads finished objects: objtool, pahole's encoder of BTF, objcopy.
pub(super) fn is_of_object_tool(line: &str) -> bool {
    let of_objtool = line.contains("objtool: error") || line.contains("error: objtool:");
    let of_btf = line.starts_with("Failed to encode BTF")
        || line.starts_with("FAILED: load BTF")
        || (line.contains("failed to add .BTF section"));
    of_objtool || of_btf || line.contains("file format not recognized")
}

/// Texts of conftest.sh with which it ends: for a compiler that does not work, and before 515 for one that is not
/// the kernel's. Later drivers warn of the latter ("Failed CC version check. ***"), and go on.
const CONFTEST: [&str; 4] = [
    "does not appear to be able to",
    "check. Bailing out!",
    "PREEMPT_RT kernel!",
    "The Module.symvers file is missing",
];

/// True for the line that caused the failure: an error of the compiler, of modpost, the linker, or a program that
/// did not run. make's own lines that follow are only its consequence.
pub(super) fn is_error(line: &str) -> bool {
    compiler_error(line).is_some()
        || is_programs_error(line)
        || line.contains("internal compiler error: ")
        || is_modposts(line)
        || is_linkers(line)
        || line.contains("undefined reference to")
        || is_of_object_tool(line)
        || CONFTEST.iter().any(|text| line.contains(text))
        || failed_program(line).is_some()
        || (line.contains("*** ") && line.trim_end().ends_with("Stop."))
        || line.contains("incompatible gcc/plugin versions")
        || (line.contains("error: unrecognized command") && line.contains("line option"))
}

/// True for a line that says nothing about a failure: make's own, progress, context of a message, a warning.
pub(super) fn is_beside(line: &str) -> bool {
    const CONTEXT: [&str; 8] = [
        "compilation terminated.",
        ": warnings being treated as errors",
        " warnings being treated as errors",
        "In file included from ",
        "Please submit a full bug report",
        "See <file:",
        " generated.",
        "Failed CC version check. ***",
    ];
    const REMARKS: [&str; 5] =
        [": note: ", "warning: ", "Warning: ", ": In function ", ": At top level:"];
    // Progress of kbuild, and the compiler's quotes of sources, begin with blanks; `set -x` with `+ `.
    line.trim().is_empty()
        || line.starts_with([' ', '\t', '+'])
        || is_makes(line)
        || line.starts_with("/usr/bin/make ")
        || line.starts_with("WARNING: ")
        || CONTEXT.iter().chain(&REMARKS).any(|text| line.contains(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/bin/sh: 1: scripts/basic/fixdep: Exec format error", Program::OfHeaders, "fixdep")]
    #[case("/bin/sh: 1: ./tools/objtool/objtool: not found", Program::OfHeaders, "objtool")]
    #[case(
        "/bin/bash: line 1: scripts/mod/modpost: Permission denied",
        Program::OfHeaders,
        "modpost"
    )]
    #[case(
        "scripts/basic/fixdep: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by scripts/basic/fixdep)",
        Program::OfHeaders,
        "fixdep"
    )]
    #[case(
        "./tools/objtool/objtool: error while loading shared libraries: libelf.so.1: cannot open shared object file: No such file or directory",
        Program::OfHeaders,
        "objtool"
    )]
    #[case("make[2]: cc: No such file or directory", Program::Compiler, "cc")]
    #[case("make[1]: gcc-12: Command not found", Program::Compiler, "gcc-12")]
    #[case(
        "/bin/sh: 1: x86_64-linux-gnu-gcc-13: not found",
        Program::Compiler,
        "x86_64-linux-gnu-gcc-13"
    )]
    #[case(
        "gcc-12: fatal error: cannot execute 'cc1': execvp: No such file or directory",
        Program::Compiler,
        "cc1"
    )]
    #[case("/bin/sh: 1: awk: not found", Program::Other, "awk")]
    #[case("sh: line 1: bc: command not found", Program::Other, "bc")]
    fn programs_that_do_not_start(#[case] line: &str, #[case] kind: Program, #[case] name: &str) {
        assert_eq!(failed_program(line), Some((kind, name.to_owned())));
    }

    #[rstest]
    #[case("a.c:3:10: fatal error: linux/x.h: No such file or directory")]
    #[case("ld: cannot find ./nvidia/nv-kernel.o: No such file or directory")]
    #[case("cat: x: No such file or directory")]
    #[case("'abc' not found")]
    fn other_lines_name_no_program(#[case] line: &str) {
        assert_eq!(failed_program(line), None);
    }

    #[rstest]
    #[case("note: error: in a message", false)]
    #[case("a.c:12: error: x", true)]
    #[case("a.c:12:3: warning: no error: x", false)]
    #[case(" CONFTEST: is_error", false)]
    #[case("cc1: all warnings being treated as errors", false)]
    #[case("*** Failed CC version check. ***", false)]
    #[case("Warning: Compiler version check failed:", false)]
    #[case("*** Failed CC version check. Bailing out! ***", true)]
    #[case(
        "ld: warning: nvidia.o: missing .note.GNU-stack section implies executable stack",
        false
    )]
    #[case("nvidia.o: warning: objtool: f()+0x1: call to g() leaves .noinstr.text section", false)]
    #[case("Makefile:970: *** \"Cannot generate ORC metadata\".  Stop.", true)]
    fn only_real_errors_count(#[case] line: &str, #[case] wanted: bool) {
        assert_eq!(is_error(line), wanted);
    }

    #[rstest]
    #[case("  CC [M]  nvidia/nv-pci.o", true)]
    #[case("make[3]: *** [x] Error 1", true)]
    #[case("nvidia/nv.c:3:1: warning: unused [-Wunused]", true)]
    #[case("something odd", false)]
    #[case("ERROR: x", false)]
    fn lines_beside_a_failure(#[case] line: &str, #[case] wanted: bool) {
        assert_eq!(is_beside(line), wanted);
    }
}
