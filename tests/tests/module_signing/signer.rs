//! A signer: a key and certificate that openssl makes, and the machine's own sign-file beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::host;

pub(crate) struct Signer {
    dir: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) certificate: PathBuf,
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

impl Signer {
    /// Makes a signer with the subject `O=Example` and this common name.
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
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
    pub(crate) fn key_id(&self) -> String {
        let mut show = Command::new("openssl");
        show.args(["x509", "-noout", "-ext", "subjectKeyIdentifier", "-in"]);
        let shown = run(show.arg(&self.certificate)).stdout;
        let text = String::from_utf8(shown).expect("text");
        let id = text.lines().last().expect("a line");
        id.trim().replace(':', "").to_lowercase()
    }

    /// Returns a line of the secret key that occurs nowhere else.
    pub(crate) fn secret_line(&self) -> String {
        let pem = fs::read_to_string(&self.key).expect("key");
        pem.lines().nth(5).expect("a line").to_owned()
    }

    /// Returns the key encrypted with a passphrase, as PKCS#8.
    pub(crate) fn encrypted(&self, passphrase: &str) -> PathBuf {
        let path = self.dir.join("encrypted.pem");
        let mut convert = Command::new("openssl");
        convert.args(["pkey", "-aes256", "-passout"]).arg(format!("pass:{passphrase}"));
        run(convert.arg("-in").arg(&self.key).arg("-out").arg(&path));
        path
    }

    /// Like [`Signer::encrypted`], but such that OpenSSL refuses `wrong` by its padding: in one
    /// encryption of 256 the result of a wrong passphrase has valid padding, and is refused for its
    /// content.
    pub(crate) fn encrypted_against(&self, passphrase: &str, wrong: &str) -> PathBuf {
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
    pub(crate) fn pkcs1(&self) -> PathBuf {
        let path = self.dir.join("pkcs1.pem");
        let mut convert = Command::new("openssl");
        convert.args(["rsa", "-traditional", "-in"]).arg(&self.key);
        run(convert.arg("-out").arg(&path));
        path
    }

    /// Returns the directory of key and certificate as kubelet mounts a secret: links into a
    /// directory whose name begins with two dots.
    pub(crate) fn mounted(&self, dir: &Path) -> PathBuf {
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
    pub(crate) fn sign_file(&self, hash: &str, module: &[u8]) -> Vec<u8> {
        let path = self.dir.join("module.ko");
        fs::write(&path, module).expect("write");
        let mut sign = Command::new(host::sign_file());
        run(sign.arg(hash).arg(&self.key).arg(&self.certificate).arg(&path));
        fs::read(&path).expect("signed")
    }

    /// Signs `module` into a `.p7s` beside it.
    pub(crate) fn openssl_signs(&self, module: &Path, args: &[&str]) {
        let mut sign = Command::new("openssl");
        sign.args(["cms", "-sign", "-binary", "-outform", "DER"]).args(args);
        sign.arg("-signer").arg(&self.certificate).arg("-inkey").arg(&self.key);
        sign.arg("-in").arg(module).arg("-out").arg(format!("{}.p7s", module.display()));
        run(&mut sign);
    }

    /// True if openssl accepts `message` as this signer's signature over `content`.
    pub(crate) fn openssl_verifies(&self, content: &[u8], message: &[u8]) -> bool {
        let (file, p7s) = (self.dir.join("content"), self.dir.join("message.p7s"));
        fs::write(&file, content).expect("write");
        fs::write(&p7s, message).expect("write");
        let mut verify = Command::new("openssl");
        verify.args(["cms", "-verify", "-binary", "-inform", "DER", "-noverify", "-in"]).arg(&p7s);
        verify.arg("-content").arg(&file).arg("-certfile").arg(&self.certificate);
        verify.args(["-out", "/dev/null"]).output().expect("openssl").status.success()
    }
}
