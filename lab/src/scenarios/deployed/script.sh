# shellcheck shell=sh
# The agent as deploy/compose.yaml and deploy/systemd/longshore.service run it, through restarts of dockerd and of the
# guest. AFTER is empty in the first boot.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

is_ready() { answers_yes readyz; }
is_gone() { ! answers_yes healthz; }

# timed NAME COMMAND...: waits until a command succeeds, and reports the time.
timed() {
    now
    begun=$NOW name=$1
    shift
    patiently "$@"
    now
    fact "$name" "$begun $NOW"
}

# Ends dockerd as its unit's stop and a shutdown do: it stops its containers.
stop_dockerd() {
    kill -TERM "$(pidof dockerd)"
    while pidof dockerd >/dev/null; do sleep 0.2; done
}

run_dockerd() {
    # shellcheck disable=SC2086
    dockerd ${INIT:+--exec-opt native.cgroupdriver=$INIT} --data-root /var/lib/containers/docker --storage-driver overlay2 \
        --bridge none --iptables=false --ip6tables=false >>/run/matrix/dockerd.log 2>&1 &
    patiently docker version
}

# restart_dockerd NAME: reports what is loaded while dockerd is down, and the time from its start to Ready.
restart_dockerd() {
    stop_dockerd
    section "$1.down" cat /proc/modules
    run_dockerd
    timed "$1.seconds" is_ready
}

compose() {
    docker-compose -f /run/matrix/compose.yaml -f /run/matrix/compose.offline.yaml "$@" >/run/matrix/compose.log 2>&1 || {
        cat /run/matrix/compose.log >/dev/console
        return 1
    }
}

# There is no archive: the store has the driver.
offline() {
    cat >/run/matrix/compose.offline.yaml <<END
services:
  longshore:
    environment:
      LONGSHORE_HOST_APT: "false"
      DRIVER_VERSION: "535"
END
    cat >/etc/default/longshore <<END
ENGINE=docker
OPTIONS=-e DRIVER_VERSION=535 -e LONGSHORE_HOST_APT=false
END
}

if [ -n "$AFTER" ]; then
    modprobe overlay
    run_dockerd
    timed reboot.seconds is_ready
    phase rebooted
    section rebooted.readyz ask readyz
    offline
    compose down
    section rebooted.down cat /proc/modules
    exit 0
fi

start_docker
offline

phase compose
compose up --detach
timed compose.seconds is_ready
phase ready
report_ready ready
restart_dockerd compose.restarted
compose down
section compose.after cat /proc/modules

phase unit
cp /run/matrix/longshore.service /etc/systemd/system/
systemctl daemon-reload
now
begun=$NOW
systemctl start longshore
now
fact unit.seconds "$begun $NOW"
# The start has ended when the driver is ready, and not before.
section unit.readyz ask readyz
restart_dockerd unit.restarted
patiently systemctl is-active longshore
section unit.state systemctl is-active longshore
systemctl stop longshore
section unit.after cat /proc/modules
patiently is_gone

phase reboot
compose up --detach
patiently is_ready
stop_dockerd
section reboot.down cat /proc/modules
sync
