//! Runs a program in a prepared mount namespace of its own:
//!
//! ```text
//! confined [--tmpfs DIR [noexec,]OPTIONS | --bind FROM TO | --read-only DIR | --user UID]... -- PROGRAM ARGUMENT...
//! ```
//!
//! Nothing mounted here is visible outside, and it is unmounted when the program ends. The process
//! id stays the same from here to the program, so that `--bind /proc/self TO` mounts the program's
//! own directory.

use std::error::Error;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, execv, fexecve, setgid, setgroups, setuid};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() {
    let Err(error) = confine(std::env::args_os().skip(1)) else { return };
    // An exit code that longshore never returns.
    eprintln_and_exit(&*error);
}

#[allow(clippy::print_stderr)]
fn eprintln_and_exit(error: &dyn Error) -> ! {
    eprintln!("confined: {error}; these tests need root and a mount namespace");
    std::process::exit(125);
}

fn confine(mut args: impl Iterator<Item = OsString>) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("unshare: {e}"))?;
    call_mount(None, "/".as_ref(), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None)?;
    let mut user = None;
    loop {
        let word = args.next().ok_or("no program")?;
        let mut next = || args.next().ok_or_else(|| format!("{} lacks a word", word.display()));
        match word.to_str() {
            Some("--tmpfs") => {
                let (dir, options) = (next()?, next()?);
                let (options, flags) = match options.to_str().and_then(|o| o.split_once("noexec,"))
                {
                    Some((_, rest)) => (rest.into(), MsFlags::MS_NOEXEC | MsFlags::MS_NODEV),
                    None => (options, MsFlags::empty()),
                };
                let tmpfs = Some("tmpfs".as_ref());
                call_mount(tmpfs, dir.as_ref(), tmpfs, flags, options.to_str())?;
            }
            Some("--bind") => {
                let (from, to) = (next()?, next()?);
                call_mount(Some(from.as_ref()), to.as_ref(), None, MsFlags::MS_BIND, None)?;
            }
            Some("--read-only") => {
                let dir = next()?;
                call_mount(Some(dir.as_ref()), dir.as_ref(), None, MsFlags::MS_BIND, None)?;
                let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
                call_mount(None, dir.as_ref(), None, flags, None)?;
            }
            Some("--user") => user = Some(next()?.to_str().ok_or("no user id")?.parse()?),
            Some("--") => break,
            _ => return Err(format!("{} is no option", word.display()).into()),
        }
    }
    run(args, user)
}

fn run(args: impl Iterator<Item = OsString>, user: Option<u32>) -> Result<()> {
    let words: Vec<CString> =
        args.map(|word| CString::new(word.as_bytes())).collect::<std::result::Result<_, _>>()?;
    let program = words.first().ok_or("no program")?;
    let Some(user) = user else {
        execv(program, &words)?;
        return Ok(());
    };
    // Opened beforehand: that user may not be able to reach the program's directory.
    let opened = File::open(program.to_str()?)?;
    setgroups(&[])?;
    setgid(Gid::from_raw(user))?;
    setuid(Uid::from_raw(user))?;
    let environment: Vec<CString> = std::env::vars_os()
        .map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<std::result::Result<_, _>>()?;
    fexecve(opened, &words, &environment)?;
    Ok(())
}

fn call_mount(
    source: Option<&Path>,
    target: &Path,
    fstype: Option<&Path>,
    flags: MsFlags,
    data: Option<&str>,
) -> Result<()> {
    mount(source, target, fstype, flags, data)
        .map_err(|e| format!("mount {}: {e}", target.display()).into())
}
