# shellcheck shell=sh
# Control of the judge of kernel logs: a module provokes a warning of this very kernel. No agent runs.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh

phase provoke
insmod /run/matrix/warns.ko
phase provoked
section provoked.modules cat /proc/modules
fact provoked.tainted "$(cat /proc/sys/kernel/tainted)"
rmmod warns
