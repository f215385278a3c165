# shellcheck shell=sh
# Resource use of an agent that is Ready and receives no requests, and the time of its end.
# shellcheck source-path=SCRIPTDIR/../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=rounds.sh
. /run/matrix/rounds.sh

# Seconds until the work after an installation is over, and seconds of the measurement.
QUIET=30
REST=300

# Prints a line for each thread: id, name, voluntary and involuntary context switches.
threads() {
    for task in /proc/"$1"/task/*/status; do
        awk -v id="${task#/proc/"$1"/task/}" '
            $1 == "Name:" { name = $2 }
            $1 == "voluntary_ctxt_switches:" { asked = $2 }
            $1 == "nonvoluntary_ctxt_switches:" { print id + 0, name, asked, $2 }' "$task"
    done
}

# Memory of a process, and the pages of it that it used since /proc/PID/clear_refs was written.
memory() {
    grep -E '^(VmRSS|RssAnon|RssFile|Threads)' "/proc/$1/status"
    grep -E '^Referenced' "/proc/$1/smaps_rollup"
}

prepare
start_agent
await has_phase ready
agent=$(pgrep -xo longshore)
sleep $QUIET
phase rest
fact rest-seconds $REST
section rest.before threads "$agent"
echo 1 >"/proc/$agent/clear_refs"
sleep $REST
section rest.after threads "$agent"
section rest.memory memory "$agent"
pod kill -s TERM longshore >/dev/null
finish_agent
phase rounds
rounds
