use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use longshore_core::testing::Waiting;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rstest::rstest;

use super::*;

const NAME: &str = "status";

struct Scene {
    top: tempfile::TempDir,
    dir: File,
}

impl Scene {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("shared")).unwrap();
        fs::write(top.path().join("victim"), "theirs").unwrap();
        let dir = File::open(top.path().join("shared")).unwrap();
        Self { top, dir }
    }

    fn shared(&self) -> SharedDir<'_> {
        SharedDir::new(&self.dir)
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        self.top.path().join("shared").join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.top.path().join("shared")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let new = self.shared().create(NAME.as_ref())?;
        new.file().write_all(text.as_bytes())?;
        new.publish_anyway()
    }
}

#[test]
fn a_file_has_no_name_until_it_is_complete() {
    let scene = Scene::new();
    for before in [&[][..], &[NAME.to_owned()][..]] {
        let new = scene.shared().create(NAME.as_ref()).unwrap();
        new.file().write_all(b"half").unwrap();
        assert_eq!(scene.names(), before);
        drop(new);
        assert_eq!(scene.names(), before);
        scene.write("whole").unwrap();
        assert_eq!(scene.names(), [NAME]);
        assert_eq!(scene.shared().read(NAME, 9).unwrap(), SharedFile::File(b"whole".to_vec()));
    }
}

/// Events of the directory while `act` runs.
fn events(scene: &Scene, act: impl FnOnce()) -> Vec<(AddWatchFlags, String)> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    let names = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVE | AddWatchFlags::IN_DELETE;
    inotify.add_watch(&scene.top.path().join("shared"), names).unwrap();
    act();
    let seen = inotify.read_events().unwrap().into_iter();
    seen.map(|event| (event.mask, event.name.unwrap().into_string().unwrap())).collect()
}

/// The CDI library refreshes on a rename, a removal and a write, and not on a new name.
#[test]
fn watchers_see_a_rename_whether_the_name_is_free_or_taken() {
    let scene = Scene::new();
    for text in ["free", "taken"] {
        let seen = events(&scene, || scene.write(text).unwrap());
        let [(linked, one), (from, two), (to, name)] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((one, name.as_str()), (two, NAME));
        assert!(is_temporary(one.as_ref(), NAME.as_ref()), "{one}");
        assert_eq!(*linked, AddWatchFlags::IN_CREATE);
        assert_eq!((*from, *to), (AddWatchFlags::IN_MOVED_FROM, AddWatchFlags::IN_MOVED_TO));
    }
}

/// containerd reads each file of a directory that it imports.
#[test]
fn a_free_name_is_the_only_one_for_readers_of_all_names() {
    let scene = Scene::new();
    let seen = events(&scene, || {
        scene.shared().create(NAME.as_ref()).unwrap().publish().unwrap();
    });
    assert_eq!(seen, [(AddWatchFlags::IN_CREATE, NAME.to_owned())]);
}

/// As on a file system that has no files without a name.
#[test]
fn a_file_with_a_temporary_name_is_renamed_or_removed() {
    let scene = Scene::new();
    for is_published in [false, true] {
        let name = temporary(NAME.as_ref()).unwrap();
        assert!(is_temporary(&name, NAME.as_ref()), "{}", name.display());
        let file = File::create_new(scene.at(name.to_str().unwrap())).unwrap();
        let dir = scene.shared();
        let new = NewFile { dir, name: NAME.as_ref(), temporary: name, is_named: true, file };
        if is_published {
            new.publish().unwrap();
        } else {
            drop(new);
        }
        assert_eq!(scene.names().len(), usize::from(is_published));
    }
    assert_eq!(scene.names(), [NAME]);
}

fn directory_with_files(path: &Path, victim: &Path) {
    fs::create_dir_all(path.join("sub")).unwrap();
    fs::hard_link(victim, path.join("sub/file")).unwrap();
    symlink(victim, path.join("link")).unwrap();
}

