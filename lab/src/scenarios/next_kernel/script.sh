# shellcheck shell=sh
# One boot of a host whose kernel is upgraded: start, Ready, TERM. Where NEXT_RELEASE names a kernel, that is
# installed while the driver is Ready, and the agent prepares for it.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

# install_kernel RELEASE: puts a kernel into place as its package does, the list of its modules last
# (depmod, by a maintainer script).
install_kernel() {
    cp -a "/srv/$1" "/usr/lib/modules/.$1"
    mv "/usr/lib/modules/.$1/modules.dep" /run/matrix/modules.dep
    mv "/usr/lib/modules/.$1" "/usr/lib/modules/$1"
    cp "/run/matrix/boot/vmlinuz-$1" /boot
    mv /run/matrix/modules.dep "/usr/lib/modules/$1/modules.dep"
}

# next_is KEY VALUE: checks that the agent reports the next kernel so.
next_is() {
    ask status | tr -d ' \n' >/run/matrix/status
    grep -q "\"next_kernel\":{[^}]*\"$1\":$2" /run/matrix/status
}

doctor() {
    # Arguments must be split.
    # shellcheck disable=SC2086
    pod exec longshore longshore doctor ${AGENT_ARGUMENTS#run}
}

# Reports the preparation in each way that the agent has.
report_next() {
    section "$1.json" ask status
    section "$1.status" pod exec longshore longshore status
    section "$1.metrics" ask metrics
}

prepare
# A file system of its own, as on many hosts.
mount -t tmpfs boot /boot
cp "/run/matrix/boot/vmlinuz-$(uname -r)" /boot
state before
start_agent
if await has_phase ready; then
    phase ready
    report_ready ready
    if [ -n "$NEXT_RELEASE" ]; then
        await next_is running true
        report_next ready
        install_kernel "$NEXT_RELEASE"
        phase installed
        await next_is preparing true
        phase preparing
        # Each probe takes processor time from the preparation, which has the lowest priority.
        AWAIT_INTERVAL=10
        await next_is preparing false
        phase prepared
        report_next prepared
        section prepared.doctor doctor
        report_kernel_side prepared
    fi
    phase terminate
    stop_agent
fi
finish_agent
after
