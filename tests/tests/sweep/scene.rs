//! One source on a server of its own, and a store to fetch into.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use longshore_core::digest::hex;
use longshore_core::failure::Failure;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Requirement};
use longshore_fetch::http::{Fetcher, Policy};
use longshore_modules::artifact::image::Described;
use longshore_modules::registry::Registry;
use longshore_modules::registry::RegistrySource;
use longshore_modules::sets::SetStore;
use longshore_sources::runfile::{self, Looked};
use longshore_sources::runfile::{Pin, RunFileSource};
use longshore_sources::testing::without_registries;
use sha2::{Digest, Sha256};

use longshore_tests::archive::{self, Suite};
use longshore_tests::module_sets;
use longshore_tests::run_file;
use longshore_tests::scene::disk;
use longshore_tests::server::Server;
use longshore_tests::tls;

/// Sources that are fetched in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Release,
    Index,
    Package,
    RunFile,
    /// Over https: only the connection authenticates it.
    Checksum,
    Manifest,
    Config,
    Module,
}

/// A source, its file with the fault, and a store.
pub(crate) struct Scene {
    source: Source,
    pub(crate) server: Server,
    /// Path of that file on the server.
    pub(crate) path: String,
    pub(crate) policy: Policy,
    pub(crate) store: Store,
    dir: tempfile::TempDir,
    /// Digest of the manifest that is pulled from a registry.
    manifest: String,
}

/// Policy with short pauses; the time limit for a silent server suits a busy machine.
pub(crate) fn hasty() -> Policy {
    Policy {
        connect: Duration::from_secs(5),
        stall: Duration::from_secs(20),
        attempts: 3,
        busy: Duration::from_millis(500),
        backoff: Duration::from_millis(1),
        ..Policy::default()
    }
}

const REPOSITORY: &str = "/v2/nvidia/modules";

impl Scene {
    pub(crate) fn new(source: Source) -> Self {
        Self::on(source, |_| {})
    }

    /// Like [`Scene::new`], with a store in a directory that `prepare` is given first.
    pub(crate) fn on(source: Source, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let below = dir.path().join("store");
        fs::create_dir(&below).expect("directory");
        prepare(&below);
        let store = Store::open(&below, disk()).expect("store");
        let mut manifest = String::new();
        let (files, path) = match source {
            Source::Release | Source::Index | Source::Package => archive(source, dir.path()),
            Source::RunFile | Source::Checksum => run_file(source),
            Source::Manifest | Source::Config | Source::Module => {
                registry(source, dir.path(), &mut manifest)
            }
        };
        let server = match source {
            Source::Checksum => tls::server(files),
            _ => Server::start(files),
        };
        Self { source, server, path, policy: hasty(), store, dir, manifest }
    }

    /// Fetches it, with the files that belong to it.
    pub(crate) async fn fetch(&self) -> Result<(), Failure> {
        match self.source {
            Source::Release | Source::Index | Source::Package => self.fetch_packages().await,
            Source::RunFile | Source::Checksum => self.fetch_run_file().await,
            Source::Manifest | Source::Config | Source::Module => self.pull().await,
        }
    }

    async fn fetch_packages(&self) -> Result<(), Failure> {
        let keyring = self.dir.path().join("keyring.asc");
        let config = archive::config(&self.server.url(), "stable", "main", &keyring);
        let (policy, root) = (self.policy.clone(), Path::new("/"));
        let archive = Archive::open_with(policy, &config, root, &self.store, &Silent).await?;
        let packages = archive.closure(&[Requirement::any("tool")])?;
        archive.fetch(&packages, &self.store, &Silent).await
    }

    async fn fetch_run_file(&self) -> Result<(), Failure> {
        if self.source == Source::Checksum {
            return self.fetch_pinned_by(&format!("{}{}", self.server.url(), self.path)).await;
        }
        self.fetch_pinned(Pin::Sha256(archive::digest(&run_file::run_file()))).await
    }

    /// Fetches the .run file whose digest is in the text at `url`.
    pub(crate) async fn fetch_pinned_by(&self, url: &str) -> Result<(), Failure> {
        self.fetch_pinned(Pin::Sidecar(url.to_owned())).await
    }

    async fn fetch_pinned(&self, pin: Pin) -> Result<(), Failure> {
        let urls = vec![format!("{}{}", self.server.url(), run_file::PATH)];
        let source = RunFileSource { urls, pin };
        let fetcher = Fetcher::new(self.policy.clone(), tls::host_root())?;
        let looked = runfile::look(&source, without_registries(&fetcher), &self.store).await?;
        let Looked::Known(found) = looked else { panic!("the form of it is known") };
        runfile::fetch(&found, without_registries(&fetcher), &self.store, &Silent).await.map(drop)
    }

    async fn pull(&self) -> Result<(), Failure> {
        let reference = format!("{}/nvidia/modules", self.server.url());
        let reference = reference.parse().expect("a repository");
        let source = RegistrySource { reference, mirrors: Vec::new() };
        let registry =
            Registry::open_with(self.policy.clone(), &source, tls::host_root(), &|_| None)?;
        registry.pull(&self.manifest, &self.store, &Silent).await.map(drop)
    }

