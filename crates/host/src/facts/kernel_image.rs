//! Build of a kernel that is installed on a host, as its image states it.

use std::io::Read;
use std::path::PathBuf;

use longshore_core::kernel_image::{BEGINNING, stated_version};
use longshore_core::module_dir::module_dir;
use longshore_core::root::{Root, reopen};

/// Returns `uname -v` of the kernel `release` that is installed in `host`; None where no image states it.
pub fn version(host: &Root, release: &str) -> Option<String> {
    let images: [PathBuf; 2] =
        [format!("boot/vmlinuz-{release}").into(), module_dir(host, release).join("vmlinuz")];
    images.iter().find_map(|image| {
        let mut beginning = Vec::new();
        let file = reopen(&host.found(image).ok()?).ok()?;
        file.take(BEGINNING as u64).read_to_end(&mut beginning).ok()?;
        stated_version(&beginning, release)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::testing::kernel_image;

    #[test]
    fn images_are_found_in_boot_and_beside_the_modules() {
        for place in ["boot/vmlinuz-6.9", "usr/lib/modules/6.9/vmlinuz"] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let path = dir.path().join(place);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, kernel_image("6.9 (a@b) #1 SMP", 0x800)).expect("written");
            let host = Root::open(dir.path()).expect("root");
            assert_eq!(version(&host, "6.9").as_deref(), Some("#1 SMP"), "{place}");
            assert_eq!(version(&host, "6.10"), None);
        }
    }
}
