//! An archive with all packages of a build; the test decides on their contents.

use std::io::Write as _;

use crate::archive::{ARCH, Suite, gzip};

/// The kernel that the archive has headers for.
pub const KERNEL: &str = "6.1.0-50-amd64";
/// The driver that it has.
pub const DRIVER: &str = "535.261.03";

/// Version that the compiler reports.
pub const COMPILER: &str = "gcc-12 (Test 12.2.0-1) 12.2.0";

/// Packages that a build needs beside headers and compiler.
pub const TOOLS: [&str; 10] = [
    "binutils",
    "libc6-dev",
    "make",
    "dash",
    "coreutils",
    "mawk",
    "sed",
    "grep",
    "findutils",
    "diffutils",
];

/// An entry of a package.
pub enum Item<'a> {
    /// Path and content of a file, readable by all.
    File(&'a str, &'a [u8]),
    /// Path and content of an executable file.
    Program(&'a str, &'a [u8]),
    /// Path and target of a symbolic link.
    Link(&'a str, &'a str),
}
use Item::{File, Link, Program};

/// Makes a package with these entries; paths are written unchanged, `..` and all.
pub fn deb(items: &[Item<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for item in items {
        let (path, kind, target, bytes, mode) = match item {
            File(path, bytes) => (path, tar::EntryType::Regular, "", *bytes, 0o644),
            Program(path, bytes) => (path, tar::EntryType::Regular, "", *bytes, 0o755),
            Link(path, to) => (path, tar::EntryType::Symlink, *to, &b""[..], 0o777),
        };
        let mut header = tar::Header::new_gnu();
        let fields = header.as_gnu_mut().expect("gnu");
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        tar.append(&header, bytes).expect("append");
    }
    let data = gzip(&tar.into_inner().expect("tar"));
    let mut deb = b"!<arch>\n".to_vec();
    for (name, bytes) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar", b""), ("data.tar.gz", &data)]
    {
        writeln!(deb, "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, 0, 100644, bytes.len())
            .expect("header");
        deb.extend(bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

/// Makes driver, headers, compiler and tools, as `build` requires them. `replaced` are packages by
/// name that replace the good ones.
pub fn buildable(replaced: &[(&str, Vec<u8>)]) -> Suite {
    let kbuild = format!("ccflags-y += -DNV_VERSION_STRING=\\\"{DRIVER}\\\"\n");
    let driver = deb(&[
        File("./usr/src/nvidia/Kbuild", kbuild.as_bytes()),
        File("./usr/src/nvidia/conftest.sh", b""),
    ]);
    let mut packages = vec![
        headers_of(KERNEL),
        stanza(
            "gcc-12",
            "12.2.0-1",
            "",
            deb(&[Program("./usr/bin/gcc-12", &saying(&format!("{COMPILER}\n"), 0))]),
        ),
        stanza("nvidia-kernel-source", &format!("{DRIVER}-1"), "", driver),
    ];
    for tool in TOOLS {
        let path = format!("./usr/share/{tool}");
        packages.push(stanza(tool, "1", "", deb(&[File(&path, tool.as_bytes())])));
    }
    for (name, other) in replaced {
        let field = format!("Package: {name}\n");
        let package = packages.iter_mut().find(|(stanza, _)| stanza.starts_with(&field));
        package.unwrap_or_else(|| panic!("no package {name}")).1 = other.clone();
    }
    Suite { packages, ..Suite::usual() }
}

/// Makes the package with the headers of a kernel.
pub fn headers_of(release: &str) -> (String, Vec<u8>) {
    let name = format!("linux-headers-{release}");
    let dir = format!("./usr/src/{name}/include");
    let compile_h = format!("{dir}/generated/compile.h");
    let auto_conf = format!("{dir}/config/auto.conf");
    let build = format!("./usr/lib/modules/{release}/build");
    let lead = format!("/usr/src/{name}");
    let cc = format!("CONFIG_CC_VERSION_TEXT={COMPILER}\n");
    let headers = deb(&[
        File(&compile_h, b"#define UTS_VERSION \"#1 SMP Test 6.1.176-1\"\n"),
        File(&auto_conf, cc.as_bytes()),
        Link(&build, &lead),
    ]);
    stanza(&name, "6.1.176-1", "Depends: gcc-12\n", headers)
}

fn stanza(name: &str, version: &str, more: &str, deb: Vec<u8>) -> (String, Vec<u8>) {
    (format!("Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\n{more}"), deb)
}

/// Returns a program that waits until it is killed.
pub fn endless() -> Vec<u8> {
    if cfg!(target_arch = "aarch64") {
        // ppoll without descriptors and timeout; jump to the beginning.
        let zeros = (0..5).map(|register| mov(register, 0));
        elf(183, &words(zeros.chain([mov(8, 73), SVC, 0x17ff_fff9])))
    } else {
        // mov eax, pause; syscall; jmp to the beginning.
        elf(62, &[0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7])
    }
}

/// Returns a program that prints `text` and exits with `status`.
pub fn saying(text: &str, status: u8) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    if cfg!(target_arch = "aarch64") {
        // adr x1 over the seven instructions that follow it.
        let (say, adr) = ([mov(0, 1), mov(2, length), mov(8, 64)], 0x1000_0001 | (5 << 5));
        let code = say.into_iter().chain([adr, SVC, mov(0, status.into()), mov(8, 93), SVC]);
        elf(183, &[words(code), text.into()].concat())
    } else {
        // mov edi, 1; lea rsi, the end of the code; mov edx, length; mov eax, write; syscall;
        // mov edi, status; mov eax, exit; syscall.
        let [low, high] = length.to_le_bytes();
        let code = [
            &[0xbf, 1, 0, 0, 0, 0x48, 0x8d, 0x35, 24, 0, 0, 0, 0xba, low, high, 0, 0][..],
            &[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xbf, status, 0, 0, 0],
            &[0xb8, 60, 0, 0, 0, 0x0f, 0x05],
        ];
        elf(62, &[&code.concat(), text.as_bytes()].concat())
    }
}

const SVC: u32 = 0xd400_0001;

/// Encodes `movz xREGISTER, #value` of aarch64.
fn mov(register: u32, value: u16) -> u32 {
    0xd280_0000 | u32::from(value) << 5 | register
}

fn words(code: impl Iterator<Item = u32>) -> Vec<u8> {
    code.flat_map(u32::to_le_bytes).collect()
}

/// Returns a program for Linux that needs no library: header, one segment, code.
fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const START: u64 = 64 + 56;
    let length = START + code.len() as u64;
    let half = |numbers: &[u16]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let word = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let long = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        half(&[2, machine]),
        word(&[1]),
        long(&[BASE + START, 64, 0]),
        word(&[0]),
        half(&[64, 56, 1, 0, 0, 0]),
        word(&[1, 5]),
        long(&[0, BASE, BASE, length, length, 0x1000]),
        code.to_vec(),
    ]
    .concat()
}
