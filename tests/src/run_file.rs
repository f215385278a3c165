//! A small .run file.

use std::path::Path;

use sha2::{Digest, Sha256};

/// Path of the file on a server.
pub const PATH: &str = "/NVIDIA-Linux-x86_64-535.1.2.run";

/// Makes a driver as small as one can be, incompressible and long enough to be cut in its payload.
pub fn run_file() -> Vec<u8> {
    packed("535.1.2", files())
}

/// Makes a .run file of a version and of its files: path and content.
///
/// # Panics
/// A path is too long.
pub fn packed<P: AsRef<Path>>(
    version: &str,
    files: impl IntoIterator<Item = (P, Vec<u8>)>,
) -> Vec<u8> {
    let head = format!(
        "#! /bin/sh\nskip=5\nversion_string={version}\ntargetdir=NVIDIA-Linux-x86_64-{version}\n"
    );
    let gzip = flate2::write::GzEncoder::new(head.into_bytes(), flate2::Compression::default());
    let mut tar = tar::Builder::new(gzip);
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes.as_slice()).expect("append");
    }
    tar.into_inner().and_then(|gzip| gzip.finish()).expect("packed")
}

/// Returns the files of a driver: path and content.
pub fn files() -> Vec<(&'static str, Vec<u8>)> {
    let mut noise = Vec::new();
    while noise.len() < 3 << 20 {
        noise.extend(Sha256::digest(noise.len().to_le_bytes()));
    }
    let kbuild = b"ccflags-y += -DNV_VERSION_STRING=\\\"535.1.2\\\"\n".to_vec();
    let manifest =
        b"NVIDIA\n535.1.2\n\n\n\n\nkernel\n\nnvidia-smi 0755 UTILITY_BINARY MODULE:a\n".to_vec();
    vec![
        ("kernel-open/Kbuild", kbuild),
        ("kernel-open/conftest.sh", b"conftest".to_vec()),
        ("kernel-open/noise", noise),
        ("nvidia-smi", b"tool".to_vec()),
        (".manifest", manifest),
    ]
}
