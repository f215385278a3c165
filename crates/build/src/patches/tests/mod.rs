use super::*;
use longshore_core::disk::Disk;
use longshore_core::failure::ExitCode;
use rstest::rstest;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};

mod linux_7;

const ABOUT: &str = r#"
reason = "r"
origin = "o"
flavours = ["open"]
driver = { from = "535", below = "555" }
kernel = [{ file = "include/linux/pci.h", has = "int f(int $);" }]
source = [{ file = "nvidia/a.c", has = "f(" }]
"#;
const CHANGE_A: &str = "--- a/nvidia/a.c\n+++ b/nvidia/a.c\n@@ -1 +1 @@\n-f();\n+f(0);\n";

fn patch(name: &str, change: &str) -> Patch {
    Patch::parse(name, ABOUT, change.as_bytes()).expect("a patch")
}

/// `ABOUT` without the lines that begin with these keys.
fn without(keys: &[&str]) -> String {
    let kept = ABOUT.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
    kept.collect::<Vec<_>>().join("\n")
}

fn config() -> PatchConfig {
    PatchConfig { apply: true, off: Vec::new(), dirs: Vec::new() }
}

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(path, text).expect("write");
    }
    dir
}

fn names(patches: &[Patch]) -> Vec<&str> {
    patches.iter().map(|p| p.name.as_str()).collect()
}

#[test]
fn what_is_shipped_is_whole_and_says_why() {
    let shipped = shipped().expect("all parse");
    let folders = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/patches")).expect("list");
    assert_eq!(folders.count(), shipped.len(), "a folder that is not in the program");
    for patch in shipped.values() {
        assert!(!patch.about.source.is_empty(), "{}: a driver may know already", patch.name);
        assert!(!patch.about.reason.trim().is_empty() && !patch.about.origin.trim().is_empty());
    }
}

#[rstest]
#[case::first("535.261.03", Flavour::Open, true)]
#[case::from("535", Flavour::Open, true)]
#[case::last("550.163.01", Flavour::Open, true)]
#[case::below("555", Flavour::Open, false)]
#[case::newer("580.1", Flavour::Open, false)]
#[case::older("470.256.02", Flavour::Open, false)]
#[case::flavour("535.261.03", Flavour::Proprietary, false)]
fn a_patch_is_for_its_drivers(#[case] driver: &str, #[case] flavour: Flavour, #[case] is: bool) {
    assert_eq!(patch("a", CHANGE_A).is_for(driver, flavour), is);
}

#[rstest]
#[case::both("int f(int a);", "f();", true)]
#[case::not_the_kernel("int f(void);", "f();", false)]
#[case::not_the_source("int f(int a);", "g();", false)]
fn a_patch_is_selected_where_all_probes_hold(
    #[case] header: &str,
    #[case] source: &str,
    #[case] selected: bool,
) {
    let headers = tree(&[("include/linux/pci.h", header)]);
    let sources = tree(&[("nvidia/a.c", source)]);
    let patches = [patch("a", CHANGE_A)];
    let found = select(&patches, headers.path(), &[Path::new("/")], sources.path()).expect("reads");
    assert_eq!(found.len(), usize::from(selected));
}

#[rstest]
#[case::the_sources_alone(without(&["kernel"]), "f();", true)]
#[case::the_sources_do_not_hold(without(&["kernel"]), "g();", false)]
#[case::the_kernel_alone(without(&["source"]), "g();", true)]
fn either_the_kernel_or_the_sources_may_be_left_unasked(
    #[case] about: String,
    #[case] source: &str,
    #[case] selected: bool,
) {
    let headers = tree(&[("include/linux/pci.h", "int f(int a);")]);
    let sources = tree(&[("nvidia/a.c", source)]);
    let patches = [Patch::parse("a", &about, CHANGE_A.as_bytes()).expect("a patch")];
    let found = select(&patches, headers.path(), &[Path::new("/")], sources.path()).expect("reads");
    assert_eq!(found.len(), usize::from(selected));
}

