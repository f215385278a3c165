//! Classes of compile failures.

use std::fmt;

use super::lines::{self, Program};
use longshore_core::failure::CompileClass;
use longshore_core::flavour::Flavour;

/// Kinds of failures of a compile; each has its own remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// The store's disk is full.
    Space,
    /// The compiler was killed for want of memory, or did not get any.
    Memory,
    /// No further process could be started.
    Processes,
    /// It wrote more than any driver's compile.
    Outgrown,
    /// The time limit passed.
    Slow,
    /// The driver uses an interface that this kernel lacks: a function, a type, a member.
    Gone(Option<String>),
    /// The driver uses an interface in a form that this kernel does not have.
    Changed(Option<String>),
    /// A header is missing.
    Header(String),
    /// The kernel's headers are incomplete or damaged.
    Headers,
    /// A program of the kernel's headers does not run here.
    Tools(String),
    /// A file of the driver's sources is missing.
    Sources,
    /// The compiler does not fit these headers, or does not work at all.
    Compiler,
    /// The compiler crashed.
    Crash,
    /// A program that the build calls is missing.
    Program(String),
    /// The kernel exports a symbol to GPL modules only.
    GplOnly,
    /// The driver refuses realtime kernels.
    Realtime,
    /// A tool of the kernel's build refuses an object: objtool, modpost, or the encoder of BTF.
    Object,
    /// The compiler rejects a line of the sources, by an error that no other class has.
    Rejected,
    /// Something else.
    Unknown,
}

const GPL_ONLY: &str = "GPL-only symbol";

const COMPILER: [&str; 15] = [
    "unrecognized command-line option",
    "unrecognized command line option",
    "unrecognized argument",
    "unknown argument",
    "unsupported option",
    "unsupported argument",
    "unrecognized debug output level",
    "is not supported in this configuration",
    "is not supported for this target",
    "incompatible gcc/plugin versions",
    "cannot load plugin",
    "does not appear to be able to",
    "CC version check. Bailing out!",
    "CC sanity check. Bailing out!",
    "error trying to exec",
];

/// Texts of a compiler's own crash.
const CRASH: [&str; 5] = [
    "internal compiler error",
    "Segmentation fault signal terminated program",
    "frontend command failed",
    "error: unable to execute command: Segmentation fault",
    "LLVM ERROR:",
];

/// Texts about kernel headers that are incomplete, or not those of one kernel.
const HEADERS: [&str; 8] = [
    "exported twice. Previous export was in vmlinux",
    "Module.symvers file is missing",
    "Module.symvers: No such file",
    "include/config/auto.conf",
    "Kernel configuration is invalid",
    "please install libelf-dev",
    "you need the kernel sources",
    "unable to determine the target kernel version",
];

/// Errors about something that is not declared: of gcc, of clang, of the linkers.
const GONE: [&str; 21] = [
    "implicit declaration of function",
    "call to undeclared function",
    "use of undeclared identifier",
    "unknown type name",
    "has no member named",
    "no member named",
    "unknown field",
    "does not refer to any field",
    "undeclared",
    "storage size of",
    // Of a structure that is declared and has no definition.
    "incomplete type",
    "incomplete element type",
    "incomplete typedef",
    "incomplete definition of type",
    "invalid use of undefined type",
    "never completed",
    "declared inside parameter list",
    // A macro that is gone: its call is read as a declaration.
    "data definition has no type or storage class",
    "type defaults to 'int' in declaration of",
    "undefined reference to",
    "undefined symbol: ",
];

/// gcc's errors whose quoted name is the driver's own variable.
const OWN_NAME: [&str; 3] =
    ["has initializer but incomplete type", "has incomplete type", "storage size of"];

