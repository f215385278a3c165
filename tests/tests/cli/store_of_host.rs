//! The store of a container without a mount for it: the host's directory, attached through process 1.

use std::process::Command;

use longshore_tests::scene::longshore;

/// Runs as process 1 of a host whose /var/lib is a disk of its own, and which has kernel modules, and
/// runs `$INSIDE` in a container: another mount namespace with a tmpfs as its root.
const HOST: &str = r#"
set -e
mount -t tmpfs -o mode=755 work "$WORK"
cd "$WORK"
mkdir -p upper/modules scratch root
mount -t overlay -o lowerdir=/usr/lib,upperdir=upper,workdir=scratch libraries /usr/lib
mount -t tmpfs -o mode=755 disk /var/lib
eval "$SPOIL"
mount -t tmpfs -o mode=755 container root
for dir in bin sbin lib lib32 lib64; do if [ -e /$dir ]; then cp -P /$dir root; fi; done
mkdir -p root/usr root/etc root/proc root/dev root/tmp root/var/lib
for dir in usr etc dev; do mount --rbind /$dir root/$dir; done
mount -t proc proc root/proc
touch root/longshore
mount --bind "$LONGSHORE" root/longshore
mount --make-shared root
mkdir peer
mount --bind root peer
unshare --mount --propagation unchanged chroot root /bin/sh -c "$INSIDE" 2>&1
if [ -e peer/var/lib/longshore/kept ]; then echo "the mount has propagated"; fi
if [ -e /var/lib/longshore/kept ]; then echo "kept on the host"; fi
"#;

const INSIDE: &str = r#"
/longshore doctor
if [ -e /var/lib/longshore ]; then echo "doctor has made a store"; fi
/longshore store verify
touch /var/lib/longshore/kept
/longshore store verify
grep -c " /var/lib/longshore " /proc/self/mountinfo
"#;

/// Runs the scene and returns its output.
fn container(spoil: &str) -> String {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root: run it as root");
    let work = tempfile::tempdir().expect("temporary directory");
    let ended = Command::new("unshare")
        .args(["--pid", "--fork", "--mount", "--mount-proc", "--kill-child", "--"])
        .args(["/bin/sh", "-c", HOST])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("WORK", work.path())
        .env("LONGSHORE", longshore())
        .env("SPOIL", spoil)
        .env("INSIDE", INSIDE)
        .output()
        .expect("it runs");
    let text = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    text.concat()
}

#[test]
fn a_store_without_a_mount_is_the_hosts_and_outlives_the_container() {
    for before in ["", "mkdir /var/lib/longshore"] {
        // Reports break their lines.
        let output = container(before);
        let words = output.split_whitespace().collect::<Vec<_>>().join(" ");
        for expected in [
            "the host's, which `run` attaches through process 1",
            "the store is the host's /var/lib/longshore, attached through process 1",
            "\n1\n",
            "kept on the host",
        ] {
            assert!(output.contains(expected) || words.contains(expected), "{expected}: {output}");
        }
        for unwanted in ["propagated", "doctor has made", "own file system: /var/lib"] {
            assert!(!words.contains(unwanted), "{unwanted}: {output}");
        }
    }
}

#[test]
fn a_directory_that_others_can_choose_stays_the_hosts() {
    for (spoil, why) in [
        ("ln -s /etc /var/lib/longshore", "is a symbolic link"),
        ("mkdir /var/lib/longshore; chown 1000 /var/lib/longshore", "belongs to uid 1000"),
        ("chmod 1777 /var/lib", "can be written to by others (mode 1777)"),
    ] {
        let output = container(spoil);
        assert_eq!(output.matches(why).count(), 3, "of doctor, and of both commands: {output}");
        assert!(output.contains("lost-with-container"), "{output}");
        assert!(!output.contains("kept on the host"), "{output}");
    }
}
