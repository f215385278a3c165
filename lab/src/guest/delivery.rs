//! Delivery of a cell's driver to its guest: the contents of its store, of a disk at /srv and of a
//! registry, and the agent's arguments for them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cell::Cell;
use crate::cell::needs::Needs;
use crate::cell::supply::Supply;
use crate::guest::workbench::{Agent, Prepared, Workbench};
use crate::host::disk;
use crate::host::error::{At, Error};
use crate::host::process::{LIMIT, run};
use crate::supply::cluster::Cluster;
use crate::supply::distributions;
use crate::supply::registry::{self, Registry};
use crate::supply::relay::Relay;
use crate::supply::run_file::RunFile;
use crate::supply::seed::{self, MODULES_ONLY, Seed};
use crate::vm::Disk;

/// Mount point in the guest of the disk with the driver.
pub(crate) const PLACE: &str = "/srv";
const PUBLIC_KEY: &str = "/srv/cosign.pub";

/// A delivery that is ready for a guest.
#[derive(Debug, Default)]
pub struct Delivery {
    /// Arguments of `longshore run` beyond those that select the driver.
    pub arguments: Vec<String>,
    /// Arguments of a longshore command that runs before it.
    pub import: Vec<String>,
    /// ext4 image for /srv.
    pub media: Option<PathBuf>,
    /// Registry that the guest reaches, if any.
    pub registry: Option<Registry>,
    /// Reference of the agent's image in that registry, if the guest pulls it.
    pub image: Option<String>,
    /// Cluster that the guest joins, if any.
    pub cluster: Option<Cluster>,
    /// Archive that the guest reaches, if any.
    pub archive: Option<Relay>,
    /// Store that the guest keeps from boot to boot, if any.
    pub kept_store: Option<Disk>,
    /// Disk of the kernels' modules, if not that of the cell's kernel.
    pub modules: Option<Disk>,
}

/// Makes a cell's delivery, with files in `dir`.
///
/// # Errors
/// longshore, docker-registry or mke2fs failed.
pub(crate) fn make(
    cell: &Cell,
    needs: Needs,
    workbench: &Workbench,
    prepared: &Prepared,
    dir: &Path,
) -> Result<Delivery, Error> {
    let mut delivery = supply(cell, workbench, prepared, dir)?;
    if let Some(next) = &prepared.next_kernel {
        let (store, modules) = (dir.join("store.ext4"), dir.join("modules.ext4"));
        disk::copy(&prepared.seed.disk, &store)?;
        disk::larger(&prepared.kernel.disk, &next.disk, &modules)?;
        delivery.kept_store = Some(Disk::Kept(store));
        delivery.modules = Some(Disk::Snapshot(modules));
        delivery.media = Some(next.disk.clone());
        delivery.arguments.extend(arguments_of(&["--next-kernel", "prepare"]));
    }
    if needs.cluster {
        let (cluster, media) = (Cluster::start(dir)?, dir.join("node.ext4"));
        disk::make(&cluster.node, &media, 1)?;
        delivery.media = Some(media);
        delivery.cluster = Some(cluster);
    }
    if let Some(registry) = delivery.registry.as_ref().filter(|_| cell.by_digest) {
        let archive = workbench.agent().image.canonicalize();
        let archive = archive.at("find", &workbench.agent().image)?;
        delivery.image = Some(registry.push_image(&archive, dir)?);
    }
    Ok(delivery)
}

fn supply(
    cell: &Cell,
    workbench: &Workbench,
    prepared: &Prepared,
    dir: &Path,
) -> Result<Delivery, Error> {
    match (cell.from, &prepared.run_file) {
        (
            Supply::Archive | Supply::UbuntuArchive | Supply::BuildRoot | Supply::FabricManager,
            _,
        )
        | (Supply::RunFile, None) => Ok(Delivery::default()),
        (Supply::FinishedModules, _) => {
            of_package(&workbench.finished_modules(cell, prepared)?, dir)
        }
        (Supply::RunFile, Some(file)) => Ok(of_run_file(file)),
        (Supply::SourceTree, _) => {
            let arguments = arguments_of(&[MODULES_ONLY]);
            Ok(Delivery { arguments, ..Delivery::default() })
        }
        (Supply::Bundle, _) => {
            let command = workbench.longshore("bundle", &prepared.kernel.release, cell);
            of_bundle(command, &Signed::new(workbench.agent(), dir)?)
        }
        (Supply::Compile, _) => {
            let archive = Relay::start(&cell.kernel_suites(), Path::new("/"))?;
            Ok(Delivery { archive: Some(archive), ..Delivery::default() })
        }
        (Supply::Registry, _) => of_registry(&prepared.seed, &Signed::new(workbench.agent(), dir)?),
        (Supply::Store, _) => {
            let store = dir.join("store.ext4");
            disk::copy(&prepared.seed.disk, &store)?;
            let registry = of_registry(&prepared.seed, &Signed::new(workbench.agent(), dir)?)?;
            Ok(Delivery { kept_store: Some(Disk::Kept(store)), ..registry })
        }
    }
}

