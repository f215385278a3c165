//! Secure Boot for guests: firmware that trusts the kernel's signer and a throwaway key of ours,
//! which signs the modules. Debian's kernels accept the firmware's keys for modules too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::cache::Cache;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};

/// Debian's `ovmf`: firmware with Secure Boot support, and its variables, none set.
const CODE: &str = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd";
const VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// Part of the cache key; to be raised with every change of the products' making.
const RECIPE: &str = "1";

/// Key and certificate that sign modules.
#[derive(Debug, Clone)]
pub(crate) struct Signer {
    /// Secret key, PEM.
    pub key: PathBuf,
    /// Certificate, DER.
    pub certificate: PathBuf,
}

/// Firmware files for QEMU.
#[derive(Debug, Clone)]
pub struct Firmware {
    /// The code.
    pub code: PathBuf,
    /// The variables; the guest's writes to them are discarded.
    pub variables: PathBuf,
}

/// Returns a key that is only used for these guests; made once.
///
/// # Errors
/// openssl failed.
pub(crate) fn signer(cache: &Cache) -> Result<Signer, Error> {
    let dir = cache.produce("signer", &[RECIPE], |dir| {
        let mut request = Command::new("openssl");
        request
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-sha256"]);
        request.args(["-subj", "/O=longshore/CN=Kernel matrix", "-outform", "DER"]);
        request.arg("-keyout").arg(dir.join("module.key"));
        run(request.arg("-out").arg(dir.join("module.der")), LIMIT).map(drop)
    })?;
    Ok(Signer { key: dir.join("module.key"), certificate: dir.join("module.der") })
}

/// Makes firmware with Secure Boot on, whose `db` has the signer of the kernel `vmlinuz` and ours.
///
/// # Errors
/// ovmf is not installed, the kernel is not signed, or openssl failed.
pub(crate) fn firmware(cache: &Cache, signer: &Signer, vmlinuz: &Path) -> Result<Firmware, Error> {
    let kernel = fs::read(vmlinuz).at("read", vmlinuz)?;
    let ours = fs::read(&signer.certificate).at("read", &signer.certificate)?;
    let [template, code] = [VARIABLES, CODE].map(|path| {
        let path = Path::new(path);
        fs::read(path).at("read (scripts/setup installs ovmf)", path)
    });
    let (template, code) = (template?, code?);
    let digests = [&kernel, &ours, &template, &code].map(|bytes| digest(bytes));
    let mut inputs = vec![RECIPE];
    inputs.extend(digests.iter().map(String::as_str));
    let dir = cache.produce("firmware", &inputs, |dir| {
        let theirs = kernels_signer(&kernel, dir)?;
        let filled = fill(template, &ours, &[&theirs, &ours])?;
        let path = dir.join("variables.fd");
        fs::write(&path, filled).at("write", &path)?;
        // A QEMU of another suite does not see this machine's /usr.
        let path = dir.join("code.fd");
        fs::write(&path, code).at("write", &path)
    })?;
    Ok(Firmware { code: dir.join("code.fd"), variables: dir.join("variables.fd") })
}

fn digest(bytes: &[u8]) -> String {
    // Reading from memory does not fail.
    longshore_core::digest::digest_of(bytes).unwrap_or_default()
}

/// Returns the certificate (DER) of a kernel's signer: PKCS#7 in the PE file's certificate table.
fn kernels_signer(kernel: &[u8], dir: &Path) -> Result<Vec<u8>, Error> {
    let message = authenticode(kernel)
        .ok_or_else(|| Error::Unexpected("the kernel is not signed for Secure Boot".into()))?;
    let (signature, pem) = (dir.join("kernel.p7"), dir.join("kernel.pem"));
    fs::write(&signature, message).at("write", &signature)?;
    let mut show = Command::new("openssl");
    show.args(["pkcs7", "-inform", "DER", "-print_certs", "-in"]).arg(&signature);
    run(show.arg("-out").arg(&pem), LIMIT)?;
    let der = dir.join("kernel.der");
    let mut convert = Command::new("openssl");
    convert.args(["x509", "-outform", "DER", "-in"]).arg(&pem);
    run(convert.arg("-out").arg(&der), LIMIT)?;
    fs::read(&der).at("read", &der)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 4)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*word)).ok()
}

/// Returns the first entry of a PE32+ file's certificate table (PE format, "The Attribute
/// Certificate Table").
fn authenticode(file: &[u8]) -> Option<&[u8]> {
    let optional = number(file, 0x3c)? + 24;
    // The fifth data directory; they begin 112 bytes into the optional header.
    let at = number(file, optional + 112 + 4 * 8).filter(|at| *at > 0)?;
    let length = number(file, at)?;
    // Length, revision and type come first.
    file.get(at + 8..at + length)
}

