# shellcheck shell=sh
# Gates of the GPU operator's validator and toolkit, re-enacted from their behaviour: they print the files, nodes,
# links and devices that those search for, and the harness judges. Sourced on the host (operator.sh), and in a
# container of the agent's image (operator-pod.yaml).

RUN_DIR=/run/nvidia
DRIVER_ROOT=$RUN_DIR/driver
# Directories of libraries and tools, in the order in which the validator searches a root.
LIBRARY_DIRS='. usr/lib64 usr/lib/x86_64-linux-gnu usr/lib/aarch64-linux-gnu lib64 lib/x86_64-linux-gnu lib/aarch64-linux-gnu'
TOOL_DIRS='. usr/bin usr/sbin bin sbin'
# The same, in which it searches the host for a driver that was installed there.
HOST_TOOL_DIRS='usr/bin usr/sbin bin sbin usr/lib/wsl/lib opt/bin'
# Programs that the gates use beyond those of the agent's image, which has busybox.
APPLETS='awk find grep readlink realpath rmmod sed sleep sort stat tr umount wc'

# take_applets: puts them into the PATH of a container.
take_applets() {
    mkdir /applets
    for applet in $APPLETS; do
        busybox ln -s /usr/bin/busybox "/applets/$applet"
    done
    PATH=$PATH:/applets
    export PATH
}

# first NAME DIR...: prints the first file of that name in directories of the driver root, links
# resolved.
first() {
    name=$1
    shift
    for dir in "$@"; do
        [ -e "$DRIVER_ROOT/$dir/$name" ] || continue
        realpath "$DRIVER_ROOT/$dir/$name"
        return
    done
    echo "no $name"
}

# host_driver: prints the first nvidia-smi of the host's own, whose root is at HOST.
host_driver() {
    for dir in $HOST_TOOL_DIRS; do
        [ ! -x "${HOST:-}/$dir/nvidia-smi" ] || { echo "host driver $dir" && return; }
    done
    echo 'host driver none'
}

# validator [LIBRARY]: asks the validator's gates, in its order. DEV_CHAR is the host's /dev/char.
validator() {
    host_driver
    [ -e $RUN_DIR/validations/.driver-ctr-ready ] && echo 'container ready'
    # shellcheck disable=SC2086
    library=$(first libnvidia-ml.so.1 $LIBRARY_DIRS)
    # shellcheck disable=SC2086
    tool=$(first nvidia-smi $TOOL_DIRS)
    echo "library $library"
    echo "tool $tool"
    code=0
    LD_PRELOAD=${1:-$library} "$tool" >/dev/null || code=$?
    echo "nvidia-smi rc $code"
    root=''
    [ ! -d $DRIVER_ROOT/dev ] || root=$DRIVER_ROOT
    echo "device root ${root:-/}"
    for device in "$root"/sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor")" = 0x10de ] && echo "gpu ${device##*/}"
    done
    awk '$2 ~ /^nvidia(-frontend|-uvm)?$/ { print "major " $2 }' /proc/devices | sort
    for node in nvidia0 nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset; do
        [ -c "$root/dev/$node" ] || continue
        number=$((0x$(stat -c %t "$root/dev/$node"))):$((0x$(stat -c %T "$root/dev/$node")))
        echo "link $node $(readlink "${DEV_CHAR:-/dev/char}/$number")"
    done
}

# toolkit [ROOT]: prints the version that the toolkit reads from the library's name, and the number of
# libraries of that version that it finds.
toolkit() {
    root=${1:-$DRIVER_ROOT}
    for dir in usr/lib64 usr/lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu/nvidia/current lib64; do
        for library in "$root/$dir"/libcuda.so.*.*; do
            [ -e "$library" ] || continue
            echo "version ${library##*libcuda.so.}"
            echo "libraries $(find "$root/$dir/" -name "lib*.so.${library##*libcuda.so.}" | wc -l)"
            return
        done
    done
}

# confirm: writes the file by which the validator lets the operator's other pods go on.
confirm() {
    ready=$RUN_DIR/validations/driver-ready
    cat >"$ready.tmp" <<LINES
IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT=$DRIVER_ROOT
DRIVER_ROOT_CTR_PATH=/driver-root
NVIDIA_DEV_ROOT=$DRIVER_ROOT
DEV_ROOT_CTR_PATH=/driver-root
LINES
    mv "$ready.tmp" "$ready"
}

# stay: waits for SIGTERM, as the main container of a pod does.
stay() {
    trap 'exit 0' TERM
    sleep 86400 &
    wait
}
