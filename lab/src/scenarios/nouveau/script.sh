# shellcheck shell=sh
# A GPU that is bound to nouveau (its stand-in): an agent that starts while a process holds it refuses
# and leaves the host as it is; the next one unloads it, and TERM brings it back with its parameters.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

# Puts the stand-in in the place of the kernel's nouveau and loads it, with its dependencies.
load_stand_in() {
    file=$(modinfo -n nouveau)
    # The disk with the modules is a snapshot, and loses the change with the guest.
    cp /run/matrix/nouveau.ko "${file%.ko*}.ko"
    depmod
    modprobe nouveau runpm=0
}

# Prints the drivers of the GPUs, the module's parameter and its nodes.
bindings() {
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor")" = 0x10de ] || continue
        driver=$(readlink "$device/driver" || echo none)
        echo "${device##*/} ${driver##*/} override $(cat "$device/driver_override")"
    done
    echo "runpm $(cat /sys/module/nouveau/parameters/runpm 2>/dev/null || echo none)"
    find /dev/dri -type c | sort
}

prepare
load_stand_in
state before
section before.bindings bindings
# shellcheck disable=SC2217
sleep 86400 </dev/dri/renderD128 &
HOLDER=$!
fact holder "$HOLDER"
start_agent
code=0
wait "$RUN" || code=$?
fact held.exit-code "$code"
section held.log cat /run/matrix/agent.log
kill "$HOLDER"
wait "$HOLDER" || true
state held
section held.bindings bindings
start_agent
if await has_phase ready; then
    phase ready
    section ready.bindings bindings
    report_ready ready
    section ready.look look_around
    phase terminate
    terminate
fi
finish_agent
after
section after.bindings bindings
