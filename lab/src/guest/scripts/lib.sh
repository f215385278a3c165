# shellcheck shell=sh
# Functions that scenarios share. Results go to file descriptor 3, one record a line:
#   @phase NAME | @fact KEY VALUE | @begin SECTION, lines "|TEXT", @end SECTION
# The harness judges; nothing here compares.

# shellcheck disable=SC2034
DRIVER_ROOT=/run/nvidia/driver
STATE=/run/longshore/state.json

phase() { echo "@phase $1" >&3; }
fact() { echo "@fact $1 $2" >&3; }

# section NAME COMMAND...: reports the command's output, with any exit code.
section() {
    section_name=$1
    shift
    echo "@begin $section_name" >&3
    { "$@" 2>&1 || true; } | sed 's/^/|/' >&3
    echo "@end $section_name" >&3
}

# shellcheck source-path=SCRIPTDIR source=engines.sh
. /run/matrix/engines.sh
# shellcheck source-path=SCRIPTDIR source=consumers.sh
. /run/matrix/consumers.sh
# shellcheck source-path=SCRIPTDIR source=selinux.sh
. /run/matrix/selinux.sh
# shellcheck source-path=SCRIPTDIR source=in-roots.sh
. /run/matrix/in-roots.sh
# shellcheck source-path=SCRIPTDIR source=manifest.sh
. /run/matrix/manifest.sh

firmware_path() { cat /sys/module/firmware_class/parameters/path 2>/dev/null; }

# Lists the processes of user programs, except the watcher of a scenario: kernel threads are
# children of process 2.
processes() {
    ps -eo ppid=,pid=,comm= |
        awk '$1 != 2 && $2 > 2 && $3 != "inotifywait" { print $3 }' | sort | uniq -c
}

# state WHEN: reports the host's state, which the harness compares. Left out are, of /dev, the terminals of
# this very script's programs, and, of /run, the state that podman (containers, crun, libpod), docker, containerd and
# systemd keep of each container, and the lab's own files (matrix). The first state comes with a manifest of the root
# file system, and `after` with its differences.
state() {
    section "$1.modules" cat /proc/modules
    section "$1.mounts" cat /proc/self/mountinfo
    section "$1.dev" tree /dev -path /dev/pts -prune -o
    section "$1.firmware-path" firmware_path
    section "$1.run" tree /run -xdev -path /run/containers -prune -o -path /run/crun -prune \
        -o -path /run/libpod -prune -o -path /run/docker -prune -o -path /run/containerd -prune \
        -o -path /run/systemd -prune -o -path /run/matrix -prune -o
    section "$1.majors" cat /proc/devices
    section "$1.processes" processes
    [ "$1" != before ] || root_before
}

# look WHEN: reports the host's state for people.
look() { section "$1.look" look_around; }

show_command() { echo "# $1"; }

look_around() {
    show_command lsmod
    lsmod
    show_command "find /dev -name '*nvidia*' -ls"
    find /dev -name '*nvidia*' -exec ls -ld {} +
    show_command 'grep /run/nvidia /proc/self/mounts'
    grep /run/nvidia /proc/self/mounts
    show_command 'cat /sys/module/firmware_class/parameters/path'
    firmware_path
}

# after: reports the host once the agent has ended, and the leftovers in the agent's record.
after() {
    await_engine
    state after
    look after
    section after.record cat "$STATE"
    root_after
}

# await_engine: waits for podman's processes beside a container, which end shortly after it, 10 s at most.
await_engine() {
    for _ in $(seq 100); do
        pgrep -x conmon >/dev/null || return 0
        sleep 0.1
    done
}

# preload: loads the modules that another program is to have loaded before.
preload() {
    for module in $PRELOAD; do
        modprobe "$module"
    done
}

# prepare: brings the host to its state before any driver. An engine's first container leaves files
# of the engine's own, so one is run before.
prepare() {
    start_daemons
    [ -z "$PULL" ] || pull
    # shellcheck disable=SC2086
    pod run --rm --privileged --network host --entrypoint /bin/sh $IMAGE -c :
    prepare_consumers
    preload
}

