//! The modules of a set are fetched several at a time, with a limit.

use longshore_tests::module_sets;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use super::*;

const MODULES: [&str; 6] = ["nvidia", "nvidia-uvm", "nvidia-modeset", "a", "b", "c"];
const AT_A_TIME: usize = 4;

/// Downloads of modules under way, and their maximum.
#[derive(Default)]
struct DownloadCount {
    now: usize,
    most: usize,
}

/// Starts a registry on loopback that serves `files` by the end of their path. It holds modules
/// back until [`AT_A_TIME`] of them are requested at the same time.
fn registry(
    files: BTreeMap<String, Vec<u8>>,
    modules: Vec<String>,
) -> (SocketAddr, Arc<Mutex<DownloadCount>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    let seen = Arc::new(Mutex::new(DownloadCount::default()));
    let (counted, enough) = (Arc::clone(&seen), Arc::new(Condvar::new()));
    let (files, modules) = (Arc::new(files), Arc::new(modules));
    // It ends with the test's process, as does the thread that waits for a connection.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (seen, enough) = (Arc::clone(&counted), Arc::clone(&enough));
            let (files, modules) = (Arc::clone(&files), Arc::clone(&modules));
            std::thread::spawn(move || {
                let Some(name) = asked(&stream) else { return };
                let is_module = modules.contains(&name);
                if is_module {
                    let mut seen = seen.lock().expect("a lock");
                    seen.now += 1;
                    seen.most = seen.most.max(seen.now);
                    enough.notify_all();
                    let few = |seen: &mut DownloadCount| seen.most < AT_A_TIME;
                    drop(enough.wait_while(seen, few).expect("a lock"));
                }
                let body = files.get(&name).map_or(&[][..], Vec::as_slice);
                let status = if files.contains_key(&name) { 200 } else { 404 };
                if is_module {
                    // Before the answer is sent: its receiver may send the next request at once.
                    seen.lock().expect("a lock").now -= 1;
                }
                let head = format!("HTTP/1.1 {status} x\r\nConnection: close\r\n");
                let length = format!("Content-Length: {}\r\n\r\n", body.len());
                let _ = (&stream).write_all(&[head.as_bytes(), length.as_bytes(), body].concat());
            });
        }
    });
    (address, seen)
}

/// Returns the last part of the requested path.
fn asked(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    first.split(' ').nth(1)?.rsplit('/').next().map(str::to_owned)
}

#[tokio::test]
async fn modules_are_fetched_several_at_a_time() {
    let mut scene = Scene::new();
    scene.set = module_sets::put_of(&scene.store, "6.1.0-50-amd64", &MODULES, 1 << 16);
    let digest = scene.push().await.expect("pushes");
    let read = |digest: &str| fs::read(scene.hub.blob(digest)).expect("a blob");
    let modules: Vec<String> =
        scene.set.modules.iter().map(|m| format!("sha256:{}", m.sha256)).collect();
    let manifest: serde_json::Value = serde_json::from_slice(&read(&digest)).expect("JSON");
    let config = manifest["config"]["digest"].as_str().expect("a digest").to_owned();
    let names = modules.iter().chain([&digest, &config]);
    let files = names.map(|name| (name.clone(), read(name))).collect();
    let (address, seen) = registry(files, modules);
    let source = format!("http://{address}/nvidia/modules").parse().expect("a registry");
    let registry =
        Registry::open_with(hasty(), &source, Path::new("/"), &scene.env()).expect("opens");
    let pulled = registry.pull(&digest, &scene.other, &Silent).await.expect("pulls");
    assert_eq!(pulled, scene.set);
    assert_eq!(seen.lock().expect("a lock").most, AT_A_TIME);
    module_sets::assert_sound(&scene.other);
}
