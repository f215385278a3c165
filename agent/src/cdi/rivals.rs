//! Specs of other programs with the devices of longshore's.

use std::path::{Path, PathBuf};

use super::listing::{self, Contents, SpecFile};
use super::{DIRECTORY, FILE, KIND};
use longshore_core::failure::Failure;
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::sanitize::in_line;

/// Path of longshore's own spec.
const OWN: &str = "/var/run/cdi/longshore-nvidia.com-gpu.json";

/// Returns a finding for each spec of another program with devices of the same kind, on the host whose
/// file system begins at `host_root`; a note where the specs cannot be read, or are too many. That is no
/// [conflict](is_conflict): files that anybody can put there do not keep longshore's spec away.
pub fn rivals(host_root: &Path) -> Vec<Finding> {
    listing::read(host_root).map_or_else(|failure| vec![unread(&failure)], |files| judged(&files))
}

fn unread(failure: &Failure) -> Finding {
    let cause = failure.one_line();
    let detail =
        format!("other programs' specs were not compared with longshore's: {}", in_line(&cause));
    Finding::note(Code::CdiConflict, detail).remedy(
        "remove files that are no CDI specs from /etc/cdi and /var/run/cdi, and find the program that \
         writes them",
    )
}

/// True for the finding about a spec because of which no runtime resolves longshore's devices.
pub fn is_conflict(finding: &Finding) -> bool {
    finding.code == Code::CdiConflict && finding.severity == Severity::Warning
}

fn judged(files: &[SpecFile]) -> Vec<Finding> {
    let own = Path::new(DIRECTORY).join(FILE);
    let ours = files.iter().find(|file| file.path == own);
    files.iter().filter(|file| file.path != own && has_devices(file, ours)).map(finding).collect()
}

/// True if the file has a device of ours; of any name, where ours is not published or its devices are
/// not read.
fn has_devices(file: &SpecFile, ours: Option<&SpecFile>) -> bool {
    match &*file.contents {
        Contents::Yaml(kind) => kind.as_deref() == Some(KIND),
        Contents::Refused(_) | Contents::Unreadable(_) => false,
        Contents::Devices(names) => names.iter().any(|name| match ours.map(|own| &*own.contents) {
            Some(Contents::Devices(own)) => own.contains(name),
            _ => name.strip_prefix(KIND).is_some_and(|rest| rest.starts_with('=')),
        }),
    }
}

fn finding(file: &SpecFile) -> Finding {
    let path = file.path.display().to_string();
    let path = in_line(&path);
    if file.path.parent() == Some(Path::new(DIRECTORY)) {
        let detail = format!(
            "{path} has devices of {KIND}, too: runtimes resolve a device that two files of one \
             directory have from neither"
        );
        return Finding::warning(Code::CdiConflict, detail);
    }
    let detail = format!("{path} has devices of {KIND}, too: {OWN} takes precedence");
    Finding::note(Code::CdiConflict, detail).remedy("nothing, or remove the other file")
}

/// Returns `path` as seen below `root`; the bounds of recorded steps, too, are made with it (steps/bounds.rs).
pub fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rstest::rstest;

    fn spec(kind: &str, device: &str) -> String {
        format!(
            "{{\"cdiVersion\": \"0.5.0\", \"kind\": \"{kind}\", \"devices\": [{{\"name\": \
             \"{device}\", \"containerEdits\": {{\"env\": [\"A=1\"]}}}}]}}"
        )
    }

    const YAML: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n";

    #[rstest]
    #[case::same_directory("var/run/cdi/nvidia.json", &spec(KIND, "0"), true, Some(Severity::Warning))]
    #[case::another_device("var/run/cdi/nvidia.json", &spec(KIND, "GPU-1"), true, None)]
    #[case::before_ours("var/run/cdi/nvidia.json", &spec(KIND, "GPU-1"), false, Some(Severity::Warning))]
    #[case::yaml("var/run/cdi/nvidia.yaml", YAML, true, Some(Severity::Warning))]
    #[case::no_reader_takes_it("var/run/cdi/nvidia.yaml.bak", YAML, true, None)]
    #[case::another_kind("var/run/cdi/k.json", &spec("k8s.io/gpu", "0"), true, None)]
    #[case::another_class("var/run/cdi/k.json", &spec("nvidia.com/gpus", "0"), false, None)]
    #[case::refused("var/run/cdi/nvidia.json", "{", true, None)]
    #[case::administrators("etc/cdi/nvidia.yaml", YAML, true, Some(Severity::Note))]
    fn a_spec_with_the_same_devices_is_found(
        #[case] path: &str,
        #[case] text: &str,
        #[case] published: bool,
        #[case] found: Option<Severity>,
    ) {
        let host = tempfile::tempdir().expect("temporary directory");
        let put = |path: &str, text: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directories");
            fs::write(path, text).expect("written");
        };
        put(path, text);
        if published {
            put(OWN.trim_start_matches('/'), &spec(KIND, "0"));
        }
        let findings = rivals(host.path());
        assert_eq!(findings.iter().map(|f| f.severity).next(), found, "{findings:?}");
        assert!(findings.iter().all(|f| f.code == Code::CdiConflict));
        assert_eq!(findings.iter().any(is_conflict), found == Some(Severity::Warning));
    }

    #[rstest]
    #[case::files(|dir: &Path| {
        (0..1001).for_each(|n| fs::write(dir.join(format!("{n}.txt")), "").expect("written"));
    }, "more than 1000 files")]
    #[case::bytes(|dir: &Path| {
        let file = |n| fs::File::create(dir.join(format!("{n}.json"))).expect("made");
        (0..5).for_each(|n| file(n).set_len(4 << 20).expect("grown"));
    }, "more than 16 MiB in all")]
    #[case::names(|dir: &Path| {
        fs::write(dir.join("0.json"), vec![b' '; 1 << 20]).expect("written");
        (1..20).for_each(|n| {
            fs::hard_link(dir.join("0.json"), dir.join(format!("{n}.json"))).expect("linked");
        });
    }, "more than 16 MiB in all")]
    fn a_directory_with_too_much_is_a_note_and_no_conflict(
        #[case] fill: fn(&Path),
        #[case] why: &str,
    ) {
        let host = tempfile::tempdir().expect("temporary directory");
        let dir = host.path().join("var/run/cdi");
        fs::create_dir_all(&dir).expect("directories");
        fill(&dir);
        let [finding] = &rivals(host.path())[..] else { panic!("one finding") };
        assert_eq!((finding.code, finding.severity), (Code::CdiConflict, Severity::Note));
        assert!(finding.detail.contains(why), "{}", finding.detail);
        assert!(!is_conflict(finding));
    }

    #[test]
    fn the_path_is_that_of_the_name_and_its_directory() {
        assert_eq!(Path::new(DIRECTORY).join(FILE), Path::new(OWN));
    }
}
