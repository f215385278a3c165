# shellcheck shell=sh
# Driver pod of the GPU operator: the container with the operator's environment, mounts and command,
# and no volume for the store. The gates that the operator has are asked one after the other, by
# re-enactments written from its behaviour: startup probe, driver manager, validator, and the
# toolkit's search. Where a gate runs nvidia-smi, it is asked twice: with the real libnvidia-ml, which
# cannot initialise a simulated GPU, and with a stand-in.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

FILES=/run/matrix/operator
# tests/operator-gates, and the stand-in.
GATES=/run/matrix/gates
STANDIN=$GATES/libnvidia-ml.so.1
# shellcheck source-path=SCRIPTDIR source=gates.sh
. $GATES/gates.sh

# kubelet: makes the host's directories of the pod's volumes.
kubelet() {
    mkdir -p $RUN_DIR/driver/lib/firmware /run/nvidia-fabricmanager /run/nvidia-topologyd \
        /run/mellanox/drivers/usr/src
}

# configure [LINE]: writes the ConfigMap that is mounted on /drivers.
configure() {
    mkdir -p $FILES/drivers
    printf 'host-apt = false\n%s\n' "$*" >$FILES/drivers/longshore.toml
}

# driver_container DIGEST: runs the pod's main container until it ends.
driver_container() {
    # shellcheck disable=SC2086
    pod run --rm --name driver --privileged --pid host --network host \
        -v $RUN_DIR:$RUN_DIR:rshared \
        -v /run/nvidia-fabricmanager:/run/nvidia-fabricmanager \
        -v /run/nvidia-topologyd:/run/nvidia-topologyd \
        -v /var/log:/var/log \
        -v /etc/os-release:/host-etc/os-release:ro \
        -v /run/mellanox/drivers:/run/mellanox/drivers:rslave \
        -v /run/mellanox/drivers/usr/src:/run/mellanox/drivers/usr/src:rslave \
        -v /sys/module/firmware_class/parameters/path:/sys/module/firmware_class/parameters/path \
        -v /sys/devices/system:/sys/devices/system \
        -v $RUN_DIR/driver/lib/firmware:/lib/firmware \
        -v $FILES/drivers:/drivers:ro \
        -v $GATES:/test:ro \
        -e NVIDIA_VISIBLE_DEVICES=void -e NODE_NAME=node -e NODE_IP=127.0.0.1 \
        -e DRIVER_CONFIG_DIGEST="$1" -e KERNEL_MODULE_TYPE=open -e DRIVER_VERSION="$VERSION" \
        -e LONGSHORE_LOG_FORMAT=pretty -e LONGSHORE_PERSISTENCED=off \
        --entrypoint nvidia-driver $IMAGE init >/run/matrix/agent.log 2>&1
}

# pod_start DIGEST: starts the pod's main container after its driver manager.
pod_start() {
    manager "$1"
    kubelet
    phase start
    now
    begun=$NOW
    driver_container "$1" &
    RUN=$!
    await is_ready "$1"
    now
    fact "start.$1.seconds" "$begun $NOW"
}

has_state_file() { [ "$(cat $RUN_DIR/nvidia-driver.state 2>/dev/null)" = "$1" ]; }

is_ready() { has_phase ready && has_state_file "$1"; }

# pod_delete NAME: deletes the pod, with the operator's preStop, and reports the exit code.
pod_delete() {
    pod exec driver sh /test/pre-stop
    pod kill -s TERM driver >/dev/null
    code=0
    wait "$RUN" || code=$?
    fact "$1.exit-code" "$code"
}

# manager DIGEST: acts as the driver manager does before the container.
manager() { DRIVER_CONFIG_DIGEST=$1 sh "$GATES/driver-manager"; }

# probe [LIBRARY]: asks the startup probe in the container, and prints the file by which it confirms.
probe() {
    code=0
    pod exec -e "LD_PRELOAD=${1:-}" driver sh /test/startup-probe || code=$?
    echo "rc $code"
    cat $RUN_DIR/validations/.driver-ctr-ready
}

# doctor ARGUMENT...: prints the report of the same gates, which it only reads, in the driver's container.
doctor() { pod exec driver longshore doctor --operator --json "$@" 2>/dev/null; }

# doctor_without_pod: prints the same before there is a driver pod.
doctor_without_pod() {
    pod run --rm --privileged --pid host --network none -v $RUN_DIR:$RUN_DIR:rshared \
        -e DRIVER_CONFIG_DIGEST=one "$IMAGE" doctor --operator --json 2>/dev/null
}

# Prints the agent's own time from its start to Ready, in milliseconds.
own_time() { sed -n 's/.* is ready .* \([0-9]*\) ms after the start.*/\1/p' /run/matrix/agent.log; }

prefetch() { cat /sys/module/nvidia_uvm/parameters/uvm_perf_prefetch_enable; }

mkdir -p $FILES/drivers
kubelet
prepare
state before
section none.doctor doctor_without_pod
section none.validator validator
section none.toolkit toolkit
configure
pod_start one
phase ready
report_ready ready
section ready.memory memory
section ready.probe probe
section ready.probe-standin probe /test/libnvidia-ml.so.1
section ready.validator validator
section ready.validator-standin validator $STANDIN
section ready.toolkit toolkit
section ready.doctor doctor
section ready.doctor-two doctor --digest two
section ready.files find $RUN_DIR -maxdepth 2 -xdev -type f

# The pod is deleted while a process holds the driver, ten times.
phase held
hold_driver
section held.identity identity
for turn in 1 2 3 4 5 6 7 8 9 10; do
    pod_delete "held-$turn"
    pod_start one
    fact "restart-$turn.seconds" "$begun $NOW"
    fact "restart-$turn.agent-ms" "$(own_time)"
done
section adopted.identity identity
report_ready adopted
end_holder

# Another configuration, which the digest does not tell.
phase changed
configure '[parameters]
nvidia-uvm = "uvm_perf_prefetch_enable=0"'
fact prefetch.before "$(prefetch)"
pod_delete idle
pod_start one
fact prefetch.after "$(prefetch)"

# Another digest: the driver manager unloads before the container is started.
phase other
configure
pod kill -s KILL driver >/dev/null
wait "$RUN" || true
pod_start two
report_ready other
phase terminate
pod_delete last
phase stopped
fact exit-code "$code"
section agent-log cat /run/matrix/agent.log
rmdir $RUN_DIR/validations
after
