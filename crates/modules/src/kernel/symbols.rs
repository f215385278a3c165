//! Symbols that a module imports: their CRCs, compared with those that the kernel exports.
//!
//! A kernel with CONFIG_MODVERSIONS gives each exported symbol a CRC over its type, and a module
//! has in `__versions` the CRCs that it was compiled against: entries of 64 bytes, CRC and name
//! (include/linux/module.h, `struct modversion_info`). The kernel refuses a module with a different
//! CRC (kernel/module/version.c, `check_version`): "disagrees about version of symbol".

use std::collections::BTreeMap;

use object::read::ReadRef;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};

use super::modinfo;

/// Symbol -> CRC.
pub type Crcs = BTreeMap<String, u32>;

/// Bytes of an entry on 64-bit machines, with the CRC first.
pub(crate) const ENTRY: usize = 64;
const CRC: usize = 8;
/// Size limit of a module's section: the largest have some thousand entries.
const LARGEST_SECTION: u64 = 16 << 20;

/// Kernel options and symbols that a module was compiled against.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Imports {
    /// modinfo `vermagic`.
    pub vermagic: Option<String>,
    /// CRCs of the symbols that it imports; empty if its kernel has no CONFIG_MODVERSIONS.
    pub crcs: Crcs,
}

/// A symbol with different CRCs in a module and in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differing {
    /// Its name.
    pub symbol: String,
    /// The CRC that the module was compiled against.
    pub wanted: u32,
    /// The CRC that the kernel exports.
    pub kernel: u32,
}

/// Reads the imports of the module in `data`, an uncompressed `.ko`. With a file
/// ([`object::ReadCache`]) only the tables and the two sections are read.
///
/// # Errors
/// The reason why it cannot be read as a module.
pub fn imports<'a, R: ReadRef<'a>>(data: R) -> Result<Imports, String> {
    let file = ElfFile64::<Endianness, R>::parse(data).map_err(|e| e.to_string())?;
    let section = |name: &str| match file.section_by_name(name) {
        Some(section) if section.size() > LARGEST_SECTION => {
            Err(format!("its section {name} has {} bytes", section.size()))
        }
        Some(section) => section.data().map(Some).map_err(|e| e.to_string()),
        None => Ok(None),
    };
    let info = section(".modinfo")?.map(modinfo::parse).unwrap_or_default();
    let little = file.endianness() == Endianness::Little;
    let versions = section("__versions")?.unwrap_or_default();
    Ok(Imports { vermagic: info.vermagic, crcs: versions_of(versions, little) })
}

fn versions_of(section: &[u8], little: bool) -> Crcs {
    let entry = |entry: &[u8]| {
        let (crc, name) = entry.split_first_chunk::<CRC>()?;
        let crc = if little { u64::from_le_bytes(*crc) } else { u64::from_be_bytes(*crc) };
        let name = name.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        // The kernel compares 32 bits, too.
        Some((String::from_utf8_lossy(name).into_owned(), crc as u32))
    };
    section.chunks_exact(ENTRY).filter_map(entry).collect()
}

/// Parses the CRCs of a Module.symvers: `0xCRC SYMBOL MODULE TYPE [NAMESPACE]`, separated by tabs
/// (Documentation/kbuild/modules.rst). Without CONFIG_MODVERSIONS they are 0, and left out here.
pub fn symvers(text: &str) -> Crcs {
    let line = |line: &str| {
        let mut words = line.split('\t');
        let crc = words.next()?.strip_prefix("0x")?;
        let crc = u32::from_str_radix(crc, 16).ok().filter(|crc| *crc != 0)?;
        Some((words.next()?.to_owned(), crc))
    };
    text.lines().filter_map(line).collect()
}

/// Returns the symbols of `wanted` that `kernel` exports with another CRC. A symbol that it does
/// not export may be another module's.
pub fn differing(wanted: &Crcs, kernel: &Crcs) -> Vec<Differing> {
    let differs = |(symbol, wanted): (&String, &u32)| {
        let kernel = kernel.get(symbol).filter(|kernel| *kernel != wanted)?;
        Some(Differing { symbol: symbol.clone(), wanted: *wanted, kernel: *kernel })
    };
    wanted.iter().filter_map(differs).collect()
}

/// True if two vermagics are of kernels with the same options. The release in front of them is
/// compared elsewhere, and not at all by kernels with CONFIG_MODVERSIONS (`same_magic`).
pub fn same_options(one: &str, other: &str) -> bool {
    let options = |magic: &str| {
        magic.split_ascii_whitespace().skip(1).map(str::to_owned).collect::<Vec<String>>()
    };
    options(one) == options(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::symbols::module;
    use proptest::prelude::*;
    use rstest::rstest;

    const MAGIC: &str = "6.1.0-50-amd64 SMP preempt mod_unload modversions ";

    #[test]
    fn a_module_says_what_it_was_compiled_against() {
        let image =
            module("nvidia", MAGIC, &[("module_layout", 0x1234_5678), ("vmap", 0xdead_beef)]);
        let found = imports(image.as_slice()).expect("a module");
        assert_eq!(found.vermagic.as_deref(), Some(MAGIC));
        let crcs = [("module_layout", 0x1234_5678), ("vmap", 0xdead_beef)];
        assert_eq!(found.crcs, crcs.map(|(symbol, crc)| (symbol.to_owned(), crc)).into());
        let plain = crate::testing::modinfo::module(".modinfo", b"vermagic=6.1 SMP \0");
        assert!(imports(plain.as_slice()).expect("a module").crcs.is_empty());
        assert!(imports(&b"no module"[..]).is_err());
    }

    #[test]
    fn module_symvers_is_read_and_what_differs_is_named() {
        let kernel = symvers(
            "0x12345678\tmodule_layout\tvmlinux\tEXPORT_SYMBOL\t\n\
             0x00000001\tvmap\tvmlinux\tEXPORT_SYMBOL\t\n\
             0x00000000\tunversioned\tvmlinux\tEXPORT_SYMBOL\t\nnonsense\n0xzz\tx\n",
        );
        assert_eq!(kernel.len(), 2);
        let wanted = [("module_layout", 0x1234_5678), ("vmap", 2), ("nvidia_own", 3)];
        let wanted = wanted.map(|(symbol, crc)| (symbol.to_owned(), crc)).into();
        let differing = differing(&wanted, &kernel);
        assert_eq!(differing, [Differing { symbol: "vmap".into(), wanted: 2, kernel: 1 }]);
    }

    #[rstest]
    #[case(MAGIC, "6.1.0-49-amd64 SMP preempt mod_unload modversions", true)]
    #[case(MAGIC, "6.1.0-50-amd64 SMP preempt_rt mod_unload modversions ", false)]
    #[case(MAGIC, "", false)]
    fn options_are_compared_without_the_release(
        #[case] one: &str,
        #[case] other: &str,
        #[case] same: bool,
    ) {
        assert_eq!(same_options(one, other), same);
    }

    proptest! {
        #[test]
        fn damaged_modules_and_tables_do_not_panic(at in 0usize..700, value in any::<u8>()) {
            let mut image = module("nvidia", MAGIC, &[("vmap", 1)]);
            let at = at % image.len();
            image[at] = value;
            let _ = imports(image.as_slice());
            let _ = imports(&image[..at]);
            let _ = symvers(&String::from_utf8_lossy(&image));
        }
    }
}
