//! Patches for Linux 7.2 and later, each on the lines of headers and sources that it is about.

use super::*;

/// Lines of a file: path, text.
type Lines = (&'static str, &'static str);

/// As in Debian's headers of 6.12.
const OLD: &[Lines] = &[
    (
        "include/linux/string.h",
        "extern char * strncpy(char *,const char *, __kernel_size_t);\n\
         extern char * strchr(const char *,int);\n",
    ),
    (
        "include/linux/preempt.h",
        "#define in_hardirq()\t\t(hardirq_count())\n#define in_irq()\t\t(hardirq_count())\n",
    ),
    (
        "include/linux/mm_types.h",
        "union {\n\tconst vm_flags_t vm_flags;\n\tvm_flags_t __private __vm_flags;\n};\n",
    ),
    (
        "include/linux/mm.h",
        "static inline void vm_flags_set(struct vm_area_struct *vma,\n\tvm_flags_t flags)\n\
         static inline void vm_flags_clear(struct vm_area_struct *vma,\n\tvm_flags_t flags)\n",
    ),
    (
        "include/linux/mmap_lock.h",
        "static bool __is_vma_write_locked(struct vm_area_struct *vma, unsigned int *mm_lock_seq)\n",
    ),
    (
        "include/linux/dma-map-ops.h",
        "dma_addr_t (*map_resource)(struct device *dev, phys_addr_t phys_addr,\n",
    ),
    ("include/linux/memremap.h", "void (*page_free)(struct page *page);\n"),
    ("include/drm/drm_atomic.h", "struct drm_atomic_state {\n"),
];

/// As in Debian's headers of 7.3.
const NEW: &[Lines] = &[
    (
        "include/linux/string.h",
        "extern char * strchr(const char *,int);\n/* Preferred to strncpy() */\n",
    ),
    ("include/linux/preempt.h", "#define in_hardirq()\t\t(hardirq_count())\n"),
    (
        "include/linux/mm_types.h",
        "union {\n\tconst vm_flags_t vm_flags;\n\tvma_flags_t flags;\n};\n",
    ),
    (
        "include/linux/mm.h",
        "static inline void vm_flags_set(struct vm_area_struct *vma,\n\tvm_flags_t flags)\n{\n\
         \tvma_start_write(vma);\n\tvma_flags_set_word(&vma->flags, flags);\n}\n\
         static inline void vm_flags_clear(struct vm_area_struct *vma,\n\tvm_flags_t flags)\n{\n\
         \tVM_WARN_ON_ONCE(1);\n\tvma_start_write(vma);\n\
         \tvma_flags_clear_word(&vma->flags, flags);\n}\n",
    ),
    (
        "include/linux/mmap_lock.h",
        "\treturn (refcnt & VM_REFCNT_EXCLUDE_READERS_FLAG) &&\n\
         \t\trefcnt <= VM_REFCNT_EXCLUDE_READERS_FLAG + 1;\n\
         \t\trcuwait_wake_up(&mm->vma_writer_wait);\n\
         static inline bool __is_vma_write_locked(struct vm_area_struct *vma)\n{\n\
         \t/* a comment */\n\treturn vma->vm_lock_seq == __vma_raw_mm_seqnum(vma);\n}\n",
    ),
    (
        "include/linux/dma-map-ops.h",
        "dma_addr_t (*map_phys)(struct device *dev, phys_addr_t phys,\n",
    ),
    ("include/linux/memremap.h", "void (*folio_free)(struct folio *folio);\n"),
    (
        "include/drm/drm_atomic.h",
        "struct drm_atomic_commit {\n\
         static inline void drm_atomic_commit_put(struct drm_atomic_commit *state)\n",
    ),
];

