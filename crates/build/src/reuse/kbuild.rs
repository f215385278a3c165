//! Additions to the Kbuild file in the compiled copy of the driver's sources.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use crate::driver_sources::walk;

/// Lines that the additions rely on, as in 535 and 550.
const RELIED_ON: [&str; 4] = [
    "\nNV_CONFTEST_SCRIPT := $(src)/conftest.sh\n",
    "\nNV_CONFTEST_CMD := /bin/sh $(NV_CONFTEST_SCRIPT) ",
    "\nNV_CONFTEST_CFLAGS += ",
    "\nccflags-y += -DNV_VERSION_STRING=",
];
const VERSION: &str = "NV_VERSION_STRING";

/// True if a Kbuild file has the form that the additions are made for.
pub(super) fn is_known(kbuild: &str) -> bool {
    RELIED_ON.iter().all(|part| kbuild.contains(part))
}

/// Returns the objects whose sources name the driver's version; None where another file than a
/// source names it.
pub(super) fn versioned(sources: &Path, modules: &[&str]) -> io::Result<Option<Vec<String>>> {
    let conftest = fs::read_to_string(sources.join("conftest.sh"))?;
    let mut known = !conftest.contains(VERSION);
    let mut objects = Vec::new();
    walk(sources, &mut |path| {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !["c", "h", "S"].contains(&extension) || !path.is_file() {
            return Ok(());
        }
        let text = fs::read(path)?;
        let named = text.windows(VERSION.len()).any(|window| window == VERSION.as_bytes());
        let relative = path.strip_prefix(sources).unwrap_or(path);
        let wanted = modules.iter().any(|module| relative.starts_with(module));
        match extension {
            "c" if named && wanted => objects.push(relative.with_extension("o")),
            "c" => {}
            // A header: any source may include it.
            _ if named => known = false,
            _ => {}
        }
        Ok(())
    })?;
    let mut objects: Vec<String> = objects.iter().map(|o| o.display().to_string()).collect();
    objects.sort();
    Ok(known.then_some(objects))
}

/// The additions a build can use.
pub(super) struct Addition {
    /// True if `/build/answers/ask` replaces conftest.sh.
    pub(super) asks: bool,
    /// True if ccache is in the root and has a directory.
    pub(super) keeps_objects: bool,
    /// The objects whose sources name the driver's version, if known.
    pub(super) versioned: Option<Vec<String>>,
}

impl Addition {
    /// Returns the lines to append to Kbuild.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{FLAGS}{PRUNED}");
        if let Some(objects) = &self.versioned {
            text.push_str(VERSIONLESS);
            for object in objects {
                // Before Linux 5.5 such variables were named without the directory.
                let name = object.rsplit('/').next().unwrap_or_default();
                let _ = writeln!(text, "CFLAGS_{object} += $(LONGSHORE_VERSION)");
                let _ = writeln!(text, "CFLAGS_{name} += $(LONGSHORE_VERSION)");
            }
        }
        if self.asks {
            text.push_str(ASK);
        }
        if self.keeps_objects {
            text.push_str(CCACHE);
        }
        text
    }
}

/// NVIDIA's variable runs the compiler three times whenever it is expanded, which is for every
/// conftest; and it holds the process id of a shell, on which no answer depends.
const FLAGS: &str = r#"

# From here on added by longshore to this copy. It changes nothing in what is compiled.
$(eval LONGSHORE_ASKED = $(value NV_CONFTEST_CFLAGS))
LONGSHORE_NAMED = $(patsubst -DKBUILD_BASENAME=%,-DKBUILD_BASENAME="conftest",$(LONGSHORE_ASKED))
LONGSHORE_FLAGS = $(patsubst -DKBUILD_MODNAME=%,-DKBUILD_MODNAME="conftest",$(LONGSHORE_NAMED))
NV_CONFTEST_CFLAGS = $(eval NV_CONFTEST_CFLAGS := $$(LONGSHORE_FLAGS))$(NV_CONFTEST_CFLAGS)
"#;

