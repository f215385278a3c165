# shellcheck shell=sh
# TERM arrives while the kernel loads the driver's first module: it shows in /proc/modules as soon
# as its loading has begun.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh

prepare
state before
start_agent
agent=
until [ -n "$agent" ]; do
    running || break
    agent=$(pgrep -xo longshore || true)
done
modules=
until is_among nvidia "$modules"; do
    running || break
    modules=$(cat /proc/modules)
done
kill -TERM "$agent" || true
phase terminate
section terminate.modules echo "$modules"
# TERM repeatedly while the agent rolls back.
while kill -TERM "$agent" 2>/dev/null; do
    sleep 0.05
done
finish_agent
after
