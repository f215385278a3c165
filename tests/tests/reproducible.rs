//! Compiles with a real compiler, as root: the same bytes at every path, at every time and with
//! every state of the caches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longshore_build::mofed::Mofed;
use sha2::{Digest, Sha256};

const RELEASE: &str = "6.1.0-test";
/// Programs of this machine in the build root, with their libraries.
const PROGRAMS: [&str; 19] = [
    "make", "sh", "gcc", "as", "ld", "strip", "cat", "cmp", "mkdir", "grep", "dirname", "id",
    "hostname", "echo", "date", "env", "mkfifo", "ln", "mv",
];

/// A Kbuild in the form of NVIDIA's, as far as a compile depends on it.
const KBUILD: &str = r#"
NV_CONFTEST_SCRIPT := $(src)/conftest.sh
ccflags-y += -DNV_VERSION_STRING=\"535.261.03\"
NV_CONFTEST_CMD := /bin/sh $(NV_CONFTEST_SCRIPT) \
 "$(strip $(CC))" $(ARCH) $(NV_KERNEL_SOURCES) $(NV_KERNEL_OUTPUT)
NV_CONFTEST_CFLAGS = -O2
NV_CONFTEST_CFLAGS += -DKBUILD_BASENAME="\#conftest$(shell echo $$$$)"
.PHONY: conftest-verbose
conftest-verbose:
	@echo 'NV_CONFTEST_CFLAGS=$(NV_CONFTEST_CFLAGS)'
$(obj)/conftest/compile-tests/%.h: $(NV_CONFTEST_SCRIPT) $(obj)/conftest/headers.h
	@mkdir -p $(obj)/conftest/compile-tests
	@$(NV_CONFTEST_CMD) compile_tests '$(NV_CONFTEST_CFLAGS)' $(notdir $*) > $@
$(obj)/conftest/header_presence/linux/a.h.part: $(NV_CONFTEST_SCRIPT) | conftest-verbose
	@mkdir -p $(dir $@)
	@$(NV_CONFTEST_CMD) test_kernel_header '$(NV_CONFTEST_CFLAGS)' 'linux/a.h' > $@
$(obj)/conftest/headers.h: $(obj)/conftest/header_presence/linux/a.h.part
	@cat $^ > $@
"#;
/// conftest.sh that prints each request on standard error, and so in the log.
const CONFTEST: &str = r##"#!/bin/sh
compile_test() {
    case "$1" in
        answer)
            grep -o "ANSWER.*" "$SOURCES/answer.h"
        ;;
    esac
}
cd "$(dirname "$0")"
SOURCES=$3
echo "asked: $5 $7" >&2
case "$5" in
compile_tests) echo "#define $(compile_test "$7")" ;;
test_kernel_header) echo "#define NV_LINUX_A_H_PRESENT" ;;
esac
"##;
const MAKEFILE: &str = r#"
CC = gcc
src := $(CURDIR)
obj := $(CURDIR)
ARCH := x86_64
NV_KERNEL_SOURCES := $(SYSSRC)
NV_KERNEL_OUTPUT := $(SYSOUT)
include Kbuild
OBJECTS := nvidia/nv.o nvidia/os.o nvidia/list.o
$(OBJECTS): $(obj)/conftest/compile-tests/answer.h
nvidia/%.o: nvidia/%.c
	@$(CC) -O2 -nostdinc $(ccflags-y) $(CFLAGS_nvidia/$*.o) -include $(CURDIR)/conftest/compile-tests/answer.h \
	 -DMADE="\"$$(id -u) $$(hostname) $$KBUILD_BUILD_TIMESTAMP\"" -c $(CURDIR)/$< -o $@
modules: $(OBJECTS)
	@ld -r -o nvidia.ko $(OBJECTS)
"#;

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("directory");
    fs::write(path, text).expect("write");
}

/// Returns a program's output, and true if it succeeded.
fn said(program: &str, args: &[&str]) -> (String, bool) {
    let output = Command::new(program).args(args).output().expect("starts");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
}