/// As in the sources of 550.163.01, but for the flavours' own.
const SOURCES: &[Lines] = &[
    (
        "common/inc/nv-linux.h",
        "#include <linux/stddef.h>           /* NULL, offsetof                   */\n\
         #include <linux/wait.h>             /* wait queues                      */\n\
         #include <linux/string.h>           /* strchr(), strpbrk()              */\n\n\
         #include <linux/ctype.h>            /* isspace(), etc                   */\n",
    ),
    ("nvidia/linux_nvswitch.c", "    return strncpy(dest, src, length);\n"),
    (
        "common/inc/nv-time.h",
        "    if (in_irq() && (us > NV_MAX_ISR_DELAY_US))\n\
         \x20   if (in_irq() && (ms > NV_MAX_ISR_DELAY_MS))\n",
    ),
    ("nvidia/os-interface.c", "    return (in_irq());\n"),
    (
        "nvidia/nv-dma.c",
        "#endif\n    }\n\n    return (ops->map_resource != NULL);\n#else\n    return NV_FALSE;\n\
         #endif\n",
    ),
    (
        "common/inc/nv-mm.h",
        "#define NV_CAN_CALL_VMA_START_WRITE 0\n
#if !NV_CAN_CALL_VMA_START_WRITE
/*
 * Commit 45ad9f5290dc updated vma_start_write() to call __vma_start_write().
 */
#endif
static inline void nv_vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
#if !NV_CAN_CALL_VMA_START_WRITE
    nv_vma_start_write(vma);
    ACCESS_PRIVATE(vma, __vm_flags) |= flags;
#elif defined(NV_VM_AREA_STRUCT_HAS_CONST_VM_FLAGS)
    vm_flags_set(vma, flags);
#else
    vma->vm_flags |= flags;
#endif
}
static inline void nv_vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
#if !NV_CAN_CALL_VMA_START_WRITE
    nv_vma_start_write(vma);
    ACCESS_PRIVATE(vma, __vm_flags) &= ~flags;
#elif defined(NV_VM_AREA_STRUCT_HAS_CONST_VM_FLAGS)
    vm_flags_clear(vma, flags);
#else
    vma->vm_flags &= ~flags;
#endif
}
",
    ),
    (
        "nvidia/nv-mmap.c",
        "    NvU32 tgt_refcnt = VMA_LOCK_OFFSET;
    if (!refcount_add_not_zero(VMA_LOCK_OFFSET, &vma->vm_refcnt))
        // Clean up on error: release refcount and dep_map
        refcount_sub_and_test(VMA_LOCK_OFFSET, &vma->vm_refcnt);
    NvU32 mm_lock_seq;
    NvBool locked;
    if (__is_vma_write_locked(vma, &mm_lock_seq))
        return;
        NvBool detached;
        detached = refcount_sub_and_test(VMA_LOCK_OFFSET, &vma->vm_refcnt);
",
    ),
    (
        "conftest.sh",
        "        #include <linux/autoconf.h>\n        #endif\"\nfi\n\ntest_configuration_option() {\n",
    ),
    ("nvidia-drm/nvidia-drm-conftest.h", "#include \"conftest.h\"\n#include \"nvtypes.h\"\n"),
    ("nvidia-drm/nvidia-drm-modeset.c", "    struct drm_atomic_state base;\n"),
];

/// Lines of nvidia-modeset with the flavour's licence.
macro_rules! modeset {
    ($licence:literal) => {
        (
            "nvidia-modeset/nvidia-modeset-linux.c",
            concat!(
                "#include \"conftest.h\"\n#include \"nv-procfs.h\"\n#include \"nv-kthread-q.h\"\n",
                "    return strncpy(dest, src, n);\n  MODULE_LICENSE(\"",
                $licence,
                "\");\n"
            ),
        )
    };
}

