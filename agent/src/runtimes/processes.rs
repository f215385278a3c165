//! Running daemons of the host, found by their units.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use longshore_core::bounded_call;
use longshore_core::root::Root;
use longshore_runtimes::{Invocation, Source};

/// Number of entries of /proc that are looked at.
const MOST: usize = 1 << 17;
/// Size limit of a command line, and of the other files of a process.
const LONGEST: u64 = 1 << 17;
/// Time limit for reading a command line.
const LIMIT: Duration = Duration::from_secs(2);

/// Returns the process of one of these units that runs `program` as root. A process of a container, or of a
/// user's own service manager, has another cgroup, whatever its name is.
pub(super) fn of_units(root: &Root, program: &str, units: &[&str]) -> Option<Invocation> {
    let names = root.read_small_dir("proc", MOST).ok()?;
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids.into_iter().find_map(|pid| of_process(root, pid, program, units))
}

fn of_process(root: &Root, pid: u32, program: &str, units: &[&str]) -> Option<Invocation> {
    let dir = Path::new("proc").join(pid.to_string());
    let read = |name: &str| root.read_small_text(dir.join(name), LONGEST).ok();
    // The name first: a command line is read for a few processes alone.
    (read("comm")?.trim_end() == program).then_some(())?;
    let unit = unit_of(&read("cgroup")?)?;
    let unit = units.iter().find(|known| **known == unit)?;
    is_roots(&read("status")?).then_some(())?;
    let line = command_line(root, &dir)?;
    let argv: Vec<String> = line.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    is_program(&argv, program).then(|| Invocation {
        argv,
        variables: BTreeMap::new(),
        source: Source::Process(pid),
        unit: (*unit).to_owned(),
        at: None,
    })
}

/// Reads a process's command line, for which the kernel waits for its memory's lock: without an end for one that
/// hangs in the kernel.
fn command_line(root: &Root, dir: &Path) -> Option<String> {
    let (root, file) = (root.path().to_path_buf(), dir.join("cmdline"));
    let shown = file.display().to_string();
    let read = move || Root::open(&root)?.read_small_text(file, LONGEST);
    let line = bounded_call::in_time("command-line", LIMIT, read);
    if line.is_none() {
        tracing::warn!("{shown} is not readable within {LIMIT:?}: the unit's command line counts");
    }
    line?.ok()
}

/// Returns the unit of a process of the host's service manager: its cgroup is below slices alone, none of
/// them a user's. Levels above the reader's own cgroup namespace are `..` (cgroup_namespaces(7)).
fn unit_of(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        matches!(controllers, "" | "name=systemd").then_some(path)
    })?;
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != "..");
    let unit = parts.next_back().filter(|unit| unit.ends_with(".service"))?;
    let is_systems = |part: &str| part.ends_with(".slice") && !part.starts_with("user");
    parts.all(is_systems).then(|| unit.to_owned())
}

/// True if the command line runs `program`, whatever its directory.
pub(super) fn is_program(argv: &[String], program: &str) -> bool {
    argv.first().and_then(|path| Path::new(path).file_name()).is_some_and(|name| name == program)
}

fn is_roots(status: &str) -> bool {
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    uids.is_some_and(|uids| uids.split_ascii_whitespace().all(|uid| uid == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0::/system.slice/docker.service\n", Some("docker.service"))]
    #[case("0::/../../system.slice/docker.service\n", Some("docker.service"))]
    #[case("0::/runtime.slice/containerd.service\n", Some("containerd.service"))]
    #[case("4:memory:/x\n1:name=systemd:/system.slice/docker.service\n", Some("docker.service"))]
    #[case("0::/system.slice/docker-0123.scope/system.slice/docker.service\n", None)]
    #[case("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n", None)]
    #[case("0::/docker/0123/system.slice/containerd.service\n", None)]
    #[case("0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service\n", None)]
    #[case("0::/user.slice/docker.service\n", None)]
    #[case("0::/\n", None)]
    #[case("", None)]
    fn units(#[case] cgroup: &str, #[case] wanted: Option<&str>) {
        assert_eq!(unit_of(cgroup).as_deref(), wanted);
    }

    #[test]
    fn the_page_about_deadlines_has_the_span() {
        longshore_core::testing::assert_in_page("command line of a container runtime", LIMIT);
    }

    #[rstest]
    #[case("Name:\tx\nUid:\t0\t0\t0\t0\n", true)]
    #[case("Uid:\t1000\t0\t0\t0\n", false)]
    #[case("", false)]
    fn root_alone_counts(#[case] status: &str, #[case] wanted: bool) {
        assert_eq!(is_roots(status), wanted);
    }
}