/// As in nvidia/nv-pci.c of 535.261.03, 550.163.01 and 555.58.02 (open), except for the second
/// case.
#[rstest]
#[case::as_it_is(
    "resize:\n    /* Attempt to resize BAR1 */\n    \
     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);\n\n    if (r) {",
    true
)]
#[case::learnt_in_place(
    "resize:\n    r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size, 0);\n    if (r) {",
    false
)]
#[case::learnt_beside_it(
    "resize:\n#if defined(NV_PCI_RESIZE_RESOURCE_HAS_EXCLUDE_BARS_ARG)\n    \
     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size, 0);\n#else\n    \
     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);\n#endif\n    if (r) {",
    false
)]
#[case::not_called("static int nv_resize_pcie_bars(struct pci_dev *pci_dev) {", false)]
fn a_driver_that_has_learnt_the_further_argument_is_left_alone(
    #[case] source: &str,
    #[case] selected: bool,
) {
    let header =
        "int __must_check pci_resize_resource(struct pci_dev *dev, int i, int size, int e);";
    let headers = tree(&[("include/linux/pci.h", header)]);
    let sources = tree(&[("nvidia/nv-pci.c", source)]);
    let patches = [shipped().expect("all parse")["pci-resize-resource-exclude-bars"].clone()];
    let found = select(&patches, headers.path(), &[Path::new("/")], sources.path()).expect("reads");
    assert_eq!(found.len(), usize::from(selected));
}

/// The relevant parts of nvidia/nv.c, as they are in 550.54.14 and 555.58.02.
const LISTS_TOO_EARLY: &str = "static void nv_init_mapping_revocation()
{
    down(&nvl->mmap_lock);

    /* Set up struct address_space for use with unmap_mapping_range() */
    address_space_init_once(&nvlfp->mapping);
    nvlfp->mapping.host = inode;
    nvlfp->mapping.a_ops = inode->i_mapping->a_ops;
#if defined(NV_ADDRESS_SPACE_HAS_BACKING_DEV_INFO)
    nvlfp->mapping.backing_dev_info = inode->i_mapping->backing_dev_info;
#endif
    file->f_mapping = &nvlfp->mapping;

    /* Add nvlfp to list of open files in nvl for mapping revocation */
    list_add(&nvlfp->entry, &nvl->open_files);

    up(&nvl->mmap_lock);
}

    if (rc == 0)
        nvlfp->nvptr = nvl;

    complete_all(&nvlfp->open_complete);

    nv = NV_STATE_PTR(nvl);

    if (nv_try_lock_foreground_open(file, nvl) == 0)
    {
    }
    else
    {
        nv_init_mapping_revocation(nvl, file, nvlfp, inode);
    }

    return rc;
";

#[rstest]
#[case::as_it_is("", "", true)]
#[case::lists_what_was_opened("nvlfp->nvptr = nvl;", "nv_add_open_file(nvl, nvlfp);", false)]
#[case::lists_before_the_open("    else\n    {", "    {", false)]
#[case::lists_elsewhere("list_add(&nvlfp->entry, &nvl->open_files);", "", false)]
fn a_driver_that_lists_only_what_was_opened_is_left_alone(
    #[case] old: &str,
    #[case] new: &str,
    #[case] selected: bool,
) {
    let text =
        if old.is_empty() { LISTS_TOO_EARLY.into() } else { LISTS_TOO_EARLY.replace(old, new) };
    assert_eq!(text == LISTS_TOO_EARLY, selected, "the case changes what it says it changes");
    let sources = tree(&[("nvidia/nv.c", &text)]);
    let patches = [shipped().expect("all parse")["list-only-opened-files"].clone()];
    let found = select(&patches, sources.path(), &[], sources.path()).expect("reads");
    assert_eq!(found.len(), usize::from(selected));
}

#[test]
fn patches_are_switched_off_by_name_and_all_at_once() {
    let of = |config: &PatchConfig| {
        let found = candidates(config, "535.261.03", Flavour::Open).expect("candidates");
        found.into_iter().map(|p| p.name).collect::<Vec<_>>()
    };
    let all = of(&config());
    assert!(all.contains(&"pci-resize-resource-exclude-bars".to_owned()));
    let off = vec![all[0].clone(), "no-such-patch".to_owned()];
    assert_eq!(of(&PatchConfig { off, ..config() }).len(), all.len() - 1);
    assert!(of(&PatchConfig { apply: false, ..config() }).is_empty());
}

