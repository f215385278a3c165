# shellcheck shell=sh
# The container engines of a guest. Sourced by lib.sh. ENGINE runs the agent; DAEMONS are started
# before it, and have the agent's image.

# shellcheck source-path=SCRIPTDIR source=kubelet.sh
. /run/matrix/kubelet.sh

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
    watch_specs
    case " $CONSUMERS " in
        *' docker '* | *' docker-roots '* | *' docker-reload '*)
            allow_cdi docker /etc/docker/daemon.json
            ;;
    esac
    # shellcheck disable=SC2086
    dockerd ${INIT:+--exec-opt native.cgroupdriver=$INIT} --data-root /var/lib/containers/docker --storage-driver overlay2 \
        --bridge none --iptables=false --ip6tables=false >/run/matrix/dockerd.log 2>&1 &
    patiently docker version
    docker load --quiet --input "$OTHERS_IMAGE"
}

# Makes the directory of specs before a daemon starts, as other programs do: it is watched from then on,
# and read again only when a file changes.
watch_specs() { mkdir -p /var/run/cdi; }

# allow_cdi RUNTIME FILE: lets longshore switch CDI on, which is off by default before docker 28.2 and
# containerd 2.0.
allow_cdi() {
    CONFIGURED=$1 CONFIGURATION=$2
    fingerprint=$(fingerprint)
    section runtime.configured runtime configure "$1" --yes
    [ "$(fingerprint)" = "$fingerprint" ] || fact runtime.changed yes
}

# Prints the digest, mode and owner of the runtime's configuration; nothing for an absent file.
fingerprint() {
    [ ! -e "$CONFIGURATION" ] || { sha256sum "$CONFIGURATION" && stat -c '%a %u %g' "$CONFIGURATION"; }
}

# put_back: reports that the configuration, if longshore edited one, is put back.
put_back() {
    [ -n "${CONFIGURED:-}" ] || return 0
    section runtime.reverted runtime revert "$CONFIGURED"
    [ "$(fingerprint)" != "$fingerprint" ] || fact runtime.as-before yes
}

runtime() {
    pod_podman run --rm --privileged --pid host --network none "$IMAGE" runtime "$@" && echo well
}

start_containerd() {
    modprobe overlay
    watch_specs
    mkdir -p /var/lib/containers/containerd
    [ "$ENGINE" != kubelet ] || prepare_node
    case $CONSUMERS in *cri-*) allow_cdi containerd /etc/containerd/config.toml ;; esac
    containerd --root /var/lib/containers/containerd >/run/matrix/containerd.log 2>&1 &
    patiently ctr version
    case $ENGINE-$CONSUMERS in kubelet-* | *cri-*) import_for_cri ;; *) ctr images import "$OTHERS_IMAGE" ;; esac
}

# The image of a pod sandbox is a process that sleeps, under the name that containerd asks for.
import_for_cri() {
    pause=$(pause_image)
    tar -C /run/matrix -cf /run/matrix/pause-root.tar busybox
    pod_podman import --quiet --change 'ENTRYPOINT ["/busybox", "sleep", "86400"]' \
        /run/matrix/pause-root.tar "$pause"
    pod_podman save --quiet --output /run/matrix/pause.tar "$pause"
    for archive in "$OTHERS_IMAGE" /run/matrix/pause.tar; do
        ctr --namespace k8s.io images import "$archive"
    done
}
