# shellcheck shell=sh
# SIGKILL to everything in the agent's container, at points spread over installation and removal.
# After each either the agent is started again, comes to Ready and gets TERM, or `longshore unload`
# is run; then the host is looked at.
#
# A point is a write of the agent's journal: the kernel tells of the directory's events, and as this
# shell has a real-time priority on the one processor, the agent does nothing more once the event has
# come. What shows elsewhere is looked for as fast as that goes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

# How many points are writes of the journal: this many while installing, this many while removing.
INSTALLING=12
REMOVING=5

# The points. Each returns when its moment has come, and fails when the container ended before.

# at_event N: the journal's Nth event.
at_event() {
    until [ "$COUNT" -ge "$1" ]; do
        next_event || return 1
        [ "$COUNT" != "$READY" ] || [ "$1" = "$READY" ] || terminate
    done
}

# to_ready: the agent is Ready.
to_ready() {
    at_event "$READY"
}

removing_module() {
    to_ready
    terminate
    # Removing takes a moment: what looks is faster than the agent. Were it so for longer, nothing else
    # would get on.
    chrt -f -p 50 $$
    at_module "$@"
}

# whole_life: what a life writes while nobody disturbs it: READY events until it is Ready, LAST in all.
whole_life() {
    COUNT=0
    READY=none
    LAST=none
    start_watched
    # What looks at the journal is as fast as this shell.
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

# recover N: two by the next agent, two by `unload`, and so on.
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

# trial TEXT POINT...: one kill at a point.
trial() {
    NUMBER=$((NUMBER + 1))
    phase "kill-$NUMBER"
    fact "point-$NUMBER" "$1"
    shift
    COUNT=0
    start_watched
    hasten
    if "$@"; then
        strike
    else
        # It shows as a life that was not killed.
        terminate || true
    fi
    slacken
    code=0
    wait "$RUN" || code=$?
    unwatch
    fact "killed-$NUMBER" "$code"
    section "death-$NUMBER.log" cat /run/matrix/agent.log
    section "death-$NUMBER.journal" cat "$STATE"
    section "death-$NUMBER.modules" cat /proc/modules
    section "death-$NUMBER.mounts" grep /run/nvidia/driver /proc/self/mountinfo
    section "death-$NUMBER.nodes" find /dev -name 'nvidia*'
    recover "$NUMBER"
    state "after-$NUMBER"
    section "after-$NUMBER.record" cat "$STATE"
}

# trials_at WHAT COUNT FROM UNTIL: so many kills at events between two; in turns when a record has been
# written, and when one is begun: what it tells of has just been done.
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
# Not nvidia_uvm, too: killed in its init, 535's panics (docs/kernel-matrix.md).
trial 'nvidia is being loaded' loading nvidia
trial 'Ready' to_ready
trial 'nvidia is being removed' removing_module nvidia Unloading removed
fact trials "$NUMBER"
after
