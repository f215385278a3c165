//! Modules that a kernel ships as files: its modules.dep(5).
//!
//! The file has thousands of lines, and only a handful of modules are looked up. So its text is
//! kept as it is, with the offset of each line, and a line is parsed when its module is looked up.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The kernel's name for a module's name or file: no directories, no `.ko` and what follows, and
/// `_` for `-`.
pub fn kernel_name(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    let stem = file.find(".ko").map_or(file, |end| &file[..end]);
    stem.replace('-', "_")
}

/// The lines of a modules.dep.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct ModuleFiles {
    text: String,
    lines: Vec<Line>,
}

/// Offsets of a line in the text: `DIRECTORY/STEM.ko: NEEDS`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    begin: usize,
    stem: usize,
    /// End of the stem.
    suffix: usize,
}

/// A module the kernel ships as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModuleFile<'a> {
    /// Its name as in the file name: the kernel has `_` for `-`.
    pub stem: &'a str,
    /// Relative to /lib/modules/RELEASE.
    pub file: &'a str,
    /// Files of the modules it needs, direct and indirect.
    needs: &'a str,
}

impl ModuleFile<'_> {
    /// The kernel's name for it.
    pub fn name(&self) -> String {
        kernel_name(self.stem)
    }

    /// Relative to /lib/modules/RELEASE.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(self.file)
    }
}

impl From<String> for ModuleFiles {
    fn from(text: String) -> Self {
        let mut lines = Vec::new();
        let mut begin = 0;
        for line in text.split_inclusive('\n') {
            lines.extend(Line::parse(line, begin));
            begin += line.len();
        }
        Self { text, lines }
    }
}

impl From<ModuleFiles> for String {
    fn from(files: ModuleFiles) -> Self {
        files.text
    }
}

impl Line {
    /// Parses a line that begins at `begin`; None if it names no module.
    fn parse(line: &str, begin: usize) -> Option<Self> {
        let colon = line.find(':')?;
        let file = &line[..colon];
        let stem = file.rfind('/').map_or(0, |slash| slash + 1);
        let suffix = file[stem..].find(".ko").map_or(colon, |at| stem + at);
        Some(Self { begin, stem: begin + stem, suffix: begin + suffix })
    }
}

impl ModuleFiles {
    /// Number of modules.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// True if there are no modules.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// All modules.
    pub fn iter(&self) -> impl Iterator<Item = ModuleFile<'_>> {
        self.lines.iter().map(|line| self.read(*line))
    }

    /// The module of this kernel name.
    pub fn get(&self, name: &str) -> Option<ModuleFile<'_>> {
        let bytes = self.text.as_bytes();
        let is_it = |line: &&Line| {
            let stem = &bytes[line.stem..line.suffix];
            stem.len() == name.len() && stem.iter().zip(name.as_bytes()).all(|(s, n)| same(*s, *n))
        };
        self.lines.iter().find(is_it).map(|line| self.read(*line))
    }

    /// True if there is a module of this kernel name.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// The kernel names of all modules that `name` needs, direct and indirect, each once, in load
    /// order. A cycle is cut at the edge that closes it.
    pub fn needs_of(&self, name: &str) -> Vec<String> {
        let mut order = Vec::new();
        self.close(name, &mut BTreeSet::new(), &mut order);
        order.pop();
        order
    }

    /// Appends the modules that `name` needs, then `name`, each once.
    fn close(&self, name: &str, seen: &mut BTreeSet<String>, order: &mut Vec<String>) {
        if !seen.insert(name.to_owned()) {
            return;
        }
        let needs = self.get(name).map_or("", |module| module.needs);
        // depmod lists the module to load first last.
        for need in needs.split_ascii_whitespace().rev().map(kernel_name) {
            self.close(&need, seen, order);
        }
        order.push(name.to_owned());
    }

    fn read(&self, line: Line) -> ModuleFile<'_> {
        let whole = self.text[line.begin..].lines().next().unwrap_or_default();
        let (file, needs) = whole.split_once(':').unwrap_or((whole, ""));
        let stem = &self.text[line.stem..line.suffix];
        ModuleFile { stem, file: file.trim(), needs: needs.trim() }
    }

    /// Adds a module that needs no others.
    #[cfg(any(test, feature = "fake"))]
    pub fn add(&mut self, file: &str) {
        *self = Self::from(format!("{}{file}:\n", self.text));
    }
}

/// True if a byte of a file name equals this byte of a kernel name.
fn same(of_file: u8, of_name: u8) -> bool {
    of_name == if of_file == b'-' { b'_' } else { of_file }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn files(text: &str) -> ModuleFiles {
        ModuleFiles::from(text.to_owned())
    }

    #[test]
    fn dependencies_are_closed_and_in_load_order() {
        let dep = files(
            "k/drm_kms_helper.ko: k/drm.ko\nk/drm.ko: k/i2c-core.ko\nk/i2c-core.ko:\n\
             k/ttm.ko: k/drm.ko k/i2c-core.ko\nk/a.ko: k/b.ko\nk/b.ko: k/a.ko\nbroken line\n",
        );
        assert_eq!(dep.needs_of("drm_kms_helper"), ["i2c_core", "drm"]);
        assert_eq!(dep.needs_of("ttm"), ["i2c_core", "drm"]);
        assert!(dep.needs_of("i2c_core").is_empty());
        assert_eq!(dep.needs_of("a"), ["b"]);
        assert!(dep.needs_of("strange").is_empty());
        assert_eq!(dep.get("drm").map(|module| module.path()), Some("k/drm.ko".into()));
        assert_eq!(dep.len(), 6);
    }

    #[test]
    fn a_module_is_found_by_the_kernels_name_alone() {
        let dep = files("k/i2c-core.ko.xz: a\nupdates/i2c-core.ko:\n top.ko :k/i2c-core.ko\nx:");
        let found = dep.get("i2c_core").map(|module| (module.name(), module.file));
        assert_eq!(found, Some(("i2c_core".to_owned(), "k/i2c-core.ko.xz")), "the first counts");
        for name in ["i2c-core", "i2c_cor", "i2c_core_", "core", "", "ko"] {
            assert!(!dep.has(name), "{name}");
        }
        assert!(dep.has("x"));
    }

    #[test]
    fn it_is_written_down_as_it_was_read() {
        let dep = files("k/a.ko: k/b.ko\nk/b.ko:\n");
        let text = serde_json::to_string(&dep).expect("json");
        assert_eq!(serde_json::from_str::<ModuleFiles>(&text).expect("read"), dep);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[a-c:/. \n-]{0,200}|\\PC{0,80}") {
            let available = files(&text);
            for module in available.iter() {
                let name = module.name();
                prop_assert!(available.has(&name));
                prop_assert!(!available.needs_of(&name).contains(&name));
            }
        }
    }

    #[rstest]
    #[case("kernel/drivers/i2c/i2c-core.ko", "i2c_core")]
    #[case("kernel/a/video.ko.xz", "video")]
    #[case("nvidia-uvm", "nvidia_uvm")]
    #[case("", "")]
    fn kernel_names(#[case] name: &str, #[case] wanted: &str) {
        assert_eq!(kernel_name(name), wanted);
    }
}
