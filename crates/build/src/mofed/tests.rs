//! Trees as a container can write them, their digests, copies and places in keys.

use super::*;
use longshore_modules::testing::set;
use nix::sys::stat::Mode;
use rstest::rstest;

const RELEASE: &str = "6.1.0-50-amd64";

/// A container's root with a tree for the kernel.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        Self::at(&format!("x86_64/{RELEASE}"))
    }

    fn at(place: &str) -> Self {
        let scene = Self { dir: tempfile::tempdir().expect("temporary directory") };
        let tree = scene.root().join(PLACE).join(place);
        fs::create_dir_all(tree.join("include/rdma")).expect("directories");
        fs::write(tree.join(SYMBOLS), "0x1\tib_register_peer_memory_client\n").expect("write");
        fs::write(tree.join("include/rdma/peer_mem.h"), "struct peer;\n").expect("write");
        fs::write(tree.join("config.log"), "read by no compile").expect("write");
        symlink("rdma/peer_mem.h", tree.join("include/linked.h")).expect("link");
        scene
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn tree(&self) -> PathBuf {
        self.root().join(PLACE).join("x86_64").join(RELEASE)
    }

    fn find(&self) -> io::Result<Option<Mofed>> {
        Mofed::find(&self.root(), RELEASE, "x86_64")
    }

    fn found(&self) -> Mofed {
        self.find().expect("usable").expect("there")
    }
}

#[rstest]
#[case::of_the_machine(&format!("x86_64/{RELEASE}"), true)]
#[case::of_an_older_mofed(RELEASE, true)]
#[case::of_another_kernel("x86_64/6.1.0-49-amd64", false)]
#[case::of_no_stated_kernel("default", false)]
fn only_the_tree_of_the_kernel_is_found(#[case] place: &str, #[case] wanted: bool) {
    assert_eq!(Scene::at(place).find().expect("usable").is_some(), wanted);
}

#[rstest]
#[case("..")]
#[case(".")]
#[case("x86_64/6.1.0-50-amd64")]
#[case("")]
fn a_release_is_a_name(#[case] release: &str) {
    let scene = Scene::new();
    assert_eq!(Mofed::find(&scene.root(), release, "x86_64").expect("no tree"), None);
}

#[test]
fn a_link_to_the_tree_leads_where_it_leads_in_the_container() {
    let scene = Scene::at("elsewhere/tree");
    let link = scene.root().join(PLACE).join(RELEASE);
    symlink("/usr/src/ofa_kernel/elsewhere/tree", &link).expect("link");
    assert!(scene.find().expect("usable").is_some());
    fs::remove_file(&link).expect("removed");
    symlink("../../../../../../../../../../etc", &link).expect("link");
    assert_eq!(scene.find().expect("nothing"), None);
}

#[rstest]
#[case::no_symbols(|tree: &Path| fs::remove_file(tree.join(SYMBOLS)), "Module.symvers: No such file")]
#[case::no_headers(|tree: &Path| fs::remove_dir_all(tree.join(HEADERS)), "include: No such file")]
#[case::symbols_by_a_link(
    |tree: &Path| {
        fs::remove_file(tree.join(SYMBOLS))?;
        symlink("config.log", tree.join(SYMBOLS))
    },
    "Module.symvers: Too many levels"
)]
#[case::headers_by_a_link(
    |tree: &Path| {
        fs::rename(tree.join(HEADERS), tree.join("x"))?;
        symlink("x", tree.join(HEADERS))
    },
    "include: Too many levels"
)]
#[case::absolute_link(
    |tree: &Path| symlink("/etc/shadow", tree.join("include/a.h")),
    "include/a.h is a link"
)]
#[case::link_out(
    |tree: &Path| symlink("../../../x", tree.join("include/a.h")),
    "include/a.h is a link"
)]
#[case::pipe(
    |tree: &Path| Ok(nix::unistd::mkfifo(&tree.join("include/a.h"), Mode::S_IRWXU)?),
    "include/a.h is neither"
)]
#[case::huge(
    |tree: &Path| File::create(tree.join("include/a.h"))?.set_len(1 << 40),
    "include/a.h is more than"
)]
#[case::large(
    |tree: &Path| File::create(tree.join("include/a.h"))?.set_len(MOST_OF_FILE + 1),
    "include/a.h: it is larger"
)]
#[case::deep(
    |tree: &Path| fs::create_dir_all(tree.join(HEADERS).join("d/".repeat(30))),
    "is more than"
)]
fn a_tree_that_is_none_of_headers_is_refused(
    #[case] change: fn(&Path) -> io::Result<()>,
    #[case] wanted: &str,
) {
    let scene = Scene::new();
    change(&scene.tree()).expect("changed");
    let why = scene.find().expect_err("refused").to_string();
    assert!(why.contains(wanted) && why.contains(RELEASE), "{why}");
}

