# shellcheck shell=sh
# nvidia_peermem, where the network driver (a stand-in for MOFED's ib_core) is loaded after the agent's start: the
# driver is Ready without it, then it is loaded, and TERM unloads it.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

# Installs the network driver's headers, with which this machine compiled the modules.
install_headers() {
    mofed=/usr/src/ofa_kernel/x86_64/$(uname -r)
    mkdir -p "$mofed/include/rdma"
    cp /run/matrix/peer_mem.h "$mofed/include/rdma"
    cp /run/matrix/Module.symvers "$mofed"
}

# The agent waits for ib_core, the kernel's own, which every network driver of this kind needs.
load_network_driver() {
    insmod /run/matrix/peer_memory.ko
    modprobe ib_core
}

unload_network_driver() {
    rmmod peer_memory
    modprobe -r ib_core
}

clients() { cat /sys/module/peer_memory/parameters/clients; }

finds_it_missing() { ask status | grep -q peermem-missing; }

# Keeps the answer in /run/matrix/status.
is_peermem_live() {
    [ -e /sys/module/nvidia_peermem ] && ask status >/run/matrix/status &&
        grep -qx 'exit code 0' /run/matrix/status && ! grep -q peermem-missing /run/matrix/status
}

install_headers
prepare
PRIVILEGES="$PRIVILEGES
-e
GPU_DIRECT_RDMA_ENABLED=true
-e
USE_HOST_MOFED=true"
state before
start_agent
if await has_phase ready; then
    phase ready
    await finds_it_missing || true
    section ready.modules cat /proc/modules
    section ready.status ask status
    load_network_driver
    phase network
    if await is_peermem_live; then
        phase peermem
        section peermem.status cat /run/matrix/status
        report_ready peermem
        section peermem.clients clients
        section peermem.look look_around
    fi
    phase terminate
    stop_agent
fi
finish_agent
section after.clients clients
unload_network_driver || true
after