    /// Returns the digest of the set that is pulled.
    pub(crate) fn digest(&self) -> &str {
        &self.manifest
    }

    /// Returns all files on the server.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.server.files()
    }

    /// Checks that everything was fetched, and is sound.
    pub(crate) fn assert_fetched(&self, case: &str) {
        let (blobs, drivers, sets) = self.assert_sound(case);
        let wanted = match self.source {
            // Two packages and the index.
            Source::Release | Source::Index | Source::Package => (3, 0, 0),
            Source::RunFile | Source::Checksum => (0, 1, 0),
            Source::Manifest | Source::Config | Source::Module => (2, 0, 1),
        };
        assert_eq!((blobs, drivers, sets), wanted, "{case}");
    }

    /// Checks that nothing requested was stored, and that the rest is sound.
    pub(crate) fn assert_nothing(&self, case: &str) {
        let (_, drivers, sets) = self.assert_sound(case);
        assert_eq!((drivers, sets), (0, 0), "{case}");
        let wrong = self.server.remove_if_there(&self.path);
        let digest = wrong.map(|bytes| hex(&Sha256::digest(bytes)));
        assert!(!digest.is_some_and(|digest| self.store.has_blob(&digest)), "{case}");
    }

    /// Checks that every file with its final name matches it, and that nothing is unfinished.
    /// Returns the numbers of blobs, drivers and sets.
    pub(crate) fn assert_sound(&self, case: &str) -> (usize, usize, usize) {
        let names = |dir: &str| -> Vec<String> {
            let entries = fs::read_dir(self.store.dir(dir)).expect("listed").flatten();
            entries.map(|entry| entry.file_name().into_string().expect("a name")).collect()
        };
        assert_eq!(names("tmp"), [""; 0], "{case}: an unfinished file is left");
        let (blobs, drivers) = (names("blobs/sha256"), names("drivers"));
        for blob in &blobs {
            self.store.read_blob(blob).unwrap_or_else(|e| panic!("{case}: {}", e.report()));
        }
        for sha256 in &drivers {
            let driver = runfile::find(&self.store, sha256).expect("a driver that can be read");
            driver.verify().unwrap_or_else(|e| panic!("{case}: {}", e.report()));
        }
        let sets = self.store.sets().expect("sets");
        assert!(sets.iter().all(|set| self.store.holds(set)), "{case}: a set without its modules");
        (blobs.len(), drivers.len(), sets.len())
    }
}

type Files = (BTreeMap<String, Vec<u8>>, String);

fn archive(source: Source, dir: &Path) -> Files {
    let (key, suite) = (archive::key(), Suite::usual());
    fs::write(dir.join("keyring.asc"), archive::certificate(&key)).expect("keyring");
    let path = match source {
        Source::Release => "/dists/stable/InRelease".to_owned(),
        Source::Index => suite.by_hash(),
        _ => suite.pool(0),
    };
    let mut files = suite.files(&key);
    if source == Source::Index {
        // If the faulty path fails, this other path of the index would be requested.
        files.remove(&suite.index_path());
    }
    (files, path)
}

fn run_file(source: Source) -> Files {
    let bytes = run_file::run_file();
    let name = &run_file::PATH[1..];
    let line = |digest: &str, name: &str| format!("{digest}  {name}\n");
    let (a, b) = ("a".repeat(64), "b".repeat(64));
    let sums =
        [line(&a, "a.run"), line(&b, "b.run"), line(&archive::digest(&bytes), name)].concat();
    let path = if source == Source::Checksum { "/sha256sums" } else { run_file::PATH };
    let files = [(run_file::PATH.to_owned(), bytes), ("/sha256sums".to_owned(), sums.into_bytes())];
    (files.into(), path.to_owned())
}

fn registry(source: Source, dir: &Path, manifest: &mut String) -> Files {
    let store = Store::open(&dir.join("pushed"), disk()).expect("store");
    let set = module_sets::put_of(&store, "6.1.0-50-amd64", &["nvidia", "nvidia-uvm"], 1 << 20);
    let described = Described::from_set(&set).expect("described");
    *manifest = described.digest();
    let blob = |sha256: &str| format!("{REPOSITORY}/blobs/sha256:{sha256}");
    let at_manifest = format!("{REPOSITORY}/manifests/{manifest}");
    let config = blob(&archive::digest(&described.config));
    let mut files = BTreeMap::from([
        (at_manifest.clone(), described.manifest.clone()),
        (config.clone(), described.config.clone()),
    ]);
    for module in &set.modules {
        files.insert(blob(&module.sha256), store.read_blob(&module.sha256).expect("a module"));
    }
    let path = match source {
        Source::Manifest => at_manifest,
        Source::Config => config,
        _ => blob(&set.modules[0].sha256),
    };
    (files, path)
}
