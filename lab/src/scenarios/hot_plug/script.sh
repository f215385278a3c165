# shellcheck shell=sh
# The GPU is removed from the bus before the agent starts, which waits for one (no-gpu = wait); then the bus is scanned
# again, as by a hot-plug.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

is_ready() { answers_yes readyz; }

prepare
vendor=$(grep -l 0x10de /sys/bus/pci/devices/*/vendor)
echo 1 >"${vendor%/vendor}/remove"
state before
start_agent
if await is_ready; then
    phase idle
    for path in readyz status; do
        section idle.$path ask $path
    done
    section idle.probe pod exec longshore longshore status --ready --wait 1m
    state idle
    phase plugged
    now
    begun=$NOW
    echo 1 >/sys/bus/pci/rescan
    if await has_phase ready; then
        now
        fact plugged.seconds "$begun $NOW"
        phase ready
        report_ready ready
        phase terminate
        pod kill -s TERM longshore >/dev/null
    fi
fi
finish_agent
after
