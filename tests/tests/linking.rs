//! Proprietary modules linked from a package's objects, in the build sandbox with a real linker: it requires root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_build::BuildUser;
use longshore_build::linking::Linking;
use longshore_core::digest::hex;
use longshore_core::disk::Disk;
use longshore_core::failure::{ExitCode, Failure};
use longshore_core::flavour::Flavour;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::Archive;
use longshore_modules::artifact::{HeadersFrom, ModuleSet};
use longshore_sources::finished::sample::{Objects, SampleEntry, deb, depends, stanza};
use longshore_sources::finished::{FinishedModules, Kernel, find};
use sha2::{Digest, Sha256};

const HELPER: &str = env!("CARGO_BIN_EXE_sandbox-stages");
const DRIVER: &str = "580.173.02";
const RELEASE: &str = "6.8.0-142-generic";
const VERSION: &str = "6.8.0-142.151";

fn sample() -> Objects<'static> {
    Objects {
        dir: "lib/modules/6.8.0-142-generic/kernel/nvidia-580",
        driver: DRIVER,
        magic: "6.8.0-142-generic SMP preempt mod_unload modversions ",
        crcs: &[("module_layout", 7)],
    }
}

/// Returns a package with this machine's ld and the libraries that it needs.
fn binutils() -> Vec<u8> {
    let program = fs::canonicalize("/usr/bin/ld.bfd").expect("this machine has ld.bfd");
    let listed = Command::new("ldd").arg(&program).output().expect("ldd runs");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    let library = |path: &str| {
        let bytes = fs::read(path).expect("a library");
        SampleEntry::Program(format!(".{path}"), bytes)
    };
    let mut entries: Vec<SampleEntry> = paths.map(library).collect();
    assert!(entries.len() > 2, "{listed}");
    entries.push(SampleEntry::Program("./usr/bin/ld.bfd".into(), fs::read(program).expect("ld")));
    deb(&entries)
}

/// Returns the SHA256SUMS of the modules that the sample's script makes when a shell runs it.
fn sums() -> String {
    sample().sums(|bits| {
        let script = sample().script().replace("sha256sum -c SHA256SUMS", "");
        let ran = Command::new("sh").args(["-c", &script]).current_dir(bits).status().expect("sh");
        assert!(ran.success());
    })
}

/// A store and an archive with the packages of one driver's objects.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    archive: Archive,
    of: FinishedModules,
}

impl Scene {
    fn new(objects: &[SampleEntry], binutils: &[u8]) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(
            &dir.path().join("store"),
            Disk::within(std::time::Duration::from_secs(60)),
        )
        .expect("store");
        let name = |kind: &str| format!("linux-{kind}-nvidia-580-{RELEASE}");
        let signatures = format!("linux-signatures-nvidia-{RELEASE}");
        let needs = format!("Depends: {}, {signatures}, ", name("objects"));
        let packages = [
            (name("modules"), depends(RELEASE, DRIVER).replace("Depends: ", &needs), deb(&[])),
            (name("objects"), "Depends: binutils\n".into(), deb(objects)),
            (signatures, String::new(), deb(&sample().signatures())),
            ("binutils".into(), String::new(), binutils.to_vec()),
        ];
        let index: String = packages
            .iter()
            .map(|(name, more, deb)| {
                store.put(deb).expect("stored");
                stanza(name, VERSION, more, deb)
            })
            .collect();
        let archive = Archive::of_suites(&[("noble", &index)]);
        let kernel = Kernel { release: RELEASE.into(), version: "#151-Ubuntu SMP".into() };
        let of = find(&archive, &kernel).remove(0);
        Self { dir, store, archive, of }
    }

    async fn link(&self) -> Result<ModuleSet, Failure> {
        let linking = Linking {
            of: &self.of,
            from: self.of.linked.as_ref().expect("linked"),
            helper: Path::new(HELPER),
            user: BuildUser::default(),
            limit: Duration::from_secs(60),
        };
        let root = linking.root(&self.archive, &self.store, &Silent).await.expect("a root");
        let linked = linking.link(&root, &self.store, &Silent).await;
        let left = fs::read_dir(self.store.dir("tmp")).expect("listed").count();
        assert_eq!(left, 0, "unfinished files in {}", self.dir.path().display());
        linked
    }
}

#[tokio::test]
async fn modules_linked_in_the_sandbox_equal_those_of_the_script() {
    let sums = sums();
    let scene = Scene::new(&sample().entries(&sums), &binutils());
    let set = scene.link().await.expect("a set");
    assert_eq!((set.headers_from, set.key.flavour), (HeadersFrom::Package, Flavour::Proprietary));
    assert_eq!(set.key.headers.len(), 3);
    assert_eq!(set.key.options, [format!("linked-with=binutils {VERSION}")]);
    assert!(set.key.signed_by.is_some());
    assert_eq!(set.modules.len(), 5);
    let SampleEntry::File(_, signature) = &sample().signatures()[0] else { panic!("a file") };
    for module in &set.modules {
        let image = scene.store.read_blob(&module.sha256).expect("stored");
        let plain = image.strip_suffix(&signature[..]).expect("signed");
        let line = format!("{}  {}\n", hex(&Sha256::digest(plain)), module.file);
        assert!(sums.contains(&line), "{line}");
    }
}

#[tokio::test]
async fn other_objects_or_no_linker_are_refused_with_the_reason() {
    let (sums, binutils) = (sums(), binutils());
    let bits = |name: &str| PathBuf::from(format!("./{}/bits/{name}", sample().dir));
    let without = |name: &str| -> Vec<SampleEntry> {
        let is_it = |entry: &SampleEntry| matches!(entry, SampleEntry::File(path, _) if Path::new(path) == bits(name));
        sample().entries(&sums).into_iter().filter(|entry| !is_it(entry)).collect()
    };
    let other = sums.replacen(&sums[..8], "00000000", 1);
    let cases = [
        (without("nvidia-uvm.mod.o"), &binutils, "its objects do not link: Exited(1)"),
        (sample().entries(&other), &binutils, "SHA256SUMS states 00000000"),
        (sample().entries(&sums), &deb(&[]), "binutils 6.8.0-142.151 has no /usr/bin/ld.bfd"),
    ];
    for (objects, binutils, why) in cases {
        let failure = Scene::new(&objects, binutils).link().await.expect_err("refused");
        assert_eq!(failure.code(), ExitCode::Verification);
        assert!(failure.to_string().contains(why), "{failure}");
    }
}
