//! Debian packages: an ar archive of `debian-binary`, `control.tar.*` and `data.tar.*` (deb(5)).

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::compression::decompressed;
use super::tree::{self, Tree};
use crate::failure::{ExitCode, Failure};

pub use super::tree::{EntryKind, UnpackedEntry, make_usrmerge_links};

/// No package unpacks to more than this; what claims to is damaged or hostile.
const MOST_UNPACKED: u64 = 32 << 30;

/// For [`unpack`]: everything, where the package has it.
pub fn everything(path: &Path) -> Option<PathBuf> {
    Some(path.to_path_buf())
}

/// Unpacks a package's data below the directory `into`, and never writes anywhere else.
///
/// `place` is given each path in the package (relative, without `./`) and says where it goes
/// (relative to `into`), or None to leave it out; directories that lead to a file are made.
/// Device nodes, sockets and setuid bits are left out. Nothing is written through a symbolic link,
/// but for usrmerge's `bin`, `sbin`, `lib` and `lib64`, where `into` has them (see
/// [`make_usrmerge_links`]). Files are not synced to disk one by one.
///
/// # Errors
/// Exit code 13 naming `package` for a package that is cut off or damaged or wants to write
/// outside; 15 where `into` cannot be written.
pub fn unpack(
    package: &str,
    reader: impl Read,
    into: &Path,
    place: &mut dyn FnMut(&Path) -> Option<PathBuf>,
) -> Result<Vec<UnpackedEntry>, Failure> {
    let mut tree = Tree::open(into)?;
    let mut unpacked = Vec::new();
    let mut total = 0u64;
    each_entry(package, reader, |entry| {
        total = total.saturating_add(entry.size());
        if total > MOST_UNPACKED {
            return Err(bad(package, "it unpacks to more than 32 GiB"));
        }
        unpacked.extend(tree.add(package, entry, place)?);
        Ok(Go::On)
    })?;
    Ok(unpacked)
}

/// One regular file of a package's data, whole; None where the package has no such file.
///
/// # Errors
/// As [`unpack`].
pub fn read_file(
    package: &str,
    reader: impl Read,
    path: &Path,
) -> Result<Option<Vec<u8>>, Failure> {
    with_file(package, reader, path, |file| {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| damaged(package, e))?;
        Ok(bytes)
    })
}

/// Gives one regular file of a package's data to `read` as a stream, so that for example a tar
/// inside the package can be read without a copy; None where there is no such file.
///
/// # Errors
/// As [`unpack`], and what `read` fails with.
pub fn with_file<T>(
    package: &str,
    reader: impl Read,
    path: &Path,
    read: impl FnOnce(&mut dyn Read) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let mut read = Some(read);
    let mut result = None;
    each_entry(package, reader, |entry| {
        let found = tree::clean(&entry_path(package, entry)?).is_ok_and(|found| found == path);
        if !found || !entry.header().entry_type().is_file() {
            return Ok(Go::On);
        }
        if let Some(read) = read.take() {
            result = Some(read(entry)?);
        }
        Ok(Go::Stop)
    })?;
    Ok(result)
}

/// The paths of everything in a package's data, relative and without `./`.
///
/// # Errors
/// As [`unpack`].
pub fn list(package: &str, reader: impl Read) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    each_entry(package, reader, |entry| {
        let path = entry_path(package, entry)?;
        paths.push(tree::clean(&path).map_err(|e| bad(package, &e))?);
        Ok(Go::On)
    })?;
    Ok(paths)
}

/// An entry of the data tar, whatever it is compressed with.
pub(super) type Entry<'a, 'b> = tar::Entry<'a, &'b mut dyn Read>;

enum Go {
    On,
    Stop,
}

/// Walks the data tar; unless stopped, reads the package to its end, so that one which is cut off
/// does not pass.
fn each_entry(
    package: &str,
    reader: impl Read,
    mut visit: impl FnMut(&mut Entry<'_, '_>) -> Result<Go, Failure>,
) -> Result<(), Failure> {
    let fail = |e| damaged(package, e);
    let mut ar = Ar::new(BufReader::with_capacity(1 << 16, reader)).map_err(fail)?;
    let name = loop {
        match ar.next_member().map_err(fail)? {
            Some(name) if name.starts_with("data.tar") => break name,
            Some(_) => continue,
            None => return Err(bad(package, "it has no data.tar")),
        }
    };
    let member = BufReader::with_capacity(1 << 16, &mut ar);
    let mut data = decompressed(&name, member).map_err(fail)?;
    let data: &mut dyn Read = &mut data;
    let mut tar = tar::Archive::new(data);
    for entry in tar.entries().map_err(fail)? {
        if let Go::Stop = visit(&mut entry.map_err(fail)?)? {
            return Ok(());
        }
    }
    io::copy(tar.into_inner(), &mut io::sink()).map_err(fail)?;
    Ok(())
}

