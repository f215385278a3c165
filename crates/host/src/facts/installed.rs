//! The driver installed on the host itself, and the modules the host loads by itself.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::facts::module_files::kernel_name;
use crate::facts::{Autoload, HostDriver, LoadRule};
use longshore_core::root::{Root, if_there, is_absent};

/// Directories where distributions and NVIDIA's installer put the libraries.
const LIBRARIES: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib64",
    "usr/lib64/nvidia",
    "usr/lib",
];
/// Libraries that carry the driver's version in their name.
const VERSIONED: [&str; 2] = ["libcuda.so.", "libnvidia-ml.so."];
/// Directory of the links of enabled units (systemd.unit(5)).
const WANTS: &str = "etc/systemd/system/multi-user.target.wants";
/// Directories of modprobe.d(5), in order of precedence.
const MODPROBE: [&str; 5] = [
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
];
/// Directories of modules-load.d(5).
const LOAD: [&str; 4] = [
    "etc/modules-load.d",
    "run/modules-load.d",
    "usr/local/lib/modules-load.d",
    "usr/lib/modules-load.d",
];

/// Reads the driver installed below the host's root.
///
/// # Errors
/// If a directory is there and cannot be read.
pub(super) fn read_driver(host: &Root) -> io::Result<HostDriver> {
    let mut found = HostDriver::default();
    let mut seen = BTreeSet::new();
    for dir in LIBRARIES {
        // usr/lib64 is usr/lib on some distributions, or the other way round.
        if identity(host, dir).is_some_and(|id| !seen.insert(id)) {
            continue;
        }
        for name in names(host, dir)? {
            let Some(version) = VERSIONED.iter().find_map(|prefix| name.strip_prefix(prefix))
            else {
                continue;
            };
            found.libraries.push(Path::new("/").join(dir).join(&name));
            // libcuda.so.1 is the name that programs load; libcuda.so.535.261.03 is the file.
            if version.contains('.') {
                found.version = Some(version.to_owned());
            }
        }
    }
    found.dkms = names(host, "var/lib/dkms")?;
    found.dkms.retain(|name| is_dkms_of_driver(name));
    found.services = names(host, WANTS)?;
    found.services.retain(|name| name.starts_with("nvidia-"));
    Ok(found)
}

/// True for a DKMS package of the driver: `nvidia`, `nvidia-current`, `nvidia-580`. NVIDIA's packages called the open
/// modules `nvidia-open` before 570.148.08, and call them `nvidia` since. `nvidia-fs` is GPUDirect Storage.
fn is_dkms_of_driver(name: &str) -> bool {
    name.starts_with("nvidia") && name != "nvidia-fs"
}

/// Reads which modules the host loads by itself, or is configured not to load.
///
/// # Errors
/// If a file is there and cannot be read.
pub(super) fn read_autoload(root: &Root, host: &Root) -> io::Result<Autoload> {
    let mut found = Autoload::default();
    let mut seen = BTreeSet::new();
    for file in
        MODPROBE.iter().map(|dir| files(host, dir)).collect::<io::Result<Vec<_>>>()?.concat()
    {
        // A file overrides its namesakes in later directories; and /lib is /usr/lib on a merged
        // system.
        if seen.insert(file.file_name().map(ToOwned::to_owned)) {
            found.add_modprobe(&file, &text(host, &file)?);
        }
    }
    for dir in LOAD {
        for file in files(host, dir)? {
            found.add_list(&file, &text(host, &file)?);
        }
    }
    for file in ["etc/modules", "etc/initramfs-tools/modules"] {
        found.add_list(&Path::new("/").join(file), &text(host, Path::new(file))?);
    }
    found.add_command_line(&text(root, Path::new("proc/cmdline"))?);
    Ok(found)
}

