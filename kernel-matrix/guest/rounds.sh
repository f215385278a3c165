# shellcheck shell=sh
# The driver on and off again, by the agent out of its store and by bare modprobe and rmmod with the
# same files, turn about. The times are /proc/uptime's, which is read without a new process; the
# agent's own are in its log. It is read after lib.sh.

# Those that are counted; the harness may want others.
ROUNDS=${ROUNDS:-21}
DRIVER_MODULES='nvidia nvidia_uvm nvidia_modeset'

# The modules of the store's set, where modprobe looks for them.
install_modules() {
    target=/lib/modules/$(uname -r)/updates
    mkdir -p "$target"
    awk -F'"' '/"file":/ { file = $4 } /"sha256":/ { sum = $4 } file && sum { print file, sum; file = sum = "" }' \
        /var/lib/longshore/sets/*.json | while read -r file sum; do
        cp "/var/lib/longshore/blobs/sha256/$sum" "$target/$file"
    done
    depmod
}

loaded() { cut -d' ' -f1 /proc/modules; }

# bare ROUND: on and off again with kmod's own programs.
bare() {
    loaded >/run/matrix/before
    read -r from _ </proc/uptime
    # shellcheck disable=SC2086
    modprobe -a ipmi_msghandler $DRIVER_MODULES
    read -r until _ </proc/uptime
    fact "bare-load-$1" "$from $until"
    # What came, last first, as /proc/modules lists it.
    chain=$(loaded | grep -vxFf /run/matrix/before)
    read -r from _ </proc/uptime
    # shellcheck disable=SC2086
    rmmod $chain
    read -r until _ </proc/uptime
    fact "bare-remove-$1" "$from $until"
}

# by_agent ROUND: on and off again by the agent, in the background and its log in a file, as on a host:
# a podman in the foreground would have a share of the processors for every line. Nothing else is
# started while it works.
by_agent() {
    phase start
    # shellcheck disable=SC2086
    contain -d --rm=false --log-driver k8s-file --log-opt path=/run/matrix/agent.k8s --name longshore \
        $IMAGE $AGENT_ARGUMENTS >/dev/null
    while sleep 4 && ! has_phase ready; do
        [ "$(pod container inspect -f '{{.State.Running}}' longshore)" = true ] && continue
        kept_log "$1"
        exit 1
    done
    pod kill -s TERM longshore >/dev/null
    sleep 2
    code=$(pod wait longshore)
    phase stopped
    fact exit-code "$code"
    pod rm longshore >/dev/null
    kept_log "$1"
    rm /run/matrix/agent.k8s
}

# kept_log ROUND: of each line conmon writes when it came, from which stream, and whether it is a whole one.
kept_log() {
    section "agent-log-$1" sed 's/^[^ ]* std[a-z]* [FP] //' /run/matrix/agent.k8s
}

# Each container has the image's own files, as where containers are overlays: the storage driver here
# copies them for each, and the emulator would translate the agent anew in every round, and modprobe
# not.
share_programs() {
    # shellcheck disable=SC2034,SC2086
    PROGRAMS=$(pod image mount $IMAGE)/usr
}

# Every process has its code at the same addresses: the emulator keeps what it translated by the
# address, too, and would translate each process anew, as no processor does.
fix_addresses() { echo 0 >/proc/sys/kernel/randomize_va_space; }

rounds() {
    fix_addresses
    install_modules
    share_programs
    round=0
    while [ $round -le "$ROUNDS" ]; do
        bare $round
        by_agent $round
        round=$((round + 1))
    done
}
