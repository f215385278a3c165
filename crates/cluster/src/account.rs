//! Service account of the pod: address of the API server, token and certificates.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::error::{ApiErrorKind, Error};
use crate::text::is_name;

/// Directory in which the kubelet mounts the service account.
pub const FILES: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Length of the longest token that is read, in bytes.
const LONGEST_TOKEN: u64 = 64 << 10;

const CALL: &str = "reading the pod's service account";

/// Service account of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    url: String,
    files: PathBuf,
    /// Namespace of the pod.
    pub namespace: Option<String>,
}

impl Account {
    /// Finds the service account by the variables and files that every pod has; None outside of a
    /// cluster, and in a pod without a token (`automountServiceAccountToken: false`).
    ///
    /// # Errors
    /// A port that is none.
    pub fn of_pod(
        env: &dyn Fn(&str) -> Option<String>,
        files: &Path,
    ) -> Result<Option<Self>, Error> {
        let given = |name| env(name).filter(|value| !value.is_empty());
        let Some(host) = given("KUBERNETES_SERVICE_HOST") else { return Ok(None) };
        if !files.join("token").is_file() || !files.join("ca.crt").is_file() {
            return Ok(None);
        }
        let port = given("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let port: u16 = port.parse().map_err(|e| {
            Error::new(CALL, ApiErrorKind::Account, format!("KUBERNETES_SERVICE_PORT: {e}"))
        })?;
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => host,
        };
        let namespace = read_small(&files.join("namespace"), 300).ok();
        let namespace = namespace.map(|text| text.trim().to_owned()).filter(|name| is_name(name));
        Ok(Some(Self {
            url: format!("https://{host}:{port}"),
            files: files.to_path_buf(),
            namespace,
        }))
    }

    /// Makes a client that reads the token and the certificates again as they are renewed, at the
    /// latest after a minute.
    pub(crate) fn config(&self) -> Result<kube::Config, Error> {
        let url = self.url.parse();
        let url =
            url.map_err(|e| Error::new(CALL, ApiErrorKind::Account, format!("{}: {e}", self.url)))?;
        let mut config = kube::Config::new(url);
        config.root_cert_file = Some(self.files.join("ca.crt"));
        let file = self.files.join("token");
        let token = read_small(&file, LONGEST_TOKEN).unwrap_or_default();
        match token.trim() {
            // kube sends a file's content as it is, and each call fails then as a broken connection does.
            trimmed if trimmed.contains(char::is_control) => {
                let why = format!("{} has control characters", file.display());
                return Err(Error::new(CALL, ApiErrorKind::Account, why));
            }
            // Without a file the token is read again where it is refused. The kubelet writes none with a newline.
            trimmed if trimmed != token => config.auth_info.token = Some(trimmed.to_owned().into()),
            _ => config.auth_info.token_file = Some(file.to_string_lossy().into_owned()),
        }
        // Calls are repeated by this crate, which repeats after broken connections as well.
        config.default_retry = false;
        Ok(config)
    }
}

fn read_small(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn files(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(dir.path().join(name), "gpu-operator\n").unwrap();
        }
        dir
    }

    #[rstest]
    #[case("10.0.0.1", "443", &["token", "ca.crt", "namespace"], Some("https://10.0.0.1:443"))]
    #[case("fd00::1", "6443", &["token", "ca.crt"], Some("https://[fd00::1]:6443"))]
    #[case("api.example.com", "", &["token", "ca.crt"], Some("https://api.example.com:443"))]
    #[case("", "443", &["token", "ca.crt"], None)]
    #[case("10.0.0.1", "443", &["ca.crt"], None)]
    #[case("10.0.0.1", "443", &["token"], None)]
    fn a_pod_has_its_variables_and_files(
        #[case] host: &str,
        #[case] port: &str,
        #[case] names: &[&str],
        #[case] url: Option<&str>,
    ) {
        let dir = files(names);
        let env = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some(port.to_owned()),
            _ => None,
        };
        let account = Account::of_pod(&env, dir.path()).unwrap();
        assert_eq!(account.as_ref().map(|account| account.url.as_str()), url);
        let namespace = account.and_then(|account| account.namespace);
        assert_eq!(namespace.is_some(), names.contains(&"namespace"));
    }

    #[test]
    fn a_port_that_is_none_is_an_error() {
        let dir = files(&["token", "ca.crt"]);
        let env = |_: &str| Some("seventy".to_owned());
        let error = Account::of_pod(&env, dir.path()).unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Account);
    }
}
