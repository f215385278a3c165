//! Metadata of a module: the `.modinfo` section of a `.ko`, as `modinfo` prints it.
//!
//! `.modinfo` is a sequence of NUL-terminated `key=value` strings (linux/moduleparam.h,
//! `__MODULE_INFO`); NULs may also pad between them (kernel/module/main.c, `next_string`).

use std::collections::BTreeMap;

use object::elf::{FileHeader32, FileHeader64};
use object::read::elf::ElfFile;
use object::{Architecture, Endianness, FileKind, Object, ObjectSection};

use crate::module_signing::{Hash, Message, appended};

/// Metadata of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModInfo {
    /// The kernel's name for it (underscores), if it contains one (since Linux 4.9).
    pub name: Option<String>,
    /// Release and options of the kernel it was built for, for example
    /// `6.1.0-50-amd64 SMP preempt mod_unload modversions `.
    pub vermagic: Option<String>,
    /// MODULE_VERSION.
    pub version: Option<String>,
    /// Checksum over its sources.
    pub srcversion: Option<String>,
    /// MODULE_LICENSE.
    pub license: Option<String>,
    /// Modules it needs, in kernel names.
    pub depends: Vec<String>,
    /// Modules it prefers to have loaded before (`pre:`) or after it (`post:`), as written.
    pub softdeps: Vec<String>,
    /// Its parameters: name -> type (`int`, `charp`, ...), empty if it states none.
    pub parameters: BTreeMap<String, String>,
    /// Firmware files it may request.
    pub firmware: Vec<String>,
    /// The signature appended to the file; None if there is none.
    pub signature: Option<AppendedSignature>,
}

/// Fields of a signature, as modinfo prints them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppendedSignature {
    /// `signer`: issuer of the signer's certificate.
    pub signer: String,
    /// `sig_key`: serial number or key id of the signer's certificate (hex).
    pub key: String,
    /// `sig_hashalgo`; None if the signature cannot be parsed; no kernel accepts it then.
    pub hash: Option<Hash>,
}

/// The reason why a file cannot be read as a module.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ModInfoError {
    /// It is compressed: `xz`, `zstd` or `gzip`.
    #[error("the module is compressed with {0}; decompress it first")]
    Compressed(&'static str),
    /// It is not an ELF file, or a truncated one.
    #[error("not a kernel module: {0}")]
    NotElf(String),
    /// It has no `.modinfo` section.
    #[error("not a kernel module: no .modinfo section")]
    NoModInfo,
}

impl ModInfo {
    /// The release that `vermagic` begins with, for example `6.1.0-50-amd64`.
    pub fn kernel_release(&self) -> Option<&str> {
        self.vermagic.as_deref()?.split_ascii_whitespace().next()
    }
}

fn not_elf(error: object::Error) -> ModInfoError {
    ModInfoError::NotElf(error.to_string())
}

/// Reads the metadata of the module in `image` (a whole, uncompressed `.ko`).
///
/// # Errors
/// If `image` is compressed, is no ELF file, is truncated, or has no `.modinfo`.
pub fn read(image: &[u8]) -> Result<ModInfo, ModInfoError> {
    if let Some(compression) = compression_of(image) {
        return Err(ModInfoError::Compressed(compression));
    }
    let section = match FileKind::parse(image).map_err(not_elf)? {
        FileKind::Elf64 => {
            modinfo_of(&ElfFile::<FileHeader64<Endianness>>::parse(image).map_err(not_elf)?)
        }
        FileKind::Elf32 => {
            modinfo_of(&ElfFile::<FileHeader32<Endianness>>::parse(image).map_err(not_elf)?)
        }
        other => Err(ModInfoError::NotElf(format!("{other:?} is not ELF"))),
    }?;
    let mut info = parse(&section);
    info.signature = appended_to(image);
    Ok(info)
}

/// Machine and compiler of a module, from its ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provenance {
    /// `uname -m` of the machine it is for.
    pub arch: &'static str,
    /// The compiler as named in `.comment`, if that was not stripped.
    pub compiler: Option<String>,
}

/// Reads a module's machine and compiler.
///
/// # Errors
/// If `image` is no ELF file of 64 bits, or for an unknown machine.
pub(crate) fn provenance(image: &[u8]) -> Result<Provenance, ModInfoError> {
    let file = ElfFile::<FileHeader64<Endianness>>::parse(image);
    let file = file.map_err(not_elf)?;
    let arch = match file.architecture() {
        Architecture::X86_64 => "x86_64",
        Architecture::Aarch64 => "aarch64",
        other => return Err(ModInfoError::NotElf(format!("it is for {other:?}"))),
    };
    let compiler = match file.section_by_name(".comment") {
        Some(section) => {
            let data = section.uncompressed_data().map_err(not_elf)?;
            let first = data.split(|b| *b == 0).find(|text| !text.is_empty());
            first.map(|text| String::from_utf8_lossy(text).trim().chars().take(200).collect())
        }
        None => None,
    };
    Ok(Provenance { arch, compiler })
}

fn appended_to(image: &[u8]) -> Option<AppendedSignature> {
    let message = match appended::split(image) {
        Ok((_, None)) => return None,
        Ok((_, Some(message))) => Message::parse(message).ok(),
        Err(_) => None,
    };
    Some(message.map_or_else(AppendedSignature::default, |message| AppendedSignature {
        signer: message.signer(),
        key: message.signer_id(),
        hash: Some(message.hash()),
    }))
}

fn modinfo_of<'a>(file: &impl Object<'a>) -> Result<Vec<u8>, ModInfoError> {
    let section = file.section_by_name(".modinfo").ok_or(ModInfoError::NoModInfo)?;
    let data = section.uncompressed_data().map_err(|e| ModInfoError::NotElf(e.to_string()))?;
    Ok(data.into_owned())
}

