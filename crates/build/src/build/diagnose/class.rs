//! Classes of compile failures.

use std::fmt;

use longshore_core::failure::CompileClass;
use longshore_core::flavour::Flavour;

/// Kinds of failures of a compile; each has its own remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// The store's disk is full.
    Space,
    /// The compiler was killed for want of memory, or did not get any.
    Memory,
    /// The time limit passed.
    Slow,
    /// The driver uses an interface that this kernel lacks: a function, a type, a member.
    Gone(Option<String>),
    /// The driver uses an interface in a form that this kernel does not have.
    Changed(Option<String>),
    /// A header is missing.
    Header(String),
    /// The compiler does not fit these headers, or does not work at all.
    Compiler,
    /// The kernel exports a symbol to GPL modules only.
    GplOnly,
    /// The driver refuses realtime kernels.
    Realtime,
    /// Something else.
    Unknown,
}

const GPL_ONLY: &str = "GPL-only symbol";

const COMPILER: [&str; 8] = [
    "unrecognized command-line option",
    "unrecognized command line option",
    "incompatible gcc/plugin versions",
    "Compiler version check failed",
    "Failed CC version check",
    "Failed CC sanity check",
    "does not appear to be able to",
    "error trying to exec",
];

/// gcc's errors about something that is not declared.
const GONE: [&str; 8] = [
    "implicit declaration of function",
    "unknown type name",
    "has no member named",
    "undeclared",
    "storage size of",
    // Of a structure that is declared and has no definition.
    "incomplete type",
    "incomplete element type",
    "invalid use of undefined type",
];

/// gcc's errors whose quoted name is the driver's own variable.
const OWN_NAME: [&str; 3] =
    ["has initializer but incomplete type", "has incomplete type", "storage size of"];

/// gcc's errors about something that is declared differently.
const CHANGED: [&str; 11] = [
    "too few arguments to function",
    "too many arguments to function",
    "incompatible pointer type",
    "incompatible-pointer-types",
    "incompatible type for argument",
    "conflicting types for",
    "redefinition of",
    "static declaration of",
    "makes pointer from integer without a cast",
    "assignment of read-only",
    "increment of read-only",
];

impl Class {
    /// Classifies an error of the compiler, modpost or the linker.
    pub(super) fn of(error: &str) -> Self {
        let any = |texts: &[&str]| texts.iter().any(|text| error.contains(text));
        if let Some(header) = missing_header(error) {
            return Self::Header(header);
        }
        if error.contains(GPL_ONLY) {
            return Self::GplOnly;
        }
        if error.contains("PREEMPT_RT") {
            return Self::Realtime;
        }
        if any(&COMPILER) {
            return Self::Compiler;
        }
        if error.starts_with("ERROR: modpost:") && error.contains("undefined!") {
            return Self::Gone(quoted(error, '"').into_iter().next());
        }
        if any(&GONE) {
            return Self::Gone(name_in(error));
        }
        if any(&CHANGED) {
            return Self::Changed(name_in(error));
        }
        Self::Unknown
    }

    /// Identifier, for programs.
    fn id(&self) -> &'static str {
        match self {
            Self::Gone(_) => "interface-gone",
            Self::Changed(_) => "interface-changed",
            Self::Header(_) => "header-missing",
            Self::GplOnly => "gpl-only",
            Self::Realtime => "realtime",
            Self::Compiler => "compiler-unfit",
            Self::Memory => "out-of-memory",
            Self::Slow => "out-of-time",
            Self::Space => "no-space",
            Self::Unknown => "unknown",
        }
    }

    /// True for a class that lies in the compiled inputs alone, so that every host fails: not for memory, disk,
    /// time, and a broken compiler, which are the host's.
    fn is_of_inputs(&self) -> bool {
        match self {
            Self::Gone(_) | Self::Changed(_) | Self::Header(_) | Self::GplOnly | Self::Realtime => {
                true
            }
            Self::Space | Self::Memory | Self::Slow | Self::Compiler | Self::Unknown => false,
        }
    }

    /// Describes the class for programs.
    pub(crate) fn described(&self) -> CompileClass {
        let name = match self {
            Self::Gone(name) | Self::Changed(name) => name.clone(),
            Self::Header(name) => Some(name.clone()),
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
            Self::Slow => "the machine is slow or too busy: allow more time or more processors",
            Self::Gone(_) | Self::Changed(_) => {
                return format!(
                    "this driver's sources do not know this kernel's interfaces: choose a newer \
                     driver{other}, or an older kernel, or add a patch of your own (--patches; \
                     docs/patches.md)"
                );
            }
            Self::Header(_) => {
                return format!(
                    "the headers of this kernel are not complete, or the driver is for another \
                     kernel: choose a newer driver{other}, or an older kernel"
                );
            }
            Self::Compiler => {
                "the headers want the compiler their kernel was built with: add an archive that \
                 has it, or use a prebuilt set"
            }
            Self::GplOnly => {
                "the kernel gives this symbol to GPL modules only: choose the open flavour"
            }
            Self::Realtime => "the driver refuses realtime kernels: boot one without PREEMPT_RT",
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
            Self::Slow => "not done in time",
            Self::Gone(Some(name)) => return write!(f, "the kernel has no {name}"),
            Self::Gone(None) => "the kernel lacks an interface",
            Self::Changed(Some(name)) => return write!(f, "the kernel has another {name}"),
            Self::Changed(None) => "the kernel has another interface",
            Self::Header(name) => return write!(f, "there is no header {name}"),
            Self::Compiler => "the compiler does not fit the headers",
            Self::GplOnly => "a symbol is for GPL modules only",
            Self::Realtime => "a realtime kernel",
            Self::Unknown => "it does not compile",
        })
    }
}

