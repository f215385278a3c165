//! Build of an installed kernel, as its image states it.
//!
//! The header of an x86 image has the offset of a text `RELEASE (USER@HOST) VERSION`, whose last part is
//! `uname -v` (Documentation/arch/x86/boot.rst, `kernel_version`; arch/x86/boot/version.c). Images of arm64
//! have none.

use std::io::Read;

use longshore_core::module_dir::module_dir;
use longshore_core::root::{Root, reopen};

/// Bytes read of an image. The text lies in its setup code, which has 64 sectors at most.
const SETUP: u64 = 64 * 512;
/// Place of the header's mark, and the mark.
const MARK_AT: usize = 0x202;
const MARK: &[u8] = b"HdrS";
/// Place of the text's offset, which counts from 0x200.
const OFFSET_AT: usize = 0x20e;
const OFFSET_FROM: usize = 0x200;
/// Length of the longest text; `uname -v` has 64 bytes (struct new_utsname).
const LONGEST: usize = 512;

/// Returns `uname -v` of the kernel `release` that is installed in `host`; None where no image states it.
pub fn version(host: &Root, release: &str) -> Option<String> {
    let images =
        [format!("boot/vmlinuz-{release}").into(), module_dir(host, release).join("vmlinuz")];
    images.iter().find_map(|image: &std::path::PathBuf| {
        let mut setup = Vec::new();
        reopen(&host.found(image).ok()?).ok()?.take(SETUP).read_to_end(&mut setup).ok()?;
        stated(&setup, release)
    })
}

/// Returns the version in an image of `release`.
fn stated(image: &[u8], release: &str) -> Option<String> {
    if image.get(MARK_AT..MARK_AT + MARK.len())? != MARK {
        return None;
    }
    let offset = image.get(OFFSET_AT..OFFSET_AT + 2)?;
    let begin = usize::from(u16::from_le_bytes([*offset.first()?, *offset.get(1)?])) + OFFSET_FROM;
    let text = image.get(begin..)?;
    let end = text.iter().take(LONGEST).position(|&byte| byte == 0)?;
    let text = std::str::from_utf8(text.get(..end)?).ok()?;
    let builder = text.strip_prefix(release)?.strip_prefix(" (")?;
    let (_, version) = builder.split_once(") #")?;
    let is_printable = version.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    (is_printable && version.len() < 64).then(|| format!("#{version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// Returns the beginning of an image with this text.
    fn image(text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        bytes[MARK_AT..MARK_AT + 4].copy_from_slice(MARK);
        bytes[OFFSET_AT..OFFSET_AT + 2].copy_from_slice(&0x200_u16.to_le_bytes());
        bytes.extend_from_slice(text);
        bytes
    }

    #[rstest]
    #[case::debian(
        b"6.1.0-51-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC Debian 6.1.180-1 (2026-11-02)\0",
        Some("#1 SMP PREEMPT_DYNAMIC Debian 6.1.180-1 (2026-11-02)")
    )]
    #[case::ubuntu(
        b"6.1.0-51-amd64 (buildd@lcy02-amd64-080) #52-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov  5 13:09:44 UTC 2026\0",
        Some("#52-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov  5 13:09:44 UTC 2026")
    )]
    #[case::other_release(b"6.1.0-510-amd64 (a@b) #1 SMP\0", None)]
    #[case::without_a_builder(b"6.1.0-51-amd64 #1 SMP\0", None)]
    #[case::without_an_end(b"6.1.0-51-amd64 (a@b) #1 SMP", None)]
    #[case::control_characters(b"6.1.0-51-amd64 (a@b) #1 \x1b[2J\0", None)]
    #[case::no_text(b"6.1.0-51-amd64 (a@b) #\xff\0", None)]
    #[case::empty(b"\0", None)]
    fn texts(#[case] text: &[u8], #[case] wanted: Option<&str>) {
        assert_eq!(stated(&image(text), "6.1.0-51-amd64").as_deref(), wanted);
    }

    #[test]
    fn images_are_found_in_boot_and_beside_the_modules() {
        for place in ["boot/vmlinuz-6.9", "usr/lib/modules/6.9/vmlinuz"] {
            let dir = tempfile::tempdir().expect("temporary directory");
            let path = dir.path().join(place);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, image(b"6.9 (a@b) #1 SMP\0")).expect("written");
            let host = Root::open(dir.path()).expect("root");
            assert_eq!(version(&host, "6.9").as_deref(), Some("#1 SMP"), "{place}");
            assert_eq!(version(&host, "6.10"), None);
        }
    }

    proptest! {
        #[test]
        fn no_image_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..0x300)) {
            let _ = stated(&bytes, "6");
            if let Some(mark) = bytes.get_mut(MARK_AT..MARK_AT + 4) {
                mark.copy_from_slice(MARK);
            }
            let _ = stated(&bytes, "6");
        }
    }
}