#[test]
fn entries_are_counted_over_all_directories() {
    let scene = Scene::new();
    let read = |entries| {
        let dir = OutputDir::open(&scene.tree()).expect("opens");
        Tree::read(dir, Limits { entries, ..LIMITS })
    };
    // Module.symvers, include, linked.h, rdma, peer_mem.h.
    assert_eq!(read(5).expect("few").entries.len(), 5);
    assert!(read(4).is_err());
}

#[rstest]
#[case::as_it_was(|_: &Path| Ok(()), true)]
#[case::read_by_no_compile(|tree: &Path| fs::write(tree.join("config.log"), "other"), true)]
#[case::another_symbol(|tree: &Path| fs::write(tree.join(SYMBOLS), "0x2\tib\n"), false)]
#[case::another_header(|tree: &Path| fs::write(tree.join("include/rdma/peer_mem.h"), ""), false)]
#[case::another_name(
    |tree: &Path| fs::rename(tree.join("include/rdma"), tree.join("include/x")),
    false
)]
#[case::one_more(|tree: &Path| fs::create_dir(tree.join("include/more")), false)]
fn the_digest_is_of_everything_that_a_compile_reads(
    #[case] change: fn(&Path) -> io::Result<()>,
    #[case] same: bool,
) {
    let scene = Scene::new();
    let before = scene.found();
    change(&scene.tree()).expect("changed");
    assert_eq!(scene.found() == before, same);
}

#[test]
fn a_key_has_the_tree_beside_the_headers() {
    let (found, mut key) = (Scene::new().found(), set().key);
    assert!(!found.is_in(&key));
    let before = key.digest();
    key.headers.extend([found.keyed()]);
    assert!(found.is_in(&key) && key.digest() != before);
    assert_eq!(found.keyed().0, "/usr/src/ofa_kernel/6.1.0-50-amd64");
    let other = Mofed { digest: "0".repeat(64), ..found };
    assert!(!other.is_in(&key));
}

#[test]
fn the_copy_is_where_the_drivers_sources_look_and_has_the_inputs_alone() {
    let (scene, build_root) = (Scene::new(), tempfile::tempdir().expect("temporary directory"));
    scene.found().copy_into(build_root.path()).expect("copied");
    let copy = build_root.path().join(PLACE).join(RELEASE);
    let text = |name: &str| fs::read_to_string(copy.join(name)).expect("read");
    assert!(text(SYMBOLS).contains("ib_register_peer_memory_client"));
    assert_eq!(text("include/linked.h"), "struct peer;\n");
    assert!(!copy.join("config.log").exists());
    let mode = fs::metadata(copy.join(SYMBOLS)).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn a_tree_that_changed_since_is_not_compiled_against() {
    let (scene, build_root) = (Scene::new(), tempfile::tempdir().expect("temporary directory"));
    let found = scene.found();
    fs::write(scene.tree().join("include/rdma/peer_mem.h"), "struct other;\n").expect("write");
    let failure = found.copy_into(build_root.path()).expect_err("another one");
    assert_eq!(failure.kind(), FailureKind::Verification);
    assert!(failure.to_string().contains("changed while it was copied"), "{failure}");
}

#[rstest]
#[case::header(|root: &Path| write_by_group(&root.join("tree/include/rdma/peer_mem.h")), "include/rdma/peer_mem.h")]
#[case::directory_of_headers(|root: &Path| write_by_group(&root.join("tree/include/rdma")), "include/rdma")]
#[case::symbols(|root: &Path| write_by_group(&root.join("tree").join(SYMBOLS)), SYMBOLS)]
#[case::tree(|root: &Path| write_by_group(&root.join("tree")), RELEASE)]
#[case::directory_on_the_way(|root: &Path| write_by_group(&root.join("root/usr/src")), "usr/src")]
#[case::containers_root(|root: &Path| write_by_group(&root.join("root")), "root")]
#[case::owner_of_a_header(|root: &Path| give(&root.join("tree/include/rdma/peer_mem.h")), "peer_mem.h")]
#[case::owner_of_a_link(|root: &Path| give(&root.join("tree/include/linked.h")), "linked.h")]
#[case::owner_on_the_way(|root: &Path| give(&root.join("root/usr/src/ofa_kernel")), "ofa_kernel")]
fn a_tree_that_others_may_write_to_is_refused(
    #[case] spoil: fn(&Path) -> io::Result<()>,
    #[case] culprit: &str,
) {
    let scene = Scene::new();
    symlink(scene.tree(), scene.dir.path().join("tree")).expect("link");
    scene.found();
    spoil(scene.dir.path()).expect("spoilt");
    let why = scene.find().expect_err("refused").to_string();
    let (path, rest) = why.split_once(" (uid ").expect("the owner");
    let said = path.contains(&format!("{culprit} can be written to by others"))
        || path.contains(&format!("{culprit} belongs to another user than root"));
    assert!(said && rest.contains("mode 0"), "{why}");
}

fn write_by_group(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o020))
}

fn give(path: &Path) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(65534), Some(65534))
}