/// `EFI_GLOBAL_VARIABLE`, `EFI_IMAGE_SECURITY_DATABASE_GUID`, and edk2's for SecureBootEnable.
const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const DATABASE: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
const ENABLE: &str = "f0a30bc7-af08-4556-99c4-001009c93a44";
/// `EFI_CERT_X509_GUID`.
const X509: &str = "a5c059a1-94e4-4aa7-87b5-ab155c2bf072";
/// Owner GUID of the certificates; any will do.
const OWNER: &str = "5f1c5fd2-6d0c-4d0b-9a3c-6d1f0a1d6c55";
/// Non-volatile, with access at boot and at run time, and time-based authentication.
const AUTHENTICATED: u32 = 0x27;
/// Non-volatile, with access at boot.
const BOOT_ONLY: u32 = 0x3;
/// Bytes of the variable store's own header.
const STORE_HEADER: usize = 28;

/// Writes `owner` as platform and key exchange key, and `trusted`, into a store without variables.
fn fill(mut store: Vec<u8>, owner: &[u8], trusted: &[&[u8]]) -> Result<Vec<u8>, Error> {
    let unusable = || Error::Unexpected(format!("{VARIABLES} does not have the expected format"));
    let header = store.get(48..50).and_then(|b| b.first_chunk()).map(|b| u16::from_le_bytes(*b));
    let start = usize::from(header.ok_or_else(unusable)?) + STORE_HEADER;
    let mut variables = Vec::new();
    let mut add = |name, guid, attributes, data: &[u8]| {
        variables.extend(variable(name, guid, attributes, data));
        variables.resize(variables.len().next_multiple_of(4), 0xff);
    };
    let database: Vec<u8> = trusted.iter().flat_map(|certificate| list(certificate)).collect();
    add("db", DATABASE, AUTHENTICATED, &database);
    add("KEK", GLOBAL, AUTHENTICATED, &list(owner));
    add("PK", GLOBAL, AUTHENTICATED, &list(owner));
    add("SecureBootEnable", ENABLE, BOOT_ONLY, &[1]);
    let free = store.get_mut(start..start + variables.len()).ok_or_else(unusable)?;
    if free.iter().any(|byte| *byte != 0xff) {
        return Err(unusable());
    }
    free.copy_from_slice(&variables);
    Ok(store)
}

/// Encodes AUTHENTICATED_VARIABLE_HEADER (edk2, MdeModulePkg/Include/Guid/VariableFormat.h), name
/// and data.
fn variable(name: &str, guid: &str, attributes: u32, data: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let mut bytes = vec![0xaa, 0x55, 0x3f, 0];
    bytes.extend(attributes.to_le_bytes());
    // Monotonic count, time stamp, index of a public key.
    bytes.extend([0; 8 + 16 + 4]);
    for length in [name.len(), data.len()] {
        bytes.extend((length as u32).to_le_bytes());
    }
    bytes.extend(guid_bytes(guid));
    bytes.extend(name);
    bytes.extend(data);
    bytes
}

/// Encodes the EFI_SIGNATURE_LIST of one certificate (UEFI specification, 32.4.1).
fn list(certificate: &[u8]) -> Vec<u8> {
    let size = 16 + certificate.len();
    let mut bytes = guid_bytes(X509);
    for length in [28 + size, 0, size] {
        bytes.extend((length as u32).to_le_bytes());
    }
    bytes.extend(guid_bytes(OWNER));
    bytes.extend(certificate);
    bytes
}

/// Encodes a GUID as EFI does: the first three numbers little-endian.
fn guid_bytes(text: &str) -> Vec<u8> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let mut bytes: Vec<u8> =
        (0..16).filter_map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()).collect();
    for range in [0..4, 4..6, 6..8] {
        if let Some(part) = bytes.get_mut(range) {
            part.reverse();
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_written_as_efi_has_them() {
        let wanted = [0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5];
        assert_eq!(guid_bytes(X509)[..10], wanted);
    }

    #[test]
    fn variables_go_where_there_are_none() {
        let mut store = vec![0xff; 4096];
        store[48..50].copy_from_slice(&72u16.to_le_bytes());
        let filled = fill(store.clone(), b"owner", &[b"one", b"two"]).unwrap();
        assert_eq!(filled.len(), store.len());
        assert_eq!(filled[100..108], [0xaa, 0x55, 0x3f, 0, 0x27, 0, 0, 0]);
        // Name and data of db: three characters of UTF-16 and two lists.
        assert_eq!(number(&filled, 136), Some(6));
        assert_eq!(number(&filled, 140), Some(2 * (28 + 16 + 3)));
        assert!(fill(filled, b"owner", &[]).is_err(), "it has variables already");
        assert!(fill(vec![0xff; 64], b"owner", &[]).is_err());
    }

    #[test]
    fn a_kernel_without_a_signature_is_told() {
        let mut file = vec![0; 512];
        file[0x3c] = 0x40;
        assert_eq!(authenticode(&file), None);
        let entry = 0x40 + 24 + 112 + 32;
        file[entry..entry + 2].copy_from_slice(&256u16.to_le_bytes());
        file[256] = 12;
        file[264..268].copy_from_slice(b"pkcs");
        assert_eq!(authenticode(&file), Some(&b"pkcs"[..]));
        assert_eq!(authenticode(b"MZ"), None);
    }
}
