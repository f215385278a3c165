//! Names of programs, and what make's output tells.

use std::sync::Mutex;

use rstest::rstest;

use super::*;

#[rstest]
#[case("gcc-12", "g++-12")]
#[case("x86_64-linux-gnu-gcc-14", "x86_64-linux-gnu-g++-14")]
#[case("gcc", "g++")]
#[case("clang-19", "clang++-19")]
fn the_compilers_of_both_languages_belong_together(#[case] c: &str, #[case] cxx: &str) {
    assert_eq!(cxx_program(c), cxx);
}

#[test]
fn kernels_that_name_one_compiler_differently_share_its_objects() {
    let names =
        ["gcc-12 (Debian 12.2.0-14) 12.2.0", "x86_64-linux-gnu-gcc-12 (Debian 12.2.0-14) 12.2.0"];
    assert_eq!(names.map(version_text), ["(Debian 12.2.0-14) 12.2.0"; 2]);
}

#[derive(Default)]
struct Noted(Mutex<Vec<String>>);

impl Task for Noted {
    fn note(&self, text: &str) {
        self.0.lock().expect("unpoisoned").push(text.to_owned());
    }
    fn advance(&self, _: u64) {}
    fn total(&self, _: u64) {}
}

#[rstest]
#[case(
    " [ nvidia            ]  CC           generated/g_gpu_nvoc.c",
    Some("generated/g_gpu_nvoc.c")
)]
#[case(
    " [ nvidia-modeset    ]  CXX          ../common/displayport/src/dp_auxretry.cpp",
    Some("../common/displayport/src/dp_auxretry.cpp")
)]
#[case(" [ nvidia            ]  LD           _out/Linux_x86_64/nv-kernel.o", None)]
#[case("make -C src/nvidia", None)]
#[case(" [ ", None)]
fn compiled_sources_are_progress(#[case] line: &str, #[case] noted: Option<&str>) {
    let task = Noted::default();
    report(line, &task);
    let seen = task.0.into_inner().expect("unpoisoned");
    assert_eq!(seen.first().map(String::as_str), noted);
}

#[rstest]
#[case::sources("SRCS += a.c\nSRCS += b.cpp\nSRCS += a.h\n".to_owned(), Some(2 * OBJECTS.len() as u64))]
#[case::larger_than_any(format!("a.c\n#{}\n", "x".repeat(MOST_OF_LIST as usize)), None)]
fn sources_of_the_lists_are_counted(#[case] list: String, #[case] count: Option<u64>) {
    let tree = tempfile::tempdir().expect("dir");
    for (dir, ..) in OBJECTS {
        let dir = tree.path().join(dir);
        fs::create_dir_all(&dir).expect("directories");
        fs::write(dir.join("srcs.mk"), &list).expect("written");
    }
    assert_eq!(sources_in(tree.path()), count);
}
