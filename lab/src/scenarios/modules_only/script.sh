# shellcheck shell=sh
# An agent run with the modules alone: before, start, Ready, TERM, after. The host would have user-mode files of its own.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

prepare
state before
look before
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready
    section ready.mounts cat /proc/mounts
    phase terminate
    stop_agent
fi
finish_agent
after
