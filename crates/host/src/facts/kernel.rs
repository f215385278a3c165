//! The running kernel and the host's distribution.

use std::io::{self, ErrorKind};

use crate::facts::{Kernel, OsRelease};
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::root::Root;
use longshore_core::sanitize::in_line;

/// Reads release, version string, architecture, compiler and boot id.
///
/// # Errors
/// Exit code 10 where release or version string cannot be read, or is empty.
pub(super) fn read(root: &Root) -> Result<Kernel, Failure> {
    let required = |path: &str| {
        let read = root.read_to_string(path).map(|text| text.trim().to_owned());
        let is_text = |text: String| match text.is_empty() {
            true => Err(io::Error::new(ErrorKind::InvalidData, "it is empty")),
            false => Ok(text),
        };
        read.and_then(is_text)
            .or_fail(FailureKind::HostUnsupported, || format!("reading the kernel's /{path}"))
            .map_err(|f| f.remedy("mount /proc in the container, or give the right --root"))
    };
    let optional = |path: &str| root.read_to_string(path).ok().map(|text| text.trim().to_owned());
    Ok(Kernel {
        release: required("proc/sys/kernel/osrelease")?,
        version: required("proc/sys/kernel/version")?,
        // The file exists since Linux 6.1 (kernel/utsname_sysctl.c).
        arch: optional("proc/sys/kernel/arch").unwrap_or_else(own_arch),
        compiler: optional("proc/version").as_deref().and_then(compiler_of),
        boot_id: optional("proc/sys/kernel/random/boot_id"),
    })
}

fn own_arch() -> String {
    let machine = nix::sys::utsname::uname().map(|u| u.machine().to_string_lossy().into_owned());
    machine.unwrap_or_else(|_| std::env::consts::ARCH.to_owned())
}

/// The compiler of a /proc/version: `Linux version R (builder) (compiler, linker) #1 ...`.
fn compiler_of(text: &str) -> Option<String> {
    let builder = text.find(" (")?;
    let tools = group(text.get(builder + 1..)?)?;
    let rest = text.get(builder + 1 + tools.len() + 2..)?;
    let tools = group(rest.trim_start())?;
    let linker = tools.find(", GNU ld").or_else(|| tools.find(", LLD"));
    let compiler = linker.map_or(tools, |end| &tools[..end]).trim();
    (!compiler.is_empty()).then(|| compiler.to_owned())
}

/// The contents of the parenthesis at the start of `text`, nested ones included.
fn group(text: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return text.get(1..at);
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Size limit of an os-release, in bytes; the distributions' have some hundred.
const OS_RELEASE: u64 = 64 << 10;
/// Size limit of one of its values, in characters.
const VALUE: usize = 256;

/// Reads the host's os-release: `/host-etc/os-release` (mounted by the GPU operator), else the
/// host's own, in the order of os-release(5). Links resolve inside the root.
///
/// # Errors
/// If none of them can be read, or is a regular file of at most 64 KiB.
pub(super) fn read_os_release(root: &Root, host: &Root) -> io::Result<OsRelease> {
    root.read_small_text("host-etc/os-release", OS_RELEASE)
        .or_else(|_| host.read_small_text("etc/os-release", OS_RELEASE))
        .or_else(|_| host.read_small_text("usr/lib/os-release", OS_RELEASE))
        .map(|text| parse_os_release(&text))
}

/// Parses os-release(5). Values are shown on terminals and in logs, so they are cut and without control
/// characters.
fn parse_os_release(text: &str) -> OsRelease {
    let mut os = OsRelease::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let value: String = in_line(&unquote(value.trim())).chars().take(VALUE).collect();
        match key.trim() {
            "ID" => os.id = value,
            "ID_LIKE" => os.id_like = value.split_whitespace().map(str::to_owned).collect(),
            "VERSION_ID" => os.version_id = Some(value),
            "VERSION_CODENAME" => os.codename = Some(value),
            "PRETTY_NAME" => os.pretty_name = Some(value),
            "VARIANT_ID" => os.variant_id = Some(value),
            "BUILD_ID" => os.build_id = Some(value),
            "OSTREE_VERSION" => os.ostree_version = Some(value),
            "OPENSHIFT_VERSION" => os.openshift_version = Some(value),
            _ => {}
        }
    }
    os
}

