# shellcheck shell=sh
# Parts of a Ready driver are removed behind the agent's back. The agent does not remove a directory
# in the place of a node: it is not ready until the directory is removed. A mount it restores
# itself.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

# readyz CODE: checks that the probe of readiness ends with this exit code.
readyz() { ask readyz | head -n 1 | grep -qx "exit code $1"; }

is_shown() { [ -s "$DRIVER_ROOT/usr/bin/nvidia-smi" ] && [ -c "$DRIVER_ROOT/dev/nvidia0" ] && readyz 0; }

# clock: prints the time of day, as the agent's log has it.
clock() { date -u +%H:%M:%S.%N; }

prepare
state before
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready

    phase taken
    now
    begun=$NOW
    taken=$(clock)
    # Between the two the agent may have made it again.
    until rm -f /dev/nvidia0 && mkdir /dev/nvidia0; do :; done
    await readyz 30
    now
    fact restored.node-seconds "$begun $NOW"
    fact restored.node-taken "$taken"
    for path in readyz status metrics; do
        section taken.$path ask $path
    done
    rmdir /dev/nvidia0
    await readyz 0

    now
    begun=$NOW
    taken=$(clock)
    umount -l "$DRIVER_ROOT"
    await is_shown
    now
    fact restored.mount-seconds "$begun $NOW"
    fact restored.mount-taken "$taken"
    phase restored
    report_ready restored
    section restored.readyz ask readyz
    section restored.look look_around
    phase terminate
    pod kill -s TERM longshore >/dev/null
fi
finish_agent
after
