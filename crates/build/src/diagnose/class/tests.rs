use super::*;
use rstest::rstest;

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[rstest]
#[case(
    "nvidia/nv-pci.c:201:9: error: too few arguments to function 'pci_resize_resource'",
    Class::Changed(some("pci_resize_resource"))
)]
#[case(
    "nvidia/os-interface.c:782:5: error: implicit declaration of function 'strncpy'; did you mean 'strncat'? [-Wimplicit-function-declaration]",
    Class::Gone(some("strncpy"))
)]
#[case(
    "a.c:1:1: error: 'struct vm_area_struct' has no member named 'vm_flags'; did you mean 'x'?",
    Class::Gone(some("struct vm_area_struct.vm_flags"))
)]
#[case("a.c:1:1: error: unknown type name 'vm_fault_t'", Class::Gone(some("vm_fault_t")))]
#[case(
    "a.c:1:1: error: 'FOLL_X' undeclared (first use in this function)",
    Class::Gone(some("FOLL_X"))
)]
#[case(
    "nvidia/nv-acpi.c:79:21: error: variable 'nv_acpi_driver_template' has initializer but incomplete type",
    Class::Gone(None)
)]
#[case(
    "nvidia/nv-acpi.c:177:13: error: invalid application of 'sizeof' to incomplete type 'struct acpi_driver'",
    Class::Gone(some("struct acpi_driver"))
)]
#[case(
    "a.c:1:1: error: invalid use of undefined type 'struct acpi_driver'",
    Class::Gone(some("struct acpi_driver"))
)]
#[case("a.c:1:1: error: storage size of 'driver' isn't known", Class::Gone(None))]
#[case(
    "././common/inc/nv-mm.h:312:19: error: assignment of read-only member 'vm_flags'",
    Class::Changed(some("vm_flags"))
)]
#[case(
    "a.c:1:1: error: passing argument 2 of 'get_user_pages' from incompatible pointer type [-Werror=incompatible-pointer-types]",
    Class::Changed(some("get_user_pages"))
)]
#[case(
    "a.c:1:1: error: initialization of 'int (*)(int)' from incompatible pointer type 'int (*)(void)'",
    Class::Changed(some("int (*)(int)"))
)]
#[case("ERROR: modpost: \"foo\" [/build/driver/nvidia.ko] undefined!", Class::Gone(some("foo")))]
#[case(
    "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read'",
    Class::GplOnly
)]
#[case(
    "a.c:3:10: fatal error: linux/x.h: No such file or directory",
    Class::Header("linux/x.h".into())
)]
#[case("gcc: error: unrecognized command-line option '-fzero-init'", Class::Compiler)]
#[case("error: incompatible gcc/plugin versions", Class::Compiler)]
#[case("gcc-12 does not appear to be able to create object files", Class::Compiler)]
#[case("The kernel is a PREEMPT_RT kernel!", Class::Realtime)]
#[case("a.c:1:1: error: expected ';' before '}' token", Class::Changed(None))]
#[case("a.c:1:1: error: unused variable 'x' [-Werror=unused-variable]", Class::Rejected)]
#[case("", Class::Unknown)]
#[case("'", Class::Unknown)]
fn errors_are_told_apart(#[case] error: &str, #[case] class: Class) {
    assert_eq!(Class::from_error(error, false), class);
}

#[rstest]
#[case(Class::Gone(None), "interface-gone", None, true)]
#[case(Class::Gone(some("strncpy")), "interface-gone", Some("strncpy"), true)]
#[case(Class::Changed(some("x")), "interface-changed", Some("x"), true)]
#[case(Class::Header("linux/x.h".into()), "header-missing", Some("linux/x.h"), true)]
#[case(Class::GplOnly, "gpl-only", None, true)]
#[case(Class::Realtime, "realtime", None, true)]
#[case(Class::Space, "no-space", None, false)]
#[case(Class::Memory, "out-of-memory", None, false)]
#[case(Class::Slow, "out-of-time", None, false)]
#[case(Class::Compiler, "compiler-unfit", None, false)]
#[case(Class::Headers, "headers-incomplete", None, true)]
#[case(Class::Tools("fixdep".into()), "headers-tools-unfit", Some("fixdep"), false)]
#[case(Class::Sources, "sources-incomplete", None, true)]
#[case(Class::Object, "object-refused", None, true)]
#[case(Class::Rejected, "sources-rejected", None, true)]
#[case(Class::Crash, "compiler-crashed", None, false)]
#[case(Class::Program("awk".into()), "program-missing", Some("awk"), false)]
#[case(Class::Processes, "out-of-processes", None, false)]
#[case(Class::Unknown, "unknown", None, false)]
fn a_class_is_described_for_programs_as_the_page_has_it(
    #[case] class: Class,
    #[case] id: &str,
    #[case] name: Option<&str>,
    #[case] of_inputs: bool,
) {
    let described = class.described();
    assert_eq!((described.class.as_str(), described.name.as_deref()), (id, name));
    assert_eq!(described.of_inputs, of_inputs);
    let page =
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/supply-chain/building.md"));
    assert!(page.contains(&format!("\n| `{id}` |")), "{id} is not in the page");
}
