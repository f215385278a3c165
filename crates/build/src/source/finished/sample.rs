//! Packages with finished modules in Ubuntu's layout, for tests of several crates.

use longshore_core::digest::hex;
use longshore_core::driver_modules;
use longshore_modules::module_signing::appended;
use longshore_modules::testing::{SIGNATURE, symbols};
use sha2::{Digest, Sha256};

/// An entry of a package.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A file's path and content.
    File(String, Vec<u8>),
    /// A symbolic link's path and target.
    Link(String, String),
    /// Path of a file that states this size, and has no content.
    Claimed(String, u64),
}

/// Modules to be packed.
#[derive(Debug, Clone)]
pub struct Modules<'a> {
    /// Directory in the package.
    pub dir: &'a str,
    /// Driver version.
    pub driver: &'a str,
    /// vermagic.
    pub magic: &'a str,
    /// CRCs of the symbols that each imports.
    pub crcs: &'a [(&'a str, u32)],
    /// True to append a signature.
    pub signed: bool,
}

impl Modules<'_> {
    /// Returns all modules of an open driver as entries.
    pub fn entries(&self) -> Vec<Entry> {
        let entry = |module: driver_modules::DriverModule| {
            let path = format!("./{}/{}.ko", self.dir, module.stem);
            Entry::File(path, self.image(module.name))
        };
        driver_modules::ALL.map(entry).into()
    }

    /// Returns one module.
    pub fn image(&self, name: &str) -> Vec<u8> {
        let info = format!(
            "version={}\0license=Dual MIT/GPL\0name={name}\0vermagic={}\0",
            self.driver, self.magic
        );
        let module = symbols::with_info(&info, self.crcs);
        if self.signed { appended::append(&module, SIGNATURE) } else { module }
    }
}

/// Makes a package of these entries.
///
/// # Panics
/// If a path is too long.
pub fn deb(entries: &[Entry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        match entry {
            Entry::File(path, bytes) => {
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
            }
            Entry::Link(path, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                tar.append_link(&mut header, path, target).expect("append");
            }
            Entry::Claimed(path, size) => {
                header.set_path(path).expect("a path");
                header.set_size(*size);
                header.set_cksum();
                tar.append(&header, &b""[..]).expect("append");
            }
        }
    }
    packed(&tar.into_inner().expect("tar"))
}

fn packed(data: &[u8]) -> Vec<u8> {
    let mut deb = b"!<arch>\n".to_vec();
    for (name, bytes) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar", b""), ("data.tar", data)]
    {
        let header =
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, 100_644, bytes.len());
        deb.extend(header.bytes());
        deb.extend(bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

/// Returns a package's stanza in an index, with further fields in `more`.
pub fn stanza(name: &str, version: &str, more: &str, deb: &[u8]) -> String {
    let (size, sha256) = (deb.len(), hex(&Sha256::digest(deb)));
    format!(
        "Package: {name}\nVersion: {version}\nArchitecture: amd64\n{more}Filename: pool/{name}.deb\n\
         Size: {size}\nSHA256: {sha256}\n\n"
    )
}

/// Returns the field by which Ubuntu's packages state their driver version.
pub fn depends(release: &str, driver: &str) -> String {
    format!(
        "Depends: linux-image-{release} | linux-image-unsigned-{release}, \
         nvidia-kernel-common-580 (<= {driver}-1), nvidia-kernel-common-580 (>= {driver})\n"
    )
}
