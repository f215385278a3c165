# shellcheck shell=sh
# How long the driver takes to go on and come off.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=rounds.sh
. /run/matrix/rounds.sh

prepare
rounds
