# shellcheck shell=sh
# Driver pod and validator pod of the GPU operator (operator-pod.yaml) on a node of a real Kubernetes cluster: kubelet
# runs init containers, startup probe and preStop. The operator itself is not there: this script sets the labels of
# the node, and changes the template.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh
# shellcheck source=events.sh
. /run/matrix/events.sh

GATES=/run/matrix/gates
# shellcheck source-path=SCRIPTDIR/../operator source=gates.sh
. $GATES/gates.sh
SPACE=gpu-operator
DRIVER=nvidia-driver-daemonset
VALIDATOR=nvidia-operator-validator
REPOSITORY=registry.example.com/gpu/longshore
# As the operator makes it of os-release.
# shellcheck disable=SC2016
SYSTEM=$(sh -c '. /etc/os-release && echo "$ID$VERSION_ID"')

# operator ARGUMENT...: calls the API server in the operator's namespace.
operator() { kube --namespace $SPACE "$@"; }

# label NAME VALUE: sets a label of the node by which the operator places a pod.
label() { kube label node "$NODE" --overwrite "nvidia.com/gpu.deploy.$1=$2" >/dev/null; }

# config_map NAME FILE...: makes a ConfigMap of files, or replaces it.
config_map() {
    map=$1
    shift
    for file in "$@"; do
        set -- "$@" "--from-file=$file"
        shift
    done
    operator create configmap "$map" "$@" --dry-run=client -o yaml | operator apply -f - >/dev/null
}

# probe_with LIBRARY: makes the startup probe, with a library that is loaded before the driver's; none: the operator's.
probe_with() {
    {
        echo '#!/bin/sh'
        [ -z "$1" ] || echo "export LD_PRELOAD=$1"
        cat $GATES/startup-probe
    } >/run/matrix/startup-probe.sh
    config_map nvidia-driver-startup-probe /run/matrix/startup-probe.sh
}

# apply DIGEST: writes the objects, with the digest of the operator's configuration.
apply() {
    sed "s,@VERSION@,$VERSION,; s,@SYSTEM@,$SYSTEM,; s,@DIGEST@,$1," $GATES/operator-pod.yaml >/run/matrix/objects.yaml
    operator apply -f /run/matrix/objects.yaml
}

# Makes what a host has, or what kubelet makes for the pod's volumes and leaves.
host() {
    mkdir -p $DRIVER_ROOT/lib/firmware /run/nvidia-fabricmanager /run/nvidia-topologyd /run/mellanox/drivers/usr/src
    python3 -c 'import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).bind("/dev/log")'
}

# await_on OBJECT CONDITION: waits for a condition as kubectl has it; the harness enforces the deadline. Programs as
# large as kubectl are started rarely: the machine is emulated.
await_on() { operator wait "$1" --for "$2" --timeout 1h >/dev/null; }

has_pod() { [ -n "$(operator get pods -l "app=$1" -o name)" ]; }

await_pod() {
    patiently has_pod "$1"
    operator wait pod -l "app=$1" --for condition=Ready --timeout 1h >/dev/null
}

await_no_pod() {
    while has_pod "$1"; do
        # It fails for a pod that is gone meanwhile.
        operator wait pod -l "app=$1" --for delete --timeout 1h >/dev/null || true
    done
}

# take_pods NAME: takes the pods of a DaemonSet from the API server, for `pods`.
take_pods() { operator get pods -l "app=$1" -o json >/run/matrix/pods.json; }

# pods FILTER: applies a filter of jq to them.
pods() { jq -r ".items[] | $1" /run/matrix/pods.json; }

# Prints the state of these pods, one aspect a line.
pod_status() {
    pods '
        "priority \(.spec.priorityClassName) \(.spec.priority)",
        "phase \(.status.phase)",
        (.status.initContainerStatuses[] | "init \(.name) exit \(.state.terminated.exitCode) restarts \(.restartCount)"),
        (.status.containerStatuses[] | "container \(.name) started \(.started) ready \(.ready) restarts \(.restartCount)")'
}

# node_report: prints the agent's labels and condition of the node, as the API server has them.
node_report() {
    kube get node "$NODE" -o json | jq -r '
        (.metadata.labels | to_entries[] | select(.key | startswith("longshore.dev/")) | "label \(.key)=\(.value)"),
        (.status.conditions[] | select(.type == "GpuDriverReady") | "condition \(.type)=\(.status)")'
}

# probe_failures: prints the reasons by which kubelet's startup probe failed, each once in a row. Of its events kubelet
# drops those that come too often.
probe_failures() { sed -n 's/.*Startup probe for .* failed (failure): //p' /run/matrix/kubelet.log | uniq; }

is_probe_refused() { probe_failures | grep -q 'nvidia-smi failed'; }

hook_failures() { grep -i 'hook .*failed' /run/matrix/kubelet.log; }

# take_driver: takes the driver's pod, and the directory of its logs.
take_driver() {
    take_pods $DRIVER
    LOGS=/var/log/pods/${SPACE}_$(pods '.metadata | "\(.name)_\(.uid)"')
}