/// Of the open flavour alone.
const OPEN: &[Lines] = &[
    modeset!("Dual MIT/GPL"),
    ("nvidia-drm/nvidia-drm-linux.c", "  MODULE_LICENSE(\"Dual MIT/GPL\");\n"),
    ("nvidia-uvm/uvm.c", "MODULE_LICENSE(\"Dual MIT/GPL\");\n"),
    ("nvidia-uvm/uvm_pmm_gpu.c", "    .page_free = devmem_page_free,\n"),
    (
        "nvidia-uvm/uvm_linux.h",
        "        #define UVM_IS_CONFIG_HMM() 1\n    #else\n        #define UVM_IS_CONFIG_HMM() 0\n",
    ),
];

/// Of the proprietary flavour alone.
const PROPRIETARY: &[Lines] =
    &[modeset!("NVIDIA"), ("nvidia-uvm/uvm_linux.h", "    #define UVM_IS_CONFIG_HMM() 0\n")];

/// As in Debian's 550.163.01-5.1, which has changes for Linux 7.0.
const LEARNT: &[Lines] = &[
    ("common/inc/nv-time.h", "static inline NvBool nv_in_hardirq(void)\n    return in_irq();\n"),
    ("nvidia/os-interface.c", "    return (nv_in_hardirq());\n"),
    (
        "nvidia/nv-dma.c",
        "    return (ops->map_phys != NULL);\n#else\n    return (ops->map_resource != NULL);\n#endif\n\
         #else\n    return NV_FALSE;\n#endif\n",
    ),
    (
        "common/inc/nv-mm.h",
        "    nv_vma_start_write(vma);\n#if defined(NV_VMA_FLAGS_SET_WORD_PRESENT)\n\
         \x20   vma_flags_set_word(&vma->flags, flags);\n#else\n\
         \x20   ACCESS_PRIVATE(vma, __vm_flags) |= flags;\n#endif\n",
    ),
    ("nvidia/nv-mmap.c", "    if (nv_is_vma_write_locked(vma, &mm_lock_seq))\n        return;\n"),
];

/// Selects as for 550.163.01, on these headers and sources, and applies.
fn patched(flavour: Flavour, headers: &[Lines], sources: &[Lines]) -> (Vec<String>, String) {
    let (headers, sources) = (tree(headers), tree(sources));
    let candidates = candidates(&config(), "550.163.01", flavour).expect("candidates");
    let selected = select(&candidates, headers.path(), &[Path::new("/")], sources.path());
    let selected = selected.expect("reads");
    apply(&selected, sources.path()).expect("applies");
    let mut text = String::new();
    for diff in selected.iter().flat_map(|patch| &patch.diff.files) {
        text += &fs::read_to_string(sources.path().join(&diff.path)).expect("read");
    }
    (selected.into_iter().map(|patch| patch.name).collect(), text)
}

#[rstest]
#[case::open_on_7(Flavour::Open, NEW, &[SOURCES, OPEN], &["dma-map-phys", "drm-atomic-commit", "in-irq-gone", "strncpy-gone", "uvm-hmm-off", "vma-flags-by-function"])]
#[case::open_on_6(Flavour::Open, OLD, &[SOURCES, OPEN], &[])]
#[case::proprietary_on_7(Flavour::Proprietary, NEW, &[SOURCES, PROPRIETARY], &["dma-map-phys", "drm-atomic-commit", "in-irq-gone", "strncpy-gone", "vma-flags-by-word"])]
#[case::proprietary_on_6(Flavour::Proprietary, OLD, &[SOURCES, PROPRIETARY], &[])]
#[case::proprietary_with_changes_on_7(Flavour::Proprietary, NEW, &[SOURCES, PROPRIETARY, LEARNT], &["drm-atomic-commit", "strncpy-gone"])]
#[case::no_headers(Flavour::Open, &[], &[SOURCES, OPEN], &[])]
#[case::a_proprietary_licence(Flavour::Open, NEW, &[SOURCES, OPEN, PROPRIETARY], &["dma-map-phys", "drm-atomic-commit", "in-irq-gone", "strncpy-gone"])]
fn each_interface_that_is_gone_has_a_patch_for_sources_that_still_use_it(
    #[case] flavour: Flavour,
    #[case] headers: &[Lines],
    #[case] sources: &[&[Lines]],
    #[case] expected: &[&str],
) {
    let (names, _) = patched(flavour, headers, &sources.concat());
    assert_eq!(names, expected);
}