/// The kernel's Makefiles list no file after `.SECONDARY`, which makes every file intermediate, and
/// make walks an intermediate file's prerequisites again for each file that needs it: hundreds of
/// conftests, each with all the headers that are tested for, whenever a job has ended. That costs
/// 10 s of a compile, during most of which no compiler runs. With one name after it the others are
/// ordinary files. Make after 4.4 has `.NOTINTERMEDIATE` for this, and newer kernels' Makefiles use
/// it there.
const PRUNED: &str = r"
ifeq ($(filter notintermediate,$(.FEATURES)),)
.SECONDARY: $(obj)/longshore
endif
";

/// Passes the version only to sources that name it: all others are the same in the next version.
const VERSIONLESS: &str = r"
LONGSHORE_VERSION := $(filter -DNV_VERSION_STRING=%,$(ccflags-y))
ccflags-y := $(filter-out -DNV_VERSION_STRING=%,$(ccflags-y))
";

const ASK: &str = r"
NV_CONFTEST_CMD := $(subst $(NV_CONFTEST_SCRIPT),/build/answers/ask,$(NV_CONFTEST_CMD))
";

const CCACHE: &str = r"
override CC := /usr/bin/ccache $(CC)
";

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (path, text) in [("conftest.sh", "")].iter().chain(files) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, text).expect("write");
        }
        dir
    }

    #[test]
    fn only_sources_that_name_the_version_are_told_it() {
        let dir = sources(&[
            ("nvidia/nv.c", "MODULE_VERSION(NV_VERSION_STRING);"),
            ("nvidia/os.c", "int f(void);"),
            ("nvidia-drm/drm.c", "NV_VERSION_STRING"),
            ("common/inc/nv.h", "NV_VERSION"),
        ]);
        let objects = versioned(dir.path(), &["nvidia"]).expect("reads").expect("can be told");
        assert_eq!(objects, ["nvidia/nv.o"]);
        let addition = Addition { asks: true, keeps_objects: false, versioned: Some(objects) };
        let text = addition.text();
        assert!(text.contains("CFLAGS_nvidia/nv.o += ") && text.contains("CFLAGS_nv.o += "));
        assert!(text.contains("/build/answers/ask") && !text.contains("ccache"), "{text}");
    }

    #[test]
    fn a_header_that_names_the_version_leaves_everything_as_it_was() {
        for (path, text) in
            [("common/inc/nv.h", "NV_VERSION_STRING"), ("conftest.sh", "NV_VERSION_STRING")]
        {
            let dir = sources(&[(path, text)]);
            assert_eq!(versioned(dir.path(), &["nvidia"]).expect("reads"), None, "{path}");
        }
    }

    /// Forty conftests, each with forty headers to test for, as a kernel's Makefile has them.
    const GRAPH: &str = r"
numbers := $(shell seq 40)
goal: $(addprefix o,$(numbers))
	@true
$(addprefix o,$(numbers)): | functions
	@true
functions: $(addprefix test,$(numbers))
	@true
test%: headers
	@true
headers: $(addprefix part,$(numbers))
	@true
part%: release
	@true
release:
	@true
ifeq ($(filter notintermediate,$(.FEATURES)),)
.SECONDARY:
else
.NOTINTERMEDIATE:
endif
";

    #[test]
    fn make_walks_the_headers_once_a_pass() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("Makefile"), format!("{GRAPH}{PRUNED}")).expect("write");
        let make = std::process::Command::new("make")
            .args(["-d", "-j2", "-C"])
            .arg(dir.path())
            .env_remove("MAKEFLAGS")
            .env_remove("GNUMAKEFLAGS")
            .env("LC_ALL", "C")
            .output()
            .expect("make runs");
        let text = String::from_utf8_lossy(&make.stdout);
        assert!(make.status.success(), "{text}");
        let looks = text.matches("onsidering target file 'release'").count();
        // Two passes; without the addition make 4.3 considers the target 64040 times.
        assert!((1..10).contains(&looks), "{looks}");
    }
}
