# shellcheck shell=sh
# Panics in the middle of a scenario: a run has to explain it.
# shellcheck source-path=SCRIPTDIR/../../../../lab/src/guest/scripts source=lib.sh
. /run/matrix/lib.sh
phase panic
echo c >/proc/sysrq-trigger
