# shellcheck shell=sh
# Containers that are given the GPUs by the agent's spec alone. Sourced by lib.sh. The functions
# `consume_*` are called by their names in CONSUMERS.

# The agent publishes it.
SPEC=/var/run/cdi/longshore-nvidia.com-gpu.json

# in_PROGRAM COMMAND OPTION...: runs a shell's command in a container of the agent's image.
in_podman() {
    in_command=$1
    shift
    if [ -n "$SELINUX" ]; then
        # It has the categories of the container that made it.
        rm -f "$SAID/lines"
        pod_podman run --rm --network none -v "$SAID:/said" "$@" \
            --entrypoint /bin/sh "$IMAGE" -c "exec >/said/lines 2>&1; $in_command"
        cat "$SAID/lines"
        return
    fi
    pod_podman run --rm --network none "$@" --entrypoint /bin/sh "$IMAGE" -c "$in_command"
}

in_docker() {
    in_command=$1
    shift
    docker run --rm --network none "$@" --entrypoint /bin/sh "$IMAGE" -c "$in_command"
}

in_ctr() {
    in_command=$1
    shift
    ctr run --rm "$@" "$IMAGE" consumer /bin/sh -c "$in_command"
}

in_cri() { python3 -B /run/matrix/cri.py "$IMAGE" "$@"; }

# In the container: prints its nodes, the loader's complaint about a library that it cannot load, and
# the answer of nvidia-smi.
# shellcheck disable=SC2016
LOOK='
    for node in /dev/nvidia*; do [ -c "$node" ] && echo "node $node"; done
    for library in libcuda.so.1 libnvidia-ml.so.1; do
        LD_PRELOAD=$library busybox true && echo "tried $library"
    done
    /usr/bin/nvidia-smi
    echo "rc $?"'

# prepare_consumers: lets each program but the engine run a container: its first one leaves files.
prepare_consumers() {
    for consumer in $CONSUMERS; do
        case $consumer in *-roots) continue ;; esac
        [ "${consumer%%-*}" = "$ENGINE" ] || "in_${consumer%%-*}" :
    done
}

# consume: reports the container of each consumer.
consume() {
    section ready.spec cat "$SPEC"
    for consumer in $CONSUMERS; do
        section "ready.cdi-$consumer" "consume_$(echo "$consumer" | tr - _)"
    done
}

consume_podman() { in_podman "$LOOK" --device nvidia.com/gpu=all; }

consume_podman_by_index() { in_podman "$LOOK" --device nvidia.com/gpu=0; }

uptime() { cut -d ' ' -f 1 /proc/uptime; }

# Prints the time before and after each of ten containers with the GPUs, and ten without, in turn.
consume_podman_rounds() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        begun=$(uptime)
        in_podman :
        echo "without $begun $(uptime)"
        begun=$(uptime)
        in_podman : --device nvidia.com/gpu=all
        echo "with $begun $(uptime)"
    done
}

consume_docker() { in_docker "$LOOK" --device nvidia.com/gpu=all; }

consume_docker_options() {
    # shellcheck disable=SC2046
    in_docker "$LOOK" $(pod exec longshore longshore docker-args --gpus all)
}

consume_ctr() { in_ctr "$LOOK" --device nvidia.com/gpu=0; }

consume_cri_field() { in_cri "$LOOK" field nvidia.com/gpu=0; }

consume_cri_annotation() { in_cri "$LOOK" annotation nvidia.com/gpu=0; }

# Links of the nodes by their numbers, which runc 1.1.3 to 1.1.6 needs.
link_nodes() {
    for node in /dev/nvidia*; do
        [ -c "$node" ] || continue
        ln -s "../${node#/dev/}" "/dev/char/$((0x$(stat -c %t "$node"))):$((0x$(stat -c %T "$node")))"
    done
}

opens_in_container() {
    # shellcheck disable=SC2016
    docker exec reload sh -c 'for node in nvidiactl nvidia-uvm null; do
        if (: </dev/$node) 2>/dev/null; then echo "$1 opens $node"; else echo "$1 refuses $node"; fi
    done' sh "$1"
}

# reload WORD OPTION...: prints the nodes that a running container opens before and after systemd has
# read its units again.
reload() {
    word=$1
    shift
    docker run --detach --name reload --network none "$@" \
        --entrypoint busybox "$IMAGE" sleep 86400 >/dev/null
    opens_in_container "$word before"
    systemctl daemon-reload
    opens_in_container "$word after"
    docker rm --force reload >/dev/null
}

unlink_nodes() {
    find /dev/char -lname '../nvidia*' -delete
}

# reloads OPTION...: does that without links of the nodes, and with them. udev, which the guest lacks,
# makes the links of the nodes that every container has. The agent, which would restore its own, is
# stopped while they are missing.
reloads() {
    others='null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0'
    for node in $others; do
        ln -sf "../${node%%:*}" "/dev/char/${node#*:}"
    done
    pkill -STOP -x longshore
    unlink_nodes
    reload without "$@"
    link_nodes
    pkill -CONT -x longshore
    reload with "$@"
    for node in $others; do
        rm "/dev/char/${node#*:}"
    done
}

consume_docker_reload() { reloads --device nvidia.com/gpu=all; }

consume_docker_options_reload() {
    runc --version
    # shellcheck disable=SC2046
    reloads $(pod exec longshore longshore docker-args --gpus all)
}
