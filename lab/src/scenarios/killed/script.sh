# shellcheck shell=sh
# SIGKILL to everything in the agent's container, at points spread over install and uninstall. After
# each either the agent is started again, becomes Ready and gets TERM, or `longshore unload` is run;
# then the host's state is recorded.
#
# A point is a write of the agent's journal: the kernel reports the directory's events, and as this
# shell has a real-time priority on the one processor, the agent does nothing more once the event
# has arrived. Points that show elsewhere are polled for as fast as possible.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

# Number of points that are writes of the journal, while installing and while uninstalling.
INSTALLING=12
REMOVING=5

# The points. Each returns when it is reached, and fails if the container ended before.

# at_event N: waits for the journal's Nth event.
at_event() {
    until [ "$COUNT" -ge "$1" ]; do
        next_event || return 1
        [ "$COUNT" != "$READY" ] || [ "$1" = "$READY" ] || terminate
    done
}

# to_ready: waits until the agent is Ready.
to_ready() {
    at_event "$READY"
}

# at_once NAME STATE PHASE: at_module, faster than the agent. Loading and unloading take a moment: the polling children
# get this shell's priority, too, and it keeps that until the kill. For longer, nothing else would make progress.
at_once() {
    chrt -f -p 50 $$
    at_module "$@"
}

loading_module() {
    slacken
    await has_phase installing
    at_once "$1" Loading ready
}

removing_module() {
    to_ready
    terminate
    at_once "$1" Unloading removed
}

# see_modules: sets MODULES to the text of /proc/modules. It forks nothing: a child could have a lower priority than the
# agent, which would go on meanwhile.
see_modules() {
    MODULES=
    while read -r line; do
        MODULES="$MODULES$line
"
    done </proc/modules
}

# whole_life: counts the events of an undisturbed agent run: READY events until it is Ready, LAST in
# all.
whole_life() {
    COUNT=0
    READY=none
    LAST=none
    start_watched
    # The children that read the journal get this shell's priority, too.
    chrt -f -p 50 $$
    while next_event; do
        if [ "$READY" = none ] && [ "$EVENT" = 'MOVED_TO state.json' ] && has_phase ready; then
            READY=$COUNT
            slacken
            state ready-0
            terminate
        fi
    done
    slacken
    LAST=$COUNT
    finish_agent
    unwatch
    fact events "$READY $LAST"
    state after-0
}

# recover N: recovers by the next agent, twice, then by `unload`, twice, and so on.
recover() {
    now
    begun=$NOW
    code=0
    if [ $((($1 - 1) / 2 % 2)) = 0 ]; then
        start_agent
        if await has_phase ready; then
            now
            fact "recovery-$1" "start $begun $NOW"
            state "ready-$1"
            terminate
        fi
        wait "$RUN" || code=$?
        section "recovery-log-$1" cat /run/matrix/agent.log
    else
        # shellcheck disable=SC2086
        contain $IMAGE unload >/run/matrix/unload.log 2>&1 || code=$?
        now
        fact "recovery-$1" "unload $begun $NOW"
        section "recovery-log-$1" cat /run/matrix/unload.log
    fi
    fact "recovered-$1" "$code"
}

# trial TEXT POINT...: runs one kill at a point.
trial() {
    NUMBER=$((NUMBER + 1))
    phase "kill-$NUMBER"
    fact "point-$NUMBER" "$1"
    shift
    COUNT=0
    start_watched
    hasten
    MODULES=
    if "$@"; then
        see_modules
        strike
    else
        # Shows as an agent run that was not killed.
        terminate || true
    fi
    slacken
    code=0
    wait "$RUN" || code=$?
    unwatch
    fact "killed-$NUMBER" "$code"
    section "death-$NUMBER.log" cat /run/matrix/agent.log
    section "death-$NUMBER.journal" cat "$STATE"
    section "death-$NUMBER.modules" printf '%s' "$MODULES"
    section "death-$NUMBER.mounts" grep /run/nvidia/driver /proc/self/mountinfo
    section "death-$NUMBER.nodes" find /dev -name 'nvidia*'
    recover "$NUMBER"
    state "after-$NUMBER"
    section "after-$NUMBER.record" cat "$STATE"
}

# trials_at WHAT COUNT FROM UNTIL: runs COUNT kills at events between two; alternately when a record
# has been written, and when one is begun: the step that it records has just been done.
trials_at() {
    i=0
    while [ "$i" -lt "$2" ]; do
        event=$((($3 + i * ($4 - $3) / ($2 - 1)) / 2 * 2 + i % 2))
        how=written
        [ $((i % 2)) = 0 ] || how=begun
        trial "$1: record $(((event + 1) / 2)) of $((LAST / 2)) $how" at_event "$event"
        i=$((i + 1))
    done
}

prepare
state before
look before
whole_life
NUMBER=0
trials_at installing $INSTALLING 2 $((READY - 2))
trials_at removing $REMOVING $((READY + 2)) $((LAST - 2))
# Not nvidia_uvm, too: 535's panics when killed in its init (docs/internals/cells.md).
trial 'nvidia is being loaded' loading_module nvidia
trial 'Ready' to_ready
trial 'nvidia is being removed' removing_module nvidia
fact trials "$NUMBER"
after
