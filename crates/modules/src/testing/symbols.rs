//! A module with CRCs.

use crate::kernel::symbols::ENTRY;

/// A relocatable ELF64 file of a little-endian machine with these sections.
fn elf(sections: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut names = vec![0];
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut headers = vec![[0u64; 4]];
    let content: usize = sections.iter().map(|(_, content)| content.len()).sum();
    let mut at = 64;
    for (name, content) in sections {
        headers.push([names.len() as u64, 1, at, content.len() as u64]);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        at += content.len() as u64;
    }
    let own_name = names.len() as u64;
    names.extend_from_slice(b".shstrtab\0");
    headers.push([own_name, 3, at, names.len() as u64]);
    let headers_at = (64 + content + names.len()) as u64;
    file.extend([1u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0, 0, headers_at].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    let (count, last) = (headers.len() as u16, headers.len() as u16 - 1);
    file.extend([64u16, 0, 0, 64, count, last].map(u16::to_le_bytes).concat());
    file.extend(sections.iter().flat_map(|(_, content)| content));
    file.extend(&names);
    for [name, kind, offset, size] in headers {
        file.extend([name as u32, kind as u32].map(u32::to_le_bytes).concat());
        file.extend([0, 0, offset, size].map(u64::to_le_bytes).concat());
        file.extend([0; 8]);
        file.extend([1u64, 0].map(u64::to_le_bytes).concat());
    }
    file
}

/// A module called `name` that was compiled against these CRCs.
pub fn module(name: &str, vermagic: &str, crcs: &[(&str, u32)]) -> Vec<u8> {
    with_info(&format!("license=MIT\0name={name}\0vermagic={vermagic}\0"), crcs)
}

/// A module with this `.modinfo` that was compiled against these CRCs.
pub fn with_info(info: &str, crcs: &[(&str, u32)]) -> Vec<u8> {
    let entry = |(symbol, crc): &(&str, u32)| {
        let mut entry = u64::from(*crc).to_le_bytes().to_vec();
        entry.extend_from_slice(symbol.as_bytes());
        entry.resize(ENTRY, 0);
        entry
    };
    let versions = crcs.iter().flat_map(entry).collect();
    elf(&[(".modinfo", info.as_bytes().to_vec()), ("__versions", versions)])
}