pub(super) fn entry_path(package: &str, entry: &Entry<'_, '_>) -> Result<PathBuf, Failure> {
    entry.path().map(|path| path.into_owned()).map_err(|e| damaged(package, e))
}

/// A package that holds something it must not.
pub(super) fn bad(package: &str, what: &str) -> Failure {
    Failure::new(ExitCode::Verification, format!("the package {package} cannot be used: {what}"))
        .remedy("fetch it again, or report it to the archive it came from")
}

/// A package that cannot be read to its end.
pub(super) fn damaged(package: &str, error: io::Error) -> Failure {
    Failure::new(ExitCode::Verification, format!("the package {package} is cut off or damaged"))
        .because(error)
        .remedy("remove its blob from the store and run again, so that it is fetched anew")
}

/// A reader of ar archives that gives the current member's bytes.
struct Ar<R> {
    inner: R,
    /// Bytes left of the current member.
    left: u64,
    /// Whether a padding byte follows it.
    padded: bool,
}

impl<R: Read> Ar<R> {
    fn new(mut inner: R) -> io::Result<Self> {
        let mut magic = [0; 8];
        inner.read_exact(&mut magic)?;
        if &magic != b"!<arch>\n" {
            return Err(invalid("it is no ar archive"));
        }
        Ok(Self { inner, left: 0, padded: false })
    }

    /// Skips to the next member and returns its name; None at the end.
    fn next_member(&mut self) -> io::Result<Option<String>> {
        io::copy(self, &mut io::sink())?;
        if self.padded {
            self.inner.read_exact(&mut [0])?;
            self.padded = false;
        }
        let mut header = [0; 60];
        if !read_all_or_nothing(&mut self.inner, &mut header)? {
            return Ok(None);
        }
        if &header[58..] != b"`\n" {
            return Err(invalid("an ar header is damaged"));
        }
        let size = std::str::from_utf8(&header[48..58]).unwrap_or_default().trim_end();
        self.left = size.parse().map_err(|_| invalid("an ar header has no size"))?;
        self.padded = self.left % 2 == 1;
        let name = String::from_utf8_lossy(&header[..16]);
        Ok(Some(name.trim_end().trim_end_matches('/').to_owned()))
    }
}