/// Parses the content of a `.modinfo` section. Unknown keys are skipped.
pub fn parse(section: &[u8]) -> ModInfo {
    let mut info = ModInfo::default();
    for entry in section.split(|b| *b == 0).filter(|e| !e.is_empty()) {
        let entry = String::from_utf8_lossy(entry);
        let Some((key, value)) = entry.split_once('=') else { continue };
        let value = value.to_owned();
        match key {
            "name" => info.name = Some(value),
            "vermagic" => info.vermagic = Some(value),
            "version" => info.version = Some(value),
            "srcversion" => info.srcversion = Some(value),
            "license" => info.license = Some(value),
            "depends" => info.depends = list(&value),
            "softdep" => info.softdeps.push(value),
            "firmware" => info.firmware.push(value),
            "parm" => note_parameter(&mut info.parameters, &value, ""),
            "parmtype" => {
                if let Some((name, kind)) = value.split_once(':') {
                    note_parameter(&mut info.parameters, name, kind);
                }
            }
            _ => {}
        }
    }
    info
}

/// `parm=NAME:DESCRIPTION` and `parmtype=NAME:TYPE` come in either order.
fn note_parameter(parameters: &mut BTreeMap<String, String>, name: &str, kind: &str) {
    let name = name.split(':').next().unwrap_or_default();
    let known = parameters.entry(name.to_owned()).or_default();
    if !kind.is_empty() {
        kind.clone_into(known);
    }
}

/// `depends` is comma-separated; names are file names there, so a dash may stand for an underscore.
fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|n| !n.is_empty()).map(|n| n.replace('-', "_")).collect()
}

fn compression_of(image: &[u8]) -> Option<&'static str> {
    [
        (&[0xfd, b'7', b'z', b'X', b'Z', 0][..], "xz"),
        (&[0x28, 0xb5, 0x2f, 0xfd][..], "zstd"),
        (&[0x1f, 0x8b][..], "gzip"),
    ]
    .into_iter()
    .find(|(magic, _)| image.starts_with(magic))
    .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::modinfo::module;
    use proptest::prelude::*;
    use rstest::rstest;

    const MODINFO: &[u8] = b"license=Dual MIT/GPL\0\0\0version=535.261.03\0\
        srcversion=3F1A\0depends=drm,i2c-core\0name=nvidia\0\
        vermagic=6.1.0-50-amd64 SMP preempt mod_unload modversions \0\
        parm=NVreg_Mobile:whatever:more\0parmtype=NVreg_Mobile:int\0parmtype=rm_firmware:charp\0\
        softdep=pre: i2c_core\0firmware=nvidia/535.261.03/gsp_tu10x.bin\0retpoline=Y\0loose";

    #[test]
    fn a_module_is_read() {
        let info = read(&module(".modinfo", MODINFO)).expect("a module");
        assert_eq!(info.name.as_deref(), Some("nvidia"));
        assert_eq!(info.version.as_deref(), Some("535.261.03"));
        assert_eq!(info.srcversion.as_deref(), Some("3F1A"));
        assert_eq!(info.license.as_deref(), Some("Dual MIT/GPL"));
        assert_eq!(info.kernel_release(), Some("6.1.0-50-amd64"));
        assert_eq!(info.depends, ["drm", "i2c_core"]);
        assert_eq!(info.softdeps, ["pre: i2c_core"]);
        assert_eq!(info.firmware, ["nvidia/535.261.03/gsp_tu10x.bin"]);
        assert_eq!(info.parameters["NVreg_Mobile"], "int");
        assert_eq!(info.parameters["rm_firmware"], "charp");
        assert_eq!(info.signature, None);
    }

    #[test]
    fn an_appended_signature_is_seen() {
        let mut image = module(".modinfo", MODINFO);
        image.extend_from_slice(b"pkcs7");
        image.extend_from_slice(appended::MARKER);
        let signature = read(&image).expect("a module").signature;
        assert_eq!(signature, Some(AppendedSignature::default()), "there, and unreadable");
    }

    #[rstest]
    #[case::none(b"", &[])]
    #[case::one(b"depends=drm\0", &["drm"])]
    #[case::empty(b"depends=\0", &[])]
    #[case::trailing_comma(b"depends=a,b,\0", &["a", "b"])]
    fn depends_are_split(#[case] section: &[u8], #[case] wanted: &[&str]) {
        assert_eq!(parse(section).depends, wanted);
    }

    #[rstest]
    #[case::xz(b"\xfd7zXZ\0....", "xz")]
    #[case::zstd(b"\x28\xb5\x2f\xfd....", "zstd")]
    #[case::gzip(b"\x1f\x8b....", "gzip")]
    fn a_compressed_module_is_named(#[case] image: &[u8], #[case] wanted: &'static str) {
        assert_eq!(read(image), Err(ModInfoError::Compressed(wanted)));
    }

    #[test]
    fn a_file_without_modinfo_is_refused() {
        assert_eq!(read(&module(".text", b"x")), Err(ModInfoError::NoModInfo));
    }

    #[test]
    fn every_truncation_is_refused_or_read_without_panic() {
        let whole = module(".modinfo", MODINFO);
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes of {}", whole.len());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = read(&bytes);
            let _ = parse(&bytes);
        }

        #[test]
        fn a_damaged_module_does_not_panic(at in 0usize..700, value in any::<u8>()) {
            let mut image = module(".modinfo", MODINFO);
            let at = at % image.len();
            image[at] = value;
            let _ = read(&image);
        }
    }
}
