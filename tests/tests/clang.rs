//! A kernel of clang, compiled for in a build root with Debian's own clang and lld: the compiler is found by its
//! version, make is told of it, and it makes the modules. The kernel's headers are a stand-in, since Debian's
//! kernels are gcc's; the driver's Makefile chooses programs as the kernel's does.
//!
//! Needs Debian's packages clang-14 and lld-14 (scripts/setup), and root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use longshore_core::store::Store;
use longshore_modules::sets::SetStore;
use longshore_tests::archive::Suite;
use longshore_tests::module_sets;
use longshore_tests::packages::{self, Item, KERNEL, deb};
use longshore_tests::scene::{Scene, disk, finish};
use serde_json::{Value, json};

/// Version of Debian's package, which the kernel names, too.
const CLANG: &str = "Debian clang version 14.0.6";
/// A kernel of another clang.
const OTHER_KERNEL: &str = "6.1.0-51-amd64";
const OTHER_CLANG: &str = "Debian clang version 15.0.7";
/// Programs of this machine in the root, by their names there.
const PROGRAMS: [(&str, &str); 7] = [
    ("clang-14", "clang"),
    ("ld.lld-14", "ld.lld"),
    ("gcc", "gcc"),
    ("ld", "ld"),
    ("make", "make"),
    ("strip", "strip"),
    ("sh", "sh"),
];
/// Choice of programs as in a kernel's Makefile (Documentation/kbuild/llvm.rst). gcc is there and not asked.
const MAKEFILE: &str = "\
ifneq ($(LLVM),)
CC = clang
LD = ld.lld
else
CC = gcc
LD = ld
endif
MODULES := nvidia nvidia-uvm nvidia-modeset nvidia-drm nvidia-peermem
modules: $(MODULES:=.ko)
$(MODULES:=.o): module.c
\t@$(CC) -O2 -nostdinc -c module.c -o $@
$(MODULES:=.ko): %.ko: %.o
\t@$(LD) --version
\t@$(LD) -r -o $@ $<
";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
    fs::write(path, text).expect("write");
}

/// Copies a file of this machine, with links followed, to another name below `root`.
fn copy(path: &str, root: &Path, name: &str) {
    let to = root.join(name.trim_start_matches('/'));
    fs::create_dir_all(to.parent().expect("a parent")).expect("directory");
    if !to.exists() {
        fs::copy(path, &to).unwrap_or_else(|e| panic!("{path} (scripts/setup): {e}"));
    }
}

/// Makes a root in Red Hat's layout, for two kernels.
fn root(root: &Path) {
    for dir in ["usr/bin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(root.join(dir)).expect("directory");
    }
    for link in ["bin", "lib", "lib64"] {
        symlink(Path::new("usr").join(link), root.join(link)).expect("link");
    }
    for (program, name) in PROGRAMS {
        let program = format!("/usr/bin/{program}");
        copy(&program, root, &format!("usr/bin/{name}"));
        let libraries = Command::new("ldd").arg(&program).output().expect("starts").stdout;
        let libraries = String::from_utf8(libraries).expect("text");
        let paths = libraries.split_ascii_whitespace().filter(|word| word.starts_with('/'));
        paths.for_each(|library| copy(library, root, library));
    }
    put_headers(root, KERNEL, CLANG);
    put_headers(root, OTHER_KERNEL, OTHER_CLANG);
}

fn put_headers(root: &Path, kernel: &str, compiler: &str) {
    let release = format!("#define UTS_RELEASE \"{kernel}\"\n");
    let compiler = format!("CONFIG_CC_VERSION_TEXT=\"{compiler}\"\n");
    for (name, text) in [
        ("Makefile", "VERSION = 6\n"),
        ("Module.symvers", ""),
        ("include/generated/autoconf.h", ""),
        ("include/generated/compile.h", "#define UTS_VERSION \"#1 SMP Test 6.1.176-1\"\n"),
        ("include/generated/utsrelease.h", &release),
        ("include/config/auto.conf", &compiler),
        ("scripts/mod/modpost", ""),
    ] {
        write(&root.join("usr/src/kernels").join(kernel).join(name), text);
    }
}

/// Returns an archive with a driver, and nothing else that the compile takes.
fn archive() -> Suite {
    let module = format!(
        "const char info[] __attribute__((section(\".modinfo\"), used, aligned(1))) =\n\
         \"version=535.261.03\\0\" \"vermagic={KERNEL} SMP \";\n"
    );
    let kbuild = b"ccflags-y += -DNV_VERSION_STRING=\\\"535.261.03\\\"\n";
    packages::buildable(&[(
        "nvidia-kernel-source",
        deb(&[
            Item::File("./usr/src/nvidia/Kbuild", kbuild),
            Item::File("./usr/src/nvidia/conftest.sh", b""),
            Item::File("./usr/src/nvidia/Makefile", MAKEFILE.as_bytes()),
            Item::File("./usr/src/nvidia/module.c", module.as_bytes()),
        ]),
    )])
}

/// Builds into a store of its own, and returns make's log and the first module.
fn built(host: &Scene, store: &str, place: &str) -> (String, Vec<u8>) {
    let mut agent = host.agent(&["build", "--kernel", KERNEL, "--build-root", place]);
    let out = agent.env("LONGSHORE_STORE", host.path(store)).output().expect("runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let store = Store::open(&host.path(store), disk()).expect("store");
    module_sets::assert_sound(&store);
    let set = store.sets().expect("sets").pop().expect("a set");
    assert_eq!(set.key.compiler, CLANG);
    let log = format!("{}.log", set.key.tag());
    let log = fs::read_to_string(store.dir("logs").join(log)).expect("a log");
    (log, store.read_blob(&set.modules[0].sha256).expect("a module"))
}

fn has(module: &[u8], text: &str) -> bool {
    module.windows(text.len()).any(|bytes| bytes == text.as_bytes())
}

#[test]
fn a_kernel_of_clang_is_compiled_for_with_debians_clang() {
    let host = Scene::with(archive());
    let dir = host.path("root");
    let place = dir.to_str().expect("a path");
    root(&dir);
    let inspect = host.agent(&["build-root", "inspect", place, "--json"]).output().expect("runs");
    let reported: Value = serde_json::from_slice(&inspect.stdout).expect("JSON");
    let found = reported["compilers"].as_array().expect("compilers");
    assert!(found.contains(&json!({"program": "clang", "version": CLANG})), "{reported}");
    assert_eq!(
        (&reported["kernels"][0]["compiler"], &reported["lacking"]),
        (&json!(CLANG), &json!([]))
    );
    assert_eq!(reported["kernels"][0]["unusable"], Value::Null);

    let build = ["build", "--kernel", OTHER_KERNEL, "--build-root", place];
    let said = [OTHER_CLANG, "clang (Debian clang version 14.0.6)"].map(str::to_owned);
    finish(&mut host.agent(&build)).assert_failed(11, &said);

    let (log, module) = built(&host, "store", place);
    assert!(log.contains(" LLVM=1 CC=clang "), "{log}");
    assert!(log.contains("Debian LLD 14.0.6") && !log.contains("GNU ld"), "{log}");
    assert!(has(&module, CLANG) && !has(&module, "GCC:"));

    // Without lld the compiler alone is LLVM's.
    fs::remove_file(dir.join("usr/bin/ld.lld")).expect("removed");
    let (log, module) = built(&host, "without-lld", place);
    assert!(!log.contains("LLVM=1") && log.contains(" CC=clang "), "{log}");
    assert!(log.contains("GNU ld") && !log.contains("LLD"), "{log}");
    assert!(has(&module, CLANG) && !has(&module, "GCC:"));
}
