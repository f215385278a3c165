//! CUDA's forward compatibility in a container with the GPUs by longshore's CDI spec: the image's own libcuda in
//! /usr/local/cuda/compat against the driver's. The judge is this machine's C library in a root of its own; the libraries
//! are made here, and no file of NVIDIA's is in it. It requires root and a C compiler.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longshore::cdi::{Inputs, Tree, spec};
use longshore::config::DriverCapability;
use longshore_core::machine::Machine;

const DRIVER: &str = "535.261.03";
const COMPAT: &str = "/usr/local/cuda/compat";
/// Prints the number of the libcuda that the loader finds.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *found = dlopen("libcuda.so.1", RTLD_NOW);
    if (!found) { puts(dlerror()); return 1; }
    int (*number)(void) = (int (*)(void))dlsym(found, "number");
    printf("%d\n", number());
    return 0;
}"#;

/// An image's root, and the driver root of the host.
struct Scene {
    dir: tempfile::TempDir,
}

fn compile(source: &str, options: &[&str], to: &Path) {
    fs::create_dir_all(to.parent().expect("a parent")).expect("directory");
    let mut cc = Command::new("cc");
    cc.args(options).args(["-x", "c", "-", "-o"]).arg(to).stdin(Stdio::piped());
    let mut child = cc.spawn().expect("cc starts");
    child.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("written");
    assert!(child.wait().expect("cc ends").success(), "{}", to.display());
}

/// Makes a libcuda that answers with this number.
fn libcuda(number: u32, to: &Path) {
    let source = format!("int number(void) {{ return {number}; }}");
    compile(&source, &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"], to);
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {words:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.trim().to_owned()
}

impl Scene {
    /// An image with this libcuda in its directory for forward compatibility.
    fn new(compat: u32) -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("temporary directory") };
        let libraries = scene.driver_root().join("usr/lib").join(Self::machine().triplet);
        libcuda(535, &libraries.join(format!("libcuda.so.{DRIVER}")));
        symlink(format!("libcuda.so.{DRIVER}"), libraries.join("libcuda.so.1")).expect("link");
        let root = scene.root();
        compile(PROGRAM, &["-ldl"], &root.join("usr/bin/which-cuda"));
        // Loader and C library of this machine, in the places where the program looks for them.
        let used = run("ldd", &[&root.join("usr/bin/which-cuda").to_string_lossy()]);
        for path in used.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("a parent")).expect("directory");
            fs::copy(path, to).expect("copied");
        }
        libcuda(compat, &root.join(COMPAT.trim_start_matches('/')).join("libcuda.so.1"));
        scene
    }

    fn machine() -> Machine {
        Machine::named(std::env::consts::ARCH).expect("a known machine")
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn driver_root(&self) -> PathBuf {
        self.dir.path().join("driver")
    }

    /// Number of the libcuda that a program finds in the container, with these variables.
    fn found(&self, variables: &[&str]) -> String {
        let driver_root = self.driver_root();
        let tree = Tree::exposed(&driver_root, Self::machine()).expect("read");
        let capabilities = [DriverCapability::Compute];
        let inputs = Inputs {
            driver_root: &driver_root,
            tree: &tree,
            gpus: &[],
            nodes: &[],
            capabilities: &capabilities,
        };
        let mounts = spec(&inputs).container_edits.mounts;
        assert!(!mounts.is_empty());
        let root = self.root();
        let mut script = "set -e\n".to_owned();
        for mount in &mounts {
            // As a runtime: the file that is mounted over is made where it is missing.
            let to = format!("{}{}", root.display(), mount.container_path);
            script += &format!(
                "mkdir -p \"$(dirname {to})\"; touch {to}; mount --bind {} {to}\n",
                mount.host_path
            );
        }
        script += &format!("exec chroot {} /usr/bin/which-cuda\n", root.display());
        let mut words = vec!["-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"];
        words.extend(variables);
        words.extend(["unshare", "--mount", "--propagation", "private", "sh", "-c", &script]);
        run("env", &words)
    }
}

/// Libraries of the spec are in the loader's default directories, which LD_LIBRARY_PATH precedes: the remedy of
/// docs/operate/containers.md.
#[test]
fn a_newer_libcuda_of_the_image_is_found_by_ld_library_path_alone() {
    let scene = Scene::new(580);
    assert_eq!(scene.found(&[]), "535");
    let variable = format!("LD_LIBRARY_PATH={COMPAT}");
    assert_eq!(scene.found(&[&variable]), "580");
    let images = format!("{variable}:/usr/local/nvidia/lib:/usr/local/nvidia/lib64");
    assert_eq!(scene.found(&[&images]), "580");
}

/// The loader compares no versions: an image's older libcuda is taken, too.
#[test]
fn an_older_libcuda_is_found_by_it_as_well() {
    let scene = Scene::new(470);
    assert_eq!(scene.found(&[&format!("LD_LIBRARY_PATH={COMPAT}")]), "470");
}

#[test]
fn a_cache_of_the_image_that_names_the_directory_precedes_the_driver() {
    let scene = Scene::new(580);
    fs::create_dir_all(scene.root().join("etc")).expect("directory");
    fs::write(scene.root().join("etc/ld.so.conf"), format!("{COMPAT}\n")).expect("written");
    run("ldconfig", &["-r", &scene.root().to_string_lossy()]);
    assert_eq!(scene.found(&[]), "580");
}

/// Remedy and behaviour are on the page.
#[test]
fn the_page_has_the_remedy() {
    let page = include_str!("../../docs/operate/containers.md");
    for text in ["## CUDA newer than the driver", "name: LD_LIBRARY_PATH", COMPAT] {
        assert!(page.contains(text), "{text}");
    }
}
