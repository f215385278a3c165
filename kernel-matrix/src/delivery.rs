//! How a cell's driver gets to its guest: what the guest finds in its store, on a disk at /srv and
//! in a registry, and what its agent is told of it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::{At, Error};
use crate::matrix::{Cell, Supply};
use crate::process::{LIMIT, run};
use crate::registry::{self, Registry};
use crate::runfile::RunFile;
use crate::seed::{self, Seed};
use crate::workbench::Agent;

/// The password of a key pair that lives as long as its cell.
const PASSWORD: (&str, &str) = ("COSIGN_PASSWORD", "cell");

/// What is ready for a guest.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Arguments of `longshore run` beyond which driver.
    pub arguments: Vec<String>,
    /// ext4 image for /srv.
    pub media: Option<PathBuf>,
    /// The registry it reaches; nothing where there is none.
    pub registry: Option<Registry>,
    /// Its store, where that is one it keeps from boot to boot.
    pub kept_store: Option<PathBuf>,
}

/// Makes everything ready, with files in `dir`.
///
/// # Errors
/// longshore, docker-registry or mke2fs failed.
pub fn make(
    cell: &Cell,
    agent: &Agent,
    seed: &Seed,
    run_file: Option<&RunFile>,
    dir: &Path,
) -> Result<Delivery, Error> {
    match (cell.from, run_file) {
        (Supply::RunFile, Some(file)) => Ok(of_run_file(file)),
        (Supply::Registry, _) => of_registry(agent, seed, dir),
        (Supply::Store, _) => {
            let store = dir.join("store.ext4");
            disk::copy(&seed.disk, &store)?;
            Ok(Delivery { kept_store: Some(store), ..of_registry(agent, seed, dir)? })
        }
        _ => Ok(Delivery::default()),
    }
}

fn of_run_file(file: &RunFile) -> Delivery {
    let place = format!("/srv/{}", file.name());
    let words = ["--run-file", &place, "--run-file-sha256", &file.sha256].map(str::to_owned);
    Delivery { arguments: words.into(), media: Some(file.disk.clone()), ..Delivery::default() }
}

/// Pushes the set, signed, to a registry, and gives the guest the public key.
fn of_registry(agent: &Agent, seed: &Seed, dir: &Path) -> Result<Delivery, Error> {
    let (store, keys, media) = (dir.join("push"), dir.join("keys"), dir.join("media"));
    for one in [&keys, &media] {
        fs::create_dir(one).at("make", one)?;
    }
    seed::copy_set(seed, &store)?;
    run(agent.longshore().args(["generate-key-pair", "--out"]).arg(&keys), LIMIT)?;
    let registry = Registry::start(dir)?;
    let key = &seed.set.key;
    run(
        agent
            .longshore()
            .arg("push")
            .arg(registry.reference())
            .args(["--kernel", &key.kernel_release, "--store"])
            .arg(&store)
            .arg("--sign-key")
            .arg(keys.join("cosign.key")),
        LIMIT,
    )?;
    fs::copy(keys.join("cosign.pub"), media.join("cosign.pub")).at("copy", &keys)?;
    let image = dir.join("media.ext4");
    disk::make(&media, &image, 1)?;
    let reference = format!("http://{}/{}", registry::IN_GUEST, registry::REPOSITORY);
    let words = [
        "--registry",
        &reference,
        "--no-compile",
        "--require-signature",
        "--signature-key",
        "/srv/cosign.pub",
    ];
    Ok(Delivery {
        arguments: words.map(str::to_owned).into(),
        media: Some(image),
        registry: Some(registry),
        kept_store: None,
    })
}

impl Agent {
    /// longshore with the password of the cells' keys.
    fn longshore(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command.env(PASSWORD.0, PASSWORD.1);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_file_is_named_as_the_guest_sees_it() {
        let file = RunFile {
            path: "/cache/run-file-1/media/NVIDIA-Linux-x86_64-535.1.run".into(),
            sha256: "ab".into(),
            disk: "/cache/run-file-1/media.ext4".into(),
        };
        let delivery = of_run_file(&file);
        let words = ["--run-file", "/srv/NVIDIA-Linux-x86_64-535.1.run", "--run-file-sha256", "ab"];
        assert_eq!(delivery.arguments, words);
        assert_eq!(delivery.media, Some(file.disk));
        assert!(delivery.registry.is_none() && delivery.kept_store.is_none());
    }
}