#[rstest]
#[case::open(Flavour::Open, OPEN, &["vm_flags_set(vma, flags);", "#define NV_CAN_CALL_VMA_START_WRITE 1"])]
#[case::proprietary(Flavour::Proprietary, PROPRIETARY, &["vma_flags_set_word(&vma->flags, flags);", "VM_REFCNT_EXCLUDE_READERS_FLAG", "if (__is_vma_write_locked(vma))"])]
fn together_they_leave_no_use_of_an_interface_that_is_gone(
    #[case] flavour: Flavour,
    #[case] own: &[Lines],
    #[case] used: &[&str],
) {
    let (_, text) = patched(flavour, NEW, &[SOURCES, own].concat());
    for gone in ["in_irq()", "__vm_flags)", "map_resource", "UVM_IS_CONFIG_HMM() 1"] {
        assert!(!text.contains(gone), "{gone} is left in {text}");
    }
    if flavour == Flavour::Proprietary {
        assert!(!text.contains("VMA_LOCK_OFFSET"), "{text}");
    }
    let always = ["#include \"nv-strncpy.h\"", "in_hardirq()", "ops->map_phys"];
    for new in used.iter().chain(&always) {
        assert!(text.contains(new), "{new} is not in {text}");
    }
}

/// As in nvidia-uvm/uvm_pmm_gpu.c of NVIDIA's 570.211.01.
const P2P_PAGES: &str = "static const struct dev_pagemap_ops uvm_device_p2p_pgmap_ops =\n{\n    \
    .page_free = device_p2p_page_free,\n};\n";
/// As in that of 590.48.01, before the same lines.
const COHERENT_PAGES: &str = "static void device_coherent_page_free(struct page *page)\n{\n    \
    device_p2p_page_free(page);\n}\n\nstatic const struct dev_pagemap_ops uvm_device_coherent_pgmap_ops =\n{\n    \
    .page_free = device_coherent_page_free,\n};\n";
/// As in that of 580.142, which has the callbacks of both kernels.
const BOTH: &str = "#if defined(NV_PAGEMAP_OPS_HAS_FOLIO_FREE)\n    .folio_free = device_p2p_folio_free,\n#else\n    \
    .page_free = device_p2p_page_free,\n#endif\n";

#[rstest]
#[case::gone("570.211.01", NEW, &[P2P_PAGES], &["uvm-p2p-folio-free"])]
#[case::both_gone("590.48.01", NEW, &[COHERENT_PAGES, P2P_PAGES], &["uvm-coherent-folio-free", "uvm-p2p-folio-free"])]
#[case::there("590.48.01", OLD, &[COHERENT_PAGES, P2P_PAGES], &[])]
#[case::for_both_kernels("580.142", NEW, &[BOTH], &[])]
#[case::older("560.35.03", NEW, &[P2P_PAGES], &[])]
fn callbacks_of_device_pages_take_folios_where_the_kernel_hands_them(
    #[case] driver: &str,
    #[case] headers: &[Lines],
    #[case] sources: &[&str],
    #[case] expected: &[&str],
) {
    let before = sources.concat();
    let (headers, sources) = (tree(headers), tree(&[("nvidia-uvm/uvm_pmm_gpu.c", &before)]));
    let candidates = candidates(&config(), driver, Flavour::Open).expect("candidates");
    let selected = select(&candidates, headers.path(), &[Path::new("/")], sources.path());
    let selected = selected.expect("reads");
    assert_eq!(names(&selected), expected);
    apply(&selected, sources.path()).expect("applies");
    let patched =
        fs::read_to_string(sources.path().join("nvidia-uvm/uvm_pmm_gpu.c")).expect("read");
    if expected.is_empty() {
        assert_eq!(patched, before);
        return;
    }
    assert!(!patched.contains(".page_free"), "{patched}");
    for name in
        ["p2p", "coherent"].into_iter().filter(|name| before.contains(&format!("_{name}_pgmap")))
    {
        let takes = format!(
            "device_{name}_folio_free(struct folio *folio)\n{{\n    device_p2p_page_free(&folio->page);\n"
        );
        assert!(patched.contains(&takes), "{takes} is not in {patched}");
        assert!(patched.contains(&format!(".folio_free = device_{name}_folio_free,")), "{patched}");
    }
}

