# shellcheck shell=sh
# Containers of different make that are given the GPUs by the spec (guest/scripts/roots.sh made their roots).
# Sourced by lib.sh.

ROOTS=/srv/roots

# In the container: prints the file that the loader finds for each library, with the driver's or a
# foreign content, its complaint, and the answer of nvidia-smi.
# shellcheck disable=SC2016
LOOK_IN_ROOT='
    if [ -e /etc/environment ]; then export "$(busybox cat /etc/environment)"; fi
    for library in libcuda.so.1 libnvidia-ml.so.1; do
        if [ -e /lib/ld-musl-x86_64.so.1 ]; then
            /lib/ld-musl-x86_64.so.1 --list /usr/lib64/$library 2>&1 | busybox grep Error | busybox head -n 1
            continue
        fi
        found=$(LD_PRELOAD=$library LD_TRACE_LOADED_OBJECTS=1 /usr/bin/true |
            busybox sed -n "s/^[^/]*$library => \([^ ]*\).*/\1/p")
        content=foreign
        busybox cmp -s "$found" /usr/lib64/$library && content=driver
        echo "finds $library $content $found"
        LD_PRELOAD=$library /usr/bin/true
    done
    /usr/bin/nvidia-smi
    echo "rc $?"'

consume_podman_roots() {
    # The runtime makes mount points in a root.
    cp -a "$ROOTS" /tmp/roots
    for root in /tmp/roots/*; do
        echo "root ${root##*/}"
        pod_podman run --rm --network none --device nvidia.com/gpu=all --rootfs "$root" \
            /bin/sh -c "$LOOK_IN_ROOT"
    done
    rm -r /tmp/roots
}

consume_docker_roots() {
    for root in "$ROOTS"/*; do
        echo "root ${root##*/}"
        tar -C "$root" -c . | docker import - roots/root >/dev/null
        docker run --rm --network none --device nvidia.com/gpu=all roots/root /bin/sh -c "$LOOK_IN_ROOT"
    done
}
