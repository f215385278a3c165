//! A captured host with a store and image layouts, for the tests of this directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::config::{self, Config, Fragment};
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::flavour::Flavour;
use longshore_core::store::Store;
use longshore_host::HostFacts;
use longshore_modules::artifact::{ModuleEntry, ModuleSet};
use longshore_modules::layout;
use longshore_modules::testing::modinfo::module;
use longshore_modules::testing::set;
use longshore_sources::runfile::{Pin, RunFileSource};
use longshore_sources::testing::manifest;

/// Driver of its sets and trees.
pub(super) const DRIVER: &str = "535.261.03";

pub(super) struct Scene {
    pub(super) dir: tempfile::TempDir,
    pub(super) config: Config,
}

impl Scene {
    /// A captured host `tree` that wants this driver, without any source.
    pub(super) fn new(tree: &str) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut config = config::load(Fragment::default(), &|_| None, None).expect("a default");
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(tree);
        config.paths.root.clone_from(&tree);
        config.paths.host_root = tree;
        config.paths.store = dir.path().join("store");
        config.paths.state = dir.path().join("state");
        config.driver.version = Some(DRIVER.to_owned());
        config.compile = false;
        config.archives.use_host_apt = false;
        Self { dir, config }
    }

    pub(super) fn store(&self) -> Store {
        Store::open(&self.config.paths.store, Disk::default()).expect("store")
    }

    pub(super) fn facts(&self) -> HostFacts {
        HostFacts::read(&self.config.paths.root, &self.config.paths.host_root).expect("facts")
    }

    /// Returns a set for the host's kernel, whose modules are in `store`.
    pub(super) fn set_in(&self, store: &Store) -> ModuleSet {
        let (mut set, kernel) = (set(), self.facts().kernel);
        set.key.kernel_release = kernel.release;
        set.key.kernel_version = kernel.version;
        set.modules = ["nvidia", "nvidia-uvm", "nvidia-modeset"]
            .map(|name| {
                let (release, kernel_name) = (&set.key.kernel_release, name.replace('-', "_"));
                let modinfo =
                    format!("name={kernel_name}\0version={DRIVER}\0vermagic={release} SMP \0");
                let image = module(".modinfo", modinfo.as_bytes());
                store.put(&image).expect("put");
                ModuleEntry::describe(&format!("{name}.ko"), &image, release).expect("a module")
            })
            .into();
        set
    }

    /// Adds a layout with a set for the host's kernel to the configuration.
    pub(super) fn add_layout(&mut self, name: &str) -> PathBuf {
        let store = Store::open(&self.dir.path().join("builder"), Disk::default()).expect("store");
        let (set, layout) = (self.set_in(&store), self.dir.path().join(name));
        layout::export(&set, &store, &layout, Duration::from_secs(60)).expect("export");
        self.config.prebuilt.push(layout.clone());
        layout
    }

    /// Adds a .run file of `driver` to the configuration, whose list of GPUs has this entry.
    pub(super) fn add_run_file(&mut self, driver: &str, chip: &str) {
        let path = self.dir.path().join(format!("NVIDIA-Linux-x86_64-{driver}.run"));
        let bytes = run_file(driver, chip);
        fs::write(&path, &bytes).expect("written");
        let pin = Pin::Sha256(hex(&Sha256::digest(&bytes)));
        let urls = vec![format!("file://{}", path.display())];
        self.config.run_files.push(RunFileSource { urls, pin });
    }

    /// Puts a user-mode tree of the driver into the store.
    pub(super) fn put_tree(&self) {
        self.put_tree_with("tree", None);
    }

    /// Puts a user-mode tree of this name and with these kernel sources into the store.
    pub(super) fn put_tree_with(&self, name: &str, sources: Option<Flavour>) {
        let root = self.store().dir("userspace").join(name).join("root");
        fs::create_dir_all(&root).expect("directories");
        let mut json: Value = serde_json::from_slice(&manifest(&root)).expect("JSON");
        if let Some(flavour) = sources {
            json["sources"] = Value::from(flavour.to_string());
        }
        fs::write(root.with_file_name("manifest.json"), json.to_string()).expect("manifest");
    }
}

/// Returns the path of the first module's blob in a layout.
pub(super) fn module_of(layout: &Path) -> PathBuf {
    let entries = layout::list(layout).expect("a layout");
    layout.join("blobs/sha256").join(&entries[0].set.modules[0].sha256)
}

/// Makes a .run file with open modules' sources and one firmware.
fn run_file(driver: &str, chip: &str) -> Vec<u8> {
    let header = format!(
        "#! /bin/sh\nskip=5\nversion_string={driver}\ntargetdir=NVIDIA-Linux-x86_64-{driver}\n"
    );
    let fast = Compression::fast();
    let mut tar = tar::Builder::new(GzEncoder::new(header.into_bytes(), fast));
    let kbuild = format!("ccflags-y += -DNV_VERSION_STRING=\\\"{driver}\\\"\n");
    let manifest = format!(
        "NVIDIA\n{driver}\n\n\n\n\nkernel\n\nfirmware/gsp_tu10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1 MODULE:a\n"
    );
    let gpus = format!(r#"{{"chips": [{chip}]}}"#);
    for (path, text) in [
        ("kernel-open/Kbuild", kbuild),
        ("kernel-open/conftest.sh", "conftest".to_owned()),
        ("firmware/gsp_tu10x.bin", "firmware".to_owned()),
        ("supported-gpus/supported-gpus.json", gpus),
        (".manifest", manifest),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes()).expect("append");
    }
    tar.into_inner().and_then(GzEncoder::finish).expect("packed")
}
