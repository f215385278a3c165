use super::*;
use crate::artifact::ModuleEntry;
use crate::sets::SetStore;
use crate::testing::modinfo::module;
use crate::testing::set;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use rstest::rstest;

/// Wait for another writer.
const WAIT: Duration = Duration::from_secs(60);

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    set: ModuleSet,
}

impl Scene {
    /// A store with a set of one real, if tiny, module.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = Store::open(&dir.path().join("store"), Disk::default()).expect("store opens");
        let mut set = set();
        set.modules = vec![put(&store, &set, "nvidia"), put(&store, &set, "nvidia-uvm")];
        store.put_set(&set).expect("put_set");
        Self { dir, store, set }
    }

    fn layout(&self) -> PathBuf {
        self.dir.path().join("layout")
    }

    fn other_store(&self) -> Store {
        Store::open(&self.dir.path().join("other"), Disk::default()).expect("store opens")
    }

    fn export(&self) -> String {
        export(&self.set, &self.store, &self.layout(), WAIT).expect("export")
    }
}

fn put(store: &Store, set: &ModuleSet, name: &str) -> ModuleEntry {
    let release = &set.key.kernel_release;
    let modinfo = format!("name={name}\0version=535.261.03\0vermagic={release} SMP \0");
    let image = module(".modinfo", modinfo.as_bytes());
    store.put(&image).expect("put");
    ModuleEntry::describe(&format!("{name}.ko"), &image, release).expect("a module")
}

fn change_json(path: &Path, change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let mut value = serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON");
    change(&mut value);
    serde_json::to_vec(&value).expect("JSON")
}

#[test]
fn what_was_exported_is_listed_and_imported() {
    let scene = Scene::new();
    let manifest = scene.export();
    let listed = list(&scene.layout()).expect("list");
    assert_eq!(listed, [LayoutSet { manifest: manifest.clone(), set: scene.set.clone() }]);
    let store = scene.other_store();
    assert_eq!(import(&scene.layout(), &manifest, &store).expect("import"), scene.set);
    assert_eq!(store.find_set(&scene.set.key).expect("find"), Some(scene.set));
}

#[test]
fn a_second_set_joins_the_first_and_a_repeated_one_takes_its_place() {
    let mut scene = Scene::new();
    scene.export();
    scene.export();
    scene.set.key.flavour = longshore_core::flavour::Flavour::Proprietary;
    scene.export();
    let flavours: Vec<_> =
        list(&scene.layout()).expect("list").iter().map(|e| e.set.key.flavour).collect();
    assert_eq!(flavours, [longshore_core::flavour::Flavour::Open, scene.set.key.flavour]);
}

#[test]
fn what_others_put_into_the_index_stays() {
    let scene = Scene::new();
    scene.export();
    let index = scene.layout().join("index.json");
    let image =
        br#"{"schemaVersion":2,"config":{"mediaType":"x","digest":"y","size":1},"layers":[]}"#;
    let target = Target { dir: &scene.layout(), disk: Disk::default() };
    target.write_blob(image).expect("write");
    let digest = format!("sha256:{}", hex(&Sha256::digest(image)));
    let bytes = change_json(&index, |json| {
        json["annotations"] = serde_json::json!({"theirs": "1"});
        let one = serde_json::json!({"mediaType": MANIFEST_TYPE, "digest": digest,
            "size": image.len(), "platform": {"os": "linux", "architecture": "amd64"}});
        json["manifests"].as_array_mut().expect("a list").push(one);
    });
    fs::write(&index, bytes).expect("write");
    scene.export();
    assert_eq!(list(&scene.layout()).expect("list").len(), 1);
    let text = fs::read_to_string(&index).expect("read");
    assert!(text.contains("theirs") && text.contains("architecture"), "{text}");
}

#[test]
fn a_set_whose_artifact_type_an_old_tool_dropped_is_still_a_set() {
    let scene = Scene::new();
    scene.export();
    let index = scene.layout().join("index.json");
    let bytes = change_json(&index, |json| {
        json["manifests"][0].as_object_mut().expect("an object").remove("artifactType");
    });
    fs::write(&index, bytes).expect("write");
    assert_eq!(list(&scene.layout()).expect("list").len(), 1);
}

#[test]
fn a_directory_of_something_else_is_neither_read_nor_written() {
    let scene = Scene::new();
    fs::create_dir_all(scene.layout()).expect("directory");
    fs::write(scene.layout().join("precious"), "").expect("write");
    assert_eq!(list(&scene.layout()).expect_err("refused").code(), ExitCode::Download);
    let failure = export(&scene.set, &scene.store, &scene.layout(), WAIT).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert_eq!(fs::read_dir(scene.layout()).expect("list").count(), 1);
}

#[rstest]
#[case::module(|s: &Scene| s.set.modules[1].sha256.clone())]
#[case::manifest(|s: &Scene| s.export()[7..].to_owned())]
fn a_changed_blob_is_refused(#[case] which: fn(&Scene) -> String) {
    let scene = Scene::new();
    let manifest = scene.export();
    let path = blob_path(&scene.layout(), &which(&scene));
    let mut bytes = fs::read(&path).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).expect("write");
    let store = scene.other_store();
    let failure = import(&scene.layout(), &manifest, &store).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
    assert!(store.sets().expect("sets").is_empty());
}

#[rstest]
#[case::traversal("sha256:../../../etc/passwd", ExitCode::Verification)]
#[case::another_hash("sha512:00", ExitCode::Verification)]
#[case::absent(
    "sha256:0000000000000000000000000000000000000000000000000000000000000000",
    ExitCode::Download
)]
fn a_digest_is_one_and_is_there(#[case] digest: &str, #[case] code: ExitCode) {
    let scene = Scene::new();
    scene.export();
    let failure = import(&scene.layout(), digest, &scene.other_store()).expect_err("refused");
    assert_eq!(failure.code(), code);
}

#[rstest]
#[case::not_json("{", ExitCode::Verification)]
#[case::another_form("[]", ExitCode::Verification)]
#[case::bad_digest(
    r#"{"schemaVersion":2,"manifests":[{"mediaType":"x","digest":"sha256:a","size":1}]}"#,
    ExitCode::Verification
)]
fn a_damaged_index_is_told(#[case] index: &str, #[case] code: ExitCode) {
    let scene = Scene::new();
    scene.export();
    fs::write(scene.layout().join("index.json"), index).expect("write");
    assert_eq!(list(&scene.layout()).expect_err("refused").code(), code);
}

#[test]
fn a_set_that_lies_about_a_module_is_refused() {
    let mut scene = Scene::new();
    scene.set.modules[0].srcversion = Some("LIE".into());
    let manifest = scene.export();
    let failure = import(&scene.layout(), &manifest, &scene.other_store()).expect_err("refused");
    assert!(failure.report().contains("srcversion"), "{}", failure.report());
}
