//! Kernels that are installed on a host, by the directories of their modules and by the images in /boot.
//!
//! The names of the host's files are taken only where they are kernel releases. Links resolve inside the
//! root, and nothing is opened but directories.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use longshore_core::kernel_id::is_release;
use longshore_core::root::{Root, if_there};

/// Directories with the modules of all kernels: the usual one, through any links, and /usr alone.
const MODULE_DIRS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
const BOOT: &str = "boot";
/// Beginning of an image's name in /boot (Debian's and Red Hat's kernel packages; installkernel(8)).
const IMAGE: &str = "vmlinuz-";
/// Maximum number of names in one of these directories: a host has a handful of kernels.
const MOST_NAMES: usize = 1024;

/// Returns the releases of the kernels that are installed in `host`, the running one included where its
/// files are there.
///
/// A kernel has a directory of modules with modules.dep or an image, or an image in /boot. Where the running
/// kernel has its image in /boot, so has each other that can be booted: directories stay of kernels that
/// were removed.
///
/// # Errors
/// The kernel's error, with the path; invalid data for a directory with more than 1024 names.
pub fn read(host: &Root, running: &str) -> io::Result<BTreeSet<String>> {
    let images = images(host)?;
    let needs_image = images.contains(running);
    let mut all = images.clone();
    for dir in MODULE_DIRS {
        for release in names(host, dir)?.into_iter().filter(|name| is_kernel(name)) {
            let has = |file: &str| host.exists(Path::new(dir).join(&release).join(file));
            if has("vmlinuz")? || has("modules.dep")? && !needs_image {
                all.insert(release);
            }
        }
    }
    Ok(all)
}

/// Returns the releases that have an image in /boot.
fn images(host: &Root) -> io::Result<BTreeSet<String>> {
    let names = names(host, BOOT)?;
    let releases = names.iter().filter_map(|name| name.strip_prefix(IMAGE));
    Ok(releases.filter(|name| is_kernel(name)).map(str::to_owned).collect())
}

/// True for the release of a kernel, which begins with its version.
fn is_kernel(name: &str) -> bool {
    is_release(name) && name.starts_with(|c: char| c.is_ascii_digit())
}

fn names(host: &Root, dir: &str) -> io::Result<Vec<String>> {
    Ok(if_there(host.read_small_dir(dir, MOST_NAMES))?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns a host with these files; `A -> B` is a link.
    fn host(files: &[&str]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for file in files {
            let link = file.split_once(" -> ");
            let path = dir.path().join(link.map_or(*file, |(name, _)| name));
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            match link {
                Some((_, target)) => symlink(target, path).expect("link"),
                None => fs::write(path, "").expect("written"),
            }
        }
        let root = Root::open(dir.path()).expect("root");
        (dir, root)
    }

    #[rstest]
    #[case::empty(&["etc/os-release"], &[])]
    #[case::modules(&["lib/modules/6.1.0-51-amd64/modules.dep"], &["6.1.0-51-amd64"])]
    #[case::image_beside_modules(&["usr/lib/modules/6.6.30-flatcar/vmlinuz"], &["6.6.30-flatcar"])]
    #[case::image(&["boot/vmlinuz-6.1.0-51-amd64"], &["6.1.0-51-amd64"])]
    #[case::merged_usr(
        &["lib -> usr/lib", "usr/lib/modules/6.1.0-51-amd64/modules.dep"],
        &["6.1.0-51-amd64"]
    )]
    #[case::absolute_link(
        &["lib -> /usr/lib", "usr/lib/modules/6.1.0-51-amd64/modules.dep"],
        &["6.1.0-51-amd64"]
    )]
    #[case::linked_directory(
        &["lib/modules/6.9 -> /opt/6.9", "opt/6.9/modules.dep"],
        &["6.9"]
    )]
    #[case::headers_alone(&["lib/modules/6.1.0-51-amd64/build/Makefile"], &[])]
    #[case::removed_kernel(
        &["boot/vmlinuz-6.1.0-50-amd64", "lib/modules/6.1.0-50-amd64/modules.dep",
          "lib/modules/6.1.0-51-amd64/modules.dep", "lib/modules/6.1.0-52-amd64/vmlinuz"],
        &["6.1.0-50-amd64", "6.1.0-52-amd64"]
    )]
    #[case::images_of_others_alone(
        &["boot/vmlinuz-rescue", "boot/vmlinuz-0-rescue-1f", "lib/modules/6.1.0-51-amd64/modules.dep"],
        &["0-rescue-1f", "6.1.0-51-amd64"]
    )]
    #[case::other_files_of_boot(
        &["boot/initrd.img-6.1.0-51-amd64", "boot/config-6.1.0-51-amd64", "boot/vmlinuz", "boot/vmlinuz-"],
        &[]
    )]
    #[case::hostile_names(
        &["lib/modules/-rf/modules.dep", "lib/modules/a b/modules.dep", "lib/modules/\u{1b}[2J/modules.dep",
          "lib/modules/6.1;reboot/modules.dep", "boot/vmlinuz---help", "boot/vmlinuz-$(id)"],
        &[]
    )]
    #[case::link_outside(
        &["lib/modules -> ../../../../../../../../../../../usr/share", "usr/share/6.9/other"],
        &[]
    )]
    #[case::file_for_a_directory(&["lib/modules", "boot"], &[])]
    fn kernels(#[case] files: &[&str], #[case] wanted: &[&str]) {
        let (_dir, host) = host(files);
        let found = read(&host, "6.1.0-50-amd64").expect("read");
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_an_error_and_no_empty_one() {
        let (_dir, looped) = host(&["boot -> boot"]);
        assert!(read(&looped, "6.1").is_err());
        let names: Vec<String> = (0..=MOST_NAMES).map(|n| format!("boot/{n}")).collect();
        let (_dir, full) = host(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let error = read(&full, "6.1").expect_err("too many").to_string();
        assert!(error.contains("more than 1024 files"), "{error}");
    }
}