# manager_log: prints what the driver manager said, in the starts that kubelet has the logs of.
manager_log() { cat "$LOGS"/k8s-driver-manager/*.log | cut -d ' ' -f 4-; }

is_manager_refused() { manager_log | grep -q 'was not unloaded'; }

has_state_file() { [ "$(cat $RUN_DIR/nvidia-driver.state 2>/dev/null)" = "$1" ]; }

is_installed() { has_phase ready && has_state_file "$1"; }

# start: takes the time before pods are deleted.
start() {
    now
    begun=$NOW
}

# follow: takes the log of the driver's container, which kubelet removes with the pod, and its id.
follow() {
    take_driver
    CONTAINER=$(pods '.status.containerStatuses[0].containerID' | sed 's,containerd://,,')
    tail -n +1 -f "$LOGS"/nvidia-driver-ctr/0.log >>/run/matrix/agent.log &
    TAIL=$!
}

# ended NAME: reports the exit code of the driver's container, which is gone.
ended() {
    kill $TAIL
    wait $TAIL || true
    fact "$1.exit-code" "$(exit_code "$CONTAINER")"
}

# delete_pod NAME: deletes the driver's pod, and reports the exit code. DaemonSet and kubelet go on with the next one.
delete_pod() {
    start
    operator delete pod -l app=$DRIVER >/dev/null
    ended "$1"
}

# observed GENERATION: waits until the controller has seen the template of the driver's pod.
observed() { await_on daemonset/$DRIVER "jsonpath={.status.observedGeneration}=$1"; }

doctor() {
    operator exec daemonset/$DRIVER -c nvidia-driver-ctr -- longshore doctor --operator --json 2>/dev/null
}

# await_ready WHEN: waits until kubelet's startup probe has passed, and reports the pod.
await_ready() {
    await_pod $DRIVER
    now
    fact "$1.seconds" "$begun $NOW"
    follow
    phase "$1"
    report_kernel_side "$1"
    report_user_side "$1"
    section "$1.majors" cat /proc/devices
    section "$1.firmware-path" firmware_path
    section "$1.identity" identity
    section "$1.pod" pod_status
    fact "$1.pod-uid" "$(pods .metadata.uid)"
    section "$1.manager" manager_log
    section "$1.confirmed" cat $RUN_DIR/validations/.driver-ctr-ready
    section "$1.state-file" cat $RUN_DIR/nvidia-driver.state
}

# validate: runs the validator's pod, reports it, and lets the node pause it as the driver manager does.
validate() {
    label operator-validator true
    await_pod $VALIDATOR
    take_pods $VALIDATOR
    section validated.pod pod_status
    section validated.driver-validation operator logs -l app=$VALIDATOR -c driver-validation --tail -1
    section validated.toolkit operator logs -l app=$VALIDATOR -c $VALIDATOR --tail -1
    section validated.driver-ready cat $RUN_DIR/validations/driver-ready
    label operator-validator paused-for-driver-upgrade
    await_no_pod $VALIDATOR
    section validated.left find $RUN_DIR/validations -name '[!.]*-ready'
}

start_daemons
ctr --namespace k8s.io images tag "$IMAGE" "$REPOSITORY:$VERSION-$SYSTEM"
host
preload
touch /run/matrix/mark
state before
look before
watch_exits

phase applied
cat >/run/matrix/longshore.toml <<CONFIG
host-apt = false
[daemons]
persistenced = "off"
CONFIG
kube create namespace $SPACE
config_map gates $GATES/gates.sh $GATES/driver-manager $GATES/libnvidia-ml.so.1
config_map longshore-config /run/matrix/longshore.toml $GATES/libnvidia-ml.so.1
probe_with ''
section applied apply one
observed 1
section unlabelled operator get daemonset $DRIVER -o 'jsonpath=scheduled {.status.desiredNumberScheduled}{"\n"}'

# apply_rights: applies rights.yaml; without its policies where the API server has none, as before Kubernetes 1.30. The
# cluster is this cell's alone.
apply_rights() {
  if kube get validatingadmissionpolicies >/dev/null 2>&1; then
    kube apply -f $GATES/rights.yaml
  else
    awk -v RS='---\n' '!/kind: ValidatingAdmissionPolicy/ { printf "---\n%s", $0 }' $GATES/rights.yaml | kube apply -f -
  fi
}

# The operator's own probe: the driver is installed, and nvidia-smi fails.
label driver true
patiently is_installed one
patiently is_probe_refused
follow
await_on "node/$NODE" 'jsonpath={.metadata.labels.longshore\.dev/state}=ready'
phase refused
section refused.pod pod_status
section refused.manager manager_log
section refused.probe probe_failures
section refused.smi smi
section refused.node node_report
phase exchanged
probe_with /drivers/libnvidia-ml.so.1
section rights apply_rights
delete_pod idle

# The stand-in in the probe's script: the pod is Ready.
await_ready ready
section ready.memory memory
await_on "node/$NODE" condition=GpuDriverReady
section ready.node node_report
section ready.doctor doctor
validate

# The same digest, under a process that holds the driver.
hold_driver
section held.identity identity
delete_pod held
await_ready adopted

# Another digest: the driver manager fails as long as the process is there.
section applied-two apply two
observed 2
take_pods $DRIVER
fact changed.pod-uid "$(pods .metadata.uid)"
delete_pod busy
patiently has_pod $DRIVER
take_driver
patiently is_manager_refused
section changed.refused manager_log
end_holder
await_ready other

phase terminate
start
operator delete daemonset $DRIVER >/dev/null
await_no_pod $DRIVER
ended last
now
fact deletion.seconds "$begun $NOW"
phase stopped
fact exit-code "$(exit_code "$CONTAINER")"
section agent-log cut -d ' ' -f 4- /run/matrix/agent.log
section hook-failures hook_failures
section kubelet-log tail -n 100 /run/matrix/kubelet.log
operator delete daemonset $VALIDATOR >/dev/null
kill "$EXITS"
wait "$EXITS" || true
rmdir $RUN_DIR/validations
after
