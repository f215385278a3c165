# shellcheck shell=sh
# Change from one driver to another, and back, in one boot. Agents end by SIGKILL, as they do when a
# node is short of memory, so that the next one finds the driver loaded. The configuration is a
# file: a start reads it, and SIGHUP makes the agent read it again. An act is the effect of one of
# the two.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

CONFIG=/run/matrix/config
CONSUMED=/run/matrix/consumed
LOG=/run/matrix/agent.log
# More channels than a character device has minor numbers: 550's own init refuses that (EINVAL).
TOO_MANY='nvidia NVreg_ImexChannelCount=1048577'
# Not a boolean: the kernel refuses the module. 550's nvidia is loaded by then.
NO_BOOLEAN='nvidia-uvm uvm_disable_hmm=maybe'

# configure BRANCH FLAVOUR [MODULE PARAMETERS]: sets the driver that is wanted from now on.
configure() {
    {
        printf 'driver = "%s"\nflavour = "%s"\n' "$1" "$2"
        [ $# -lt 4 ] || printf '[parameters]\n%s = "%s"\n' "$3" "$4"
    } >$CONFIG/next
    mv $CONFIG/next $CONFIG/config.toml
}

# begin: starts an agent, with an empty log. The record is the previous agent's for a while.
begin() {
    TOLD=0
    : >$LOG
    start_agent
}

# until_so COMMAND...: waits until it succeeds; if the agent ends before, its last log lines go to
# the console.
until_so() {
    await "$@" && return
    tail -n 6 $LOG >/dev/console
    return 1
}

ready() {
    begin
    until_so grep -q ' is ready (' $LOG
}

# answers: counts the agent's log lines about the result of a SIGHUP.
answers() {
    grep -cE 'is ready .* after SIGHUP|the running configuration and its driver stay' $LOG || true
}

answered() { [ "$(answers)" -gt "$1" ]; }

# renew: sends SIGHUP, and waits until the agent is Ready with its result.
renew() {
    before=$(answers)
    kill -HUP "$(pgrep -xo longshore)"
    until_so answered "$before"
    until_so has_phase ready
}

# ended ACT: waits until the agent has ended by itself.
ended() {
    code=0
    wait "$RUN" || code=$?
    fact "$1.exit-code" "$code"
}

die() {
    strike
    wait "$RUN" || true
}

prefetch() { cat /sys/module/nvidia_uvm/parameters/uvm_perf_prefetch_enable; }

new_lines() { tail -n "+$((TOLD + 1))" $LOG; }

# started: prints the start of the agent's process, and now, in seconds since boot; and now by the
# clock.
started() {
    begun=$(awk -v hz="$(getconf CLK_TCK)" '{ print $22 / hz }' "/proc/$(pgrep -xo longshore)/stat")
    now
    echo "$begun $NOW $(date -u +%H:%M:%S.%N)"
}

# act NAME: reports the present state, and the agent's log since the last act.
act() {
    phase "$1"
    section "$1.identity" identity
    report_kernel_side "$1"
    section "$1.prefetch" prefetch
    state "$1"
    section "$1.record" cat "$STATE"
    section "$1.log" new_lines
    TOLD=$(wc -l <$LOG)
}

# consume: starts a process that has the driver root in a mount namespace of its own, as a container
# has it that mounts it with HostToContainer, and keeps it.
consume() {
    mkdir -p $CONSUMED
    # shellcheck disable=SC2016
    unshare --mount --propagation slave sh -c \
        'mount --rbind "$1" "$2" && exec sleep 86400' sh "$DRIVER_ROOT" $CONSUMED &
    CONSUMER=$!
    await has_consumed
}

has_consumed() { [ -e "/proc/$CONSUMER/root$CONSUMED/usr/lib" ]; }

# consumed NAME: reports the driver library that the running consumer sees, and a node.
consumed() {
    # shellcheck disable=SC2016
    section "$1.consumer" sh -c 'cd "$1" && ls usr/lib/x86_64-linux-gnu/libcuda.so.*.* dev/nvidiactl' \
        sh "/proc/$CONSUMER/root$CONSUMED"
}

# published NAME: reports the driver library that the CDI spec names.
published() {
    # shellcheck disable=SC2016
    section "$1.spec" sh -c 'grep -o "libcuda\.so\.[0-9]*\.[0-9.]*[0-9]" "$1" | sort -u' sh "$SPEC"
}

# loaded NAME: reports an act in which a driver was loaded, which exposes its files again.
loaded() {
    act "$1"
    report_user_side "$1"
    consumed "$1"
    published "$1"
}

mkdir $CONFIG
prepare
state before

# Adopting, and an incomplete driver. DRIVER is two words, as those below are.
# shellcheck disable=SC2086
configure $DRIVER
ready
consume
loaded installed
die
rm /dev/nvidia-uvm-tools
ready
fact adopted.started "$(started)"
act adopted
# shellcheck disable=SC2086
configure $DRIVER nvidia-uvm uvm_perf_prefetch_enable=0
renew
act parameter
# A branch that no source has.
configure 999 open
renew
act unavailable

# The other driver and back: by SIGHUP, then by a start.
# shellcheck disable=SC2086
configure $NEXT_DRIVER
renew
loaded upgraded
look upgraded
# shellcheck disable=SC2086
configure $DRIVER
renew
loaded back
die
# shellcheck disable=SC2086
configure $NEXT_DRIVER
ready
loaded upgraded-anew
die
# shellcheck disable=SC2086
configure $DRIVER
ready
loaded back-anew

# A driver that refuses to load: by SIGHUP, where the agent stays, and by a start, where it ends.
# shellcheck disable=SC2086
configure $NEXT_DRIVER $NO_BOOLEAN
renew
loaded refused-in-place
die
TOLD=0
act left
# shellcheck disable=SC2086
configure $NEXT_DRIVER $TOO_MANY
begin
ended refused
loaded refused
begin
ended refused-again
act refused-again

# In use.
hold_driver
fact holder "$HOLDER"
act hold
# shellcheck disable=SC2086
configure $NEXT_DRIVER
begin
ended held
act held
# shellcheck disable=SC2086
configure $DRIVER
ready
act readopted
# shellcheck disable=SC2086
configure $NEXT_DRIVER
renew
act held-in-place
end_holder
phase terminate
terminate
kill "$CONSUMER"
wait "$CONSUMER" || true
finish_agent
after