/// `a.c:3:10: fatal error: linux/x.h: No such file or directory`.
fn missing_header(error: &str) -> Option<String> {
    let (before, _) = error.split_once(": No such file or directory")?;
    let header = before.rsplit(": ").next()?;
    header.ends_with(".h").then(|| header.to_owned())
}

/// The name in an error: the member with its structure, the function whose argument it is, or the
/// first quoted name, if it is the kernel's.
fn name_in(error: &str) -> Option<String> {
    let message = error.split_once("error: ").map_or(error, |(_, message)| message);
    if OWN_NAME.iter().any(|text| message.contains(text)) {
        return None;
    }
    let mut names = quoted(message, '\'');
    names.retain(|name| name != "sizeof");
    if let (true, [of, member, ..]) = (message.contains("has no member named"), &names[..]) {
        return Some(format!("{of}.{member}"));
    }
    let after = message.split_once("argument").and_then(|(_, rest)| rest.split_once(" of '"));
    let function = after.and_then(|(_, rest)| rest.split('\'').next()).map(str::to_owned);
    function.or_else(|| names.into_iter().next())
}

fn quoted(text: &str, mark: char) -> Vec<String> {
    text.split(mark).skip(1).step_by(2).map(str::to_owned).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn some(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[rstest]
    #[case(
        "nvidia/nv-pci.c:201:9: error: too few arguments to function 'pci_resize_resource'",
        Class::Changed(some("pci_resize_resource"))
    )]
    #[case(
        "nvidia/os-interface.c:782:5: error: implicit declaration of function 'strncpy'; did you mean 'strncat'? [-Wimplicit-function-declaration]",
        Class::Gone(some("strncpy"))
    )]
    #[case(
        "a.c:1:1: error: 'struct vm_area_struct' has no member named 'vm_flags'; did you mean 'x'?",
        Class::Gone(some("struct vm_area_struct.vm_flags"))
    )]
    #[case("a.c:1:1: error: unknown type name 'vm_fault_t'", Class::Gone(some("vm_fault_t")))]
    #[case(
        "a.c:1:1: error: 'FOLL_X' undeclared (first use in this function)",
        Class::Gone(some("FOLL_X"))
    )]
    #[case(
        "nvidia/nv-acpi.c:79:21: error: variable 'nv_acpi_driver_template' has initializer but incomplete type",
        Class::Gone(None)
    )]
    #[case(
        "nvidia/nv-acpi.c:177:13: error: invalid application of 'sizeof' to incomplete type 'struct acpi_driver'",
        Class::Gone(some("struct acpi_driver"))
    )]
    #[case(
        "a.c:1:1: error: invalid use of undefined type 'struct acpi_driver'",
        Class::Gone(some("struct acpi_driver"))
    )]
    #[case("a.c:1:1: error: storage size of 'driver' isn't known", Class::Gone(None))]
    #[case(
        "././common/inc/nv-mm.h:312:19: error: assignment of read-only member 'vm_flags'",
        Class::Changed(some("vm_flags"))
    )]
    #[case(
        "a.c:1:1: error: passing argument 2 of 'get_user_pages' from incompatible pointer type [-Werror=incompatible-pointer-types]",
        Class::Changed(some("get_user_pages"))
    )]
    #[case(
        "a.c:1:1: error: initialization of 'int (*)(int)' from incompatible pointer type 'int (*)(void)'",
        Class::Changed(some("int (*)(int)"))
    )]
    #[case(
        "ERROR: modpost: \"foo\" [/build/driver/nvidia.ko] undefined!",
        Class::Gone(some("foo"))
    )]
    #[case(
        "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read'",
        Class::GplOnly
    )]
    #[case(
        "a.c:3:10: fatal error: linux/x.h: No such file or directory",
        Class::Header("linux/x.h".into())
    )]
    #[case("gcc: error: unrecognized command-line option '-fzero-init'", Class::Compiler)]
    #[case("error: incompatible gcc/plugin versions", Class::Compiler)]
    #[case("gcc-12 does not appear to be able to create object files", Class::Compiler)]
    #[case("The kernel is a PREEMPT_RT kernel!", Class::Realtime)]
    #[case("a.c:1:1: error: expected ';' before '}' token", Class::Unknown)]
    #[case("", Class::Unknown)]
    #[case("'", Class::Unknown)]
    fn errors_are_told_apart(#[case] error: &str, #[case] class: Class) {
        assert_eq!(Class::of(error), class);
    }

    #[rstest]
    #[case(Class::Gone(None), "interface-gone", None, true)]
    #[case(Class::Gone(some("strncpy")), "interface-gone", Some("strncpy"), true)]
    #[case(Class::Changed(some("x")), "interface-changed", Some("x"), true)]
    #[case(Class::Header("linux/x.h".into()), "header-missing", Some("linux/x.h"), true)]
    #[case(Class::GplOnly, "gpl-only", None, true)]
    #[case(Class::Realtime, "realtime", None, true)]
    #[case(Class::Space, "no-space", None, false)]
    #[case(Class::Memory, "out-of-memory", None, false)]
    #[case(Class::Slow, "out-of-time", None, false)]
    #[case(Class::Compiler, "compiler-unfit", None, false)]
    #[case(Class::Unknown, "unknown", None, false)]
    fn a_class_is_described_for_programs_as_the_page_has_it(
        #[case] class: Class,
        #[case] id: &str,
        #[case] name: Option<&str>,
        #[case] of_inputs: bool,
    ) {
        let described = class.described();
        assert_eq!((described.class.as_str(), described.name.as_deref()), (id, name));
        assert_eq!(described.of_inputs, of_inputs);
        let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/building.md"));
        assert!(page.contains(&format!("\n| `{id}` |")), "{id} is not in the page");
    }
}
