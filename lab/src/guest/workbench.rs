//! Files that cells are made from, made on first use and shared between them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cell::Cell;
use crate::cell::guests::Guests;
use crate::cell::needs::Needs;
use crate::cell::supply::Supply;
use crate::host::archives::Archives;
use crate::host::cache::Cache;
use crate::host::error::{At, Error};
use crate::judge::event::{Resolved, Sink, What};
use crate::supply::distributions::{self, Contents};
use crate::supply::relay;
use crate::supply::run_file::{self, RunFile};
use crate::supply::seed::{self, Fetch, Fetches, Parts, Seed};
use crate::supply::source_tree;
use crate::supply::stand_in::{self, Made};
use crate::vm::agent_image::{self, Image};
use crate::vm::kernel::{self, Kernel, KernelPackages};
use crate::vm::qemu::{self, Qemu};
use crate::vm::rootfs::{self, Rootfs};
use crate::vm::secure_boot::{self, Firmware, Signer};

/// Time after which unused products are removed: kernels and images that a newer one has replaced.
const UNUSED: Duration = Duration::from_secs(14 * 86_400);

/// Paths of the agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// OCI archive with the agent's image.
    pub image: PathBuf,
    /// `longshore` program for this machine.
    pub program: PathBuf,
}

/// The archives and the cache from which cells are prepared.
pub struct Workbench {
    cache: Cache,
    guests: Guests,
    agent: Agent,
    archives: Archives,
    /// Options of QEMU, and the QEMU found by them.
    wanted: qemu::Options,
    qemu: Option<Arc<Qemu>>,
    rootfs: BTreeMap<String, Arc<Rootfs>>,
    image: BTreeMap<bool, Arc<Image>>,
}

/// Files on disk that a cell in a VM needs.
pub struct Prepared {
    /// QEMU.
    pub qemu: Arc<Qemu>,
    /// The kernel.
    pub kernel: Kernel,
    /// The kernel that is installed while the driver is Ready, if the cell has it.
    pub next_kernel: Option<Kernel>,
    /// The root file system.
    pub rootfs: Arc<Rootfs>,
    /// The agent's image.
    pub image: Arc<Image>,
    /// The agent's store.
    pub seed: Seed,
    /// The .run file, where the driver is from one.
    pub run_file: Option<RunFile>,
    /// Module of the guest's own, if the cell has one.
    pub stand_in: Option<Made>,
    /// Firmware with Secure Boot on, if the cell requires it.
    pub firmware: Option<Firmware>,
}

impl Workbench {
    /// Opens the archives that the guests and these cells need.
    ///
    /// # Errors
    /// The archives cannot be read or do not verify.
    pub fn open(
        cache: Cache,
        guests: Guests,
        cells: &[&Cell],
        agent: Agent,
        wanted: qemu::Options,
    ) -> Result<Self, Error> {
        let mut suites = Vec::new();
        let mut frozen = cells.iter().any(|cell| cell.driver.archive_frozen);
        for cell in cells {
            let guest = guests.guest(&cell.guest)?;
            suites.push(guest.suite.clone());
            frozen |= guest.archive_frozen;
        }
        suites.extend(cells.iter().flat_map(|cell| cell.suites()).map(str::to_owned));
        let suites = suites.into_iter().map(|suite| (suite, frozen)).collect();
        Self::open_each(cache, guests, suites, agent, wanted)
    }

