# shellcheck shell=sh
# One driver in the place of another, and back, in one boot. Agents end by SIGKILL, as they do when a
# node is short of memory, so that the next one finds the driver live. The configuration is a file: a
# start reads it, and SIGHUP has it read again. An act is what one of the two led to.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

CONFIG=/run/matrix/config
LOG=/run/matrix/agent.log
# More channels than a character device has minor numbers: 550's own init refuses that (EINVAL).
TOO_MANY='nvidia NVreg_ImexChannelCount=1048577'
# No boolean: the kernel refuses the module. 550's nvidia is loaded by then.
NO_BOOLEAN='nvidia-uvm uvm_disable_hmm=maybe'

# configure BRANCH FLAVOUR [MODULE PARAMETERS]: what is wanted from now on.
configure() {
    {
        printf 'driver = "%s"\nflavour = "%s"\n' "$1" "$2"
        [ $# -lt 4 ] || printf '[parameters]\n%s = "%s"\n' "$3" "$4"
    } >$CONFIG/next
    mv $CONFIG/next $CONFIG/config.toml
}

# begin: an agent, with nothing said yet. The record is that of the one before, for a while.
begin() {
    TOLD=0
    : >$LOG
    start_agent
}

# until_so COMMAND...: until it succeeds; where the agent ends before, its last words are on the console.
until_so() {
    await "$@" && return
    tail -n 6 $LOG >/dev/console
    return 1
}

ready() {
    begin
    until_so grep -q ' is ready (' $LOG
}

# answers: how often the agent has said what came of a SIGHUP.
answers() {
    grep -cE 'is ready .* after SIGHUP|the running configuration and its driver stay' $LOG || true
}

answered() { [ "$(answers)" -gt "$1" ]; }

# renew: SIGHUP, until the agent is Ready with what came of it.
renew() {
    before=$(answers)
    kill -HUP "$(pgrep -xo longshore)"
    until_so answered "$before"
    until_so has_phase ready
}

# ended ACT: until the agent has ended by itself.
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

# born: when the agent's process began, and now, in seconds since boot; and now by the clock.
born() {
    begun=$(awk -v hz="$(getconf CLK_TCK)" '{ print $22 / hz }' "/proc/$(pgrep -xo longshore)/stat")
    now
    echo "$begun $NOW $(date -u +%H:%M:%S.%N)"
}

# act NAME: what is there now, and what the agent has said since the last one.
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

# loaded NAME: an act in which a driver was loaded, which shows its files anew.
loaded() {
    act "$1"
    report_user_side "$1"
}

mkdir $CONFIG
prepare
state before

# Adopting, and what is not a whole driver.
# DRIVER is two words, as those below are.
# shellcheck disable=SC2086
configure $DRIVER
ready
loaded installed
die
rm /dev/nvidia-uvm-tools
ready
fact adopted.born "$(born)"
act adopted
# shellcheck disable=SC2086
configure $DRIVER nvidia-uvm uvm_perf_prefetch_enable=0
renew
act parameter
# A branch that is nowhere to be had.
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

# One that refuses to load: where the agent stays, and where it ends.
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
# shellcheck disable=SC2217
sleep 86400 </dev/nvidiactl &
HOLDER=$!
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
kill "$HOLDER"
wait "$HOLDER" || true
phase terminate
terminate
finish_agent
after
