#!/bin/sh
# Second stage, process 1 in the real root, or a service of systemd: an init system's usual mounts, then the scenario. Its
# exit code goes to the console with the nonce in every case.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HOME=/root
export PATH HOME
cd /

set -a
# shellcheck source=/dev/null
. /run/matrix/cell.sh
set +a

# Lets systemd be process 1; it makes the usual mounts and starts this script as a service. Nothing
# else is started: a whole boot takes minutes under emulation.
start_systemd() {
    mkdir -p /run/systemd/system
    cat >/run/systemd/system/matrix.service <<END
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh /run/matrix/stage.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
KillMode=none
Delegate=yes
END
    exec /usr/lib/systemd/systemd --unit=matrix.service
}

usual_mounts() {
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mkdir -p /dev/pts /dev/shm
    mount -t devpts devpts /dev/pts
    mount -t tmpfs shm /dev/shm
    mount --make-rshared /
}

# shellcheck source-path=SCRIPTDIR source=selinux.sh
. /run/matrix/selinux.sh
case $$-$INIT-${CONFINED:-} in
    1-systemd-*) start_systemd ;;
    1-*-yes) setenforce 1 && echo 'SELinux enforces from here' >/dev/kmsg ;;
    1-*)
        usual_mounts
        [ -z "$SELINUX" ] || enforce_selinux
        ;;
esac
mount -t tmpfs tmp /tmp
mkdir -p /run/nvidia
ip link set lo up
if [ -n "$NETWORK" ]; then
    modprobe virtio_net
    ip link set eth0 up
    ip address add "$NETWORK" dev eth0
fi

if [ -n "$APT_SOURCES" ]; then
    # The host's own apt sources, at the address at which this guest reaches them.
    rm -f /etc/apt/sources.list.d/*
    printf '%s' "$APT_SOURCES" >/etc/apt/sources.list
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
