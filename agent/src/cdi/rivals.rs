//! Specs of other programs with the devices of longshore's.

use std::path::{Path, PathBuf};

use super::listing::{self, Contents, SpecFile};
use super::{DIRECTORY, FILE, KIND};
use longshore_core::finding::{Code, Finding, Severity};
use longshore_core::sanitize::in_line;

/// Path of longshore's own spec.
const OWN: &str = "/var/run/cdi/longshore-nvidia.com-gpu.json";

/// Returns a finding for each spec of another program with devices of the same kind, on the host whose
/// file system begins at `host_root`. A directory that cannot be read has none: publishing fails there.
pub fn rivals(host_root: &Path) -> Vec<Finding> {
    listing::read(host_root).map(|files| judged(&files)).unwrap_or_default()
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
    match &file.contents {
        Contents::Yaml(kind) => kind.as_deref() == Some(KIND),
        Contents::Refused(_) | Contents::Unreadable(_) => false,
        Contents::Devices(names) => names.iter().any(|name| match ours.map(|own| &own.contents) {
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

/// Returns `path` as seen below `root`.
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

    #[test]
    fn the_path_is_that_of_the_name_and_its_directory() {
        assert_eq!(Path::new(DIRECTORY).join(FILE), Path::new(OWN));
    }
}