/// Copies a file of this machine, with links followed, to the same path below `root`.
fn copy(path: &str, root: &Path) {
    let to = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(to.parent().expect("a parent")).expect("directory");
    if !to.exists() {
        fs::copy(path, &to).expect("copies");
    }
}

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        Self { dir }
    }

    /// Makes a build root of this machine's compiler, and a kernel whose headers contain `answer`.
    fn root(&self, name: &str, answer: &str) -> PathBuf {
        let root = self.dir.path().join(name);
        for dir in ["usr/bin", "usr/lib", "usr/lib64", "proc", "dev", "tmp", "build"] {
            fs::create_dir_all(root.join(dir)).expect("directory");
        }
        for link in ["bin", "lib", "lib64"] {
            symlink(Path::new("usr").join(link), root.join(link)).expect("link");
        }
        let (compiler, _) = said("gcc", &["-print-prog-name=cc1"]);
        let programs = PROGRAMS.map(|name| format!("/usr/bin/{name}"));
        for program in programs.iter().map(String::as_str).chain([compiler.trim()]) {
            copy(program, &root);
            let (libraries, _) = said("ldd", &[program]);
            let words = libraries.split_ascii_whitespace().filter(|word| word.starts_with('/'));
            words.for_each(|library| copy(library, &root));
        }
        let headers = root.join("usr/lib/modules").join(RELEASE).join("build");
        write(&headers.join("answer.h"), &format!("ANSWER {answer}"));
        root
    }

    /// Compiles at a new path each time; returns the module's sha256, and the number of conftest.sh
    /// runs.
    fn compile(&self, root: &Path, store: &str, jobs: u32) -> (String, usize) {
        let (place, store) = (self.place(MAKEFILE), self.dir.path().join(store));
        let work = place.path().join("work");
        let mut command = Command::new(env!("CARGO_BIN_EXE_compile-once"));
        command.args([root, &work, &store]);
        let output = command.args([RELEASE, &jobs.to_string()]).output().expect("runs");
        let log = fs::read_to_string(store.join("logs/log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{log}");
        let module = fs::read(work.join("driver/nvidia.ko")).expect("a module");
        let asked = log.lines().filter(|line| line.starts_with("asked: ")).count();
        (longshore_core::digest::hex(&Sha256::digest(module)), asked)
    }

    /// Compiles with an extended Makefile, as `uid`; returns the error, empty on success.
    fn compile_as(&self, root: &Path, makefile: &str, uid: &str) -> String {
        let place = self.place(makefile);
        let mut command = Command::new("timeout");
        command.args(["120", env!("CARGO_BIN_EXE_compile-once")]);
        command.args([root, &place.path().join("work"), &place.path().join("store")]);
        let output = command.args([RELEASE, "1", uid]).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(i32::from(!said.is_empty())), "{said}");
        said
    }

    /// Makes a directory with sources in `work`.
    fn place(&self, makefile: &str) -> tempfile::TempDir {
        let place = tempfile::Builder::new().prefix("elsewhere").tempdir_in(&self.dir);
        let place = place.expect("temporary directory");
        let work = place.path().join("work");
        fs::create_dir_all(work.join("tmp")).expect("directory");
        let source = "const char *where(void) { return __FILE__ \" \" MADE; }\n\
                      int answer(void) { return ANSWER; }\n";
        for (path, text) in [
            ("Kbuild", KBUILD),
            ("conftest.sh", CONFTEST),
            ("Makefile", makefile),
            ("nvidia/nv.c", "const char version[] = NV_VERSION_STRING;\n"),
            ("nvidia/os.c", source),
            ("nvidia/list.c", "int list[3];\n"),
        ] {
            write(&work.join("driver").join(path), text);
            let file = fs::File::options().write(true).open(work.join("driver").join(path));
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
            file.and_then(|file| file.set_modified(time)).expect("time");
        }
        place
    }
}

/// Returns a Makefile that only runs `lines`.
fn makefile_of(lines: &str) -> String {
    format!("modules:\n\t@{}\n", lines.replace('\n', "\n\t@"))
}

/// The part of nvidia-peermem.Kbuild that finds MOFED, and a compile that needs it.
const PEERMEM: &str = r#"
ARCH := x86_64
KERNELRELEASE := $(KERNEL_UNAME)
OFA_DIR := /usr/src/ofa_kernel
OFA_CANDIDATES = $(OFA_DIR)/$(ARCH)/$(KERNELRELEASE) $(OFA_DIR)/$(KERNELRELEASE) $(OFA_DIR)/default
MLNX_OFED_KERNEL := $(shell for d in $(OFA_CANDIDATES); do \
 if [ -d "$$d" ]; then echo "$$d"; exit 0; fi; done; echo $(OFA_DIR))
