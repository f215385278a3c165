//! Version of a kernel (`uname -v`) that does not run here, out of its image in an archive.
//!
//! It is asked for only where headers do not state the version.

use longshore_core::failure::Failure;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::deb;

/// Packages with the image, signed for Secure Boot or not, and its path in them. Since 7.0 Debian's `linux-image-*`
/// has maintainer scripts alone, which copy the image to /boot.
const PLACES: [(&str, Place); 4] = [
    ("linux-image-", Place::Boot),
    ("linux-image-unsigned-", Place::Boot),
    ("linux-binary-", Place::BesideModules),
    ("linux-binary-unsigned-", Place::BesideModules),
];

/// Path of the image in its package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// `boot/vmlinuz-RELEASE`.
    Boot,
    /// `usr/lib/modules/RELEASE/vmlinuz`.
    BesideModules,
}

impl Place {
    fn path(self, release: &str) -> String {
        match self {
            Self::Boot => format!("boot/vmlinuz-{release}"),
            Self::BesideModules => format!("usr/lib/modules/{release}/vmlinuz"),
        }
    }
}
/// The setup header of x86 (Documentation/arch/x86/boot.rst): its mark, and the field with the
/// version's place, which counts from the end of the first sector.
const MARK: (usize, &[u8]) = (0x202, b"HdrS");
const FIELD: usize = 0x20e;
const SECTOR: usize = 0x200;
/// Maximum length of the text there, which names release, builder and version.
const MOST_TEXT: usize = 512;

/// Returns the version of the kernel `release` from the image package of the build that the package
/// `headers` is of; None where no archive has it, or it has another form than x86's.
///
/// # Errors
/// Exit code 12 and 13 for a package that cannot be fetched or is damaged.
pub(super) async fn version(
    archive: &Archive,
    headers: &Package,
    release: &str,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Option<String>, Failure> {
    for (prefix, place) in PLACES {
        let found = archive.packages(&format!("{prefix}{release}"));
        let of_build = found.into_iter().find(|p| p.version == headers.version);
        let Some(package) = of_build else { continue };
        archive.fetch(std::slice::from_ref(&package), store, progress).await?;
        let reader = store.open_blob(&package.sha256)?;
        if let Some(image) = deb::read_file(&package.name, reader, place.path(release).as_ref())? {
            return Ok(stated(&image, release));
        }
    }
    Ok(None)
}

/// Returns the version in an image: the text at its place is `RELEASE (BUILDER) VERSION`.
fn stated(image: &[u8], release: &str) -> Option<String> {
    let (mark, bytes) = MARK;
    image.get(mark..)?.starts_with(bytes).then_some(())?;
    let field = [*image.get(FIELD)?, *image.get(FIELD + 1)?];
    let place = usize::from(u16::from_le_bytes(field)) + SECTOR;
    let text = image.get(place..)?.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text.get(..text.len().min(MOST_TEXT))?).ok()?;
    let builder = text.strip_prefix(release)?.strip_prefix(" (")?;
    let (_, version) = builder.split_once(") ")?;
    let printable = version.starts_with('#') && !version.contains(|c: char| c.is_control());
    printable.then(|| version.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rstest::rstest;

    const RELEASE: &str = "6.8.0-142-generic";
    pub(in crate::source::headers) const VERSION: &str =
        "#142-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov 5 10:00:00 UTC 2026";

    /// Makes an image with this text at `place`.
    pub(in crate::source::headers) fn image(text: &str, place: u16) -> Vec<u8> {
        let mut image = vec![0; SECTOR + 0x1000];
        image[MARK.0..MARK.0 + 4].copy_from_slice(MARK.1);
        image[FIELD..FIELD + 2].copy_from_slice(&place.to_le_bytes());
        let start = SECTOR + 0x800;
        image[start..start + text.len()].copy_from_slice(text.as_bytes());
        image
    }

    #[rstest]
    #[case::of_the_release("6.8.0-142-generic (buildd@builder) ", 0x800, true)]
    #[case::other_release("6.8.0-141-generic (buildd@builder) ", 0x800, false)]
    #[case::no_builder("6.8.0-142-generic ", 0x800, false)]
    #[case::elsewhere("6.8.0-142-generic (buildd@builder) ", 0x900, false)]
    #[case::beyond_the_end("6.8.0-142-generic (buildd@builder) ", 0xffff, false)]
    fn the_version_is_in_the_setup_header(
        #[case] before: &str,
        #[case] place: u16,
        #[case] found: bool,
    ) {
        let image = image(&format!("{before}{VERSION}"), place);
        assert_eq!(stated(&image, RELEASE).as_deref(), found.then_some(VERSION));
    }

    #[rstest]
    #[case::empty(b"".to_vec())]
    #[case::short(vec![0; 0x20f])]
    #[case::no_mark(image(VERSION, 0x800).into_iter().skip(1).collect())]
    #[case::control_characters(image("6.8.0-142-generic (b) #1\u{1b}[2J", 0x800))]
    fn other_images_state_none(#[case] image: Vec<u8>) {
        assert_eq!(stated(&image, RELEASE), None);
    }
}