impl<R: Read> Read for Ar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{} bytes are missing at its end", self.left),
            ));
        }
        self.left -= n as u64;
        Ok(n)
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Whether the buffer could be filled; an error where the input ends within it.
fn read_all_or_nothing(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut first = [0; 1];
    if reader.read(&mut first)? == 0 {
        return Ok(false);
    }
    buffer[0] = first[0];
    reader.read_exact(&mut buffer[1..])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    enum Item<'a> {
        File(&'a str, &'a [u8]),
        Dir(&'a str),
        Link(&'a str, &'a str),
        Hard(&'a str, &'a str),
        Node(&'a str),
    }
    use Item::{Dir, File, Hard, Link, Node};

    /// A tar whose paths are written as they are, `..` and all.
    fn tar_of(items: &[Item<'_>]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for item in items {
            let (path, kind, target, bytes, mode) = match item {
                File(path, bytes) => (path, tar::EntryType::Regular, None, *bytes, 0o4755),
                Dir(path) => (path, tar::EntryType::Directory, None, &b""[..], 0o755),
                Link(path, to) => (path, tar::EntryType::Symlink, Some(to), &b""[..], 0o777),
                Hard(path, to) => (path, tar::EntryType::Link, Some(to), &b""[..], 0o644),
                Node(path) => (path, tar::EntryType::Char, None, &b""[..], 0o666),
            };
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().expect("gnu").name[..path.len()].copy_from_slice(path.as_bytes());
            if let Some(to) = target {
                header.as_gnu_mut().expect("gnu").linkname[..to.len()]
                    .copy_from_slice(to.as_bytes());
            }
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_mtime(1_600_000_000);
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, bytes).expect("append");
        }
        tar.into_inner().expect("tar")
    }

    fn compress(extension: &str, bytes: &[u8]) -> Vec<u8> {
        match extension {
            ".gz" => {
                let mut gz = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                gz.write_all(bytes).expect("gz");
                gz.finish().expect("gz")
            }
            ".xz" => {
                let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
                xz.write_all(bytes).expect("xz");
                xz.finish().expect("xz")
            }
            ".zst" => zstd::encode_all(bytes, 1).expect("zst"),
            _ => bytes.to_vec(),
        }
    }

    fn deb_with(extension: &str, items: &[Item<'_>]) -> Vec<u8> {
        let mut deb = b"!<arch>\n".to_vec();
        let data = compress(extension, &tar_of(items));
        for (name, bytes) in [
            ("debian-binary", &b"2.0\n"[..]),
            ("control.tar.gz", b"odd"),
            (&format!("data.tar{extension}"), &data),
        ] {
            deb.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}", 0, 0, 0, 100644).bytes());
            deb.extend(format!("{:<10}`\n", bytes.len()).bytes());
            deb.extend(bytes);
            deb.resize(deb.len().next_multiple_of(2), b'\n');
        }
        deb
    }

    fn unpack_into(dir: &Path, items: &[Item<'_>]) -> Result<Vec<UnpackedEntry>, Failure> {
        unpack("mini", &deb_with(".xz", items)[..], dir, &mut everything)
    }

    #[rstest]
    fn every_compression_is_read(#[values("", ".gz", ".xz", ".zst")] extension: &str) {
        let dir = tempfile::tempdir().expect("dir");
        let deb = deb_with(extension, &[Dir("./"), Dir("./usr/"), File("./usr/a", b"bytes")]);
        let entries = unpack("mini", &deb[..], dir.path(), &mut everything).expect("unpacks");
        assert_eq!(fs::read(dir.path().join("usr/a")).expect("read"), b"bytes");
        assert_eq!(entries.len(), 2);
        let read = read_file("mini", &deb[..], Path::new("usr/a")).expect("reads");
        assert_eq!(read.as_deref(), Some(&b"bytes"[..]));
        assert_eq!(read_file("mini", &deb[..], Path::new("usr/b")).expect("reads"), None);
        assert_eq!(list("mini", &deb[..]).expect("lists").len(), 3);
    }

    #[rstest]
    fn one_that_is_cut_off_is_refused(#[values("", ".gz", ".xz", ".zst")] extension: &str) {
        let noise: Vec<u8> = (0..20_000u32)
            .flat_map(|i| i.wrapping_mul(i).wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        let deb = deb_with(extension, &[File("./a", &noise)]);
        // One byte may be the padding after the last member.
        for cut in [2, 3, 600, deb.len() / 2, deb.len() - 100, deb.len() - 4] {
            let dir = tempfile::tempdir().expect("dir");
            let failure = unpack("mini", &deb[..deb.len() - cut], dir.path(), &mut everything)
                .expect_err(&format!("refused when {cut} bytes are missing"));
            assert_eq!(failure.code(), ExitCode::Verification);
            assert!(failure.to_string().contains("mini"), "{failure}");
        }
    }

    #[rstest]
    #[case::parent(&[File("../out/evil", b"x")])]
    #[case::parent_within(&[File("a/../../out/evil", b"x")])]
    #[case::absolute(&[File("/tmp/longshore-evil", b"x")])]
    #[case::through_a_link(&[Link("d", "../out"), File("d/evil", b"x")])]
    #[case::through_an_absolute_link(&[Link("d", "/tmp"), File("d/longshore-evil", b"x")])]
    #[case::directory_through_a_link(&[Link("d", "../out"), Dir("d/evil/")])]
    #[case::through_a_false_usrmerge(&[Link("lib", "../out"), File("lib/evil", b"x")])]
    #[case::usrmerge_onto_a_link(&[Link("usr", "../out"), Link("lib", "usr/lib"), File("lib/evil", b"x")])]
    #[case::link_through_a_link(&[Link("d", "../out"), Link("d/evil", "x")])]
    #[case::hard_link_outside(&[Hard("a", "../out/secret")])]
    #[case::hard_link_absolute(&[Hard("a", "/etc/passwd")])]
    #[case::hard_link_through_a_link(&[Link("d", "../out"), Hard("a", "d/secret")])]
    #[case::hard_link_to_a_link(&[Link("d", "../out/secret"), Hard("a", "d")])]
    fn nothing_is_written_outside(#[case] items: &[Item<'_>]) {
        let dir = tempfile::tempdir().expect("dir");
        let (into, out) = (dir.path().join("in"), dir.path().join("out"));
        fs::create_dir(&out).expect("dir");
        fs::write(out.join("secret"), "secret").expect("write");
        let failure = unpack_into(&into, items).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains("mini"), "{failure}");
        assert_eq!(fs::read_dir(&out).expect("list").count(), 1);
        assert_eq!(fs::read(out.join("secret")).expect("read"), b"secret");
        assert!(!Path::new("/tmp/longshore-evil").exists());
    }

    #[test]
    fn a_link_is_replaced_and_not_followed_by_the_file_of_its_name() {
        let dir = tempfile::tempdir().expect("dir");
        fs::write(dir.path().join("secret"), "secret").expect("write");
        let into = dir.path().join("in");
        unpack_into(&into, &[Link("a", "../secret"), File("a", b"new")]).expect("unpacks");
        assert_eq!(fs::read(dir.path().join("secret")).expect("read"), b"secret");
        assert_eq!(fs::read(into.join("a")).expect("read"), b"new");
    }

    #[test]
    fn usrmerge_links_are_kept_and_files_go_through_them() {
        let dir = tempfile::tempdir().expect("dir");
        make_usrmerge_links(dir.path()).expect("links");
        let items = [
            Dir("./lib/"),
            Dir("./lib/modules/"),
            File("./lib/modules/a", b"a"),
            Link("./lib64", "usr/lib64"),
            Link("./bin/sh", "/usr/bin/dash"),
            Dir("./etc/"),
        ];
        unpack_into(dir.path(), &items).expect("unpacks");
        assert!(fs::symlink_metadata(dir.path().join("lib")).expect("lib").is_symlink());
        assert_eq!(fs::read(dir.path().join("usr/lib/modules/a")).expect("read"), b"a");
        let target = fs::read_link(dir.path().join("usr/bin/sh")).expect("link");
        assert_eq!(target, Path::new("/usr/bin/dash"));
    }

    #[test]
    fn an_absolute_usrmerge_link_stays_inside() {
        let dir = tempfile::tempdir().expect("dir");
        symlink("/usr/lib", dir.path().join("lib")).expect("link");
        unpack_into(dir.path(), &[File("lib/longshore-test", b"a")]).expect("unpacks");
        assert!(dir.path().join("usr/lib/longshore-test").is_file());
        assert!(!Path::new("/usr/lib/longshore-test").exists());
    }

    #[test]
    fn setuid_bits_and_device_nodes_are_dropped_and_times_kept() {
        let dir = tempfile::tempdir().expect("dir");
        let items = [File("su", b"x"), Node("null"), Hard("su2", "su")];
        let entries = unpack_into(dir.path(), &items).expect("unpacks");
        let found = fs::metadata(dir.path().join("su")).expect("su");
        assert_eq!(found.permissions().mode() & 0o7777, 0o755);
        let age = found.modified().expect("time").duration_since(std::time::UNIX_EPOCH);
        assert_eq!(age.expect("time").as_secs(), 1_600_000_000);
        assert!(!dir.path().join("null").exists());
        assert_eq!(entries[1].kind, EntryKind::HardLink("su".into()));
    }

    #[test]
    fn files_go_where_they_are_placed() {
        let dir = tempfile::tempdir().expect("dir");
        let deb =
            deb_with(".gz", &[File("./a/b", b"1"), File("./c", b"2"), Hard("./a/d", "./a/b")]);
        let entries = unpack("mini", &deb[..], dir.path(), &mut |path| {
            path.strip_prefix("a").ok().map(|rest| Path::new("deep/er").join(rest))
        });
        assert_eq!(entries.expect("unpacks").len(), 2);
        assert!(dir.path().join("deep/er/d").is_file());
        assert!(!dir.path().join("c").exists());
        let failure =
            unpack("mini", &deb[..], dir.path(), &mut |path| Some(Path::new("..").join(path)));
        assert_eq!(failure.expect_err("refused").code(), ExitCode::Verification);
    }

    #[rstest]
    #[case::empty(b"")]
    #[case::no_ar(b"<html>not found</html>")]
    #[case::no_members(b"!<arch>\n")]
    #[case::damaged(
        b"!<arch>\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    )]
    fn what_is_no_package_is_refused(#[case] bytes: &[u8]) {
        let dir = tempfile::tempdir().expect("dir");
        let failure = unpack("mini", bytes, dir.path(), &mut everything).expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.report().contains("mini"), "{}", failure.report());
    }
}
