# shellcheck shell=sh
# A guest whose kernel enforces SELinux (SELINUX=yes): its policy, and reports of labels and denials.
# Sourced by stage.sh and lib.sh.

# Directory for the output of a confined container: the policy denies it the pipes of an engine that a
# shell started.
SAID=/run/matrix/said

# enforce_selinux: loads the policy, labels what the initramfs made, and starts this script again as an
# administrator's shell. Labels of the root file system are in its image.
enforce_selinux() {
    mount -t selinuxfs selinuxfs /sys/fs/selinux
    # Without a daemon for audit its records are kernel messages, of which the kernel would drop those that come too
    # often (kernel/audit.c, kauditd_printk_skb).
    echo 0 >/proc/sys/kernel/printk_ratelimit
    load_policy -i
    restorecon -R /dev /run /var/lib/containers /var/lib/longshore
    mkdir -p "$SAID"
    chcon -t container_file_t "$SAID"
    CONFINED=yes exec runcon unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023 \
        /bin/sh /run/matrix/stage.sh
}

# first_run: an agent run that labels the store's files, before the one that is judged. A file is hashed
# again after its label changed, and until then the kernel is given a module's bytes instead of its file.
first_run() {
    [ -n "$SELINUX" ] || return 0
    section before.labels labels
    agent &
    RUN=$!
    await has_phase ready
    stop_agent
    wait "$RUN"
    section first.agent-log cat /run/matrix/agent.log
    await_engine
}

# Prints the label of each kind of file that the agent makes or labels.
labels() {
    getenforce
    for path in /var/lib/longshore/userspace/*/root /var/lib/longshore/userspace/*/root/usr/bin/nvidia-smi \
        /var/lib/longshore/blobs/sha256 "$DRIVER_ROOT" "$DRIVER_ROOT/dev" "$DRIVER_ROOT/dev/nvidiactl" \
        "$DRIVER_ROOT"/usr/lib/x86_64-linux-gnu/libcuda.so.1 "$SPEC"; do
        [ ! -e "$path" ] || echo "${path##*/} $(stat -c %C "$path")"
    done
    find /var/lib/longshore/blobs -type f -exec stat -c 'blob %C' {} + | sort | uniq -c
    for pid in $(pgrep -x longshore); do
        echo "agent $(tr -d '\0' <"/proc/$pid/attr/current")"
    done
}

# Runs a confined container with the GPUs and the driver root: prints its own label, the root's first
# level, the loader's complaint about libcuda, and a node that opens.
# shellcheck disable=SC2016
confined() {
    in_podman 'read -r label </proc/self/attr/current; echo "$label"
        echo /driver/*
        LD_PRELOAD=/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1 busybox true && echo "tried libcuda.so.1"
        (: </driver/dev/nvidiactl) && echo "opens nvidiactl"' \
        --device nvidia.com/gpu=all -v "$DRIVER_ROOT:/driver:ro"
}

# Prints the denials since the policy is enforced, after the line that marks this moment, and each line by which
# audit says that it lost some.
denials() {
    dmesg | sed -n '/SELinux enforces from here/,$p' |
        grep -e 'SELinux enforces from here' -e 'avc:  *denied' -e 'audit.*lost' -e 'audit.*suppressed' \
            -e 'audit.*exceeded' -e 'audit.*overflow'
}

# report_selinux: reports all of it while the driver is Ready.
report_selinux() {
    [ -n "$SELINUX" ] || return 0
    section ready.labels labels
    section ready.confined confined
    section ready.denials denials
}
