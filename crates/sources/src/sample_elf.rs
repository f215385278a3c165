//! Small ELF files for tests.

const DT_NULL: u64 = 0;
const NEEDED: u64 = 1;
const SONAME: u64 = 14;

/// An ELF file with only a dynamic section: header, strings, entries, three section headers (null,
/// dynamic, strings).
pub(crate) fn elf(machine: u16, soname: Option<&str>, needed: &[&str]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut dynamic = Vec::new();
    let wanted = soname.map(|s| (SONAME, s)).into_iter();
    for (tag, text) in wanted.chain(needed.iter().map(|n| (NEEDED, *n))) {
        dynamic.extend([tag, strings.len() as u64]);
        strings.extend(text.bytes().chain([0]));
    }
    dynamic.extend([DT_NULL, 0]);
    strings.resize(strings.len().next_multiple_of(8), 0);
    let (strings_at, dynamic_at) = (64, 64 + strings.len() as u64);
    let sections_at = dynamic_at + 8 * dynamic.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([3u16, machine].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0, 0, sections_at].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    file.extend(&strings);
    file.extend(dynamic.iter().flat_map(|word| word.to_le_bytes()));
    let mut section = |kind: u32, at: u64, size: usize, link: u32, entry: u64| {
        file.extend([0, kind].map(u32::to_le_bytes).concat());
        file.extend([0, 0, at, size as u64].map(u64::to_le_bytes).concat());
        file.extend([link, 0].map(u32::to_le_bytes).concat());
        file.extend([8, entry].map(u64::to_le_bytes).concat());
    };
    section(0, 0, 0, 0, 0);
    section(6, dynamic_at, 8 * dynamic.len(), 2, 16);
    section(3, strings_at, strings.len(), 0, 0);
    file
}
