# shellcheck shell=sh
# An interactive shell on the console, with the functions of lib.sh.
ENV=/run/matrix/lib.sh setsid -c sh -i </dev/ttyS0 >/dev/ttyS0 2>&1
