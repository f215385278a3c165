//! Fields of every line of the log in JSON: program, node, pod, kernel and driver, so that the log of a fleet can be
//! queried by them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use longshore_core::environment::Env;

/// Variables of the pod, and their fields; the chart sets all of them.
const OF_POD: [(&str, &str); 3] =
    [("node", "NODE_NAME"), ("namespace", "POD_NAMESPACE"), ("pod", "POD_NAME")];

/// Fields of every line; clones share them.
#[derive(Debug, Clone, Default)]
pub struct About(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    of_process: OnceLock<Vec<(&'static str, String)>>,
    driver: Mutex<Option<String>>,
}

impl About {
    /// Reads node and pod from the environment, once.
    pub(super) fn read(&self, env: Env<'_>) -> &[(&'static str, String)] {
        self.0.of_process.get_or_init(|| {
            let mut fields = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
            let given = |name: &str| env(name).filter(|value| !value.is_empty());
            let of_pod = OF_POD.into_iter().filter_map(|(key, name)| Some((key, given(name)?)));
            fields.extend(of_pod);
            let kernel = nix::sys::utsname::uname().ok();
            fields.extend(kernel.map(|of| ("kernel", of.release().to_string_lossy().into_owned())));
            fields
        })
    }

    /// Sets the version of the driver that further lines are about.
    pub fn set_driver(&self, version: &str) {
        let mut driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner);
        *driver = Some(version.to_owned());
    }

    /// Returns the fields that are known now.
    pub(super) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = self.read(&|name| std::env::var(name).ok()).to_vec();
        let driver = self.0.driver.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fields.extend(driver.map(|version| ("driver", version)));
        fields
    }
}
