# shellcheck shell=sh
# The agent must end by itself and leave the host untouched.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh

prepare
state before
start_agent
finish_agent
after
