# shellcheck shell=sh
# The container engines of a guest. Sourced by lib.sh. ENGINE runs the agent; DAEMONS are started
# before it, and have the agent's image.

OTHERS_IMAGE=/var/lib/containers/agent.tar

# pod ARGUMENTS...: calls the engine that runs the agent.
pod() { "pod_$ENGINE" "$@"; }

pod_podman() {
    podman --cgroup-manager cgroupfs --events-backend file --storage-driver vfs "$@"
}

pod_docker() { docker "$@"; }

# stop_agent: stops the agent's container in its engine's way.
stop_agent() { "stop_agent_$ENGINE"; }

stop_agent_podman() { pod kill -s TERM longshore >/dev/null; }

stop_agent_docker() { docker stop longshore >/dev/null; }

# Prints the engine's options for the agent beyond those of every engine: those of README.md.
options_podman() { :; }

options_docker() { echo --stop-timeout 30 -v /run/longshore:/run/longshore; }

# patiently COMMAND...: waits until it succeeds; the harness enforces the deadline.
patiently() {
    until "$@" >/dev/null 2>&1; do sleep 0.2; done
}

start_daemons() {
    for daemon in $DAEMONS; do
        "start_$daemon"
        phase "$daemon"
    done
}

# Neither of them needs a network: containers have the host's or none.
start_docker() {
    modprobe overlay
    case " $CONSUMERS " in
        *' docker '* | *' docker-roots '* | *' docker-reload '*) allow_cdi_in_docker ;;
    esac
    # shellcheck disable=SC2086
    dockerd ${INIT:+--exec-opt native.cgroupdriver=$INIT} --data-root /var/lib/containers/docker --storage-driver overlay2 \
        --bridge none --iptables=false --ip6tables=false >/run/matrix/dockerd.log 2>&1 &
    patiently docker version
    docker load --quiet --input "$OTHERS_IMAGE"
}

# Before docker 28.2 CDI is off by default: longshore switches it on.
allow_cdi_in_docker() { section runtime.configured runtime configure docker --yes; }

# put_back: reports that docker's configuration is put back, which the guest had none of.
put_back() {
    section runtime.reverted runtime revert docker
    [ -e /etc/docker/daemon.json ] || fact runtime.as-before yes
}

runtime() {
    pod_podman run --rm --privileged --pid host --network none "$IMAGE" runtime "$@" && echo well
}

start_containerd() {
    modprobe overlay
    mkdir -p /var/lib/containers/containerd
    containerd --root /var/lib/containers/containerd >/run/matrix/containerd.log 2>&1 &
    patiently ctr version
    ctr images import "$OTHERS_IMAGE"
}
