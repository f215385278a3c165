#!/bin/sh
# Second stage, process 1 in the real root: an init system's usual mounts, then the scenario. Its
# exit code goes to the console with the nonce in every case.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HOME=/root
export PATH HOME
cd /

set -a
# shellcheck source=/dev/null
. /run/matrix/cell.sh
set +a

mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount --make-rshared /
mkdir -p /run/nvidia
ip link set lo up
if [ -n "$NETWORK" ]; then
    modprobe virtio_net
    ip link set eth0 up
    ip address add "$NETWORK" dev eth0
fi

if [ -n "$ARCHIVE" ]; then
    # The host's own apt sources, at the address at which this guest reaches them.
    rm -f /etc/apt/sources.list.d/*
    echo "deb $ARCHIVE $SUITE main" >/etc/apt/sources.list
fi

for name in /sys/class/virtio-ports/*/name; do
    if [ "$(cat "$name")" = results ]; then
        port=${name%/name}
        exec 3>"/dev/${port##*/}"
    fi
done

sh -eu /run/matrix/scenario.sh
code=$?
echo "@verdict $NONCE $code" >&3
echo "MATRIX-VERDICT $NONCE $code" >/dev/console
# Without a sync, as at a loss of power.
/run/matrix/busybox poweroff -nf