/// Errors about something that is declared differently: of gcc and of clang.
const CHANGED: [&str; 40] = [
    "too few arguments to function",
    "too many arguments to function",
    "incompatible pointer type",
    "incompatible function pointer type",
    "incompatible-pointer-types",
    "incompatible type for argument",
    "incompatible types when",
    "incompatible integer to pointer",
    "incompatible pointer to integer",
    "incompatible result type",
    "from incompatible type",
    "to parameter of incompatible type",
    "conflicting types for",
    "redefinition of",
    "redeclaration of",
    "redeclared as different kind",
    "redefined",
    "static declaration of",
    "non-static declaration of",
    "makes pointer from integer",
    "makes integer from pointer",
    "assignment of read-only",
    "increment of read-only",
    "decrement of read-only",
    "cannot assign to",
    "discards 'const' qualifier",
    "discards qualifiers",
    "void value not ignored",
    "declared void",
    "invalid operands to binary",
    "is not a function or function pointer",
    "is neither array nor pointer",
    "lvalue required",
    "invalid initializer",
    "initializer element is not",
    "declared with attribute error",
    "static assertion failed",
    "is deprecated",
    "return' with a value",
    "return' with no value",
];

impl Class {
    /// Classifies an error of the compiler, modpost, the linker, make or the headers' tools. `lacks_symvers` is
    /// true where modpost had no list of the kernel's symbols.
    pub(super) fn from_error(error: &str, lacks_symvers: bool) -> Self {
        let any = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
        if any(&CRASH) {
            return Self::Crash;
        }
        if any(&COMPILER) {
            return Self::Compiler;
        }
        match lines::failed_program(error) {
            Some((Program::OfHeaders, name)) => return Self::Tools(name),
            Some((Program::Compiler, _)) => return Self::Compiler,
            Some((Program::Other, name)) => return Self::Program(name),
            None => {}
        }
        if let Some(header) = missing_header(error) {
            return Self::Header(header);
        }
        if error.contains(GPL_ONLY) {
            return Self::GplOnly;
        }
        if error.contains("PREEMPT_RT") {
            return Self::Realtime;
        }
        if let Some(target) = lines::without_rule(error) {
            let is_of_driver = target.starts_with(lines::BUILD_DIR) || !target.starts_with('/');
            return if is_of_driver && !lines::is_of_headers(target) {
                Self::Sources
            } else {
                Self::Headers
            };
        }
        if any(&HEADERS)
            || (error.contains("*** /") && error.contains(": No such file or directory"))
        {
            return Self::Headers;
        }
        if lines::is_linkers(error) && error.contains("cannot find ") {
            return Self::Sources;
        }
        if lines::is_modposts(error) {
            return Self::of_modpost(error, lacks_symvers);
        }
        if lines::is_of_object_tool(error) {
            return Self::Object;
        }
        if any(&GONE) {
            return Self::Gone(name_in(error));
        }
        if any(&CHANGED) || is_of_macro(error) {
            return Self::Changed(name_in(error));
        }
        if lines::compiler_error(error).is_some() {
            return Self::Rejected;
        }
        Self::Unknown
    }

    fn of_modpost(error: &str, lacks_symvers: bool) -> Self {
        if error.contains("undefined!") {
            return match lacks_symvers {
                true => Self::Headers,
                false => Self::Gone(quoted(error, '"').into_iter().next()),
            };
        }
        // `module nvidia uses symbol dma_buf_get from namespace DMA_BUF, but does not import it.`
        if let Some((_, rest)) = error.split_once("uses symbol ")
            && error.contains("from namespace")
        {
            let name = rest.split_whitespace().next().unwrap_or_default();
            return Self::Changed(Some(name.trim_matches('\'').to_owned()));
        }
        Self::Object
    }