#[test]
fn a_folder_of_the_users_adds_and_replaces() {
    let ours = "pci-resize-resource-exclude-bars";
    let dir = tree(&[
        ("b-own/patch.toml", ABOUT),
        ("b-own/patch.diff", CHANGE_A),
        (&format!("{ours}/patch.toml"), ABOUT),
        (&format!("{ours}/patch.diff"), CHANGE_A),
        ("README", "not a patch"),
        (".hidden/x", ""),
    ]);
    let config = PatchConfig { dirs: vec![dir.path().to_owned()], ..config() };
    let found = candidates(&config, "535.261.03", Flavour::Open).expect("candidates");
    assert!(names(&found).contains(&"b-own"));
    let replaced = found.iter().find(|p| p.name == ours).expect("there");
    assert_eq!(replaced.sha256, hex(&Sha256::digest(CHANGE_A)));
}

#[rstest]
#[case::no_toml("a", "", CHANGE_A, "missing field")]
#[case::unknown_key("a", "kernels = 1", CHANGE_A, "kernels")]
#[case::no_diff("a", ABOUT, "", "patch.diff: line 1: no file")]
#[case::path("a", ABOUT, "--- a/../x\n+++ b/../x\n", "not a path below")]
#[case::name("a b", ABOUT, CHANGE_A, "not a name for a patch")]
#[case::reserved("packaging-patches", ABOUT, CHANGE_A, "not a name for a patch")]
#[case::probe("a", &ABOUT.replace("has = \"int f(int $);\"", ""), CHANGE_A, "either `has`")]
#[case::no_probe("a", &without(&["kernel", "source"]), CHANGE_A, "without a probe")]
fn a_wrong_patch_of_the_users_is_their_mistake(
    #[case] name: &str,
    #[case] about: &str,
    #[case] change: &str,
    #[case] said: &str,
) {
    let (toml, diff) = (format!("{name}/patch.toml"), format!("{name}/patch.diff"));
    let dir = tree(&[(&toml, about), (&diff, change)]);
    let config = PatchConfig { dirs: vec![dir.path().to_owned()], ..config() };
    let failure = candidates(&config, "535.261.03", Flavour::Open).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.to_string().contains(said), "{failure}");
}

/// Opens a file or directory to others.
fn open_to_others(path: &Path) {
    let mode = fs::metadata(path).expect("there").permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o022)).expect("mode");
}

fn give_away(path: &Path) {
    lchown(path, Some(65534), Some(65534)).expect("chown");
}

#[rstest]
#[case::roots_alone("", |_: &Path| (), None)]
#[case::the_diff("a/patch.diff", open_to_others, Some("chmod go-w"))]
#[case::the_description("a/patch.toml", open_to_others, Some("chmod go-w"))]
#[case::the_owner_of_the_diff("a/patch.diff", give_away, Some("chown root:root"))]
#[case::the_patch("a", open_to_others, Some("chmod go-w"))]
#[case::the_folder("", open_to_others, Some("chmod go-w"))]
#[case::a_link("b", give_away, Some("chown root:root"))]
fn patches_that_others_may_write_to_are_refused(
    #[case] path: &str,
    #[case] spoil: fn(&Path),
    #[case] remedy: Option<&str>,
) {
    let dir = tree(&[("a/patch.toml", ABOUT), ("a/patch.diff", CHANGE_A)]);
    symlink("a", dir.path().join("b")).expect("link");
    let path = dir.path().join(path);
    spoil(&path);
    let config = PatchConfig { dirs: vec![dir.path().to_owned()], ..config() };
    let found = candidates(&config, "535.261.03", Flavour::Open);
    assert_eq!(found.is_err(), remedy.is_some(), "{found:?}");
    if let (Err(failure), Some(remedy)) = (found, remedy) {
        assert_eq!(failure.code(), ExitCode::Verification);
        let place = path.display().to_string();
        let place = place.trim_end_matches('/');
        assert!(failure.report().contains(place), "{}", failure.report());
        assert!(failure.remedy_or_default().contains(remedy), "{}", failure.remedy_or_default());
    }
}