/// Removes shell quotes, and the backslashes inside double quotes.
fn unquote(value: &str) -> String {
    let inner = |quote| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
    if let Some(plain) = inner('\'') {
        return plain.to_owned();
    }
    let mut text = String::new();
    let mut escaped = false;
    for c in inner('"').unwrap_or(value).chars() {
        if c == '\\' && !escaped {
            escaped = true;
        } else {
            text.push(c);
            escaped = false;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(
        "Linux version 6.1.0-50-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-08-01)",
        Some("gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0")
    )]
    #[case(
        "Linux version 6.12.1 (me@host) (clang version 18.1.8, LLD 18.1.8) #1 SMP",
        Some("clang version 18.1.8")
    )]
    #[case("Linux version 5.10.0 (me@host) (gcc (GCC) 10.2.1) #1", Some("gcc (GCC) 10.2.1"))]
    #[case(
        "Linux version 4.18.0 (m@h) (gcc version 8.5.0 20210514 (Red Hat 8.5.0-4) (GCC)) #1 SMP",
        Some("gcc version 8.5.0 20210514 (Red Hat 8.5.0-4) (GCC)")
    )]
    #[case("Linux version 5.10.0", None)]
    #[case("Linux version 5.10.0 (open", None)]
    #[case("", None)]
    fn compilers(#[case] text: &str, #[case] wanted: Option<&str>) {
        assert_eq!(compiler_of(text).as_deref(), wanted);
    }

    #[rstest]
    #[case::whole("6.1.0-50-amd64\n", "#1 SMP Debian\n", Ok("#1 SMP Debian"))]
    #[case::without_a_version("6.1.0-50-amd64\n", "\n", Err("/proc/sys/kernel/version"))]
    #[case::without_a_release("", "#1 SMP Debian\n", Err("/proc/sys/kernel/osrelease"))]
    fn a_kernel_has_a_release_and_a_version(
        #[case] release: &str,
        #[case] version: &str,
        #[case] wanted: Result<&str, &str>,
    ) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let kernel = dir.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&kernel).expect("directories");
        std::fs::write(kernel.join("osrelease"), release).expect("written");
        std::fs::write(kernel.join("version"), version).expect("written");
        match (read(&Root::open(dir.path()).expect("a root")), wanted) {
            (Ok(kernel), Ok(wanted)) => assert_eq!(kernel.id().version, Some(wanted)),
            (Err(failure), Err(wanted)) => {
                assert!(failure.to_string().contains(wanted), "{failure}")
            }
            (read, _) => panic!("{read:?}"),
        }
    }

    #[test]
    fn any_build_of_a_kernel_that_does_not_run_here_fits() {
        let kernel = Kernel {
            release: "6.1.0-50-amd64".into(),
            version: String::new(),
            arch: "x86_64".into(),
            compiler: None,
            boot_id: None,
        };
        assert_eq!(kernel.id(), kernel.any_build());
    }

    #[test]
    fn os_release_with_every_kind_of_quote() {
        let os = parse_os_release(
            "# c\nPRETTY_NAME=\"A \\\"quoted\\\" name\"\nID=debian\nVERSION_ID='12'\nVERSION_CODENAME=bookworm\nHOME_URL=\"x\"\nbroken\n",
        );
        assert_eq!(os.id, "debian");
        assert_eq!(os.version_id.as_deref(), Some("12"));
        assert_eq!(os.codename.as_deref(), Some("bookworm"));
        assert_eq!(os.pretty_name.as_deref(), Some("A \"quoted\" name"));
    }

    #[test]
    fn values_of_an_os_release_are_cut_and_without_control_characters() {
        let long = "x".repeat(1000);
        let os = parse_os_release(&format!("PRETTY_NAME=\"a\x1b[2Jb\"\nVERSION_ID={long}\n"));
        assert_eq!(os.pretty_name.as_deref(), Some("a\\u{1b}[2Jb"));
        assert_eq!(os.version_id.map(|value| value.len()), Some(VALUE));
    }

    /// Places of an os-release in a tree: `PATH -> TARGET` is a link, `PATH = TEXT` a file.
    #[rstest]
    #[case::etc(&["etc/os-release = ID=a"], Some("a"))]
    #[case::usr_lib(&["usr/lib/os-release = ID=b"], Some("b"))]
    #[case::relative_link(&["usr/lib/os-release = ID=b", "etc/os-release -> ../usr/lib/os-release"], Some("b"))]
    #[case::absolute_link(&["nix/store/os = ID=c", "etc/os-release -> /nix/store/os"], Some("c"))]
    #[case::dangling_link(&["usr/lib/os-release = ID=b", "etc/os-release -> /gone"], Some("b"))]
    #[case::outside(&["etc/os-release -> /../../../../../../../../etc/os-release"], None)]
    #[case::of_the_operator(&["host-etc/os-release = ID=d", "etc/os-release = ID=a"], Some("d"))]
    #[case::a_device(&["etc/os-release -> /dev/null", "usr/lib/os-release = ID=b"], Some("b"))]
    #[case::none(&["etc/x = "], None)]
    fn places_of_an_os_release(#[case] tree: &[&str], #[case] id: Option<&str>) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for entry in tree {
            let link = entry.split_once(" -> ");
            let (path, text) = link.or_else(|| entry.split_once(" = ")).expect("an entry");
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            match link {
                Some(_) => std::os::unix::fs::symlink(text, path).expect("link"),
                None => std::fs::write(path, text).expect("written"),
            }
        }
        let root = Root::open(dir.path()).expect("a root");
        let read = read_os_release(&root, &root);
        assert_eq!(read.ok().map(|os| os.id).as_deref(), id);
    }

    #[test]
    fn an_os_release_of_a_megabyte_is_not_read() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir_all(dir.path().join("usr/lib")).expect("directories");
        let text = format!("ID=a\n{}", "#\n".repeat(1 << 19));
        std::fs::write(dir.path().join("usr/lib/os-release"), text).expect("written");
        let root = Root::open(dir.path()).expect("a root");
        let error = read_os_release(&root, &root).expect_err("too large").to_string();
        assert!(error.contains("larger than 65536 bytes"), "{error}");
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(text in "[ -~\n]{0,200}|\\PC{0,80}") {
            let _ = compiler_of(&text);
            let _ = parse_os_release(&text);
        }
    }
}
