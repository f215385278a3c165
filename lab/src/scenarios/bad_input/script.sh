# shellcheck shell=sh
# A host on which /dev/char has links of former nodes, and /var/run/cdi is read-only at first and full then;
# and a second agent beside the first. The driver is Ready throughout.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

SPECS=${SPEC%/*}
# Of nvidiactl now, and of no device.
STALE='195:255 511:0'

uvm_number() { stat -c '%Hr:%Lr' /dev/nvidia-uvm; }

links() {
    for number in $STALE "$(uvm_number)"; do
        echo "$number $(readlink "/dev/char/$number")"
    done
}

# is_unpublished REASON: checks that the spec is not published, for this reason by the log.
is_unpublished() {
    grep -q "$1" /run/matrix/agent.log && ask status | grep -q cdi-unpublished
}

is_published() { pod exec longshore longshore cdi show | cmp -s - "$SPEC"; }

# within COMMAND...: waits until it succeeds, for some two minutes at most: the harness judges by the reports.
within() {
    for _ in $(seq 100); do
        "$@" && return
        sleep 0.5
    done
}

# answers WHEN: reports the agent's answers and the directory of specs.
answers() {
    section "$1.readyz" ask readyz
    section "$1.status" ask status
    section "$1.specs" find "$SPECS" -mindepth 1 -printf '%f %s\n'
}

is_linked() { [ "$(readlink "/dev/char/$1")" = ../nvidia-uvm ]; }

# second NAME ARGUMENT...: runs another agent like the first until it ends.
second() {
    name=$1
    shift
    code=0
    # shellcheck disable=SC2086
    contain --name second $IMAGE $AGENT_ARGUMENTS "$@" >/run/matrix/second.log 2>&1 || code=$?
    fact "$name.exit-code" "$code"
    section "$name.log" cat /run/matrix/second.log
}

waits() { grep -q 'another longshore runs' /run/matrix/second.log; }

repaired=none
prepare
mkdir -p "$SPECS" /dev/char
for number in $STALE; do
    ln -s ../nvidia-uvm "/dev/char/$number"
done
state before
mount -t tmpfs -o ro,size=128k specs "$SPECS"
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready
    section ready.links links
    within is_unpublished 'Read-only file system'
    answers read-only

    phase full
    mount -o remount,rw "$SPECS"
    dd if=/dev/zero of="$SPECS/filler" bs=1k count=128 2>/dev/null
    within is_unpublished 'No space left on device'
    answers full
    rm -f "$SPECS/filler"
    within is_published
    answers published

    phase links
    repaired=$(uvm_number)
    ln -sfn ../nvidia-modeset "/dev/char/$repaired"
    within is_linked "$repaired"
    section repaired.links links

    phase second
    section alone.identity identity
    second late --lock-deadline 3s
    second stopped &
    waiting=$!
    within waits
    pod kill -s TERM second >/dev/null
    wait "$waiting"
    section beside.identity identity
    answers beside
    report_ready beside
    phase terminate
    stop_agent
fi
finish_agent
umount "$SPECS"
# A link comes back as another program had it.
section returned readlink "/dev/char/$repaired"
rm -f "/dev/char/$repaired"
after
