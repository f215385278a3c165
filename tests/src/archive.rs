//! A small archive, made and signed at the test's run time.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use longshore_core::digest::hex;
use longshore_debian::max_age::MaxAge;
use longshore_debian::settings::{ArchiveConfig, ArchiveSource};
use pgp::composed::{
    ArmorOptions, CleartextSignedMessage, DetachedSignature, KeyType, SecretKeyParamsBuilder,
    SignedSecretKey,
};
use pgp::crypto::hash::HashAlgorithm;
use pgp::types::Password;
use rand::RngCore;
use sha2::{Digest, Sha256};

/// The architecture as Debian names it.
pub const ARCH: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// Returns the configuration of one archive, without the host's own sources.
pub fn config(url: &str, suite: &str, component: &str, keyring: &Path) -> ArchiveConfig {
    ArchiveConfig {
        sources: vec![ArchiveSource {
            url: url.to_owned(),
            suites: vec![suite.to_owned()],
            components: vec![component.to_owned()],
            keyring: keyring.to_path_buf(),
            max_age: None,
        }],
        use_host_apt: false,
        host_components: Vec::new(),
        host_suites: Vec::new(),
        container_lists: None,
        frozen: false,
        max_age: MaxAge::default(),
    }
}

/// Makes a throwaway key.
pub fn key() -> SignedSecretKey {
    let mut params = SecretKeyParamsBuilder::default();
    params
        .key_type(KeyType::Ed25519Legacy)
        .can_sign(true)
        .can_certify(true)
        .primary_user_id("archive <archive@example.com>".into());
    params.build().expect("parameters").generate(rand::thread_rng()).expect("key")
}

/// Returns its certificate, armored.
pub fn certificate(key: &SignedSecretKey) -> Vec<u8> {
    key.to_public_key().to_armored_bytes(ArmorOptions::default()).expect("armor")
}

/// Signs a text as for InRelease.
pub fn sign(key: &SignedSecretKey, text: &str) -> Vec<u8> {
    let signed = CleartextSignedMessage::sign(
        rand::thread_rng(),
        text,
        &key.primary_key,
        &Password::empty(),
    );
    signed.expect("signs").to_armored_bytes(ArmorOptions::default()).expect("armor")
}

/// Signs a text as for Release.gpg.
pub fn sign_apart(key: &SignedSecretKey, text: &str) -> Vec<u8> {
    let signature = DetachedSignature::sign_binary_data(
        rand::thread_rng(),
        &key.primary_key,
        &Password::empty(),
        HashAlgorithm::Sha256,
        text.as_bytes(),
    );
    signature.expect("signs").to_armored_bytes(ArmorOptions::default()).expect("armor")
}

/// Returns the sha256 of `bytes` in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Makes a package with these files: path and content.
pub fn deb(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        // Written unchecked, so that a test can name a path outside with `..`.
        header.as_gnu_mut().expect("gnu").name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        tar.append(&header, *bytes).expect("append");
    }
    let data = gzip(&tar.into_inner().expect("tar"));
    let mut deb = b"!<arch>\n".to_vec();
    for (name, bytes) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar", b""), ("data.tar.gz", &data)]
    {
        deb.extend(format!("{name:<16}{:<12}{:<6}{:<6}{:<8}", 0, 0, 0, 100644).bytes());
        deb.extend(format!("{:<10}`\n", bytes.len()).bytes());
        deb.extend(bytes);
        deb.resize(deb.len().next_multiple_of(2), b'\n');
    }
    deb
}

/// Compresses `bytes` with gzip.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).expect("gz");
    gz.finish().expect("gz")
}

/// Returns bytes that do not compress.
pub fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rand::thread_rng().fill_bytes(&mut bytes);
    bytes
}

/// One suite of an archive.
pub struct Suite {
    /// Suite and codename.
    pub name: String,
    /// Origin, as stated in the Release.
    pub origin: String,
    /// Date of the Release.
    pub date: String,
    /// Further lines of the Release, for example `Valid-Until: ...`.
    pub more: String,
    /// Its one component.
    pub component: String,
    /// Stanza (without Filename, Size and SHA256), and the package.
    pub packages: Vec<(String, Vec<u8>)>,
}

impl Suite {
    /// Makes the usual suite: `tool` 2, which needs `lib` (>= 1), and two versions of that.
    pub fn usual() -> Self {
        let stanza = |name: &str, version: &str, more: &str| {
            format!("Package: {name}\nVersion: {version}\nArchitecture: {ARCH}\n{more}")
        };
        let noise = noise(300_000);
        Self {
            name: "stable".to_owned(),
            origin: "Test".to_owned(),
            date: "Sat, 11 Jul 2026 10:16:37 UTC".to_owned(),
            more: "Acquire-By-Hash: yes\n".to_owned(),
            component: "main".to_owned(),
            packages: vec![
                (stanza("tool", "2-1", "Depends: lib (>= 1)\n"), deb(&[("./usr/tool", &noise)])),
                (stanza("lib", "1-1", ""), deb(&[("./usr/lib/lib", b"1")])),
                (stanza("lib", "1-2", ""), deb(&[("./usr/lib/lib", b"2")])),
            ],
        }
    }

    /// Returns the path of a package's file below the archive, for example `/pool/0.deb`.
    pub fn pool(&self, at: usize) -> String {
        format!("/pool/{}-{at}.deb", self.name)
    }

    /// Returns the text of Packages.
    pub fn index(&self) -> String {
        let stanzas = self.packages.iter().enumerate().map(|(at, (stanza, deb))| {
            let (path, size, sha256) = (&self.pool(at)[1..], deb.len(), digest(deb));
            format!("{stanza}Filename: {path}\nSize: {size}\nSHA256: {sha256}\n")
        });
        stanzas.collect::<Vec<_>>().join("\n")
    }

    /// Returns the path of the index below the archive.
    pub fn index_path(&self) -> String {
        format!("/dists/{}/{}/binary-{ARCH}/Packages.gz", self.name, self.component)
    }

    /// Returns the path of the index by its digest.
    pub fn by_hash(&self) -> String {
        let index = digest(&gzip(self.index().as_bytes()));
        let dir = format!("/dists/{}/{}/binary-{ARCH}", self.name, self.component);
        format!("{dir}/by-hash/SHA256/{index}")
    }

    /// Returns the text of the Release.
    pub fn release(&self) -> String {
        let index = self.index();
        let gz = gzip(index.as_bytes());
        let path = format!("{}/binary-{ARCH}/Packages", self.component);
        format!(
            "Origin: {}\nSuite: {name}\nCodename: {name}\nDate: {}\n\
             Components: {}\nArchitectures: {ARCH}\n{}SHA256:\n {} {} {path}\n {} {} {path}.gz\n",
            self.origin,
            self.date,
            self.component,
            self.more,
            digest(index.as_bytes()),
            index.len(),
            digest(&gz),
            gz.len(),
            name = self.name,
        )
    }

    /// Returns all files on the server, by path.
    pub fn files(&self, key: &SignedSecretKey) -> BTreeMap<String, Vec<u8>> {
        let index = gzip(self.index().as_bytes());
        let mut files = BTreeMap::from([
            (format!("/dists/{}/InRelease", self.name), sign(key, &self.release())),
            (self.index_path(), index.clone()),
            (self.by_hash(), index),
        ]);
        let debs = self.packages.iter().enumerate();
        files.extend(debs.map(|(at, (_, deb))| (self.pool(at), deb.clone())));
        files
    }
}