    /// Identifier, for programs.
    fn id(&self) -> &'static str {
        match self {
            Self::Gone(_) => "interface-gone",
            Self::Changed(_) => "interface-changed",
            Self::Header(_) => "header-missing",
            Self::Headers => "headers-incomplete",
            Self::Tools(_) => "headers-tools-unfit",
            Self::Sources => "sources-incomplete",
            Self::GplOnly => "gpl-only",
            Self::Realtime => "realtime",
            Self::Object => "object-refused",
            Self::Rejected => "sources-rejected",
            Self::Compiler => "compiler-unfit",
            Self::Crash => "compiler-crashed",
            Self::Program(_) => "program-missing",
            Self::Memory => "out-of-memory",
            Self::Processes => "out-of-processes",
            Self::Outgrown => "out-of-bounds",
            Self::Slow => "out-of-time",
            Self::Space => "no-space",
            Self::Unknown => "unknown",
        }
    }

    /// True for a class that lies in the compiled inputs alone, so that every host fails: not for memory, disk,
    /// time, and programs that do not run, which are the host's.
    fn is_of_inputs(&self) -> bool {
        match self {
            Self::Gone(_)
            | Self::Changed(_)
            | Self::Header(_)
            | Self::Headers
            | Self::Sources
            | Self::GplOnly
            | Self::Realtime
            | Self::Object
            | Self::Rejected => true,
            Self::Space
            | Self::Memory
            | Self::Processes
            | Self::Outgrown
            | Self::Slow
            | Self::Compiler
            | Self::Crash
            | Self::Tools(_)
            | Self::Program(_)
            | Self::Unknown => false,
        }
    }

    /// Describes the class for programs.
    pub(crate) fn described(&self) -> CompileClass {
        let name = match self {
            Self::Gone(name) | Self::Changed(name) => name.clone(),
            Self::Header(name) | Self::Program(name) | Self::Tools(name) => Some(name.clone()),
            _ => None,
        };
        CompileClass { class: self.id().to_owned(), name, of_inputs: self.is_of_inputs() }
    }

    /// Returns the remedy.
    pub(super) fn remedy(&self, flavour: Flavour) -> String {
        let other = match flavour {
            Flavour::Open => ", the proprietary flavour (its package may carry a fix)",
            Flavour::Proprietary => "",
        };
        match self {
            Self::Space => "free space on the store's file system, or set --store to another one",
            Self::Memory => "allow fewer jobs at once (jobs = 1), or give the agent more memory",
            Self::Processes => {
                "allow fewer jobs at once (jobs = 1), or raise the container's limit of processes (pids)"
            }
            Self::Outgrown => {
                "check where these headers and sources are from: their makefiles or programs write without end"
            }
            Self::Slow => "the machine is slow or too busy: allow more time or more processors",
            Self::Gone(_) | Self::Changed(_) | Self::Rejected => {
                return format!(
                    "this driver's sources do not know this kernel's interfaces: choose a newer \
                     driver{other}, or an older kernel, or add a patch of your own (--patches: \
                     a folder with patch.toml and patch.diff for each)"
                );
            }
            Self::Header(_) => {
                return format!(
                    "the headers of this kernel are not complete, or the driver is for another \
                     kernel: choose a newer driver{other}, or an older kernel"
                );
            }
            Self::Headers => {
                "install this kernel's headers anew where they are the host's or a build root's; else report \
                 it to those who package them"
            }
            Self::Tools(_) => {
                "these headers were made on another system (another architecture, or a newer C library): \
                 take those of this kernel's own distribution, or set build-root to a root of it"
            }
            Self::Sources => {
                "fetch the driver anew (`longshore gc` removes what the store has); a .run file or package \
                 that lacks a file is for its maker"
            }
            Self::Compiler => {
                "the headers want the compiler their kernel was built with: add an archive that \
                 has it, or use a prebuilt set"
            }
            Self::Crash => {
                "try again; if it crashes at the same line, use another version of the compiler, else check \
                 the machine's memory"
            }
            Self::Program(_) => "add a package with this program to the build root",
            Self::GplOnly => {
                "the kernel gives this symbol to GPL modules only: choose the open flavour"
            }
            Self::Realtime => "the driver refuses realtime kernels: boot one without PREEMPT_RT",
            Self::Object => {
                return format!(
                    "the kernel's build has a check that this driver's objects do not pass: choose a newer \
                     driver{other}, or an older kernel"
                );
            }
            Self::Unknown => {
                "read the log; if the driver is meant for this kernel, please report it"
            }
        }
        .to_owned()
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Space => "no space left",
            Self::Memory => "out of memory",
            Self::Processes => "no further process could be started",
            Self::Outgrown => "it writes more than any driver's compile",
            Self::Slow => "not done in time",
            Self::Gone(Some(name)) => return write!(f, "the kernel has no {name}"),
            Self::Gone(None) => "the kernel lacks an interface",
            Self::Changed(Some(name)) => return write!(f, "the kernel has another {name}"),
            Self::Changed(None) => "the kernel has another interface",
            Self::Header(name) => return write!(f, "there is no header {name}"),
            Self::Headers => "the kernel's headers are incomplete or damaged",
            Self::Tools(name) => {
                return write!(f, "{name} of the kernel's headers does not run here");
            }
            Self::Sources => "the driver's sources lack a file",
            Self::Compiler => "the compiler does not fit the headers",
            Self::Crash => "the compiler crashed",
            Self::Program(name) => return write!(f, "there is no program {name}"),
            Self::GplOnly => "a symbol is for GPL modules only",
            Self::Realtime => "a realtime kernel",
            Self::Object => "the kernel's build refuses an object",
            Self::Rejected => "the compiler rejects the driver's sources",
            Self::Unknown => "it does not compile",
        })
    }
}