ifneq ($(shell test -d $(MLNX_OFED_KERNEL) && echo "true" || echo "" ),)
    CFLAGS += -I$(MLNX_OFED_KERNEL)/include -I$(MLNX_OFED_KERNEL)/include/rdma
    KBUILD_EXTRA_SYMBOLS := $(MLNX_OFED_KERNEL)/Module.symvers
endif
modules:
	@grep ib_register_peer_memory_client $(KBUILD_EXTRA_SYMBOLS)
	@! echo x >> $(KBUILD_EXTRA_SYMBOLS)
	@echo '#include <peer_mem.h>' > peer.c
	@echo 'struct peer client;' >> peer.c
	@gcc -nostdinc $(CFLAGS) -c peer.c -o nvidia.ko
"#;

#[test]
fn the_headers_and_symbols_of_mofed_reach_the_compile() {
    let (scene, mofed) = (Scene::new(), tempfile::tempdir().expect("temporary directory"));
    let tree = mofed.path().join("usr/src/ofa_kernel/x86_64").join(RELEASE);
    write(&tree.join("include/rdma/peer_mem.h"), "struct peer { int a; };\n");
    write(&tree.join("Module.symvers"), "0x1\tib_register_peer_memory_client\tx\tEXPORT_SYMBOL\n");
    let root = scene.root("root", "42");
    let without = scene.compile_as(&root, PEERMEM, "2104104111");
    assert!(without.contains("it does not compile"), "{without}");
    let found = Mofed::find(mofed.path(), RELEASE, "x86_64").expect("usable").expect("there");
    found.copy_into(&root).expect("copied");
    assert_eq!(scene.compile_as(&root, PEERMEM, "2104104111"), "");
}

#[test]
fn what_a_compile_leaves_is_taken_only_where_it_is_a_file() {
    let scene = Scene::new();
    let root = scene.root("root", "42");
    for lines in [
        "ln -s /etc/hostname nvidia.ko",
        "mkfifo nvidia.ko",
        "mkdir nvidia.ko",
        "mkdir ../other\necho x > ../other/nvidia.ko\nmv ../driver ../old\nln -s other ../driver",
    ] {
        let said = scene.compile_as(&root, &makefile_of(lines), "2104104110");
        assert!(said.contains("make left no module in driver/nvidia.ko"), "{lines}: {said}");
    }
}

#[test]
fn a_pipe_in_the_place_of_a_record_keeps_nobody_waiting() {
    let scene = Scene::new();
    let root = scene.root("root", "42");
    let makefile = format!("{MAKEFILE}\tmkfifo /tmp/objects.log\n");
    assert_eq!(scene.compile_as(&root, &makefile, "2104104111"), "");
}

#[test]
fn nothing_is_compiled_as_a_user_that_another_process_has() {
    use std::os::unix::process::CommandExt;
    let scene = Scene::new();
    let root = scene.root("root", "42");
    let uid = 2_104_104_112;
    let mut other = Command::new("/bin/cat");
    other.uid(uid).gid(uid).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut other = other.spawn().expect("cat starts");
    let said = scene.compile_as(&root, MAKEFILE, &uid.to_string());
    assert!(said.contains(&format!("process {} (cat) runs as uid {uid}", other.id())), "{said}");
    drop(other.stdin.take());
    other.wait().expect("cat ends");
    assert_eq!(scene.compile_as(&root, MAKEFILE, &uid.to_string()), "");
}

#[test]
fn the_same_bytes_at_another_place_with_other_jobs_and_with_what_is_known() {
    let scene = Scene::new();
    let root = scene.root("root", "42");
    let (first, asked) = scene.compile(&root, "one", 1);
    assert_eq!(asked, 2);
    let (second, asked) = scene.compile(&root, "another", 4);
    assert_eq!((second, asked), (first.clone(), 2), "another store and more jobs");
    let (third, asked) = scene.compile(&root, "one", 4);
    assert_eq!((third, asked), (first, 0), "with the answers of the first");
}

#[test]
fn other_headers_are_asked_anew() {
    let scene = Scene::new();
    let (old, new) = (scene.root("old", "42"), scene.root("new", "43"));
    let (before, _) = scene.compile(&old, "store", 2);
    let (after, asked) = scene.compile(&new, "store", 2);
    assert_eq!(asked, 2);
    assert_ne!(before, after);
    assert_eq!(scene.compile(&new, "store", 2), (after, 0));
}
