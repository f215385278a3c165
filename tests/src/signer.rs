//! A signer of modules: a key and certificate that openssl makes, and this machine's own sign-file
//! beside it, also as a package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::packages::{Item, deb};

/// A signer, with its files in a directory of its own.
pub struct Signer {
    dir: PathBuf,
    /// The secret key (PEM).
    pub key: PathBuf,
    /// Its certificate (PEM).
    pub certificate: PathBuf,
}

/// Returns the path of the kernel's real sign-file; scripts/setup installs it.
pub fn sign_file() -> PathBuf {
    let kbuild = fs::read_dir("/usr/lib").expect("/usr/lib").flatten().find(|entry| {
        entry.file_name().to_string_lossy().starts_with("linux-kbuild-")
            && entry.path().join("scripts/sign-file").is_file()
    });
    kbuild.expect("no linux-kbuild package: run scripts/setup").path().join("scripts/sign-file")
}

/// Makes a kbuild package: sign-file with its libraries.
pub fn kbuild() -> Vec<u8> {
    let program = fs::read(sign_file()).expect("sign-file");
    let libraries: Vec<(String, Vec<u8>)> = libraries()
        .into_iter()
        .map(|path| (format!(".{}", path.display()), fs::read(&path).expect("a library")))
        .collect();
    let mut items = vec![Item::Program("./usr/lib/linux-kbuild-6.1/scripts/sign-file", &program)];
    items.extend(libraries.iter().map(|(path, bytes)| Item::Program(path, bytes)));
    deb(&items)
}

/// Returns the libraries that sign-file is linked with, by their paths in a merged /usr.
fn libraries() -> Vec<PathBuf> {
    let (triplet, loader) = if cfg!(target_arch = "aarch64") {
        ("aarch64-linux-gnu", "/usr/lib/ld-linux-aarch64.so.1")
    } else {
        ("x86_64-linux-gnu", "/usr/lib64/ld-linux-x86-64.so.2")
    };
    let dir = Path::new("/usr/lib").join(triplet);
    vec![dir.join("libcrypto.so.3"), dir.join("libc.so.6"), loader.into()]
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

impl Signer {
    /// Makes a signer with the subject `O=Example` and this common name.
    pub fn new(dir: &Path, name: &str) -> Self {
        fs::create_dir(dir).expect("dir");
        let signer = Self {
            dir: dir.to_path_buf(),
            key: dir.join("key.pem"),
            certificate: dir.join("certificate.pem"),
        };
        let mut request = Command::new("openssl");
        request.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256", "-days", "2"]);
        request.arg("-subj").arg(format!("/O=Example/CN={name}"));
        run(request.arg("-keyout").arg(&signer.key).arg("-out").arg(&signer.certificate));
        signer
    }

    /// Returns the subject key identifier, in hex.
    pub fn key_id(&self) -> String {
        let mut show = Command::new("openssl");
        show.args(["x509", "-noout", "-ext", "subjectKeyIdentifier", "-in"]);
        let shown = run(show.arg(&self.certificate)).stdout;
        let text = String::from_utf8(shown).expect("text");
        let id = text.lines().last().expect("a line");
        id.trim().replace(':', "").to_lowercase()
    }

    /// Returns a line of the secret key that occurs nowhere else.
    pub fn secret_line(&self) -> String {
        let pem = fs::read_to_string(&self.key).expect("key");
        pem.lines().nth(5).expect("a line").to_owned()
    }

    /// Returns the key encrypted with a passphrase, as PKCS#8.
    pub fn encrypted(&self, passphrase: &str) -> PathBuf {
        let path = self.dir.join("encrypted.pem");
        let mut convert = Command::new("openssl");
        convert.args(["pkey", "-aes256", "-passout"]).arg(format!("pass:{passphrase}"));
        run(convert.arg("-in").arg(&self.key).arg("-out").arg(&path));
        path
    }

    /// Like [`Signer::encrypted`], but such that OpenSSL refuses `wrong` by its padding: in one
    /// encryption of 256 the result of a wrong passphrase has valid padding, and is refused for its
    /// content.
    pub fn encrypted_against(&self, passphrase: &str, wrong: &str) -> PathBuf {
        let is_padded = |path: &PathBuf| {
            let mut read = Command::new("openssl");
            read.args(["pkey", "-noout", "-passin"]).arg(format!("pass:{wrong}"));
            let output = read.arg("-in").arg(path).output().expect("openssl").stderr;
            String::from_utf8_lossy(&output).contains("bad decrypt")
        };
        let mut keys = (0..8).map(|_| self.encrypted(passphrase));
        keys.find(is_padded).expect("one in 256, eight times")
    }

    /// Returns the key as PKCS#1.
    pub fn pkcs1(&self) -> PathBuf {
        let path = self.dir.join("pkcs1.pem");
        let mut convert = Command::new("openssl");
        convert.args(["rsa", "-traditional", "-in"]).arg(&self.key);
        run(convert.arg("-out").arg(&path));
        path
    }

    /// Returns the directory of key and certificate as kubelet mounts a secret: links into a
    /// directory whose name begins with two dots.
    pub fn mounted(&self, dir: &Path) -> PathBuf {
        fs::create_dir_all(dir.join("..2026_11_20")).expect("dir");
        std::os::unix::fs::symlink("..2026_11_20", dir.join("..data")).expect("link");
        for (name, file) in [("tls.key", &self.key), ("tls.crt", &self.certificate)] {
            fs::copy(file, dir.join("..data").join(name)).expect("copy");
            std::os::unix::fs::symlink(Path::new("..data").join(name), dir.join(name))
                .expect("link");
        }
        dir.to_path_buf()
    }

    /// Returns a module as the machine's sign-file signs it.
    pub fn sign_file(&self, hash: &str, module: &[u8]) -> Vec<u8> {
        let path = self.dir.join("module.ko");
        fs::write(&path, module).expect("write");
        let mut sign = Command::new(sign_file());
        run(sign.arg(hash).arg(&self.key).arg(&self.certificate).arg(&path));
        fs::read(&path).expect("signed")
    }

    /// Signs `module` into a `.p7s` beside it.
    pub fn openssl_signs(&self, module: &Path, args: &[&str]) {
        let mut sign = Command::new("openssl");
        sign.args(["cms", "-sign", "-binary", "-outform", "DER"]).args(args);
        sign.arg("-signer").arg(&self.certificate).arg("-inkey").arg(&self.key);
        sign.arg("-in").arg(module).arg("-out").arg(format!("{}.p7s", module.display()));
        run(&mut sign);
    }

    /// True if openssl accepts `message` as this signer's signature over `content`.
    pub fn openssl_verifies(&self, content: &[u8], message: &[u8]) -> bool {
        let (file, p7s) = (self.dir.join("content"), self.dir.join("message.p7s"));
        fs::write(&file, content).expect("write");
        fs::write(&p7s, message).expect("write");
        let mut verify = Command::new("openssl");
        verify.args(["cms", "-verify", "-binary", "-inform", "DER", "-noverify", "-in"]).arg(&p7s);
        verify.arg("-content").arg(&file).arg("-certfile").arg(&self.certificate);
        verify.args(["-out", "/dev/null"]).output().expect("openssl").status.success()
    }
}
