//! Container and pod of a process, read from `/proc/PID/cgroup`.
//!
//! A line is `HIERARCHY:CONTROLLERS:PATH` (cgroups(7)); version 2 has one, `0::PATH`. Paths of
//! containers' processes, with the cgroup drivers systemd and cgroupfs:
//!
//! | Who | Path |
//! |---|---|
//! | docker | `/system.slice/docker-ID.scope`, `/docker/ID` |
//! | containerd | `.../cri-containerd-ID.scope`, `.../POD/ID`, `...POD.slice:cri-containerd:ID` |
//! | CRI-O | `.../crio-ID.scope`, `.../POD/crio-ID` |
//! | podman | `/machine.slice/libpod-ID.scope/container`, `/libpod_parent/libpod-ID` |
//! | LXC, nspawn | `/lxc.payload.NAME`, `/lxc/NAME`, `/machine.slice/machine-NAME.scope` |
//! | pods | `kubepods-burstable-podUID.slice`, `kubepods/burstable/podUID`, `machine-libpod_pod_ID.slice` |
//!
//! In a cgroup namespace a path begins at that namespace's root, with `/..` for each level above
//! it; the part below is the same.

/// The container and pod that own a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Owner {
    /// The container's full id, or its name if it has no id.
    pub(super) container: Option<String>,
    /// The pod's uid (podman's pods: their id).
    pub(super) pod: Option<String>,
}

/// Parses a `/proc/PID/cgroup`. For nested containers, returns the innermost container and the outermost
/// pod: a container that may make cgroups gives those inside of its own any name, also one with another
/// pod's uid.
pub(super) fn owner(cgroup: &str) -> Owner {
    let paths = || cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    Owner {
        container: paths().find_map(container_id).or_else(|| paths().find_map(container_name)),
        pod: paths().find_map(pod),
    }
}

/// The parts of a path, innermost first.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.rsplit('/').flat_map(|part| part.rsplit(':'))
}

fn container_id(path: &str) -> Option<String> {
    parts(path).find_map(|part| {
        // The last part of libpod's slice for a pod is that pod's id.
        let id = part.trim_end_matches(".scope").rsplit('-').next()?;
        (is_hex(id) && id.len() == 64).then(|| id.to_owned())
    })
}

