# shellcheck shell=sh
# TERM arrives while the kernel takes the driver's first module: it shows in /proc/modules as soon
# as its loading has begun.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. /run/matrix/lib.sh

prepare
state before
start_agent
until is_loaded nvidia; do
    running || break
done
pkill -TERM -x longshore || true
phase terminate
section terminate.state cat "$STATE"
section terminate.modules cat /proc/modules
finish_agent
after
