//! Packages with finished modules in Ubuntu's layout, for tests of several crates.

use std::fs;
use std::path::Path;

use longshore_core::digest::hex;
use longshore_core::driver_modules;
use longshore_modules::module_signing::appended;
use longshore_modules::testing::{SIGNATURE, symbols};
use sha2::{Digest, Sha256};

/// An entry of a package.
#[derive(Debug, Clone)]
pub enum SampleEntry {
    /// A file's path and content.
    File(String, Vec<u8>),
    /// A symbolic link's path and target.
    Link(String, String),
    /// An executable file's path and content.
    Program(String, Vec<u8>),
    /// Path of a directory.
    Directory(String),
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
    pub fn entries(&self) -> Vec<SampleEntry> {
        let entry = |module: driver_modules::DriverModule| {
            let path = format!("./{}/{}.ko", self.dir, module.stem);
            SampleEntry::File(path, self.image(module.name))
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
pub fn deb(entries: &[SampleEntry]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        match entry {
            SampleEntry::File(path, bytes) | SampleEntry::Program(path, bytes) => {
                if matches!(entry, SampleEntry::Program(..)) {
                    header.set_mode(0o755);
                }
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
            }
            SampleEntry::Link(path, target) => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                tar.append_link(&mut header, path, target).expect("append");
            }
            SampleEntry::Directory(path) => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                tar.append_data(&mut header, path, &b""[..]).expect("append");
            }
            SampleEntry::Claimed(path, size) => {
                header.set_path(path).expect("a path");
                header.set_size(*size);
                header.set_cksum();
                tar.append(&header, &b""[..]).expect("append");
            }
        }
    }
    packed(&tar.into_inner().expect("tar"))
}

/// Proprietary modules as objects: two for each module, and the commands that link them.
///
/// From memory, not of a package of Canonical's.
#[derive(Debug, Clone)]
pub struct Objects<'a> {
    /// Directory of the modules in the package; the objects are in `bits` below it.
    pub dir: &'a str,
    /// Driver version.
    pub driver: &'a str,
    /// vermagic.
    pub magic: &'a str,
    /// CRCs of the symbols that each imports.
    pub crcs: &'a [(&'a str, u32)],
}

impl Objects<'_> {
    /// Returns the objects below `bits`: path and content.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let files = |module: driver_modules::DriverModule| {
            let (stem, name) = (module.stem, module.name);
            let info = format!(
                "version={}\0license=NVIDIA\0name={name}\0vermagic={}\0",
                self.driver, self.magic
            );
            [
                (format!("{stem}/interface.o"), symbols::with_info(&info, &[])),
                (format!("{stem}.mod.o"), symbols::with_info("", self.crcs)),
            ]
        };
        driver_modules::ALL.into_iter().flat_map(files).collect()
    }

    /// Returns the script with the link commands.
    pub fn script(&self) -> String {
        let link = |module: driver_modules::DriverModule| {
            let stem = module.stem;
            format!(
                "/usr/bin/ld.bfd -m elf_x86_64 -z noexecstack -r -o {stem}.o {stem}/interface.o\n\
                 /usr/bin/ld.bfd -r -m elf_x86_64 --build-id=none -o ../{stem}.ko {stem}.o {stem}.mod.o\n"
            )
        };
        let links: String = driver_modules::ALL.into_iter().map(link).collect();
        format!("#!/bin/sh\nset -e\n{links}sha256sum -c SHA256SUMS\n")
    }

    /// Returns the `SHA256SUMS` of the modules that `link` makes beside the directory with the objects.
    ///
    /// # Panics
    /// If an object cannot be written, or a module was not made.
    pub fn sums(&self, link: impl FnOnce(&Path)) -> String {
        let dir = tempfile::tempdir().expect("temporary directory");
        let bits = dir.path().join("bits");
        for (name, bytes) in self.files() {
            let path = bits.join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
            fs::write(path, bytes).expect("written");
        }
        link(&bits);
        let sum = |module: driver_modules::DriverModule| {
            let name = format!("{}.ko", module.stem);
            let module = fs::read(dir.path().join(&name)).expect("linked");
            format!("{}  {name}\n", hex(&Sha256::digest(module)))
        };
        driver_modules::ALL.map(sum).concat()
    }

    /// Returns the entries of the package with the objects; `sums` is its `SHA256SUMS`.
    pub fn entries(&self, sums: &str) -> Vec<SampleEntry> {
        let bits = format!("./{}/bits", self.dir);
        let file =
            |(name, bytes): (String, Vec<u8>)| SampleEntry::File(format!("{bits}/{name}"), bytes);
        let texts = [("BUILD", self.script()), ("SHA256SUMS", sums.to_owned())];
        let texts = texts.map(|(name, text)| file((name.to_owned(), text.into_bytes())));
        let mut entries = vec![SampleEntry::Directory(bits.clone())];
        entries.extend(self.files().into_iter().map(file));
        entries.extend(texts);
        entries
    }

    /// Returns the entries of the package with the signatures.
    pub fn signatures(&self) -> Vec<SampleEntry> {
        let appended = appended::append(b"", SIGNATURE);
        let entry = |module: driver_modules::DriverModule| {
            let path = format!("./{}/bits/{}.ko.sig", self.dir, module.stem);
            SampleEntry::File(path, appended.clone())
        };
        driver_modules::ALL.map(entry).into()
    }
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