impl Autoload {
    fn add_modprobe(&mut self, file: &Path, text: &str) {
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            match words.as_slice() {
                ["blacklist", module, ..] => drop(self.kept_out.insert(kernel_name(module))),
                // `install nouveau /bin/false` blocks loading it by name, too.
                [
                    "install",
                    module,
                    "/bin/false" | "/bin/true" | "/usr/bin/false" | "/usr/bin/true",
                    ..,
                ] => {
                    self.kept_out.insert(kernel_name(module));
                }
                ["options", module, ..] => {
                    let text = line.trim().to_owned();
                    let module = kernel_name(module);
                    self.options.push(LoadRule { module, text, file: file.to_path_buf() });
                }
                _ => {}
            }
        }
    }

    /// Parses a list of modules, one per line.
    fn add_list(&mut self, file: &Path, text: &str) {
        for line in text.lines().map(str::trim) {
            if let Some(module) = line.split_ascii_whitespace().next()
                && !module.starts_with(['#', ';'])
            {
                let (module, text) = (kernel_name(module), line.to_owned());
                self.at_boot.push(LoadRule { module, text, file: file.to_path_buf() });
            }
        }
    }

    /// Parses `modprobe.blacklist=` (kmod) and `module_blacklist=` (the kernel itself).
    fn add_command_line(&mut self, line: &str) {
        for word in line.split_ascii_whitespace() {
            for key in ["modprobe.blacklist=", "module_blacklist="] {
                if let Some(list) = word.strip_prefix(key) {
                    self.kept_out.extend(list.split(',').map(kernel_name));
                }
            }
        }
    }
}

/// Reads a file's text. Missing files, dangling links and directories count as empty, as they do
/// for the host's own readers.
fn text(root: &Root, file: &Path) -> io::Result<String> {
    match root.read_to_string(file) {
        Err(e) if is_absent(&e) || e.kind() == io::ErrorKind::IsADirectory => Ok(String::new()),
        other => other,
    }
}

/// Returns device and inode of a directory; None where it cannot be opened.
fn identity(host: &Root, dir: &str) -> Option<(u64, u64)> {
    let found = host.found(dir).and_then(|dir| dir.metadata()).ok()?;
    Some((found.dev(), found.ino()))
}

fn names(host: &Root, dir: &str) -> io::Result<Vec<String>> {
    Ok(if_there(host.read_dir(dir))?.unwrap_or_default())
}

