//! Small sets of modules that are real ELF files, as far as longshore reads them.

use std::collections::BTreeMap;
use std::fs;

use longshore_core::digest::digest_of;
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_modules::artifact::{HeadersFrom, ModuleEntry, ModuleKey, ModuleSet};
use longshore_modules::sets::SetStore;

/// Puts a set for a kernel release into the store.
pub fn put(store: &Store, release: &str) -> ModuleSet {
    put_of(store, release, &["nvidia", "nvidia-uvm"], 0)
}

/// Makes a set of these modules, the first of them longer by `padding`.
pub fn put_of(store: &Store, release: &str, names: &[&str], padding: usize) -> ModuleSet {
    let key = ModuleKey {
        driver_version: "535.261.03".into(),
        flavour: Flavour::Open,
        driver_digest: "1".repeat(64),
        kernel_release: release.into(),
        kernel_version: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-10-01)".into(),
        arch: std::env::consts::ARCH.into(),
        headers: BTreeMap::new(),
        compiler: "gcc-12 (Debian 12.2.0-14) 12.2.0".into(),
        options: Vec::new(),
        patches: Default::default(),
        signed_by: None,
    };
    let modules = names.iter().map(|name| {
        let mut image = module(name, release);
        if *name == "nvidia" {
            image.extend(noise(padding));
        }
        store.put(&image).expect("put");
        ModuleEntry::describe(&format!("{name}.ko"), &image, release).expect("a module")
    });
    let set = ModuleSet { key, headers_from: HeadersFrom::Archive, modules: modules.collect() };
    store.put_set(&set).expect("put_set");
    set
}

/// Returns bytes that differ at every place.
fn noise(length: usize) -> impl Iterator<Item = u8> {
    (0u32..).flat_map(u32::to_le_bytes).take(length)
}

/// Returns an ELF file with only `.modinfo` and the names of its sections.
pub fn module(name: &str, release: &str) -> Vec<u8> {
    let name = name.replace('-', "_");
    elf(&format!("name={name}\0version=535.261.03\0vermagic={release} SMP \0"))
}

/// Returns the same with this `.modinfo`.
pub fn elf(info: &str) -> Vec<u8> {
    let names = b"\0.modinfo\0.shstrtab\0";
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // ET_REL, EM_X86_64, EV_CURRENT, no entry, no program headers, then the section headers.
    file.extend([1, 0, 62, 0, 1, 0, 0, 0]);
    let headers_at = 64 + info.len() + names.len();
    for word in [0, 0, headers_at as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 0, 0, 64, 3, 2] {
        file.extend(half.to_le_bytes());
    }
    file.extend(info.as_bytes());
    file.extend(names);
    let sections =
        [(0u32, 0u32, 0, 0), (1, 1, 64, info.len()), (10, 3, 64 + info.len(), names.len())];
    for (name, kind, offset, size) in sections {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [0, 0, offset as u64, size as u64, 0, 1, 0] {
            file.extend(word.to_le_bytes());
        }
    }
    file
}

/// Checks that every blob matches the digest in its name, and that nothing is unfinished.
pub fn assert_sound(store: &Store) {
    for entry in fs::read_dir(store.dir("blobs/sha256")).expect("list") {
        let path = entry.expect("entry").path();
        let found = digest_of(fs::File::open(&path).expect("open")).expect("read");
        assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(found.as_str()));
    }
    assert_eq!(fs::read_dir(store.dir("tmp")).expect("list").count(), 0, "a file is unfinished");
}