fn of_run_file(file: &RunFile) -> Delivery {
    let place = format!("{PLACE}/{}", file.name());
    let arguments = arguments_of(&["--run-file", &place, "--run-file-sha256", &file.sha256]);
    Delivery { arguments, media: Some(file.disk.clone()), ..Delivery::default() }
}

fn of_package(archive: &Path, dir: &Path) -> Result<Delivery, Error> {
    let (media, image) = (dir.join("media"), dir.join("media.ext4"));
    fs::create_dir(&media).at("make", &media)?;
    run(Command::new("cp").arg("-a").arg(archive).arg(media.join("archive")), LIMIT)?;
    distributions::configure(&media.join("archive.toml"), &Path::new(PLACE).join("archive"))?;
    disk::make(&media, &image, 1)?;
    Ok(Delivery {
        arguments: arguments_of(&["--no-compile", "--config", "/srv/archive.toml"]),
        media: Some(image),
        ..Delivery::default()
    })
}

fn of_bundle(mut command: Command, signed: &Signed<'_>) -> Result<Delivery, Error> {
    command.arg("--out").arg(signed.media().join("driver.tar")).args(signed.sign());
    run(&mut command, LIMIT)?;
    Ok(Delivery {
        arguments: signed.required(),
        import: arguments_of(&["import", "/srv/driver.tar", "--key", PUBLIC_KEY]),
        media: Some(signed.disk()?),
        ..Delivery::default()
    })
}

fn of_registry(seed: &Seed, signed: &Signed<'_>) -> Result<Delivery, Error> {
    let store = signed.dir.join("push");
    seed::copy_set(seed, &store)?;
    let registry = Registry::start(signed.dir)?;
    let mut push = Command::new(&signed.agent.program);
    push.arg("push").arg(registry.reference()).args(signed.sign());
    push.args(["--kernel", &seed.set.key.kernel_release, "--store"]).arg(&store);
    run(&mut push, LIMIT)?;
    let reference = format!("http://{}/{}", registry::IN_GUEST, registry::REPOSITORY);
    let mut arguments = arguments_of(&["--no-compile", "--registry", &reference]);
    arguments.extend(signed.required());
    Ok(Delivery {
        arguments,
        media: Some(signed.disk()?),
        registry: Some(registry),
        ..Delivery::default()
    })
}

fn arguments_of(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A key pair of the cell's own, and a disk with the public key.
struct Signed<'a> {
    agent: &'a Agent,
    dir: &'a Path,
}

impl<'a> Signed<'a> {
    fn new(agent: &'a Agent, dir: &'a Path) -> Result<Self, Error> {
        let signed = Self { agent, dir };
        let (keys, media) = (dir.join("keys"), signed.media());
        for one in [&keys, &media] {
            fs::create_dir(one).at("make", one)?;
        }
        let secret = keys.join("cosign.key");
        let mut make = Command::new("openssl");
        make.args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]);
        run(make.arg(&secret), LIMIT)?;
        let mut show = Command::new("openssl");
        show.args(["pkey", "-pubout", "-in"]).arg(&secret).arg("-out");
        run(show.arg(media.join("cosign.pub")), LIMIT)?;
        Ok(signed)
    }

    /// Returns the directory that the disk is made of.
    fn media(&self) -> PathBuf {
        self.dir.join("media")
    }

    fn disk(&self) -> Result<PathBuf, Error> {
        let image = self.dir.join("media.ext4");
        disk::make(&self.media(), &image, 1)?;
        Ok(image)
    }

    fn sign(&self) -> [OsString; 2] {
        ["--sign-key".into(), self.dir.join("keys/cosign.key").into()]
    }

    /// Returns the arguments that make the agent refuse unsigned sets.
    fn required(&self) -> Vec<String> {
        arguments_of(&["--require-signature", "--signature-key", PUBLIC_KEY])
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
        let expected =
            ["--run-file", "/srv/NVIDIA-Linux-x86_64-535.1.run", "--run-file-sha256", "ab"];
        assert_eq!(delivery.arguments, expected);
        assert_eq!(delivery.media, Some(file.disk));
        assert!(delivery.registry.is_none() && delivery.kept_store.is_none());
    }
}
