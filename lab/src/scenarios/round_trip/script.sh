# shellcheck shell=sh
# A whole agent run: before, start, Ready, the host's view of the driver, TERM, after.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

# Prints the kernel's confinement of the agent and the driver's daemons; a name is cut off at 15
# characters.
confinement() {
    for pid in $(pgrep -x 'longshore|nvidia-persiste|nv-fabricmanage'); do
        grep -E '^(Name|CapPrm|CapEff|CapBnd|NoNewPrivs|Seccomp|SigBlk):' "/proc/$pid/status"
    done
}

# Prints the guest's memory in use, with the daemons and the agent.
guest_memory() {
    free -k | awk '/^Mem:/ { print "guest memory in use: " $3 " kB" }'
}

# Reports the agent's answers while no process holds the driver, and its metrics while a process of
# the host does.
served() {
    for path in healthz readyz status metrics; do
        section "ready.$path" ask $path
    done
    hold_driver
    section ready.held-metrics ask metrics
    end_holder
}

# Compares the published spec with the one that the agent shows, and prints the driver's permission to
# make nodes, and the links to nodes.
published() {
    pod exec longshore longshore cdi show >/run/matrix/shown.json
    cmp /run/matrix/shown.json "$SPEC" && echo 'published as shown'
    grep ModifyDeviceFiles /proc/driver/nvidia/params
    for node in /dev/nvidia*; do
        link=/dev/char/$(stat -c '%Hr:%Lr' "$node")
        [ "$(readlink "$link")" = "../${node#/dev/}" ] && echo "linked $node"
    done
}

# Verifies the store by a container that has no volume for it, as an operator's pod has none.
store_of_host() {
    # shellcheck disable=SC2086
    pod run --rm --privileged --pid host --network none $IMAGE store verify
    echo "rc $?"
}

# Prints the driver and its tree as the host sees them.
look_at_driver() {
    show_command 'cat /proc/driver/nvidia/version'
    cat /proc/driver/nvidia/version
    look_around
    show_command "find $DRIVER_ROOT -type f"
    find "$DRIVER_ROOT/" \( -path '*/proc' -o -path '*/sys' \) -prune -o -type f -printf '%s %P\n'
    show_command "nvidia-smi out of $DRIVER_ROOT (the simulated GPU cannot be initialised)"
    smi
    show_command 'podman exec longshore longshore status'
    pod exec longshore longshore status
}

prepare
state before
look before
import
first_run
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready
    section ready.memory memory
    section ready.guest-memory guest_memory
    section ready.confinement confinement
    section ready.state cat "$STATE"
    section ready.look look_at_driver
    section ready.published published
    consume
    report_selinux
    section ready.store store_of_host
    served
    section agent-log cat /run/matrix/agent.log
    [ -z "$LOSES_POWER" ] || exit 0
    phase terminate
    stop_agent
fi
finish_agent
after
put_back
