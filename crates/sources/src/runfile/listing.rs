//! `.manifest`: the files that a .run file's installer would install.
//!
//! Line 1 describes the package, line 2 is its version, six or seven more say how its modules are
//! built; then one line a file (nvidia-installer's install-from-cwd.c and manifest.c):
//!
//! ```text
//! libcuda.so.535.261.03 0755 CUDA_LIB NATIVE / MODULE:gpgpu
//! libcuda.so.1 0000 CUDA_SYMLINK NATIVE / libcuda.so.535.261.03 MODULE:gpgpu
//! nvidia-smi 0755 UTILITY_BINARY MODULE:utils
//! firmware/gsp_tu10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:gpgpu
//! ```

use longshore_core::driver_version::DriverVersion;
use std::path::{Component, Path, PathBuf};

/// Contents of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listing {
    /// Driver version.
    pub(super) version: String,
    /// Files and links, in its order.
    pub(super) entries: Vec<Listed>,
}

/// A file or link to be installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    /// Relative to the package.
    pub(super) path: PathBuf,
    /// Permission bits without setuid, setgid and sticky.
    pub(super) mode: u32,
    /// For example `CUDA_LIB`.
    pub(super) kind: String,
    /// True for 32-bit programs' files.
    pub(super) compat32: bool,
    /// File name of a link's target.
    pub(super) target: Option<String>,
}

/// Minimum number of lines before the entries.
const HEADER_LINES: usize = 7;

impl Listing {
    /// Parses a manifest.
    ///
    /// # Errors
    /// A text that describes the fault.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let version = text.lines().nth(1).map(str::trim).unwrap_or_default();
        if DriverVersion::parse(version).is_none() {
            return Err(format!("its second line is not a driver version: {version:?}"));
        }
        let mut entries = Vec::new();
        for line in text.lines().skip(HEADER_LINES) {
            entries.extend(Listed::parse(line)?);
        }
        if entries.is_empty() {
            return Err("it lists no file".to_owned());
        }
        Ok(Self { version: version.to_owned(), entries })
    }
}

impl Listed {
    /// Parses a line; None if it is not an entry.
    fn parse(line: &str) -> Result<Option<Self>, String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [path, mode, kind, rest @ ..] = words.as_slice() else { return Ok(None) };
        let octal = mode.len() >= 3 && mode.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let Some(mode) = u32::from_str_radix(mode, 8).ok().filter(|_| octal) else {
            return Ok(None);
        };
        let path = inside(path).ok_or_else(|| format!("it names {path}, which leads outside"))?;
        let is_link = kind.ends_with("SYMLINK") || kind.ends_with("NEWSYM");
        let plain = || rest.iter().filter(|word| !word.contains(':'));
        let target = plain().next_back().filter(|_| is_link);
        let target = target.map(|target| target.rsplit('/').next().unwrap_or_default().to_owned());
        if is_link && target.as_deref().is_none_or(str::is_empty) {
            return Err(format!("{} is a link without a target", path.display()));
        }
        Ok(Some(Self {
            path,
            mode: mode & 0o777,
            kind: (*kind).to_owned(),
            compat32: rest.contains(&"COMPAT32"),
            target,
        }))
    }
}

/// Returns a relative path without `.` and without `..`.
fn inside(path: &str) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(clean).filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const HEAD: &str = "NVIDIA Accelerated Graphics Driver for Linux-x86_64\n535.261.03\n\
        nvidia\nnvidia nvidia-uvm nvidia-modeset\n\n\nkernel\nprecompiled\n";

    #[test]
    fn files_links_and_modes_are_read() {
        let text = format!(
            "{HEAD}./libcuda.so.535.261.03 0755 CUDA_LIB NATIVE / MODULE:gpgpu\n\
             libcuda.so.1 0000 CUDA_SYMLINK NATIVE / libcuda.so.535.261.03 MODULE:gpgpu\n\
             libvdpau_nvidia.so 0000 VDPAU_SYMLINK NATIVE / vdpau/libvdpau_nvidia.so.1 MODULE:vdpau\n\
             ./32/libcuda.so.535.261.03 0755 CUDA_LIB COMPAT32 / MODULE:gpgpu\n\
             nvidia-modprobe 4755 NVIDIA_MODPROBE /usr/bin MODULE:installer\n"
        );
        let listing = Listing::parse(&text).expect("read");
        assert_eq!(listing.version, "535.261.03");
        let read: Vec<_> = listing
            .entries
            .iter()
            .map(|e| (e.path.to_str().unwrap_or_default(), e.mode, e.target.as_deref(), e.compat32))
            .collect();
        assert_eq!(
            read,
            [
                ("libcuda.so.535.261.03", 0o755, None, false),
                ("libcuda.so.1", 0, Some("libcuda.so.535.261.03"), false),
                ("libvdpau_nvidia.so", 0, Some("libvdpau_nvidia.so.1"), false),
                ("32/libcuda.so.535.261.03", 0o755, None, true),
                ("nvidia-modprobe", 0o755, None, false),
            ]
        );
    }

    #[rstest]
    #[case::no_version("a\nb\n", "not a driver version")]
    #[case::nothing("", "not a driver version")]
    #[case::no_files(HEAD, "lists no file")]
    #[case::parent(&format!("{HEAD}../x 0644 DOCUMENTATION\n"), "leads outside")]
    #[case::absolute(&format!("{HEAD}/etc/passwd 0644 DOCUMENTATION\n"), "leads outside")]
    #[case::link_to_nothing(&format!("{HEAD}libx.so.1 0000 CUDA_SYMLINK MODULE:a\n"), "target")]
    fn is_refused(#[case] text: &str, #[case] said: &str) {
        let fault = Listing::parse(text).expect_err("refused");
        assert!(fault.contains(said), "{fault}");
    }
}