fn container_name(path: &str) -> Option<String> {
    let mut above = parts(path).skip(1);
    parts(path).find_map(|part| {
        let in_lxc = above.next() == Some("lxc");
        let name = part
            .strip_prefix("lxc.payload.")
            .or_else(|| part.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope")))
            .or_else(|| in_lxc.then_some(part))?;
        (!name.is_empty()).then(|| name.to_owned())
    })
}

fn pod(path: &str) -> Option<String> {
    // Users make the cgroups in their slice themselves; podman's pods are there, Kubernetes' are not.
    let is_of_user = path.split('/').any(|part| part == "user.slice");
    path.split('/').flat_map(|part| part.split(':')).find_map(|part| {
        let part = part.trim_end_matches(".slice");
        let after = |mark: &str| part.rsplit_once(mark).map(|(_, uid)| uid);
        let of_podman = after("libpod_pod_");
        let uid = part.strip_prefix("pod").or(of_podman).or_else(|| after("-pod"))?;
        // systemd's slices write a uid's dashes as underscores; a static pod's uid is a hash.
        let uid = uid.replace('_', "-");
        let is_uid = match uid.len() {
            _ if is_of_user && of_podman.is_none() => false,
            64 => is_hex(&uid),
            _ if of_podman.is_some() => false,
            36 => {
                uid.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && is_hex(&uid.replace('-', ""))
            }
            32 => is_hex(&uid),
            _ => false,
        };
        is_uid.then_some(uid)
    })
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OUTER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
    const POD: &str = "8f3b2c1d-1111-2222-3333-444455556666";
    const OTHER: &str = "11111111-2222-3333-4444-555566667777";
    const STATIC: &str = "0b7ec6a1de0a5b14e1ad2c1b6b0d3c55";

    /// Placeholders for the values above: ID, OUTER, POD, OTHER, UNDER (the pod with underscores), STATIC.
    #[rstest]
    #[case::docker_systemd("0::/system.slice/docker-ID.scope", Some(ID), None)]
    #[case::docker_cgroupfs_v1(
        "12:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID",
        Some(ID),
        None
    )]
    #[case::docker_own_pid_1("0::/system.slice/docker-ID.scope/init.scope", Some(ID), None)]
    #[case::dockerd_in_kubernetes(
        "0::/kubepods.slice/kubepods-podUNDER.slice/docker-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::containerd_systemd(
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDER.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::containerd_cgroupfs("0::/kubepods/burstable/podPOD/ID", Some(ID), Some(POD))]
    #[case::containerd_cgroupfs_v1(
        "11:devices:/kubepods/besteffort/podPOD/ID\n0::/",
        Some(ID),
        Some(POD)
    )]
    #[case::containerd_mixed(
        "0::/system.slice/containerd.service/kubepods-burstable-podUNDER.slice:cri-containerd:ID",
        Some(ID),
        Some(POD)
    )]
    #[case::guaranteed(
        "0::/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::static_pod(
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podSTATIC.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(STATIC)
    )]
    #[case::kind(
        "0::/docker/OUTER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUNDER.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::nerdctl("0::/system.slice/nerdctl-ID.scope", Some(ID), None)]
    #[case::crio_systemd(
        "0::/kubepods.slice/kubepods-podUNDER.slice/crio-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::crio_container(
        "0::/kubepods.slice/kubepods-podUNDER.slice/crio-ID.scope/container",
        Some(ID),
        Some(POD)
    )]
    #[case::crio_cgroupfs("9:cpuset:/kubepods/podPOD/crio-ID", Some(ID), Some(POD))]
    #[case::podman("0::/machine.slice/libpod-ID.scope/container", Some(ID), None)]
    #[case::podman_rootless(
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
        Some(ID),
        None
    )]
    #[case::podman_cgroupfs("0::/libpod_parent/libpod-ID", Some(ID), None)]
    #[case::podman_pod(
        "0::/machine.slice/machine-libpod_pod_OUTER.slice/libpod-ID.scope/container",
        Some(ID),
        Some(OUTER)
    )]
    #[case::podman_pod_rootless(
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_OUTER.slice/libpod-ID.scope",
        Some(ID),
        Some(OUTER)
    )]
    #[case::forged_in_a_container(
        "0::/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope/podOTHER",
        Some(ID),
        Some(POD)
    )]
    #[case::forged_with_a_container(
        "0::/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-OUTER.scope/kubepods.slice/kubepods-podOTHER.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::forged_by_a_user(
        "0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope",
        Some(ID),
        None
    )]
    #[case::forged_by_a_user_as_podman_s(
        "0::/user.slice/user-1000.slice/user@1000.service/user-libpod_pod_UNDER.slice/libpod-ID.scope",
        Some(ID),
        None
    )]
    #[case::cgroup_namespace(
        "0::/../../kubepods-podUNDER.slice/cri-containerd-ID.scope",
        Some(ID),
        Some(POD)
    )]
    #[case::sibling_in_the_own_pod("0::/../cri-containerd-ID.scope", Some(ID), None)]
    #[case::lxc("0::/lxc.payload.web-1", Some("web-1"), None)]
    #[case::lxc_older("4:memory:/lxc/web/init.scope", Some("web"), None)]
    #[case::docker_in_lxc("0::/lxc.payload.web/system.slice/docker-ID.scope", Some(ID), None)]
    #[case::nspawn("0::/machine.slice/machine-web.scope/payload", Some("web"), None)]
    #[case::own_namespace("0::/", None, None)]
    #[case::host("0::/init.scope", None, None)]
    #[case::session("0::/user.slice/user-0.slice/session-3.scope", None, None)]
    #[case::short_id("0::/user.slice/podman-123.scope", None, None)]
    #[case::kubelet("0::/system.slice/kubelet.service", None, None)]
    #[case::no_uid("0::/kubepods/podx/podman", None, None)]
    #[case::empty("", None, None)]
    #[case::broken("0:", None, None)]
    fn owners(#[case] cgroup: &str, #[case] container: Option<&str>, #[case] pod: Option<&str>) {
        let text = cgroup
            .replace("STATIC", STATIC)
            .replace("UNDER", &POD.replace('-', "_"))
            .replace("OUTER", OUTER)
            .replace("OTHER", OTHER)
            .replace("POD", POD)
            .replace("ID", ID);
        let wanted = Owner { container: container.map(str::to_owned), pod: pod.map(str::to_owned) };
        assert_eq!(owner(&text), wanted);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_reader_panic(text in "[0-9a-f:/._\\-pod]{0,120}|\\PC{0,60}") {
            let _ = owner(&text);
        }
    }
}
