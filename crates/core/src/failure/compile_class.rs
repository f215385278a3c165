//! Class of a failed compile, for programs: it leaves longshore in the error's line of the log.

use serde::{Deserialize, Serialize};

/// Class of a failed compile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CompileClass {
    /// Identifier, for example `interface-gone`; docs/supply-chain/building.md has all of them.
    pub class: String,
    /// The interface or header that is missing or differs, where the compiler named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// True if the compiled inputs alone decide it: driver, kernel, patches. Memory, disk and time are the host's.
    #[serde(default)]
    pub of_inputs: bool,
}

#[cfg(test)]
mod tests {
    use super::super::{Failure, FailureKind};
    use super::*;

    #[test]
    fn a_failure_keeps_the_class_of_its_compile() {
        let class = CompileClass { class: "interface-gone".into(), name: None, of_inputs: true };
        let failure = Failure::new(FailureKind::Compile, "a");
        assert_eq!(failure.compile_class(), None);
        let failure = failure.with_compile_class(class.clone()).remedy("b");
        assert_eq!(failure.compile_class(), Some(&class));
        assert_eq!(failure.report(), "error: a\n  remedy: b");
    }
}
