# shellcheck shell=sh
# Waiting for moments. It is read after lib.sh.
#
# The kernel tells of what happens in a directory, for example that of the agent's journal; a shell
# with a real-time priority hears of it before the agent, on the one processor there is, comes to do
# anything more.

EVENTS=/run/matrix/events
JOURNAL=${STATE%/*}

# hasten, slacken: this shell goes before everything else, but not what it starts; as all others.
hasten() { chrt -R -f -p 50 $$; }
slacken() { chrt -o -p 0 $$; }

# now: seconds since boot, in NOW.
# shellcheck disable=SC2034
now() { read -r NOW _ </proc/uptime; }

# watch DIR: EVENTS tells of what is made in a directory or moved to it.
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

# start_watched: the agent, with EVENTS telling of its end too.
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

# next_event: counts what the journal's directory tells of in COUNT: a record begun, a record
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

# strike: SIGKILL to everything in every container.
strike() {
    for group in /sys/fs/cgroup/libpod_parent/libpod-[0-9a-f]*/cgroup.kill; do
        echo 1 >"$group"
    done
}

# at_module NAME STATE PHASE: the kernel has a module in this state, for example Loading. Fails when
# the agent's phase is PHASE before.
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

# loading NAME: the kernel takes a module.
loading() {
    slacken
    await has_phase installing
    at_module "$1" Loading ready
}
