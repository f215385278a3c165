# shellcheck shell=sh
# Install and uninstall of the driver by the agent from its store, alternating with bare modprobe
# and rmmod of the same files. The times are /proc/uptime's, which is read without a new process;
# the agent's own are in its log, and the time at which its program is started is that of a file. Sourced after lib.sh.

# Number of counted rounds, unless the harness sets another.
ROUNDS=${ROUNDS:-21}
DRIVER_MODULES='nvidia nvidia_uvm nvidia_modeset'

# Installs the modules of the store's set in modprobe's search path.
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

# bare ROUND: loads and unloads with kmod's own programs.
bare() {
    loaded >/run/matrix/before
    read -r from _ </proc/uptime
    # shellcheck disable=SC2086
    modprobe -a ipmi_msghandler $DRIVER_MODULES
    read -r until _ </proc/uptime
    fact "bare-load-$1" "$from $until"
    # The modules loaded since, the last one first, as /proc/modules lists them.
    chain=$(loaded | grep -vxFf /run/matrix/before)
    read -r from _ </proc/uptime
    # shellcheck disable=SC2086
    rmmod $chain
    read -r until _ </proc/uptime
    fact "bare-remove-$1" "$from $until"
}

# Directory in which the agent's container makes a file just before it executes the agent: the kernel gives it the time,
# without a process that would be measured, too.
EXECUTED=/run/matrix/executed

# by_agent ROUND: installs and uninstalls by the agent, in the background with its log in a file, as
# on a host: a podman in the foreground would take processor time for every line. Nothing else is
# started while it works.
by_agent() {
    phase start
    rm -rf "$EXECUTED"
    mkdir -p "$EXECUTED"
    # shellcheck disable=SC2016,SC2086
    contain -d --rm=false --log-driver k8s-file --log-opt path=/run/matrix/agent.k8s --name longshore \
        -v "$EXECUTED:$EXECUTED" --entrypoint /bin/sh \
        $IMAGE -c ': >"$0" && exec longshore "$@"' "$EXECUTED/$1" $AGENT_ARGUMENTS >/dev/null
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
    # Date, time and zone.
    executed=$(TZ=UTC stat -c %y "$EXECUTED/$1")
    executed=${executed#* }
    fact "agent-start-$1" "${executed% *}"
    rm /run/matrix/agent.k8s
}

# kept_log ROUND: reports the log without conmon's prefix of each line: time, stream, and the mark
# of a whole line.
kept_log() {
    section "agent-log-$1" sed 's/^[^ ]* std[a-z]* [FP] //' /run/matrix/agent.k8s
}

# Makes each container use the image's own files, as where containers are overlays: the storage
# driver here copies them for each container, so that the emulator would translate the agent anew in
# every round, but not modprobe.
share_programs() {
    # shellcheck disable=SC2034,SC2086
    PROGRAMS=$(pod image mount $IMAGE)/usr
}

# Gives every process its code at the same addresses: the emulator caches translations by address,
# too, and would translate each process anew, as no processor does.
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
