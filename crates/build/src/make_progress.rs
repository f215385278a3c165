//! Progress of a compile, parsed from make's output.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::driver_sources::{INSIDE, walk};
use longshore_core::progress::Task;

/// Returns the number of progress lines of the compile: conftests and compiler runs.
pub(super) fn total(sources: &Path, modules: &[&str]) -> Option<u64> {
    let mut conftests = BTreeSet::new();
    let mut files = 0;
    for module in modules {
        let dir = sources.join(module);
        let kbuild = fs::read_to_string(dir.join(format!("{module}.Kbuild"))).ok()?;
        conftests.extend(conftests_of(&kbuild));
        walk(&dir, &mut |path| {
            files += u64::from(path.extension().is_some_and(|e| e == "c"));
            Ok(())
        })
        .ok()?;
    }
    // Tests shared by all modules; newer drivers list the headers in a file of their own.
    for name in ["Kbuild", "header-presence-tests.mk"] {
        let text = fs::read_to_string(sources.join(name)).unwrap_or_default();
        conftests.extend(conftests_of(&text));
        conftests.extend(headers_of(&text));
    }
    Some(conftests.len() as u64 + files)
}

/// Returns the tests added by lines like `NV_CONFTEST_TYPE_COMPILE_TESTS += NAME`.
fn conftests_of(kbuild: &str) -> impl Iterator<Item = String> {
    kbuild
        .lines()
        .filter_map(|line| line.strip_prefix("NV_CONFTEST_")?.split_once("_COMPILE_TESTS +="))
        .map(|(_, name)| name.trim().to_owned())
}

/// Returns the headers in the list `NV_HEADER_PRESENCE_TESTS = \`, one to a line.
fn headers_of(kbuild: &str) -> impl Iterator<Item = String> {
    kbuild
        .lines()
        .skip_while(|line| !line.starts_with("NV_HEADER_PRESENCE_TESTS"))
        .skip(1)
        .map(|line| line.trim_end_matches('\\').trim().to_owned())
        .take_while(|name| name.ends_with(".h"))
}

/// Reports a line of make's output as progress.
pub(super) fn report(line: &str, task: &dyn Task) {
    if let Some(name) = line.strip_prefix(" CONFTEST: ") {
        task.note(&format!("testing the kernel: {}", name.trim()));
        task.advance(1);
    } else if let Some(path) = line.trim_start().strip_prefix("CC [M]") {
        task.note(path.trim().trim_start_matches(INSIDE).trim_start_matches('/'));
        task.advance(u64::from(!path.ends_with(".mod.o")));
    } else if let Some(path) = line.trim_start().strip_prefix("LD [M]") {
        let name = path.trim().rsplit('/').next().unwrap_or_default();
        task.note(&format!("linking {name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_conftests_once_and_sources() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (module, kbuild) in [
            (
                "nvidia",
                "NV_CONFTEST_TYPE_COMPILE_TESTS += a\nNV_CONFTEST_FUNCTION_COMPILE_TESTS += b\n",
            ),
            ("nvidia-uvm", "NV_CONFTEST_FUNCTION_COMPILE_TESTS += b\n"),
        ] {
            let sub = dir.path().join(module).join("sub");
            fs::create_dir_all(&sub).expect("directory");
            fs::write(dir.path().join(module).join(format!("{module}.Kbuild")), kbuild)
                .expect("write");
            fs::write(sub.join("x.c"), "").expect("write");
            fs::write(sub.join("x.h"), "").expect("write");
        }
        assert_eq!(total(dir.path(), &["nvidia", "nvidia-uvm"]), Some(4));
        let headers = "NV_HEADER_PRESENCE_TESTS = \\\n  asm/a.h \\\n  linux/b.h\n\nother.h\n";
        fs::write(dir.path().join("Kbuild"), headers).expect("write");
        assert_eq!(total(dir.path(), &["nvidia", "nvidia-uvm"]), Some(6));
        assert_eq!(total(dir.path(), &["nvidia-drm"]), None);
    }
}