/// The .conf files of a directory, by absolute path.
fn files(host: &Root, dir: &str) -> io::Result<Vec<PathBuf>> {
    let names = names(host, dir)?.into_iter().filter(|name| name.ends_with(".conf"));
    Ok(names.map(|name| Path::new("/").join(dir).join(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn a_host_without_a_driver_has_none() {
        let (_dir, root) =
            tree(&[("usr/lib/x86_64-linux-gnu/libc.so.6", ""), ("var/lib/dkms/zfs/x", "")]);
        assert_eq!(read_driver(&root).unwrap(), HostDriver::default());
        assert_eq!(read_autoload(&root, &root).unwrap(), Autoload::default());
    }

    #[test]
    fn libraries_dkms_and_services_are_seen() {
        let (_dir, root) = tree(&[
            ("usr/lib/x86_64-linux-gnu/libcuda.so.1", ""),
            ("usr/lib/x86_64-linux-gnu/libcuda.so.535.261.03", ""),
            ("var/lib/dkms/nvidia-current/x", ""),
            ("var/lib/dkms/nvidia-fs/x", ""),
            ("etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service", ""),
            ("etc/systemd/system/multi-user.target.wants/ssh.service", ""),
        ]);
        let found = read_driver(&root).unwrap();
        assert_eq!(found.version.as_deref(), Some("535.261.03"));
        assert_eq!(found.libraries.len(), 2);
        assert_eq!(found.dkms, ["nvidia-current"]);
        assert_eq!(found.services, ["nvidia-persistenced.service"]);
    }

    #[rstest]
    #[case::since_570("nvidia", true)]
    #[case::before_570("nvidia-open", true)]
    #[case::debian("nvidia-current", true)]
    #[case::ubuntu("nvidia-srv-580", true)]
    #[case::storage("nvidia-fs", false)]
    #[case::other("zfs", false)]
    fn dkms_packages_of_the_driver(#[case] name: &str, #[case] wanted: bool) {
        assert_eq!(is_dkms_of_driver(name), wanted);
    }

    #[rstest]
    #[case::el("usr/lib64", None)]
    #[case::lib_is_lib64("usr/lib64", Some(("lib64", "usr/lib")))]
    #[case::lib64_is_lib("usr/lib", Some(("lib", "usr/lib64")))]
    fn libraries_in_lib64_are_listed_once(#[case] dir: &str, #[case] link: Option<(&str, &str)>) {
        let file = format!("{dir}/libcuda.so.535.261.03");
        let (tree, root) = tree(&[(&file, "")]);
        if let Some((target, name)) = link {
            std::os::unix::fs::symlink(target, tree.path().join(name)).unwrap();
        }
        let found = read_driver(&root).unwrap();
        assert_eq!(found.libraries.len(), 1);
        assert_eq!(found.version.as_deref(), Some("535.261.03"));
    }

    #[rstest]
    #[case("etc/modprobe.d/n.conf", "# no\nblacklist nouveau\n", &["nouveau"], 0, 0)]
    #[case("lib/modprobe.d/n.conf", "install nouveau /bin/false\n", &["nouveau"], 0, 0)]
    #[case("lib/modprobe.d/n.conf", "install nvidia /sbin/modprobe -i nvidia-current\n", &[], 0, 0)]
    #[case("etc/modprobe.d/n.conf", "options nvidia-drm modeset=1\n", &[], 1, 0)]
    #[case("etc/modprobe.d/n.txt", "blacklist nouveau\n", &[], 0, 0)]
    #[case("etc/modules", "# none\nnvidia\n\nnvidia-uvm\n", &[], 0, 2)]
    #[case("etc/modules-load.d/n.conf", "; none\nnvidia\n", &[], 0, 1)]
    #[case("etc/initramfs-tools/modules", "nouveau modeset=0\n", &[], 0, 1)]
    #[case("proc/cmdline", "quiet modprobe.blacklist=nouveau,nova-core x\n", &["nouveau", "nova_core"], 0, 0)]
    #[case("proc/cmdline", "module_blacklist=nouveau\n", &["nouveau"], 0, 0)]
    fn rules(
        #[case] path: &str,
        #[case] text: &str,
        #[case] kept_out: &[&str],
        #[case] options: usize,
        #[case] at_boot: usize,
    ) {
        let (_dir, root) = tree(&[(path, text)]);
        let found = read_autoload(&root, &root).unwrap();
        let names: Vec<&str> = found.kept_out.iter().map(String::as_str).collect();
        assert_eq!(names, kept_out);
        assert_eq!((found.options.len(), found.at_boot.len()), (options, at_boot));
    }

    #[test]
    fn a_link_that_leads_nowhere_and_a_directory_hide_nothing_else() {
        let (dir, root) = tree(&[
            ("etc/modprobe.d/b.conf", "blacklist nouveau\n"),
            ("etc/modprobe.d/dir.conf/x", ""),
            ("etc/modules-load.d/b.conf", "nvidia\n"),
        ]);
        for link in ["etc/modprobe.d/a.conf", "etc/modules-load.d/a.conf"] {
            std::os::unix::fs::symlink("/gone", dir.path().join(link)).unwrap();
        }
        let found = read_autoload(&root, &root).unwrap();
        assert!(found.kept_out.contains("nouveau"));
        assert_eq!(found.at_boot.len(), 1);
    }

    #[test]
    fn a_file_of_the_administrators_takes_the_place_of_its_namesake() {
        let (_dir, root) = tree(&[
            ("etc/modprobe.d/n.conf", ""),
            ("usr/lib/modprobe.d/n.conf", "blacklist nouveau\n"),
            ("usr/lib/modprobe.d/o.conf", "options nvidia-drm modeset=1\n"),
        ]);
        let found = read_autoload(&root, &root).unwrap();
        assert!(found.kept_out.is_empty());
        assert_eq!(found.options[0].module, "nvidia_drm");
        assert_eq!(found.options[0].file, Path::new("/usr/lib/modprobe.d/o.conf"));
    }
}