/// As in Debian's headers of 7.2 and 7.3.
const ACPI_DRIVER: &str = "struct acpi_driver {\n\tchar name[80];\n};\nstruct acpi_device {\n";
const NO_ACPI_DRIVER: &str = "struct acpi_device_ops;\nstruct acpi_device {\n";

/// As in common/inc/nv-linux.h and nvidia/nv-acpi.c of 470.256.02, and of 390.157 and 418.226.00.
const EVENTS: &str = "#if defined(CONFIG_ACPI)\n#include <linux/acpi.h>\n\
    #define NV_LINUX_ACPI_EVENTS_SUPPORTED 1\n#endif\n\n";
const EVENTS_IF: &str = "#if defined(CONFIG_ACPI)\n\
    #if defined(NV_ACPI_DEVICE_OPS_HAS_MATCH) || defined(ACPI_VIDEO_HID)\n\
    #define NV_LINUX_ACPI_EVENTS_SUPPORTED 1\n#endif\n#endif\n\n";
const WALK: &str = "#if defined(NV_LINUX_ACPI_EVENTS_SUPPORTED)\n\
    #if (NV_ACPI_WALK_NAMESPACE_ARGUMENT_COUNT == 6)\n";
const REGISTERS: &str = "static const struct acpi_driver nv_acpi_driver_template = {\n";

#[rstest]
#[case::gone("470.256.02", NO_ACPI_DRIVER, EVENTS, REGISTERS, true)]
#[case::gone_older("390.157", NO_ACPI_DRIVER, EVENTS_IF, REGISTERS, true)]
#[case::there("470.256.02", ACPI_DRIVER, EVENTS, REGISTERS, false)]
#[case::no_headers("470.256.02", "", EVENTS, REGISTERS, false)]
#[case::without_driver("470.256.02", NO_ACPI_DRIVER, EVENTS, "", false)]
#[case::newer("535.309.01", NO_ACPI_DRIVER, EVENTS, REGISTERS, false)]
fn a_driver_that_registers_for_acpi_events_is_compiled_without_where_it_cannot(
    #[case] driver: &str,
    #[case] header: &str,
    #[case] events: &str,
    #[case] registers: &str,
    #[case] is_patched: bool,
) {
    let headers = tree(&[("include/acpi/acpi_bus.h", header)]);
    let text = format!("{events}{WALK}");
    let sources = tree(&[("common/inc/nv-linux.h", &text), ("nvidia/nv-acpi.c", registers)]);
    let candidates = candidates(&config(), driver, Flavour::Proprietary).expect("candidates");
    let selected = select(&candidates, headers.path(), &[Path::new("/")], sources.path());
    let selected = selected.expect("reads");
    assert_eq!(names(&selected), if is_patched { vec!["acpi-driver-gone"] } else { vec![] });
    apply(&selected, sources.path()).expect("applies");
    let patched = fs::read_to_string(sources.path().join("common/inc/nv-linux.h")).expect("read");
    let undone = patched.find("#undef NV_LINUX_ACPI_EVENTS_SUPPORTED");
    assert_eq!(undone.is_some(), is_patched);
    assert!(undone < patched.find(WALK), "the switch is off before it is asked: {patched}");
}
