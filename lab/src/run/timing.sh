# shellcheck shell=sh
# Times of the driver's install and uninstall.
# shellcheck source-path=SCRIPTDIR/../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=rounds.sh
. /run/matrix/rounds.sh

prepare
rounds
