use rstest::rstest;

use super::*;

/// A command as the kernel's kbuild has it.
const LINK: &str = "ld.bfd -r -m elf_x86_64 -z noexecstack --build-id=sha1 -T scripts/module.lds -o \
                    ../nvidia.ko nvidia.o nvidia.mod.o";

#[test]
fn a_script_is_read_as_commands_in_their_order() {
    let script = format!(
        "#!/bin/sh\nset -e\n# ld.bfd -r -o ../evil.ko x.o\n/usr/bin/ld.bfd -r -o nvidia.o a/b.o \\\n  c.o_binary\n\
         {LINK}\nsha256sum -c SHA256SUMS || exit 1\nrm -f *.o\n"
    );
    let found = commands(script.as_bytes()).expect("commands");
    let wanted = [
        ("nvidia.o", "-r -o nvidia.o a/b.o c.o_binary"),
        ("../nvidia.ko", LINK.strip_prefix("ld.bfd ").expect("the linker")),
    ];
    let wanted = wanted.map(|(output, arguments)| LinkCommand {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        output: output.to_owned(),
    });
    assert_eq!(found, wanted);
}

#[rstest]
#[case::plain("ld")]
#[case::path("/usr/bin/ld.bfd")]
#[case::of_a_machine("x86_64-linux-gnu-ld.bfd")]
#[case::variable("$LD")]
#[case::quoted("\"${ld}\"")]
fn the_linker_is_told_by_its_name(#[case] linker: &str) {
    let script = format!("{linker} -r -o nvidia.ko a.o");
    assert_eq!(commands(script.as_bytes()).expect("a command").len(), 1);
}

#[rstest]
#[case::no_digest_of_the_build("--build-id")]
#[case::warnings("--no-warn-rwx-segments")]
#[case::metadata("--package-metadata=")]
#[case::common_symbols("-d")]
#[case::from_here("./b.o")]
fn options_of_the_kernels_links_pass(#[case] word: &str) {
    let script = format!("ld {word} -r -o nvidia.ko a.o");
    assert!(commands(script.as_bytes()).is_ok(), "{word}");
}

#[rstest]
#[case::absolute_input("-r -o nvidia.ko /etc/shadow", "\"/etc/shadow\", outside")]
#[case::input_above("-r -o nvidia.ko a/../../b.o", "outside")]
#[case::only_above("-r -o nvidia.ko ..", "outside")]
#[case::itself("-r -o nvidia.ko .", "outside")]
#[case::absolute_output("-r -o /build/nvidia.ko a.o", "outside")]
#[case::output_far_above("-r -o ../../nvidia.ko a.o", "outside")]
#[case::output_beside("-r -o ../x/nvidia.ko a.o", "outside")]
#[case::object_above("-r -o ../nvidia.o a.o", "writes")]
#[case::another_module("-r -o ../ext4.ko a.o", "writes")]
#[case::a_script_as_output("-r -o BUILD a.o", "writes")]
#[case::response_file("-r -o nvidia.ko @list", "\"@list\"")]
#[case::plugin("-r --plugin=evil.so -o nvidia.ko a.o", "--plugin")]
#[case::plugin_apart("-r -plugin evil.so -o nvidia.ko a.o", "-plugin")]
#[case::linker_script("-r -T /etc/evil.lds -o nvidia.ko a.o", "outside")]
#[case::linker_script_above("-r -T ../evil.lds -o nvidia.ko a.o", "outside")]
#[case::joined_linker_script("-r -T/etc/evil.lds -o nvidia.ko a.o", "-T/etc")]
#[case::joined_output("-r -o/etc/x a.o", "-o/etc")]
#[case::long_output("-r --output=/etc/x a.o", "--output")]
#[case::library("-r -lc -o nvidia.ko a.o", "-lc")]
#[case::directory("-r -L. -o nvidia.ko a.o", "-L.")]
#[case::map("-r -Map=x -o nvidia.ko a.o", "-Map")]
#[case::dependency_file("-r --dependency-file=x -o nvidia.ko a.o", "--dependency-file")]
#[case::path_as_a_digest("-r --build-id=/x -o nvidia.ko a.o", "--build-id")]
#[case::another_machine("-r -m elf_i386 -o nvidia.ko a.o", "-m \"elf_i386\"")]
#[case::keyword("-r -z execstack -o nvidia.ko a.o", "-z \"execstack\"")]
#[case::option_as_script("-r -T --plugin -o nvidia.ko a.o", "--plugin")]
#[case::semicolon("-r -o nvidia.ko a.o; reboot", "a.o;")]
#[case::and("-r -o nvidia.ko a.o && reboot", "&&")]
#[case::pipe("-r -o nvidia.ko a.o|sh", "a.o|sh")]
#[case::substitution("-r -o nvidia.ko $(id)", "$(id)")]
#[case::variable("-r -o nvidia.ko $x", "$x")]
#[case::backquotes("-r -o nvidia.ko `id`", "`id`")]
#[case::redirection("-r -o nvidia.ko a.o >x", ">x")]
#[case::wildcard("-r -o nvidia.ko *.o", "*.o")]
#[case::home("-r -o nvidia.ko ~/a.o", "~/a.o")]
#[case::quote("-r -o nvidia.ko 'a b.o'", "'a")]
#[case::control_character("-r -o nvidia.ko a\u{1b}.o", "\\u{1b}")]
#[case::no_relocation("-o nvidia.ko a.o", "without -r")]
#[case::no_output("-r a.o", "without -o")]
#[case::two_outputs("-r -o nvidia.ko -o nvidia.o a.o", "two outputs")]
#[case::no_value("-r a.o -o", "-o without a value")]
#[case::no_input("-r -o nvidia.ko", "without a file")]
#[case::input_twice("-r -o nvidia.ko a.o a.o", "twice")]
fn anything_else_is_refused(#[case] arguments: &str, #[case] why: &str) {
    let script = format!("{LINK}\nld.bfd {arguments}\n");
    let refused = commands(script.as_bytes()).expect_err("refused");
    assert!(refused.contains(why), "{refused}");
}

