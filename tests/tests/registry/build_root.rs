//! A build root as a directory, a tar file, an image layout and an image in a registry: compiles with each of them
//! make the same modules, and take neither headers nor compiler from the archive.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use longshore_modules::artifact::image::digest;
use longshore_tests::packages::{self, COMPILER, KERNEL};
use longshore_tests::scene::{Scene as Host, finish};
use serde_json::{Value, json};

use super::together::{Agent, archive, libraries, loader};
use super::unsigned_headers::put_headers;
use super::*;

/// Makes a root with compiler, tools and headers, in Red Hat's layout.
fn root(host: &Host) -> PathBuf {
    let root = host.path("root");
    let put = |path: &str, bytes: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("dirs");
        fs::write(&path, bytes).expect("writes");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    };
    put("usr/bin/gcc", &packages::saying(&format!("{COMPILER}\n"), 0));
    // Another compiler beside the kernel's.
    put("usr/bin/gcc-13", &packages::saying("gcc-13 (Test 13.2.0-1) 13.2.0\n", 0));
    for tool in ["strip", "ld", "sh"] {
        put(&format!("usr/bin/{tool}"), &packages::saying("", 0));
    }
    put("usr/bin/make", &fs::read(env!("CARGO_BIN_EXE_stub-make")).expect("the stand-in"));
    let libraries = libraries();
    for (path, bytes) in &libraries {
        put(path, bytes);
    }
    let packages::Item::Link(name, target) = loader(&libraries) else { panic!("a link") };
    fs::create_dir_all(root.join(name).parent().expect("a directory")).expect("dirs");
    symlink(target, root.join(name)).expect("link");
    for link in ["bin", "lib", "lib64"] {
        symlink(Path::new("usr").join(link), root.join(link)).expect("link");
    }
    put_headers(&root.join("usr/src/kernels").join(KERNEL));
    root
}

fn tar(root: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    builder.append_dir_all(".", root).expect("append");
    builder.into_inner().expect("a tar file")
}

/// Makes an image layout of one layer, the tar file.
fn layout(dir: &Path, layer: &[u8]) {
    fs::create_dir_all(dir.join("blobs/sha256")).expect("dirs");
    let put = |kind: &str, bytes: &[u8]| {
        let digest = digest(bytes);
        let name = digest.trim_start_matches("sha256:");
        fs::write(dir.join("blobs/sha256").join(name), bytes).expect("writes");
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len()})
    };
    let arch = longshore_core::machine::Machine::this().expect("known").debian;
    let files = json!({"type": "layers", "diff_ids": [digest(layer)]});
    let config = json!({"architecture": arch, "os": "linux", "rootfs": files}).to_string();
    let layers = [put("layer.v1.tar", layer)];
    let config = put("config.v1+json", config.as_bytes());
    let kind = longshore_modules::layout::MANIFEST_TYPE;
    let manifest =
        json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
    let manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    fs::write(dir.join("index.json"), index).expect("writes");
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("writes");
}

fn builds(host: &Host, name: &str, place: &str) -> ModuleSet {
    let agent = Agent::with_options(host, name, name, None, &["--build-root", place]);
    let store = agent.ends_well();
    module_sets::assert_sound(&store);
    let mut sets = store.sets().expect("sets");
    assert_eq!(sets.len(), 1);
    sets.remove(0)
}

#[test]
fn every_form_of_a_build_root_makes_the_same_modules() {
    let (host, hub) = (Host::with(archive(0, false)), Hub::start(None));
    let root = root(&host);
    fs::write(host.path("root.tar"), tar(&root)).expect("writes");
    layout(&host.path("layout"), &tar(&root));
    let image = format!("{}/roots/test", hub.address);
    let from = format!("oci:{}", host.path("layout").display());
    let to = format!("docker://{image}:1");
    other_tools::skopeo(&["copy", "--dest-tls-verify=false", &from, &to]);
    let manifest = digest(&other_tools::skopeo(&["inspect", "--raw", "--tls-verify=false", &to]));
    let places = [
        ("directory", root.display().to_string()),
        ("tar", host.path("root.tar").display().to_string()),
        ("layout", host.path("layout").display().to_string()),
        ("image", format!("oci://http://{image}@{manifest}")),
    ];
    let sets: Vec<_> = places.iter().map(|(name, place)| builds(&host, name, place)).collect();
    for set in &sets {
        assert_eq!(set.modules, sets[0].modules);
        assert_eq!(set.key.compiler, COMPILER);
        assert_eq!(set.key.headers.keys().collect::<Vec<_>>(), ["build-root"]);
        assert!(!set.has_signed_headers());
    }
    // skopeo compresses the layer, so that the image in the registry is another one than the layout's.
    assert_eq!(format!("sha256:{}", sets[3].key.headers["build-root"]), manifest);
    // Of the archive there are its index and the driver, beside the three modules: neither headers nor compiler.
    let blobs = longshore_tests::scene::names(&host.path("directory/blobs/sha256"));
    assert_eq!(blobs.len(), 5, "{blobs:?}");
}

#[test]
fn a_root_is_inspected_and_a_bad_one_refused() {
    let host = Host::with(archive(0, false));
    let root = root(&host);
    let place = root.to_str().expect("a path");
    let mut inspect = host.agent(&["build-root", "inspect", place, "--json"]);
    let out = inspect.output().expect("runs");
    let reported: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(reported["kernels"][0]["release"], KERNEL);
    assert_eq!(reported["kernels"][0]["compiler"], COMPILER);
    assert_eq!(reported["compilers"][1]["program"], "gcc-13");
    assert_eq!(reported["lacking"], json!([]));
    let refused = |arguments: &[&str], code: i32, said: &[&str]| {
        let said: Vec<String> = said.iter().map(|text| (*text).to_owned()).collect();
        finish(&mut host.agent(arguments)).assert_failed(code, &said);
    };
    let build = |kernel| ["build", "--kernel", kernel, "--build-root", place];
    refused(&build("6.1.0-51-amd64"), 11, &["6.1.0-51-amd64", KERNEL]);
    fs::remove_file(root.join("usr/bin/gcc")).expect("removed");
    refused(&build(KERNEL), 11, &[COMPILER, "gcc-13 (Test 13.2.0-1)"]);
    fs::remove_file(root.join("usr/bin/gcc-13")).expect("removed");
    refused(&build(KERNEL), 11, &["no compiler"]);
    let tagged = ["plan", "--build-root", "oci://registry.example.com/roots/el9:9"];
    refused(&tagged, 2, &["by its digest"]);
    let both = ["plan", "--build-root", place, "--headers", place];
    refused(&both, 2, &["headers and build-root"]);
}
