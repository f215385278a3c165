//! A network that cuts connections to a real registry in the middle of a module.

use longshore_tests::module_sets;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MODULE: usize = 8 << 20;
const CUT: u64 = 5 << 20;

/// Forwards connections to `target`, and cuts the first that transferred [`CUT`] bytes; counts the
/// bytes that come back through it.
fn between(target: String) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let passed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&passed);
    // Both threads end with the test's process: they wait for a connection, or for its end.
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(&target) else { return };
            let (Ok(from), Ok(to)) = (near.try_clone(), far.try_clone()) else { return };
            std::thread::spawn(move || pass(from, to, |_| true));
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                pass(far, near, |bytes| {
                    let before = count.fetch_add(bytes, Ordering::SeqCst);
                    !(before < CUT && before + bytes >= CUT)
                });
            });
        }
    });
    (address, passed)
}

/// Copies until one side ends or `goes_on` returns false.
fn pass(mut from: TcpStream, mut to: TcpStream, goes_on: impl Fn(u64) -> bool) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() || !goes_on(n as u64) {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[tokio::test]
async fn a_module_that_was_cut_off_goes_on_where_it_was() {
    let mut scene = Scene::new();
    scene.set = module_sets::put_of(&scene.store, "6.1.0-50-amd64", &["nvidia"], MODULE);
    let digest = scene.push().await.expect("pushes");
    let (address, passed) = between(scene.hub.address.clone());
    let source = format!("http://{address}/nvidia/modules").parse().expect("a registry");
    let registry =
        Registry::open_with(hasty(), &source, Path::new("/"), &scene.env()).expect("opens");
    let pulled = registry.pull(&digest, &scene.other, &Silent).await.expect("pulls");
    assert_eq!(pulled, scene.set);
    module_sets::assert_sound(&scene.other);
    let passed = passed.load(Ordering::SeqCst);
    // A restart from the beginning would have taken 13 MiB.
    assert!(passed < MODULE as u64 + (1 << 20), "{passed} bytes came");
}
