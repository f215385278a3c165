# shellcheck shell=sh
# Never ends: a run has to end it at its deadline, and to explain it.
# shellcheck source-path=SCRIPTDIR/../../../../lab/src/guest/scripts source=lib.sh
. /run/matrix/lib.sh
phase hang
echo 'the guest hangs from here' >/dev/console
while :; do
    sleep 60
done
