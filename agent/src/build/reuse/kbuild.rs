//! What is added to the copy of a driver's Kbuild that is compiled.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use crate::build::compile::walk;

/// What the additions rely on, as 535 and 550 have it.
const RELIED_ON: [&str; 4] = [
    "\nNV_CONFTEST_SCRIPT := $(src)/conftest.sh\n",
    "\nNV_CONFTEST_CMD := /bin/sh $(NV_CONFTEST_SCRIPT) ",
    "\nNV_CONFTEST_CFLAGS += ",
    "\nccflags-y += -DNV_VERSION_STRING=",
];
const VERSION: &str = "NV_VERSION_STRING";

/// Whether a Kbuild is of the form that the additions are made for.
pub(super) fn is_known(kbuild: &str) -> bool {
    RELIED_ON.iter().all(|part| kbuild.contains(part))
}

/// The objects whose sources name the driver's version; None where that cannot be told by source.
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
            // Everything may include it.
            _ if named => known = false,
            _ => {}
        }
        Ok(())
    })?;
    let mut objects: Vec<String> = objects.iter().map(|o| o.display().to_string()).collect();
    objects.sort();
    Ok(known.then_some(objects))
}

/// What a build can make use of.
pub(super) struct Addition {
    /// Whether `/build/answers/ask` is asked instead of conftest.sh.
    pub(super) asks: bool,
    /// Whether ccache is there and has a directory.
    pub(super) keeps_objects: bool,
    /// The objects whose sources name the driver's version, as far as that can be told.
    pub(super) versioned: Option<Vec<String>>,
}

impl Addition {
    /// Lines to add at the end of Kbuild.
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

/// NVIDIA's variable asks the compiler three things whenever it is expanded, which is for every
/// conftest; and it holds the process id of a shell, which no answer depends on.
const FLAGS: &str = r#"

# From here on added by longshore to this copy. It changes nothing in what is compiled.
$(eval LONGSHORE_ASKED = $(value NV_CONFTEST_CFLAGS))
LONGSHORE_NAMED = $(patsubst -DKBUILD_BASENAME=%,-DKBUILD_BASENAME="conftest",$(LONGSHORE_ASKED))
LONGSHORE_FLAGS = $(patsubst -DKBUILD_MODNAME=%,-DKBUILD_MODNAME="conftest",$(LONGSHORE_NAMED))
NV_CONFTEST_CFLAGS = $(eval NV_CONFTEST_CFLAGS := $$(LONGSHORE_FLAGS))$(NV_CONFTEST_CFLAGS)
"#;

/// The kernel's Makefiles name no file after `.SECONDARY`, which makes every file intermediate, and
/// make walks an intermediate file's prerequisites anew for each file that needs it: hundreds of
/// conftests, each with all the headers that are looked for, whenever a job has ended. That is 10 s of
/// a compile, during most of which no compiler runs. With one name after it the others are files like
/// any other. Make after 4.4 has `.NOTINTERMEDIATE` for this, and newer kernels' Makefiles use it there.
const PRUNED: &str = r"
ifeq ($(filter notintermediate,$(.FEATURES)),)
.SECONDARY: $(obj)/longshore
endif
";

/// The version goes only to those that name it: the others are the same in the next version.
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

    /// Forty conftests, each with forty headers that are looked for, as a kernel's Makefile has them.
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
        // Two passes; without the addition make 4.3 looks 64040 times.
        assert!((1..10).contains(&looks), "{looks}");
    }
}
