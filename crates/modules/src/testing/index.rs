//! Index of a kernel's modules.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// Writes the modules.dep.bin that libkmod reads, from the lines of a modules.dep. A node has
/// children by letter and at most one value (tools/depmod.c of kmod, index_write).
///
/// # Panics
/// If `dir` cannot be written.
pub fn write_index(dir: &Path, dep: &str) {
    let entry = |line: &str| {
        let file = line.split(':').next().unwrap();
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        (name.split('.').next().unwrap().replace('-', "_"), line.to_owned())
    };
    let mut entries: Vec<(String, String)> = dep.lines().map(entry).collect();
    entries.sort();
    let mut bytes = [0xB007_F457_u32, 0x0002_0001, 0].map(u32::to_be_bytes).concat();
    let root = write_node(&mut bytes, &entries, 0);
    bytes[8..12].copy_from_slice(&root.to_be_bytes());
    fs::write(dir.join("modules.dep.bin"), bytes).unwrap();
    for file in dep.lines().filter_map(|line| line.split(':').next()) {
        // libkmod leaves out a dependency whose file does not exist.
        let path = dir.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    }
}

fn write_node(bytes: &mut Vec<u8>, entries: &[(String, String)], depth: usize) -> u32 {
    let letter = |entry: &(String, String)| entry.0.as_bytes().get(depth).copied();
    let mut children: Vec<(u8, u32)> = Vec::new();
    for chunk in entries.chunk_by(|a, b| letter(a) == letter(b)) {
        if let Some(letter) = letter(&chunk[0]) {
            children.push((letter, write_node(bytes, chunk, depth + 1)));
        }
    }
    let mut offset = bytes.len() as u32;
    if let (Some((first, _)), Some((last, _))) = (children.first(), children.last()) {
        bytes.extend([*first, *last]);
        for letter in *first..=*last {
            let child = children.iter().find(|(l, _)| *l == letter).map_or(0, |(_, at)| *at);
            bytes.extend(child.to_be_bytes());
        }
        offset |= 0x2000_0000;
    }
    if let Some((_, value)) = entries.iter().find(|entry| letter(entry).is_none()) {
        bytes.extend([1_u32, 0].map(u32::to_be_bytes).concat());
        bytes.extend(value.as_bytes());
        bytes.push(0);
        offset |= 0x4000_0000;
    }
    offset
}