#[rstest]
#[case::nothing(Vec::new(), "no link command")]
#[case::no_linker(b"set -e\ngcc -o nvidia.ko a.o\ncd /\n".to_vec(), "no link command")]
#[case::no_text(vec![0xff, 0xfe], "no text")]
#[case::large([b"ld -r -o nvidia.ko ".to_vec(), vec![b'a'; 10 << 20]].concat(), "more than 1 MiB")]
#[case::long_line([b"ld -r -o nvidia.ko ".to_vec(), vec![b'a'; 100 << 10]].concat(), "more than 64 KiB")]
#[case::continued([b"ld -r -o nvidia.ko ".to_vec(), b"a.o \\\n".repeat(20 << 10)].concat(), "more than 64 KiB")]
#[case::many(b"ld -r -o nvidia.ko a.o\n".repeat(65), "more than 64 link commands")]
fn another_script_is_refused(#[case] script: Vec<u8>, #[case] why: &str) {
    let refused = commands(&script).expect_err("refused");
    assert!(refused.contains(why), "{refused}");
}

const SUM: &str = "0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";

#[test]
fn digests_are_those_of_the_modules() {
    let sums =
        format!("{SUM}  nvidia.ko\n{SUM} *../nvidia-uvm.ko\n\n{SUM}  BUILD\n{SUM}  ext4.ko\n");
    let found = digests(sums.as_bytes()).expect("digests");
    let sum = SUM.to_ascii_lowercase();
    assert_eq!(found, [("nvidia.ko".into(), sum.clone()), ("nvidia-uvm.ko".into(), sum)].into());
}

#[rstest]
#[case::short(format!("{}  nvidia.ko", &SUM[1..]), "has the line")]
#[case::no_hexadecimal(format!("g{}  nvidia.ko", &SUM[1..]), "has the line")]
#[case::no_name(SUM.to_owned(), "has the line")]
#[case::prose("The sums.".to_owned(), "has the line")]
#[case::twice(format!("{SUM}  nvidia.ko\n{SUM}  ./nvidia.ko"), "nvidia.ko twice")]
#[case::many(format!("{SUM}  a\n").repeat(1001), "more than 1000 lines")]
fn other_digests_are_refused(#[case] sums: String, #[case] why: &str) {
    let refused = digests(sums.as_bytes()).expect_err("refused");
    assert!(refused.contains(why), "{refused}");
}
