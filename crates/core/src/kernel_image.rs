//! Version of a kernel (`uname -v`), by its image.
//!
//! The setup header of x86 (Documentation/arch/x86/boot.rst) has the place of a text, which counts from the end of
//! the first sector: `RELEASE (BUILDER) VERSION`. Images of arm64 have none.

/// Mark of the header, and the field with the place of the text.
const MARK: (usize, &[u8]) = (0x202, b"HdrS");
const FIELD: usize = 0x20e;
const SECTOR: usize = 0x200;
/// Maximum length of the text.
const MOST_TEXT: usize = 512;
/// Number of bytes from the beginning of an image that the text lies in, at any place.
pub const BEGINNING: usize = SECTOR + 0xffff + MOST_TEXT;

/// Returns the version in an image of the kernel `release`, of which the [`BEGINNING`] suffices; None for another
/// release, and for images of another form.
pub fn stated_version(image: &[u8], release: &str) -> Option<String> {
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
mod tests {
    use super::*;
    use crate::testing::kernel_image as image;
    use proptest::prelude::*;
    use rstest::rstest;

    const RELEASE: &str = "6.8.0-142-generic";
    const VERSION: &str = "#142-Ubuntu SMP PREEMPT_DYNAMIC Thu Nov 5 10:00:00 UTC 2026";

    #[rstest]
    #[case::of_the_release("6.8.0-142-generic (buildd@builder) ", 0x800, true)]
    #[case::other_release("6.8.0-141-generic (buildd@builder) ", 0x800, false)]
    #[case::longer_release("6.8.0-142-generic-64k (buildd@builder) ", 0x800, false)]
    #[case::no_builder("6.8.0-142-generic ", 0x800, false)]
    #[case::elsewhere("6.8.0-142-generic (buildd@builder) ", 0x900, false)]
    #[case::beyond_the_end("6.8.0-142-generic (buildd@builder) ", 0xffff, false)]
    fn the_version_is_in_the_setup_header(
        #[case] before: &str,
        #[case] place: u16,
        #[case] found: bool,
    ) {
        let image = image(&format!("{before}{VERSION}"), place);
        assert_eq!(stated_version(&image, RELEASE).as_deref(), found.then_some(VERSION));
    }

    #[rstest]
    #[case::empty(b"".to_vec())]
    #[case::short(vec![0; 0x20f])]
    #[case::no_mark(image(VERSION, 0x800).into_iter().skip(1).collect())]
    #[case::control_characters(image("6.8.0-142-generic (b) #1\u{1b}[2J", 0x800))]
    fn other_images_state_none(#[case] image: Vec<u8>) {
        assert_eq!(stated_version(&image, RELEASE), None);
    }

    proptest! {
        #[test]
        fn no_image_makes_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..0x300)) {
            let _ = stated_version(&bytes, "6");
            if let Some(mark) = bytes.get_mut(MARK.0..MARK.0 + MARK.1.len()) {
                mark.copy_from_slice(MARK.1);
            }
            let _ = stated_version(&bytes, "6");
        }
    }
}
