# shellcheck shell=sh
# A store whose disk does not answer: while it is frozen (fsfreeze), every write to it sleeps in the
# kernel, uninterruptible by any signal. An agent that starts then reports this and ends, on an
# untouched host and on one where the agent before it was killed; the next one, with the disk
# answering, becomes Ready; with the disk frozen again, TERM uninstalls the driver all the same.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

STORE=/var/lib/longshore
USUAL=$AGENT_ARGUMENTS

says() { grep -qF "$1" /run/matrix/agent.log 2>/dev/null; }

# start_frozen WHEN: starts an agent with the disk frozen and waits until it logs that it ends; then
# the disk answers again, as until then the kernel keeps the sleeping part of the process.
start_frozen() {
    fsfreeze --freeze $STORE
    phase "$1"
    AGENT_ARGUMENTS="$USUAL --step-deadline 5s"
    start_agent
    AGENT_ARGUMENTS=$USUAL
    await says 'serving metrics'
    now
    begun=$NOW
    await says 'has not come to its end'
    now
    fact "$1.seconds" "$begun $NOW"
    fsfreeze --unfreeze $STORE
    code=0
    wait "$RUN" || code=$?
    fact "$1.exit-code" "$code"
    section "$1.log" cat /run/matrix/agent.log
}

prepare
state before
start_frozen untouched
state untouched
start_agent
await has_phase ready
section killed.identity identity
strike
code=0
wait "$RUN" || code=$?
fact struck.exit-code "$code"
start_frozen killed
section after-killed.identity identity
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready
    section adopted.identity identity
    section ready.look look_around
    fsfreeze --freeze $STORE
    phase terminate
    now
    begun=$NOW
    terminate
    await has_phase removed
    now
    fact removed.seconds "$begun $NOW"
    section removed.modules cat /proc/modules
    fsfreeze --unfreeze $STORE
fi
finish_agent
after