#[test]
fn an_empty_folder_of_others_is_refused() {
    let dir = tree(&[]);
    let config = PatchConfig { dirs: vec![dir.path().to_owned()], ..config() };
    candidates(&config, "535", Flavour::Open).expect("nothing in it");
    open_to_others(dir.path());
    let failure = candidates(&config, "535", Flavour::Open).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Verification);
}

#[test]
fn a_folder_that_is_not_there_is_the_users_mistake() {
    let config = PatchConfig { dirs: vec!["/no/such/folder".into()], ..config() };
    let failure = candidates(&config, "535", Flavour::Open).expect_err("refused");
    assert_eq!(failure.code(), ExitCode::Usage);
    assert!(failure.report().contains("/no/such/folder"), "{}", failure.report());
}

#[test]
fn patches_to_one_file_are_applied_one_after_the_other_and_keep_its_time() {
    let sources = tree(&[("nvidia/a.c", "f();\nend\n")]);
    let path = sources.path().join("nvidia/a.c");
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::open(&path).expect("open").set_modified(then).expect("set the time");
    let second = "--- a/nvidia/a.c\n+++ b/nvidia/a.c\n@@ -1 +1 @@\n-f(0);\n+f(1);\n";
    apply(&[patch("a", CHANGE_A), patch("b", second)], sources.path()).expect("applies");
    assert_eq!(fs::read_to_string(&path).expect("read"), "f(1);\nend\n");
    assert_eq!(fs::metadata(&path).expect("stat").modified().expect("time"), then);
}

#[rstest]
#[case::misfit(
    "--- a/nvidia/b.c\n+++ b/nvidia/b.c\n@@ -1 +1 @@\n-x\n+y\n",
    "nvidia/b.c: hunk 1 (for line 1)"
)]
#[case::absent(
    "--- a/nvidia/c.c\n+++ b/nvidia/c.c\n@@ -1 +1 @@\n-x\n+y\n",
    "nvidia/c.c: No such file"
)]
#[case::link(
    "--- a/nvidia/link\n+++ b/nvidia/link\n@@ -1 +1 @@\n-x\n+y\n",
    "nvidia/link is a link"
)]
fn one_hunk_that_does_not_fit_leaves_every_file_as_it_was(#[case] bad: &str, #[case] said: &str) {
    let outside = tree(&[("x", "x\n")]);
    let sources = tree(&[("nvidia/a.c", "f();\n"), ("nvidia/b.c", "z\n")]);
    let link = sources.path().join("nvidia/link");
    std::os::unix::fs::symlink(outside.path().join("x"), link).expect("link");
    let failure =
        apply(&[patch("a", CHANGE_A), patch("b", bad)], sources.path()).expect_err("misfit");
    assert_eq!(failure.code(), ExitCode::Compile);
    assert!(failure.to_string().contains("the patch b "), "{failure}");
    assert!(failure.to_string().contains(said), "{failure}");
    assert!(failure.remedy_text().is_some_and(|r| r.contains("--no-patch b")));
    assert_eq!(fs::read_to_string(sources.path().join("nvidia/a.c")).expect("read"), "f();\n");
    assert_eq!(fs::read_to_string(outside.path().join("x")).expect("read"), "x\n");
}

#[test]
fn what_was_selected_is_recalled_by_its_question() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store =
        longshore_core::store::Store::open(dir.path(), Disk::default()).expect("store opens");
    assert_eq!(memory::recall(&store, "q"), None);
    let applied = named(&[patch("a", CHANGE_A)]);
    memory::keep(&store, "q", &applied).expect("keeps");
    assert_eq!(memory::recall(&store, "q"), Some(applied));
    fs::write(dir.path().join("patches/q.json"), "cut off").expect("write");
    assert_eq!(memory::recall(&store, "q"), None);
}