/// Obstacles that a container with the directory can make.
#[rstest]
#[case::file(|path: &Path, _: &Path| fs::write(path, "x").unwrap(), 0)]
#[case::link(|path: &Path, victim: &Path| symlink(victim, path).unwrap(), 0)]
#[case::link_to_itself(|path: &Path, _: &Path| symlink(path, path).unwrap(), 0)]
#[case::hard_link(|path: &Path, victim: &Path| fs::hard_link(victim, path).unwrap(), 0)]
#[case::pipe(|path: &Path, _: &Path| mkfifo(path, Mode::S_IRWXU).unwrap(), 0)]
#[case::socket(|path: &Path, _: &Path| drop(UnixListener::bind(path).unwrap()), 0)]
#[case::empty_directory(|path: &Path, _: &Path| fs::create_dir(path).unwrap(), 0)]
#[case::directory(directory_with_files, 1)]
fn an_obstacle_is_replaced_and_not_followed(#[case] put: fn(&Path, &Path), #[case] aside: usize) {
    let scene = Scene::new();
    let victim = scene.top.path().join("victim");
    put(&scene.at(NAME), &victim);
    let inside = fs::read_dir(scene.at(NAME)).map(Iterator::count).ok();
    scene.write("Ready").unwrap();
    assert_eq!(fs::read_to_string(scene.at(NAME)).unwrap(), "Ready");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "theirs");
    assert_eq!(scene.names().len(), 1 + aside, "{:?}", scene.names());
    if aside == 1 {
        let kept = fs::read_dir(scene.at(".status.in-the-way-1")).unwrap().count();
        assert_eq!((Some(kept), fs::metadata(&victim).unwrap().nlink()), (inside, 2));
    }
}

#[test]
fn directories_are_moved_aside_so_many_times() {
    let scene = Scene::new();
    let victim = scene.top.path().join("victim");
    for _ in 0..ASIDE {
        directory_with_files(&scene.at(NAME), &victim);
        scene.write("Ready").unwrap();
        fs::remove_file(scene.at(NAME)).unwrap();
    }
    directory_with_files(&scene.at(NAME), &victim);
    let names = scene.names();
    assert_eq!(scene.write("Ready").unwrap_err().raw_os_error(), Some(Errno::EISDIR as i32));
    assert_eq!(scene.names(), names, "nothing half done");
    // One of them is empty again.
    fs::remove_dir_all(scene.at(".status.in-the-way-3")).unwrap();
    scene.write("Ready").unwrap();
}

#[test]
fn a_directory_stays_where_that_is_asked_for() {
    let scene = Scene::new();
    fs::create_dir(scene.at(NAME)).unwrap();
    let new = scene.shared().create(NAME.as_ref()).unwrap();
    assert_eq!(new.publish().unwrap_err().raw_os_error(), Some(Errno::EISDIR as i32));
    assert_eq!(scene.names(), [NAME]);
}

#[test]
fn a_sweep_takes_only_files_of_this_name() {
    let scene = Scene::new();
    let swept = ".status.0123456789abcdef.tmp";
    let others = [
        ".other.0123456789abcdef.tmp",
        ".status.0123456789abcdeg.tmp",
        ".status.0123456789abcde.tmp",
        ".status.0123456789abcdef",
        ".status.tmp",
        "status.0123456789abcdef.tmp",
    ];
    others.iter().chain([&swept]).for_each(|name| fs::write(scene.at(name), "").unwrap());
    fs::create_dir(scene.at(".status.aaaaaaaaaaaaaaaa.tmp")).unwrap();
    scene.shared().sweep(NAME.as_ref());
    let names = scene.names();
    assert!(!scene.at(swept).exists());
    assert_eq!(names.len(), others.len() + 1, "{names:?}");
}

#[test]
fn a_file_that_is_not_regular_is_not_opened() {
    let scene = Scene::new();
    mkfifo(&scene.at(NAME), Mode::S_IRWXU).unwrap();
    let writer = Waiting::at(&scene.at(NAME));
    let found = scene.shared().read(NAME, 9).unwrap();
    assert_eq!(found, SharedFile::Other("no regular file".to_owned()));
    assert!(writer.is_waiting());
}

#[test]
fn a_large_file_is_not_read() {
    let scene = Scene::new();
    fs::write(scene.at(NAME), "12345").unwrap();
    assert_eq!(scene.shared().read(NAME, 5).unwrap(), SharedFile::File(b"12345".to_vec()));
    File::create(scene.at(NAME)).unwrap().set_len(4097).unwrap();
    let found = scene.shared().read(NAME, 4096).unwrap();
    assert_eq!(found, SharedFile::Other("larger than 4 KiB".to_owned()));
}
