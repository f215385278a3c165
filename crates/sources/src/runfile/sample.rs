//! Small .run files for tests, laid out like NVIDIA's.

use std::io::Write;

use sha2::{Digest, Sha256};

use crate::runfile::{Pin, RunFileSource};
use crate::sample_elf::elf;
use longshore_core::digest::hex;

pub(super) const VERSION: &str = "535.1.2";
pub(super) const NAME: &str = "NVIDIA-Linux-x86_64-535.1.2.run";

/// Compression of a payload.
#[derive(Debug, Clone, Copy)]
pub(super) enum Compression {
    Xz,
    Zstd,
    Gzip,
    None,
}

/// A file or link of a sample.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) path: String,
    pub(super) kind: tar::EntryType,
    pub(super) bytes: Vec<u8>,
    pub(super) link: Option<String>,
}

pub(super) fn file(path: &str, bytes: impl Into<Vec<u8>>) -> Member {
    let (path, kind) = (path.to_owned(), tar::EntryType::Regular);
    Member { path, kind, bytes: bytes.into(), link: None }
}

pub(super) fn other(path: &str, kind: tar::EntryType, link: Option<&str>) -> Member {
    Member { path: path.to_owned(), kind, bytes: Vec::new(), link: link.map(str::to_owned) }
}

/// A file preceded by an entry with its name, which may be longer than a header's.
pub(super) fn long(path: &str) -> [Member; 2] {
    [before(tar::EntryType::GNULongName, path), file("kernel/long", "x")]
}

/// An entry with metadata of the next member.
pub(super) fn before(kind: tar::EntryType, bytes: impl Into<Vec<u8>>) -> Member {
    Member { path: "././@LongLink".to_owned(), kind, bytes: bytes.into(), link: None }
}

/// A driver with both flavours.
pub(super) fn driver() -> Vec<Member> {
    let kbuild = format!("EXTRA_CFLAGS += -DNV_VERSION_STRING=\\\"{VERSION}\\\"\n");
    let library = |name: &str| {
        file(
            &format!("./{name}.so.{VERSION}"),
            elf(62, Some(&format!("{name}.so.1")), &["libc.so.6"]),
        )
    };
    vec![
        file("./kernel/Kbuild", kbuild.clone()),
        file("./kernel/conftest.sh", "proprietary"),
        file("./kernel/nvidia/nv-kernel.o_binary", "object"),
        file("./kernel-open/Kbuild", kbuild),
        file("./kernel-open/conftest.sh", "open"),
        library("libcuda"),
        library("libnvidia-ml"),
        library("libnvidia-cfg"),
        library("libnvidia-glcore"),
        file(&format!("./32/libcuda.so.{VERSION}"), "32 bit"),
        file("./nvidia-smi", elf(62, None, &["libc.so.6"])),
        file("./nvidia-installer", "installer"),
        file("./firmware/gsp_tu10x.bin", "firmware"),
        file("./supported-gpus/supported-gpus.json", GPUS),
        file("./.manifest", manifest()),
    ]
}

const GPUS: &str = r#"{"chips": [{"devid": "0x1EB8", "name": "T4", "features": ["kernelopen"]}]}"#;

/// A manifest; libnvidia-cfg is in the package, and not in the manifest.
fn manifest() -> String {
    format!(
        "NVIDIA Accelerated Graphics Driver for Linux-x86_64\n{VERSION}\nnvidia\n\
         nvidia nvidia-uvm nvidia-modeset\n\n\nkernel\nprecompiled\n\
         nvidia-installer 0755 INSTALLER_BINARY MODULE:installer\n\
         ./libcuda.so.{VERSION} 0755 CUDA_LIB NATIVE / MODULE:gpgpu\n\
         libcuda.so.1 0000 CUDA_SYMLINK NATIVE / libcuda.so.{VERSION} MODULE:gpgpu\n\
         libcuda.so 0000 CUDA_SYMLINK NATIVE / libcuda.so.1 MODULE:gpgpu\n\
         libnvidia-ml.so.{VERSION} 0711 UTILITY_LIB NATIVE MODULE:utils\n\
         libnvidia-ml.so.1 0000 UTILITY_LIB_SYMLINK NATIVE libnvidia-ml.so.{VERSION} MODULE:utils\n\
         ./32/libcuda.so.{VERSION} 0755 CUDA_LIB COMPAT32 / MODULE:gpgpu\n\
         nvidia-smi 0755 UTILITY_BINARY MODULE:utils\n\
         firmware/gsp_tu10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gpgpu\n"
    )
}

pub(super) fn tar_of(members: &[Member]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for member in members {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(member.kind);
        header.set_mode(0o755);
        header.set_mtime(1_700_000_000);
        header.set_size(member.bytes.len() as u64);
        if let Some(gnu) = header.as_gnu_mut().filter(|_| member.kind.is_gnu_sparse()) {
            gnu.realsize = *b"00000000000\0";
        }
        if let Some(link) = &member.link {
            header.set_link_name_literal(link).expect("a short link");
        }
        // The builder refuses paths with `..`, so the name is written directly.
        header.as_old_mut().name[..member.path.len()].copy_from_slice(member.path.as_bytes());
        header.set_cksum();
        tar.append(&header, member.bytes.as_slice()).expect("append");
    }
    tar.into_inner().expect("tar")
}

pub(super) fn compressed(bytes: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::None => bytes.to_vec(),
        Compression::Gzip => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            writer.write_all(bytes).expect("written");
            writer.finish().expect("finished")
        }
        Compression::Zstd => zstd::encode_all(bytes, 3).expect("compressed"),
        Compression::Xz => {
            // NVIDIA compresses without a check, for its small decompressor.
            let check = liblzma::stream::Check::None;
            let stream = liblzma::stream::Stream::new_easy_encoder(3, check).expect("encoder");
            let mut writer = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
            writer.write_all(bytes).expect("written");
            writer.finish().expect("finished")
        }
    }
}

/// A header like that of NVIDIA's makeself, with a decompressor after the script.
pub(super) fn header(version: &str, arch: &str) -> Vec<u8> {
    let mut text = format!(
        "#! /bin/sh\nCRCsum=1\nMD5=2\nskip=13\nskip_decompress=11\nsize_decompress=2\n\
         label=\"NVIDIA Accelerated Graphics Driver for Linux-{arch} {version}\"\n\
         version_string={version}\ntargetdir=NVIDIA-Linux-{arch}-{version}\n\
         TARGET_ARCH=\"{arch}\"\n"
    )
    .into_bytes();
    text.extend(b"\x7fELF\xff\xfe decompressor\n\n");
    text
}

pub(super) fn run_file(members: &[Member], compression: Compression) -> Vec<u8> {
    [header(VERSION, "x86_64"), compressed(&tar_of(members), compression)].concat()
}

/// Writes a file and pins its digest.
pub(super) fn pinned(dir: &std::path::Path, bytes: &[u8]) -> RunFileSource {
    let path = dir.join(NAME);
    std::fs::write(&path, bytes).expect("written");
    let pin = Pin::Sha256(hex(&Sha256::digest(bytes)));
    RunFileSource { urls: vec![format!("file://{}", path.display())], pin }
}
