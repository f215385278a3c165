//! Tests of `gc` and `store verify`.

use std::fs;

use longshore_core::store::Store;

use longshore_tests::scene::{Scene, disk, finish, names, send, start, wait};
use longshore_tests::server::Fault;

fn json(scene: &Scene, args: &[&str]) -> serde_json::Value {
    let ended = finish(&mut scene.agent(args));
    ended.assert_done();
    serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended}"))
}

#[test]
fn what_is_not_needed_goes_and_is_told() {
    let scene = Scene::new();
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let digest = store.put(&[7; 100_000]).expect("put");
    fs::create_dir(store.dir("tmp/work-build-dead")).expect("directory");
    let dry = json(&scene, &["gc", "--max-size", "0", "--dry-run", "--json"]);
    assert_eq!(dry["dry_run"], true);
    assert_eq!(dry["removed"].as_array().map(Vec::len), Some(2), "{dry}");
    assert!(store.has_blob(&digest) && store.dir("tmp/work-build-dead").exists());
    // The bound in the configuration keeps the blob.
    let done = json(&scene, &["gc", "--json"]);
    assert_eq!(done["removed"][0]["path"], "tmp/work-build-dead");
    assert_eq!(
        (done["bound"].as_u64(), done["kept"][0]["kind"].as_str()),
        (Some(5 << 30), Some("download"))
    );
    assert!(store.has_blob(&digest));
    let ended = finish(&mut scene.agent(&["gc", "--store-max-size", "0"]));
    ended.assert_done();
    assert!(ended.out.contains("downloads") && ended.out.contains("0 B after"), "{ended}");
    assert!(!store.has_blob(&digest));
    for bad in ["5", "5GB", "-1", "many"] {
        let asked = format!("--max-size={bad}");
        assert_eq!(finish(&mut scene.agent(&["gc", &asked])).code, Some(2));
    }
}

#[test]
fn nothing_is_removed_where_it_is_not_known_what_runs() {
    let scene = Scene::new();
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let digest = store.put(b"package").expect("put");
    fs::create_dir(scene.path("state-dir")).expect("directory");
    fs::write(scene.path("state-dir/state.json"), "{").expect("state");
    scene.refuses(scene.agent(&["gc", "--max-size", "0"]), 13, &["state.json"]);
    assert!(store.has_blob(&digest));
}

#[test]
fn somebody_at_work_is_waited_for() {
    let scene = Scene::new();
    scene.server.always("/dists/stable/InRelease", Fault::Stall);
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let digest = store.put(b"package").expect("put");
    let tree = longshore_tests::scene::fixture("bookworm-t4");
    let agent = start(&mut scene.agent(&["fetch", "--root", &tree]));
    scene.server.await_request("InRelease");
    let gc = start(&mut scene.agent(&["gc", "--max-size", "0"]));
    // A dry run does not wait.
    let dry = json(&scene, &["gc", "--max-size", "0", "--dry-run", "--json"]);
    assert_eq!(dry["removed"].as_array().map(Vec::len), Some(1), "{dry}");
    assert!(store.has_blob(&digest), "gc waits");
    send(&agent, nix::sys::signal::Signal::SIGTERM);
    wait(agent);
    wait(gc).assert_done();
    assert!(!store.has_blob(&digest));
}

#[test]
fn damage_is_named() {
    let scene = Scene::new();
    let store = Store::open(&scene.path("store"), disk()).expect("store");
    let ended = finish(&mut scene.agent(&["store", "verify"]));
    ended.assert_done();
    let digest = store.put(b"package").expect("put");
    finish(&mut scene.agent(&["store", "verify"])).assert_done();
    fs::write(store.blob_path(&digest), "packagf").expect("damaged");
    let ended = finish(&mut scene.agent(&["store", "verify"]));
    let path = store.blob_path(&digest).display().to_string();
    ended.assert_failed(13, &[path.clone(), "remove".to_owned()]);
    assert!(ended.out.contains(&format!("damaged  {path}")), "{ended}");
    let ended = finish(&mut scene.agent(&["store", "verify", "--json"]));
    assert_eq!(ended.code, Some(13));
    assert!(ended.out.contains("damaged"), "{ended}");
    assert_eq!(names(&store.dir("tmp")), [""; 0]);
}
