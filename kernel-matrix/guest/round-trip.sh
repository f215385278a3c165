# shellcheck shell=sh
# The whole way: before, start, Ready, what the host then sees, TERM, after.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. /run/matrix/lib.sh

versions() {
    for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm; do
        [ -e /sys/module/$module ] || continue
        echo "$module $(cat /sys/module/$module/srcversion) $(cat /sys/module/$module/version)"
    done
}

nodes() { find "$1" -path '*nvidia*' -type c -exec stat -c '%n %Hr:%Lr %a' {} +; }

# The host's own look at the tools it was given. Without real hardware the right answer is
# "No devices were found"; a library that does not fit the kernel module says "mismatch".
smi() {
    code=0
    LD_LIBRARY_PATH=$DRIVER_ROOT/usr/lib/x86_64-linux-gnu "$DRIVER_ROOT/usr/bin/nvidia-smi" ||
        code=$?
    echo "rc $code"
}

root_files() {
    find "$1/" \( -path '*/proc' -o -path '*/sys' -o -path '*/dev' \) -prune -o -printf '%y %P %l\n'
}

# A container that comes later and is given the driver root as anybody would.
neighbour() {
    # shellcheck disable=SC2086,SC2016
    pod run --rm --network none -v "$DRIVER_ROOT:/driver:ro" --entrypoint /bin/sh $IMAGE \
        -c 'cd /driver/usr && for f in bin/nvidia-smi lib/x86_64-linux-gnu/libcuda.so.1; do
                [ -s $f ] && echo "sees $f"; done'
}

memory() {
    for pid in $(pgrep -x longshore); do
        grep -E '^(VmRSS|VmHWM)' "/proc/$pid/status"
    done
}

# What the driver and its tree look like from the host.
look_at_driver() {
    show_command 'cat /proc/driver/nvidia/version'
    cat /proc/driver/nvidia/version
    look_around
    show_command "find $DRIVER_ROOT -type f"
    find "$DRIVER_ROOT/" -type f -printf '%s %P\n'
    show_command "nvidia-smi out of $DRIVER_ROOT (the simulated GPU cannot be initialised)"
    smi
    show_command 'podman exec longshore longshore status'
    pod exec longshore longshore status
}

prepare
state before
look before
import
start_agent
if await has_phase ready; then
    phase ready
    section ready.driver cat /proc/driver/nvidia/version
    section ready.versions versions
    section ready.modules cat /proc/modules
    section ready.majors cat /proc/devices
    section ready.host-nodes nodes /dev
    section ready.root-nodes nodes "$DRIVER_ROOT/dev"
    section ready.firmware-path firmware_path
    section ready.root-files root_files "$DRIVER_ROOT"
    section ready.smi smi
    section ready.neighbour neighbour
    section ready.memory memory
    section ready.state cat "$STATE"
    section ready.look look_at_driver
    section agent-log cat /run/matrix/agent.log
    [ -z "$LOSES_POWER" ] || exit 0
    phase terminate
    pod kill -s TERM longshore >/dev/null
fi
finish_agent
after
