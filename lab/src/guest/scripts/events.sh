# shellcheck shell=sh
# Waiting for points in the agent's run. Sourced after lib.sh.
#
# The kernel reports events in a directory, for example that of the agent's journal; a shell with a
# real-time priority receives them before the agent, on the one processor there is, does anything
# more.

EVENTS=/run/matrix/events
JOURNAL=${STATE%/*}

# hasten, slacken: gives this shell, without its children, priority over all processes; gives it the
# normal priority.
hasten() { chrt -R -f -p 50 $$; }
slacken() { chrt -o -p 0 $$; }

# now: sets NOW to the seconds since boot.
# shellcheck disable=SC2034
now() { read -r NOW _ </proc/uptime; }

# watch DIR: reports in EVENTS the files that are made in a directory or moved to it.
watch() {
    rm -f "$EVENTS" && mkfifo "$EVENTS"
    exec 4<>"$EVENTS"
    mkdir -p "$1"
    chrt -f 50 inotifywait -m --format '%e %f' -e create -e moved_to "$1" \
        >"$EVENTS" 2>/run/matrix/watch.log &
    WATCH=$!
    until grep -q established /run/matrix/watch.log; do
        kill -0 "$WATCH"
        sleep 0.05
    done
}

unwatch() {
    kill "$WATCH"
    wait "$WATCH" || true
    exec 4>&-
}

# start_watched: starts the agent, with its end reported in EVENTS too.
start_watched() {
    watch "$JOURNAL"
    phase start
    (
        code=0
        agent || code=$?
        echo ENDED >"$EVENTS"
        exit "$code"
    ) &
    # shellcheck disable=SC2034
    RUN=$!
}

# next_event: counts the events of the journal's directory in COUNT: a record begun, a record
# written, a record begun... Fails when the container has ended.
next_event() {
    while read -r EVENT <&4; do
        case $EVENT in
            'CREATE state.json.next' | 'MOVED_TO state.json')
                COUNT=$((COUNT + 1))
                return 0
                ;;
            ENDED) return 1 ;;
        esac
    done
}

terminate() { kill -TERM "$(pgrep -xo longshore)"; }

# strike: sends SIGKILL to all processes of every container.
strike() {
    for group in /sys/fs/cgroup/libpod_parent/libpod-[0-9a-f]*/cgroup.kill; do
        echo 1 >"$group"
    done
}

# at_module NAME STATE PHASE: waits until a module has this state, for example Loading. Fails if the
# agent reaches phase PHASE before.
at_module() {
    while running; do
        case $(grep -hs -e "^$1 .* $2 " -e "\"phase\": *\"$3\"" /proc/modules "$STATE") in
            *'"phase"'*) return 1 ;;
            ?*) return 0 ;;
        esac
        sleep 0.01
    done
    return 1
}

# loading NAME: waits until the kernel loads a module.
loading() {
    slacken
    await has_phase installing
    at_module "$1" Loading ready
}
