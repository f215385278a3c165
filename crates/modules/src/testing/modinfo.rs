//! A module with one section.

/// A relocatable ELF64 file with one section named `name` that holds `content`.
pub fn module(name: &str, content: &[u8]) -> Vec<u8> {
    let mut names = vec![0];
    names.extend_from_slice(name.as_bytes());
    names.extend_from_slice(b"\0.shstrtab\0");
    let (content_at, names_at) = (64, 64 + content.len());
    let headers_at = names_at + names.len();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [1u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [0u64, 0, headers_at as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 0, 0, 64, 3, 2] {
        file.extend(half.to_le_bytes());
    }
    file.extend_from_slice(content);
    file.extend_from_slice(&names);
    let mut section = |name: u32, kind: u32, offset: usize, size: usize| {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [0u64, 0, offset as u64, size as u64] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0; 8]);
        for word in [1u64, 0] {
            file.extend(word.to_le_bytes());
        }
    };
    section(0, 0, 0, 0);
    section(1, 1, content_at, content.len());
    section(name.len() as u32 + 2, 3, names_at, names.len());
    file
}