/// `a.c:3:10: fatal error: linux/x.h: No such file or directory` of gcc, `'linux/x.h' file not found` of clang.
fn missing_header(error: &str) -> Option<String> {
    let header = match error.split_once(": No such file or directory") {
        Some((before, _)) => before.rsplit(": ").next()?,
        None => error.split_once("' file not found")?.0.rsplit('\'').next()?,
    };
    header.ends_with(".h").then(|| header.to_owned())
}

/// True for a macro that takes other arguments, or whose expansion does not fit.
fn is_of_macro(error: &str) -> bool {
    let is_call = error.contains("macro \"") || error.contains("function-like macro");
    is_call || error.contains("error: expected ")
}

/// The name in an error: the member with its structure, the function whose argument it is, or the
/// first quoted name, if it is the kernel's.
fn name_in(error: &str) -> Option<String> {
    let message = error.split_once("error: ").map_or(error, |(_, message)| message);
    if OWN_NAME.iter().any(|text| message.contains(text)) {
        return None;
    }
    if let Some((_, symbol)) = message.split_once("undefined symbol: ") {
        return symbol.split_whitespace().next().map(str::to_owned);
    }
    let mut names = quoted(&message.replace('`', "'"), '\'');
    if message.contains("macro \"") || message.contains("\" redefined") {
        names = quoted(message, '"');
    }
    names.retain(|name| {
        is_name(name) && name != "sizeof" && !name.starts_with("__compiletime_assert")
    });
    match &names[..] {
        // gcc names the structure first, clang the member.
        [of, member, ..] if message.contains("has no member named") => {
            return Some(format!("{of}.{member}"));
        }
        [member, of, ..]
            if message.starts_with("no member named")
                || message.starts_with("field designator") =>
        {
            return Some(format!("{of}.{member}"));
        }
        _ => {}
    }
    let after = message.split_once("argument").and_then(|(_, rest)| rest.split_once(" of '"));
    let function = after.and_then(|(_, rest)| rest.split('\'').next()).map(str::to_owned);
    function.or_else(|| names.into_iter().next())
}

/// True for a quoted text that is a name or a type, and no punctuation or keyword of an expected form.
fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts
        && !matches!(
            text,
            "int" | "asm" | "__attribute__" | "return" | "const" | "void" | "-Werror"
        )
}

fn quoted(text: &str, mark: char) -> Vec<String> {
    text.split(mark).skip(1).step_by(2).map(str::to_owned).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests;
