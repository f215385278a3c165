# shellcheck shell=sh
# TERM while a process of the host and one in a container hold the driver: the agent ends and leaves
# it. The next agent adopts it; once no process holds it any more, TERM uninstalls it.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

hold() {
    hold_driver
    # shellcheck disable=SC2086
    ID=$(pod run --detach --name holder --privileged --network none --entrypoint /bin/sh $IMAGE \
        -c 'exec busybox sleep 86400 </dev/nvidiactl')
    fact holder "$HOLDER"
    fact contained-holder "$(pod inspect --format '{{.State.Pid}}' holder) $ID"
}

let_go() {
    end_holder
    pod rm --force --time 0 holder >/dev/null
}

prepare
state before
start_agent
await has_phase ready
phase held
hold
section held.identity identity
now
begun=$NOW
terminate
code=0
wait "$RUN" || code=$?
now
fact held.exit-code "$code"
fact held.seconds "$begun $NOW"
section held.log cat /run/matrix/agent.log
section held.record cat "$STATE"
report_ready held
start_agent
if await has_phase ready; then
    phase ready
    section adopted.identity identity
    report_ready ready
    section ready.look look_around
    let_go
    phase terminate
    terminate
fi
finish_agent
after
