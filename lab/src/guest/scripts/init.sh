#!/bin/sh
# First stage, in the initramfs: loads the modules for the disks, mounts them, switches to the real
# root. /matrix/disks holds lines "DEVICE MOUNTPOINT", the root first.
PATH=/bin
export PATH

give_up() {
    echo "matrix: first stage: $*" >/dev/console
    busybox poweroff -f
}

busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev

for module in /modules/*.ko; do
    busybox insmod "$module" || give_up "insmod $module"
done

while read -r device target; do
    busybox mount -t ext4 -o noatime "/dev/$device" "/root$target" || give_up "mount $device"
done </matrix/disks

for tree in proc sys dev; do
    busybox mount --move "/$tree" "/root/$tree"
done
busybox mount -t tmpfs -o mode=755 run /root/run
busybox cp -a /matrix /root/run/matrix
busybox cp /bin/busybox /root/run/matrix/busybox
exec busybox switch_root /root /bin/sh /run/matrix/stage.sh
