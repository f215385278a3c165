//! Writer of a bundle: a tar file with the same bytes for the same content.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::contents::{Blob, Contents, From, changed};
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::durable::write_remedy;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::progress::Task;
use longshore_modules::layout::LAYOUT;

/// Checks that a file can be created at `out`, before anything is compiled for it.
///
/// # Errors
/// Exit code 15 where it cannot.
pub fn check_destination(out: &Path) -> Result<(), Failure> {
    if out == Path::new("-") {
        return Ok(());
    }
    let failed = |e| unwritable(out, e);
    let absolute = std::path::absolute(out).map_err(failed)?;
    if absolute.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let parent = absolute.parent().unwrap_or(Path::new("/"));
    tempfile::tempfile_in(parent).map(drop).map_err(failed)
}

/// Writes a bundle to `out`, on `disk`; a failure leaves no file there. `-` is standard output.
///
/// # Errors
/// Exit code 13 where something in the store is damaged, 15 where `out` cannot be written.
pub fn write(contents: &Contents, out: &Path, disk: Disk, task: &dyn Task) -> Result<(), Failure> {
    if out == Path::new("-") {
        let mut to = BufWriter::with_capacity(1 << 20, io::stdout().lock());
        write_to(contents, &mut to, out, task)?;
        return to.flush().map_err(|e| unwritable(out, e));
    }
    let failed = |e| unwritable(out, e);
    let absolute = std::path::absolute(out).map_err(failed)?;
    let parent = absolute.parent().unwrap_or(Path::new("/"));
    let everybody = std::fs::Permissions::from_mode(0o644);
    let file =
        tempfile::Builder::new().permissions(everybody).tempfile_in(parent).map_err(failed)?;
    let mut to = BufWriter::with_capacity(1 << 20, file);
    write_to(contents, &mut to, out, task)?;
    let file = to.into_inner().map_err(|e| failed(e.into_error()))?;
    disk.land(file, &absolute).map_err(failed)
}

fn write_to(
    contents: &Contents,
    to: &mut dyn Write,
    out: &Path,
    task: &dyn Task,
) -> Result<(), Failure> {
    let failed = |e| unwritable(out, e);
    let index = contents.index()?;
    for (name, bytes) in [("oci-layout", LAYOUT), ("index.json", &index)] {
        to.write_all(&header(name, bytes.len() as u64)).map_err(failed)?;
        to.write_all(bytes).map_err(failed)?;
        pad(to, bytes.len() as u64).map_err(failed)?;
    }
    for blob in contents.blobs() {
        to.write_all(&header(&format!("blobs/sha256/{}", blob.sha256), blob.size))
            .map_err(failed)?;
        copy(blob, to, out, task)?;
        pad(to, blob.size).map_err(failed)?;
    }
    // Two empty blocks end a tar file.
    to.write_all(&[0; 1024]).map_err(failed)
}

fn copy(blob: &Blob, to: &mut dyn Write, out: &Path, task: &dyn Task) -> Result<(), Failure> {
    let path = match &blob.from {
        From::Memory(bytes) => {
            task.advance(blob.size);
            return to.write_all(bytes).map_err(|e| unwritable(out, e));
        }
        From::File(path) => path,
    };
    let reading = || format!("reading {}", path.display());
    // One byte more, to detect a file that is too long.
    let mut from =
        File::open(path).or_fail(FailureKind::Verification, reading)?.take(blob.size + 1);
    let (mut hash, mut left) = (Sha256::new(), blob.size);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = from.read(&mut buffer).or_fail(FailureKind::Verification, reading)?;
        hash.update(&buffer[..n]);
        if n == 0 || n as u64 > left {
            break;
        }
        left -= n as u64;
        to.write_all(&buffer[..n]).map_err(|e| unwritable(out, e))?;
        task.advance(n as u64);
    }
    let found = hex(&hash.finalize());
    if left == 0 && found == blob.sha256 { Ok(()) } else { Err(changed(blob, &found)) }
}

/// Builds a header with nothing but name and size.
fn header(name: &str, size: u64) -> [u8; 512] {
    let mut header = tar::Header::new_ustar();
    // The longest name, blobs/sha256/ and 64 digits, fits; so it cannot fail.
    let _ = header.set_path(name);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    *header.as_bytes()
}

fn pad(to: &mut dyn Write, size: u64) -> io::Result<()> {
    let over = (size.next_multiple_of(512) - size) as usize;
    to.write_all(&[0; 512][..over])
}

fn unwritable(out: &Path, error: io::Error) -> Failure {
    let remedy = write_remedy(&error, "--out")
        .unwrap_or_else(|| "give --out a file that can be written, or - for a pipe".to_owned());
    Failure::new(FailureKind::Preflight, format!("writing {}", out.display()))
        .with_source(error)
        .remedy(remedy)
}