# pull: fetches the agent's image by its digest, without one of another name that the guest has.
pull() {
    pod rmi --all >/dev/null
    section pulled pod pull --quiet --tls-verify=false "$IMAGE"
    section image digests
}

# Prints the digest that the image is named by, and those of all images that the engine has.
digests() {
    echo "${IMAGE#*@}"
    pod images --no-trunc --format '{{.Digest}}'
}

# import: imports the driver's file into the store before the agent starts.
import() {
    [ -n "$IMPORT" ] || return 0
    phase import
    # shellcheck disable=SC2086
    pod run --rm --network none -v /var/lib/longshore:/var/lib/longshore -v "$MEDIA:$MEDIA:ro" \
        $IMAGE $IMPORT >/run/matrix/import.log 2>&1 && return
    cat /run/matrix/import.log >/dev/console
    return 1
}

# contain ARGUMENTS...: runs a container like the agent's, with the disk that the driver comes on.
contain() {
    # PRIVILEGES has an argument a line: one of them has blanks in it, and stars.
    blanks=$IFS
    IFS='
'
    set -f
    # shellcheck disable=SC2086
    set -- $PRIVILEGES "$@"
    set +f
    IFS=$blanks
    # The options, and the one that mounts MEDIA, must be split into arguments.
    # shellcheck disable=SC2046,SC2086
    pod run --rm --pid host --network host \
        -v /run/nvidia:/run/nvidia:rshared \
        -v /var/lib/longshore:/var/lib/longshore \
        $("options_$ENGINE") \
        ${MEDIA:+-v $MEDIA:$MEDIA:ro} \
        ${CONFIG:+-v $CONFIG:/etc/longshore:ro} ${PROGRAMS:+-v $PROGRAMS:/usr:ro} \
        -e LONGSHORE_LOG_FORMAT=pretty \
        -e "LONGSHORE_PERSISTENCED=${PERSISTENCED:-off}" \
        "$@"
}

# agent: runs the agent's container until it ends.
agent() {
    # Arguments must be split.
    # shellcheck disable=SC2086
    contain --name longshore $IMAGE $AGENT_ARGUMENTS >/run/matrix/agent.log 2>&1
}

# start_agent: runs the same in the background; RUN is its job.
start_agent() {
    phase start
    agent &
    RUN=$!
}

running() { kill -0 "$RUN" 2>/dev/null; }

# finish_agent: waits for the container's end and reports its exit code.
finish_agent() {
    code=0
    wait "$RUN" || code=$?
    phase stopped
    fact exit-code "$code"
    section agent-log cat /run/matrix/agent.log
    [ "$code" = 0 ] || section last-failure cat /var/lib/longshore/last-failure.json
}

# await COMMAND...: waits until it succeeds; fails if the container ends before. The harness
# enforces the deadline. It runs the command each AWAIT_INTERVAL seconds.
AWAIT_INTERVAL=0.1
await() {
    until "$@"; do
        running || return 1
        sleep "$AWAIT_INTERVAL"
    done
}

# hold_driver: starts a process that holds /dev/nvidiactl, and waits until it does; HOLDER is its id.
hold_driver() {
    # shellcheck disable=SC2217
    sleep 86400 </dev/nvidiactl &
    HOLDER=$!
    until [ "$(readlink "/proc/$HOLDER/fd/0")" = /dev/nvidiactl ]; do
        kill -0 "$HOLDER" || return 1
        sleep 0.1
    done
}

# end_holder: ends that process.
end_holder() {
    kill "$HOLDER"
    wait "$HOLDER" || true
}

has_phase() { grep -q "\"phase\": *\"$1\"" "$STATE" 2>/dev/null; }

# is_among MODULE TEXT: checks that the text of /proc/modules has the module. It forks nothing, as
# the state it polls for is short.
is_among() {
    case "
$2" in
        *"
$1 "*) return 0 ;;
    esac
    return 1
}