    /// Opens these suites, each with lists past their expiry where its value is true. One that cannot be
    /// read is an error of the cells that need it.
    ///
    /// # Errors
    /// The machine has no usable apt sources, or the cache cannot be written.
    pub fn open_each(
        cache: Cache,
        guests: Guests,
        suites: BTreeMap<String, bool>,
        agent: Agent,
        wanted: qemu::Options,
    ) -> Result<Self, Error> {
        cache.prune(UNUSED)?;
        let archives = Archives::open_each(&cache.dir("packages"), &suites)?;
        let (rootfs, image) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { cache, guests, agent, archives, wanted, qemu: None, rootfs, image })
    }

    /// Returns the cache of all products.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the agent's paths.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the `longshore fetch` or `build` for a cell, with the store in the cache.
    pub fn longshore(&self, verb: &str, release: &str, cell: &Cell) -> Command {
        self.longshore_with(&self.cache.dir(cell.from.store()), verb, release, cell)
    }

    fn longshore_with(&self, store: &Path, verb: &str, release: &str, cell: &Cell) -> Command {
        let mut command = Command::new(&self.agent.program);
        command
            .arg(verb)
            .args(["--kernel", release, "--driver", &cell.driver.branch])
            .args(["--flavour", &cell.driver.flavour.to_string()])
            .arg("--store")
            .arg(store);
        for suite in cell.suites() {
            command.args(["--archive-suite", suite]);
        }
        if cell.driver.archive_frozen {
            command.arg("--archive-frozen");
        }
        for patch in &cell.driver.no_patches {
            command.args(["--no-patch", patch]);
        }
        for module in &cell.extra_modules {
            command.args(["--extra-module", module]);
        }
        command
    }

    /// Resolves the cell's kernel to today's packages.
    ///
    /// # Errors
    /// The suite does not have it.
    pub fn resolve(&self, cell: &Cell) -> Result<(KernelPackages, Resolved), Error> {
        let packages = kernel::resolve(&self.archives, &cell.kernel)?;
        let image = &packages.image;
        let resolved = Resolved {
            kernel_package: image.name.clone(),
            kernel_version: image.version.clone(),
            kernel_sha256: image.sha256.clone(),
            kernel_release: kernel::release_of(image),
            flavour: cell.driver.flavour.to_string(),
            ..Resolved::default()
        };
        Ok((packages, resolved))
    }

    /// Makes all files that the cell, with these needs of its scenario, needs.
    ///
    /// # Errors
    /// Something could not be obtained or made.
    pub(crate) fn prepare(
        &mut self,
        cell: &Cell,
        needs: Needs,
        sink: &Sink<'_>,
    ) -> Result<Prepared, Error> {
        let (packages, mut resolved) = self.resolve(cell)?;
        sink.tell(What::Preparing("QEMU".into()));
        let qemu = self.qemu()?;
        resolved.qemu_version = qemu.version.to_string();
        resolved.gpu_backend = qemu.backend.name().to_owned();
        sink.tell(What::Preparing(format!("kernel {}", resolved.kernel_release)));
        let kernel = kernel::make(&self.cache, &self.archives, &packages)?;
        sink.tell(What::Preparing("root file system".into()));
        let rootfs = self.rootfs(&cell.guest)?;
        sink.tell(What::Preparing("agent's image".into()));
        let image = self.image(!cell.daemons().is_empty())?;
        let on = (cell.kernel.suite.as_str(), kernel.release.as_str());
        let stand_in = needs.stand_in.map(|of| stand_in::make(&self.cache, &self.archives, on, of));
        let stand_in = stand_in.transpose()?;
        let driver = &cell.driver;
        let (branch, flavour) = (&driver.branch, driver.flavour);
        sink.tell(What::Preparing(format!("driver {branch} {flavour} for {}", kernel.release)));
        let run_file = self.run_file(cell)?;
        let next_kernel = self.next_kernel(cell)?;
        let mofed = stand_in.as_ref().filter(|made| made.has_header());
        let store = match mofed {
            Some(_) => self.cache.dir("store-with-mofed"),
            None => self.cache.dir(cell.from.store()),
        };
        let fetch =
            |release: &str, cell: &Cell| self.longshore_with(&store, "fetch", release, cell);
        let next_cell = cell.next();
        let next = next_cell.as_ref().map(|cell| Fetch {
            command: fetch(&kernel.release, cell),
            driver: &cell.driver,
            release: &kernel.release,
            set: None,
        });
        let mut for_next_kernel = next_kernel.as_ref().map(|kernel| Fetch {
            command: fetch(&kernel.release, cell),
            driver,
            release: &kernel.release,
            set: None,
        });
        let mut fetch = fetch(&kernel.release, cell);
        if let Some(file) = &run_file {
            fetch.arg("--run-file").arg(&file.path).args(["--run-file-sha256", &file.sha256]);
        }
        if cell.from == Supply::SourceTree {
            source_tree::add(&mut fetch, &cell.driver.branch)?;
        }
        if cell.from == Supply::Compile {
            let config = self.archive(&cell.kernel_suites())?;
            for fetch in std::iter::once(&mut fetch)
                .chain(for_next_kernel.as_mut().map(|fetch| &mut fetch.command))
            {
                fetch.arg("--config").arg(&config);
            }
        }
        if let Some(made) = mofed {
            // Another host's root has no apt sources.
            fetch.arg("--config").arg(self.archive(&cell.suites())?);
            fetch.arg("--host-root").arg(made.root()).envs(WITH_MOFED);
        }
        let plain = self.plain(cell, &kernel, sink)?;
        self.shape(cell, &kernel, &mut fetch)?;
        let mut firmware = None;
        if cell.secure_boot {
            let signer = secure_boot::signer(&self.cache)?;
            firmware = Some(secure_boot::firmware(&self.cache, &signer, &kernel.vmlinuz)?);
            sign(&mut fetch, &signer);
        }
        let set = cell.set.as_deref();
        let first = Fetch { command: fetch, driver, release: &kernel.release, set };
        let parts = Parts::new(cell, needs);
        let fetches = Fetches { first, next, next_kernel: for_next_kernel };
        let seed = seed::make(&self.cache, fetches, &store, parts, sink)?;
        plain.map_or(Ok(()), |plain| check_equal(&seed, &plain))?;
        resolved.driver_version.clone_from(&seed.set.key.driver_version);
        resolved.next_driver_version = seed.next.as_ref().map(|set| set.key.driver_version.clone());
        resolved.driver_sha256.clone_from(&seed.set.key.driver_digest);
        resolved.image_sha256.clone_from(&image.sha256);
        sink.tell(What::Resolved(resolved));
        Ok(Prepared {
            qemu,
            kernel,
            next_kernel,
            rootfs,
            image,
            seed,
            run_file,
            stand_in,
            firmware,
        })
    }

    /// Writes a configuration with the archives of these suites, and returns its path.
    fn archive(&self, suites: &[&str]) -> Result<PathBuf, Error> {
        let config = self.cache.dir(&format!("archive-{}.toml", suites.join("+")));
        fs::write(&config, relay::configuration(suites, Path::new("/"))?).at("write", &config)?;
        Ok(config)
    }

    /// Returns the kernel that the cell's guest installs, if any.
    fn next_kernel(&self, cell: &Cell) -> Result<Option<Kernel>, Error> {
        let Some(cell) = cell.on_next_kernel() else { return Ok(None) };
        let (packages, _) = self.resolve(&cell)?;
        kernel::make(&self.cache, &self.archives, &packages).map(Some)
    }

    /// Returns the seed that the Debian archive's own packages give, for a cell whose modules come from
    /// a source of another shape.
    fn plain(&self, cell: &Cell, kernel: &Kernel, sink: &Sink<'_>) -> Result<Option<Seed>, Error> {
        if !cell.from.is_of_another_shape() {
            return Ok(None);
        }
        let cell = Cell { from: Supply::Archive, ..cell.clone() };
        let command = self.longshore("fetch", &kernel.release, &cell);
        let fetch = Fetch { command, driver: &cell.driver, release: &kernel.release, set: None };
        let (store, parts) =
            (self.cache.dir(cell.from.store()), Parts::new(&cell, Needs::default()));
        seed::make(&self.cache, Fetches::new(fetch), &store, parts, sink).map(Some)
    }

    /// Adds the source of modules of another shape to a `longshore fetch`, if the cell has one.
    fn shape(&self, cell: &Cell, kernel: &Kernel, fetch: &mut Command) -> Result<(), Error> {
        let contents = contents(cell, kernel);
        let (cache, archives) = (&self.cache, &self.archives);
        match cell.from {
            Supply::UbuntuArchive => {
                let archive = distributions::ubuntu(cache, archives, contents)?;
                let config = cache.dir("ubuntu-archive.toml");
                distributions::configure(&config, &archive)?;
                fetch.arg("--config").arg(config);
            }
            Supply::FabricManager => {
                let suite = cell.driver.suite_for(&cell.kernel);
                let config =
                    distributions::fabric_manager(cache, archives, suite, contents.driver)?;
                fetch.arg("--config").arg(config);
            }
            Supply::BuildRoot => {
                let root =
                    distributions::el_root(cache, archives, contents.suite, contents.release)?;
                fetch.arg("--build-root").arg(root);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns a directory with archives that have the seed's modules as a package, and no compiler.
    ///
    /// # Errors
    /// A file cannot be written, or the script that makes them failed.
    pub fn finished_modules(&self, cell: &Cell, prepared: &Prepared) -> Result<PathBuf, Error> {
        let (seed, cache) = (&prepared.seed, &self.cache);
        let digests: Vec<&str> = seed.set.modules.iter().map(|m| m.sha256.as_str()).collect();
        let modules =
            cache.produce("finished-modules", &digests, |dir| seed::write_modules(seed, dir))?;
        let contents = Contents { modules: Some(&modules), ..contents(cell, &prepared.kernel) };
        distributions::ubuntu(cache, &self.archives, contents)
    }

    fn run_file(&self, cell: &Cell) -> Result<Option<RunFile>, Error> {
        if cell.from != Supply::RunFile {
            return Ok(None);
        }
        let suite = cell.driver.suite_for(&cell.kernel);
        run_file::make(&self.cache, &self.archives, suite, &cell.driver.branch).map(Some)
    }

    fn qemu(&mut self) -> Result<Arc<Qemu>, Error> {
        let found = match &self.qemu {
            Some(found) => Arc::clone(found),
            None => Qemu::find(&self.wanted, &self.cache)?,
        };
        Ok(Arc::clone(self.qemu.insert(found)))
    }

    fn rootfs(&mut self, name: &str) -> Result<Arc<Rootfs>, Error> {
        if let Some(made) = self.rootfs.get(name) {
            return Ok(Arc::clone(made));
        }
        let guest = self.guests.guest(name)?;
        let mut versions = String::new();
        for name in &guest.packages {
            let package = self.archives.newest(name, &guest.suite)?;
            versions.push_str(&format!("{name}={} ", package.version));
        }
        let made = Arc::new(rootfs::make(&self.cache, guest, &versions)?);
        self.rootfs.insert(name.to_owned(), Arc::clone(&made));
        Ok(made)
    }

    fn image(&mut self, for_others: bool) -> Result<Arc<Image>, Error> {
        if let Some(made) = self.image.get(&for_others) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(agent_image::load(&self.cache, &self.agent.image, for_others)?);
        self.image.insert(for_others, Arc::clone(&made));
        Ok(made)
    }
}

/// Locks the workbench, so that no other cell prepares meanwhile.
pub fn hold(workbench: &Mutex<Workbench>) -> MutexGuard<'_, Workbench> {
    // A thread that panicked while holding it left only the cache behind, which is consistent.
    workbench.lock().unwrap_or_else(PoisonError::into_inner)
}

fn contents<'a>(cell: &'a Cell, kernel: &'a Kernel) -> Contents<'a> {
    Contents {
        suite: &cell.kernel.suite,
        release: &kernel.release,
        driver: &cell.driver.branch,
        modules: None,
    }
}

/// Has `fetch` sign the modules.
fn sign(fetch: &mut Command, signer: &Signer) {
    fetch.arg("--module-key").arg(&signer.key);
    fetch.arg("--module-certificate").arg(&signer.certificate);
}

/// Environment of longshore where nvidia_peermem is compiled against MOFED's headers of the host.
const WITH_MOFED: [(&str, &str); 2] =
    [("GPU_DIRECT_RDMA_ENABLED", "true"), ("USE_HOST_MOFED", "true")];

/// Modules that the store's set has as well where another cell loads them.
const OPTIONAL: [&str; 2] = ["nvidia_drm", "nvidia_peermem"];

/// Compares modules of another source with those that the Debian archive's own packages give.
fn check_equal(made: &Seed, plain: &Seed) -> Result<(), Error> {
    let modules = |seed: &Seed| -> Vec<(String, String)> {
        let all = seed.set.modules.iter().filter(|m| !OPTIONAL.contains(&m.name.as_str()));
        all.map(|m| (m.file.clone(), m.sha256.clone())).collect()
    };
    let (made, plain) = (modules(made), modules(plain));
    if made == plain {
        return Ok(());
    }
    Err(Error::Unexpected(format!("modules {made:?}, and of Debian's packages {plain:?}")))
}
