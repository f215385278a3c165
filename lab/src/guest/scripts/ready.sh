# shellcheck shell=sh
# Reports of a host whose driver is Ready. Sourced after lib.sh.

versions() {
    for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem; do
        [ -e /sys/module/$module ] || continue
        # Neither file exists for a module without MODULE_VERSION.
        srcversion=$(cat /sys/module/$module/srcversion 2>/dev/null || true)
        echo "$module $srcversion $(cat /sys/module/$module/version 2>/dev/null || true)"
    done
}

# Prints the parameters of nvidia_drm, the kernel's DRM devices and what the kernel said of them.
drm() {
    for parameter in /sys/module/nvidia_drm/parameters/*; do
        echo "parameter ${parameter##*/} $(cat "$parameter")"
    done
    for device in /sys/class/drm/card[0-9]* /sys/class/drm/renderD*; do
        [ -e "$device" ] && echo "device ${device##*/} $(readlink -f "$device/device/driver")"
    done
    dmesg | sed -n 's/.*\(\[drm.*\)/kernel \1/p'
}

nodes() { find "$1" -path '*nvidia*' -type c -exec stat -c '%n %Hr:%Lr %a' {} +; }

# Runs the exposed nvidia-smi on the host. Without real hardware the right answer is "No devices
# were found"; a library that does not fit the kernel module reports "mismatch".
smi() {
    code=0
    LD_LIBRARY_PATH=$DRIVER_ROOT/usr/lib/x86_64-linux-gnu "$DRIVER_ROOT/usr/bin/nvidia-smi" ||
        code=$?
    echo "rc $code"
}

root_files() {
    find "$1/" \( -path '*/proc' -o -path '*/sys' -o -path '*/dev' \) -prune -o -printf '%y %P %l\n'
}

# Runs a later container that is given the driver root in the usual way.
neighbour() {
    # shellcheck disable=SC2016
    "in_$ENGINE" 'cd /driver/usr && for f in bin/nvidia-smi lib/x86_64-linux-gnu/libcuda.so.1; do
                [ -s $f ] && echo "sees $f"; done' -v "$DRIVER_ROOT:/driver:ro"
}

# ask QUESTION: prints `exit code N` of the command in the agent's container that asks for healthz, readyz or status, an
# empty line and its output; for metrics the HTTP answer, head and body.
ask() {
    case $1 in
        healthz) answered_by --alive ;;
        readyz) answered_by --ready ;;
        status) answered_by --json ;;
        metrics) ask_port ;;
    esac
}

# answered_by OPTION: prints exit code and output of `longshore status OPTION`.
answered_by() {
    answer_code=0
    answer=$(pod exec longshore longshore status "$1" 2>/dev/null) || answer_code=$?
    printf 'exit code %s\n\n%s\n' "$answer_code" "$answer"
}

# Prints the answer of the metrics' port. (busybox, which is static, crashes when it looks up an address.)
ask_port() {
    bash -c 'exec 4<>/dev/tcp/127.0.0.1/9470 &&
        printf "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" >&4 &&
        cat <&4' | tr -d '\r'
}

# answers_yes QUESTION: checks that the agent answers a question about its health or readiness with yes.
answers_yes() { ask "$1" | head -n 1 | grep -qx 'exit code 0'; }

# identity: reports the properties that change when a module is loaded again (its inode, and the
# time at which it logged that it was loaded), or when another process begins to use it.
identity() {
    dmesg >/run/matrix/dmesg
    while read -r module said; do
        loaded=$(sed -n "s/^\[ *\([0-9.]*\)\] .*$said.*/\1/p" /run/matrix/dmesg | tail -n 1)
        inode=$(stat -c %i "/sys/module/$module")
        echo "$module inode $inode refcount $(cat "/sys/module/$module/refcnt") loaded $loaded"
    done <<END
nvidia NVRM: loading NVIDIA
nvidia_uvm nvidia-uvm: Loaded the UVM driver
nvidia_modeset nvidia-modeset: Loading NVIDIA
END
}

# report_kernel_side WHEN: reports modules and nodes, beyond the host's `state`.
report_kernel_side() {
    section "$1.driver" cat /proc/driver/nvidia/version
    section "$1.versions" versions
    section "$1.host-nodes" nodes /dev
    section "$1.root-nodes" nodes "$DRIVER_ROOT/dev"
    [ ! -e /sys/module/nvidia_drm ] || section "$1.drm" drm
}

# Prints the devices of NVIDIA's that the driver root's own sysfs has, as the GPU operator's
# validator lists them.
root_kernel() {
    grep -l 0x10de "$DRIVER_ROOT"/sys/bus/pci/devices/*/vendor
}

# report_user_side WHEN: reports the exposed files.
report_user_side() {
    section "$1.root-files" root_files "$DRIVER_ROOT"
    section "$1.root-kernel" root_kernel
    section "$1.smi" smi
}

# report_ready WHEN: reports everything that the harness compares with the expected driver.
report_ready() {
    report_kernel_side "$1"
    report_user_side "$1"
    section "$1.modules" cat /proc/modules
    section "$1.majors" cat /proc/devices
    section "$1.firmware-path" firmware_path
    section "$1.neighbour" neighbour
}

# memory: reports the memory of the agent, under the name of the command that started it.
memory() {
    for pid in $(pgrep -x 'longshore|nvidia-driver'); do
        grep -E '^(VmRSS|VmHWM)' "/proc/$pid/status"
    done
}
