use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use rstest::rstest;

use super::*;

const DIR: &str = "/var/run/cdi";
const NAME: &str = "ours.json";

/// A host whose /var/run is a link to /run, as an absolute path.
fn host() -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("host");
    fs::create_dir_all(top.join("run/cdi")).unwrap();
    fs::create_dir_all(top.join("var")).unwrap();
    symlink("/run", top.join("var/run")).unwrap();
    fs::write(dir.path().join("secret"), "outside").unwrap();
    let root = Root::open(&top).unwrap();
    (dir, root)
}

fn place(root: &Root) -> PublishedFile<'_> {
    PublishedFile { root: root.path(), dir: Path::new(DIR), name: NAME }
}

fn names(root: &Root) -> Vec<String> {
    root.read_dir("run/cdi").unwrap()
}

#[test]
fn a_file_is_written_whole_and_removed_again() {
    let (_dir, root) = host();
    let place = place(&root);
    assert_eq!(read(&root, &place).unwrap(), Published::Nothing);
    for text in ["one", "another, which is longer"] {
        write(&root, &place, text.as_bytes()).unwrap();
        assert_eq!(read(&root, &place).unwrap(), Published::File(text.into()));
        assert_eq!(names(&root), [NAME]);
    }
    let found = fs::metadata(root.path().join("run/cdi").join(NAME)).unwrap();
    assert_eq!(found.mode() & 0o7777, MODE);
    withdraw(&root, &place, false).unwrap();
    withdraw(&root, &place, false).unwrap();
    assert_eq!(names(&root), [""; 0]);
}

#[test]
fn the_directory_is_made_and_removed_if_it_is_empty() {
    let (_dir, root) = host();
    let place = place(&root);
    let cdi = root.path().join("run/cdi");
    fs::remove_dir(&cdi).unwrap();
    assert_eq!(read(&root, &place).unwrap(), Published::NoDirectory);
    withdraw(&root, &place, false).unwrap();
    make_dir(&root, &place).unwrap();
    make_dir(&root, &place).unwrap();
    assert_eq!(fs::metadata(&cdi).unwrap().mode() & 0o7777, 0o755);
    write(&root, &place, b"text").unwrap();
    assert_eq!(errno(&remove_dir(&root, &place).unwrap_err()), Errno::ENOTEMPTY);
    withdraw(&root, &place, false).unwrap();
    remove_dir(&root, &place).unwrap();
    remove_dir(&root, &place).unwrap();
    assert!(!cdi.exists());
}

/// Files that a container with a mount of the directory can put there.
#[rstest]
#[case::link("a symbolic link", |path: &Path, secret: &Path| symlink(secret, path).unwrap())]
#[case::pipe("no regular file", |path: &Path, _: &Path| {
    nix::unistd::mkfifo(path, Mode::S_IRUSR).unwrap();
})]
#[case::directory("no regular file", |path: &Path, _: &Path| fs::create_dir(path).unwrap())]
#[case::large("larger than 4 MiB", |path: &Path, _: &Path| {
    File::create(path).unwrap().set_len(LARGEST + 1).unwrap();
})]
fn a_file_of_others_is_neither_followed_nor_waited_for(
    #[case] why: &str,
    #[case] put: fn(&Path, &Path),
) {
    let (dir, root) = host();
    let (place, secret) = (place(&root), dir.path().join("secret"));
    let own = root.path().join("run/cdi").join(NAME);
    put(&own, &secret);
    assert_eq!(read(&root, &place).unwrap(), Published::Other(why.to_owned()));
    write(&root, &place, b"text").unwrap();
    assert_eq!(read(&root, &place).unwrap(), Published::File(b"text".to_vec()));
    withdraw(&root, &place, false).unwrap();
    assert_eq!(names(&root), [""; 0]);
    assert_eq!(fs::read(secret).unwrap(), b"outside");
}

#[test]
fn a_directory_that_is_a_link_out_of_the_host_leads_nowhere() {
    let (dir, root) = host();
    let place = place(&root);
    fs::remove_dir(root.path().join("run/cdi")).unwrap();
    symlink(dir.path(), root.path().join("run/cdi")).unwrap();
    assert_eq!(read(&root, &place).unwrap(), Published::NoDirectory);
    assert!(write(&root, &place, b"text").is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn a_file_that_was_not_renamed_is_removed_and_that_of_others_kept() {
    let (_dir, root) = host();
    let place = place(&root);
    let cdi = root.path().join("run/cdi");
    fs::write(cdi.join(NAME), "theirs").unwrap();
    fs::write(cdi.join(format!(".{NAME}.0123456789abcdef.tmp")), "not renamed").unwrap();
    withdraw(&root, &place, true).unwrap();
    assert_eq!(names(&root), [NAME]);
}

/// A file system without space: nothing is left of the file, and the one before stays.
#[test]
fn a_full_directory_keeps_the_file_that_it_has() {
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use nix::sched::{CloneFlags, unshare};
    // A mount namespace belongs to a thread; the others keep theirs.
    let full = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).expect("this test wants root");
        let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
        let (_dir, root) = host();
        let (place, cdi) = (place(&root), root.path().join("run/cdi"));
        let options = Some("size=16k");
        mount(Some("t"), &cdi, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        write(&root, &place, b"before").unwrap();
        let error = write(&root, &place, &[b'x'; 64 << 10]).unwrap_err();
        assert_eq!(errno(&error), Errno::ENOSPC);
        assert_eq!(read(&root, &place).unwrap(), Published::File(b"before".to_vec()));
        assert_eq!(names(&root), [NAME]);
        umount2(&cdi, MntFlags::MNT_DETACH).unwrap();
    });
    full.join().unwrap();
}
