//! Version of a kernel (`uname -v`) that does not run here, out of its image in an archive.
//!
//! It is asked for only where headers do not state the version.

use longshore_core::failure::Failure;
use longshore_core::kernel_image::stated_version;
use longshore_core::progress::Progress;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Package};
use longshore_debian::deb;

/// Packages with the image, signed for Secure Boot or not, and its path in them. Since 7.0 Debian's `linux-image-*`
/// has maintainer scripts alone, which copy the image to /boot.
const PLACES: [(&str, ImagePlace); 4] = [
    ("linux-image-", ImagePlace::Boot),
    ("linux-image-unsigned-", ImagePlace::Boot),
    ("linux-binary-", ImagePlace::BesideModules),
    ("linux-binary-unsigned-", ImagePlace::BesideModules),
];

/// Path of the image in its package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImagePlace {
    /// `boot/vmlinuz-RELEASE`.
    Boot,
    /// `usr/lib/modules/RELEASE/vmlinuz`.
    BesideModules,
}

impl ImagePlace {
    fn path(self, release: &str) -> String {
        match self {
            Self::Boot => format!("boot/vmlinuz-{release}"),
            Self::BesideModules => format!("usr/lib/modules/{release}/vmlinuz"),
        }
    }
}

/// Returns the version of the kernel `release` from the image package of the build that the package
/// `headers` is of; None where no archive has it, or it has another form than x86's.
///
/// # Errors
/// Exit code 12 and 13 for a package that cannot be fetched or is damaged.
pub(super) async fn version(
    archive: &Archive,
    headers: &Package,
    release: &str,
    store: &Store,
    progress: &dyn Progress,
) -> Result<Option<String>, Failure> {
    for (prefix, place) in PLACES {
        let found = archive.packages(&format!("{prefix}{release}"));
        let of_build = found.into_iter().find(|p| p.version == headers.version);
        let Some(package) = of_build else { continue };
        archive.fetch(std::slice::from_ref(&package), store, progress).await?;
        let reader = store.open_blob(&package.sha256)?;
        if let Some(image) = deb::read_file(&package.name, reader, place.path(release).as_ref())? {
            return Ok(stated_version(&image, release));
        }
    }
    Ok(None)
}
