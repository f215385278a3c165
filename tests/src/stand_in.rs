//! An archive that a driver is compiled from by the real compile, with a stand-in for make that ends on a test's command.

use std::fs;

use crate::archive::Suite;
use crate::module_sets;
use crate::packages::{self, Item, KERNEL, deb};
use crate::scene::program;

/// Modules of the driver.
pub const MODULES: [&str; 3] = ["nvidia", "nvidia-uvm", "nvidia-modeset"];

/// Makes an archive to build a driver from, whose first module is longer by `padding` bytes. make
/// waits for the test's command if `waits`.
pub fn archive(padding: usize, waits: bool) -> Suite {
    let kbuild = b"ccflags-y += -DNV_VERSION_STRING=\\\"535.261.03\\\"\n";
    let all = MODULES.into_iter().chain(["nvidia-peermem"]);
    let modules = all.map(|name| {
        let mut image = module_sets::module(name, KERNEL);
        if name == "nvidia" {
            image.resize(image.len() + padding, 0);
        }
        (format!("./usr/src/nvidia/{name}.ko.in"), image)
    });
    let modules: Vec<_> = modules.collect();
    let mut driver = vec![
        Item::File("./usr/src/nvidia/Kbuild", kbuild),
        Item::File("./usr/src/nvidia/conftest.sh", b""),
    ];
    if !waits {
        driver.push(Item::File("./usr/src/nvidia/go", b""));
    }
    driver.extend(modules.iter().map(|(path, image)| Item::File(path, image)));
    let make = fs::read(program("stub-make")).expect("the stand-in for make");
    let libraries = libraries();
    let mut libc: Vec<Item<'_>> =
        libraries.iter().map(|(path, bytes)| Item::Program(path, bytes)).collect();
    libc.push(loader(&libraries));
    packages::buildable(&[
        ("nvidia-kernel-source", deb(&driver)),
        ("make", deb(&[Item::Program("./usr/bin/make", &make)])),
        ("binutils", deb(&[Item::Program("./usr/bin/strip", &packages::saying("", 0))])),
        ("libc6-dev", deb(&libc)),
    ])
}

/// Returns the libraries of this process, which are also the stand-in's.
pub fn libraries() -> Vec<(String, Vec<u8>)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let mut paths: Vec<&str> =
        maps.lines().filter_map(|line| Some(&line[line.find('/')?..])).collect();
    paths.retain(|path| path.contains(".so"));
    paths.sort();
    paths.dedup();
    let read = |path: &str| {
        let merged = if path.starts_with("/usr/") { String::new() } else { "/usr".to_owned() };
        (format!(".{merged}{path}"), fs::read(path).expect("a library"))
    };
    paths.into_iter().map(read).collect()
}

/// Returns the path by which programs name the dynamic linker.
pub fn loader(libraries: &[(String, Vec<u8>)]) -> Item<'_> {
    let is_loader = |(path, _): &&(String, Vec<u8>)| path.contains("/ld-linux");
    let (path, _) = libraries.iter().find(is_loader).expect("a dynamic linker");
    let name = if cfg!(target_arch = "aarch64") {
        "./usr/lib/ld-linux-aarch64.so.1"
    } else {
        "./usr/lib64/ld-linux-x86-64.so.2"
    };
    Item::Link(name, &path[1..])
}
