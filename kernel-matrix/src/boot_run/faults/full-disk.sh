# shellcheck shell=sh
# Fills the root file system in the middle of a scenario: a run has to explain it.
# shellcheck source-path=SCRIPTDIR/../../../../lab/src/guest/scripts source=lib.sh
. /run/matrix/lib.sh
phase fill
dd if=/dev/zero of=/full bs=1M
