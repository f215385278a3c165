//! Parser of conftest.sh: splits it into its tests.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use longshore_core::digest::hex;

/// First line of the function whose case has one branch for each test.
const TESTS: &str = "compile_test() {";
/// Indentation of that case's branches.
const INDENT: &str = "        ";

/// The tests of one conftest.sh.
#[derive(Debug)]
pub(super) struct Script {
    /// Everything outside the tests' branches: shared by all tests.
    frame: String,
    /// Text of each test; None if its answer may depend on more than its text.
    tests: BTreeMap<String, Option<String>>,
    /// The driver's headers, as paths below its sources.
    headers: Vec<String>,
}

impl Script {
    /// Splits `text` into tests; None if it has an unknown form. `headers` are the driver's own.
    pub(super) fn parse(text: &str, headers: &[String]) -> Option<Self> {
        let mut lines = text.lines();
        let mut frame: Vec<&str> = lines.by_ref().take_while(|line| *line != TESTS).collect();
        let mut script =
            Self { frame: String::new(), tests: BTreeMap::new(), headers: headers.to_vec() };
        let mut ended = false;
        while let Some(line) = lines.next() {
            if line == "}" {
                ended = true;
                break;
            }
            match branch(line) {
                Some(names) => {
                    let mut lines_of_it = Vec::new();
                    loop {
                        match lines.next()? {
                            line if line.strip_prefix(INDENT) == Some(";;") => break,
                            line => lines_of_it.push(line),
                        }
                    }
                    script.add(names, &lines_of_it.join("\n"));
                }
                None if line.trim().is_empty() => {}
                None => frame.push(line),
            }
        }
        if !ended || script.tests.is_empty() {
            return None;
        }
        frame.extend(lines);
        script.frame = hex(&Sha256::digest(frame.join("\n")));
        Some(script)
    }

    fn add(&mut self, names: &str, text: &str) {
        for name in names.split('|') {
            let mut includes = text.lines().filter_map(included);
            let kept = includes.all(|path| !self.is_drivers(path)).then(|| text.to_owned());
            self.tests
                .entry(name.to_owned())
                // The shell takes only the first branch of a name; a repeated name is not relied
                // on.
                .and_modify(|text| *text = None)
                .or_insert(kept);
        }
    }

    /// True if an include could mean one of the driver's headers.
    fn is_drivers(&self, path: &str) -> bool {
        let ends = |name: &String| {
            name.strip_suffix(path).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        self.headers.iter().any(ends)
    }

    /// Returns a digest of everything in the script that decides the answer of the test `name`.
    pub(super) fn test(&self, name: &str) -> Option<String> {
        let text = self.tests.get(name)?.as_deref()?;
        Some(self.question("test", name, text))
    }

    /// Returns the same digest for the question if the kernel has the header `path`.
    pub(super) fn header(&self, path: &str) -> Option<String> {
        (!self.is_drivers(path)).then(|| self.question("header", path, ""))
    }

    fn question(&self, kind: &str, name: &str, text: &str) -> String {
        hex(&Sha256::digest([kind, name, &self.frame, text].join("\0")))
    }
}

/// Parses `a|b` from `        a|b)`.
fn branch(line: &str) -> Option<&str> {
    let names = line.strip_prefix(INDENT)?.strip_suffix(')')?;
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '|';
    (!names.is_empty() && names.chars().all(legal)).then_some(names)
}

/// Parses `linux/mm.h` from `#include <linux/mm.h>`, ignoring the rest of the line.
fn included(line: &str) -> Option<&str> {
    let rest = line.split_once("#include")?.1.trim_start();
    let rest = rest.strip_prefix("\\\"").or_else(|| rest.strip_prefix(['<', '"']))?;
    rest.split(['>', '"', '\\']).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const SCRIPT: &str = r##"#!/bin/sh
PREAMBLE="#include \"conftest/headers.h\""
compile_test() {
    case "$1" in
        one)
            CODE="
            #include <linux/mm.h>
        not_a_branch)
            int f(void);"
            check "$CODE"
        ;;

        two|three)
            CODE="#include <linux/fs.h>"
        ;;
        own)
            CODE="#include <nv-linux.h>"
        ;;
        quoted)
            CODE="#include \"nv-linux.h\""
        ;;
        # When adding a new conftest entry, please use the correct format.
        *)
            echo "Unknown test"
            exit 1
        ;;
    esac
}
case "$5" in
esac
"##;

    fn parsed(text: &str) -> Script {
        Script::parse(text, &["common/inc/nv-linux.h".to_owned()]).expect("parses")
    }

    #[test]
    fn tests_are_told_apart() {
        let script = parsed(SCRIPT);
        let names: Vec<_> = script.tests.keys().collect();
        assert_eq!(names, ["one", "own", "quoted", "three", "two"]);
        assert_ne!(script.test("one"), script.test("two"));
        assert_ne!(script.test("two"), script.test("three"));
        assert_eq!(script.test("not_a_branch"), None);
    }

    #[rstest]
    #[case::itself("int f(void);", "int f(int);", true, false)]
    #[case::another("linux/fs.h", "linux/io.h", false, true)]
    #[case::what_all_share("conftest/headers.h", "conftest/other.h", true, true)]
    #[case::the_default("Unknown test", "No such test", true, true)]
    #[case::a_new_test(
        "        own)",
        "        new)\n            x\n        ;;\n\n        own)",
        false,
        false
    )]
    fn a_question_changes_with_what_it_depends_on(
        #[case] from: &str,
        #[case] to: &str,
        #[case] one: bool,
        #[case] two: bool,
    ) {
        let (before, after) = (parsed(SCRIPT), parsed(&SCRIPT.replace(from, to)));
        assert_eq!(before.test("one") != after.test("one"), one);
        assert_eq!(before.test("two") != after.test("two"), two);
    }

    #[test]
    fn what_may_mean_a_header_of_the_drivers_is_always_asked() {
        let script = parsed(SCRIPT);
        assert_eq!((script.test("own"), script.test("quoted")), (None, None));
        assert_eq!(script.header("nv-linux.h"), None);
        assert!(script.header("linux/mm.h").is_some());
        assert_ne!(script.header("linux/mm.h"), script.header("linux/fs.h"));
    }

    #[test]
    fn a_test_that_is_there_twice_is_always_asked() {
        let twice = SCRIPT.replace("        own)", "        one)\n        ;;\n        own)");
        assert_eq!(parsed(&twice).test("one"), None);
    }

    #[rstest]
    #[case("")]
    #[case("#!/bin/sh\nexit 0\n")]
    #[case("compile_test() {\n        one)\n")]
    #[case("compile_test() {\n        one)\n        ;;\n")]
    fn another_form_is_not_guessed_at(#[case] text: &str) {
        assert!(Script::parse(text, &[]).is_none());
    }
}
