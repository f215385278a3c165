# shellcheck shell=sh
# A node of a real Kubernetes cluster: containerd by its CRI, and kubelet. Sourced by engines.sh. The disk at
# /srv has both programs, kubelet's configuration and an administrator's (`scripts/cluster node`). Pods have
# the host's network, or addresses by the plugins of CNI.

NODE=matrix
NODE_FILES=/srv
# Directories that kubelet and the plugins of CNI fill: on the containers' disk.
KUBELET_DIRS='/var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers'

# kube ARGUMENT...: calls the API server as an administrator.
kube() {
    "$NODE_FILES/kubectl" --kubeconfig "$NODE_FILES/admin.kubeconfig" --cache-dir /run/matrix/kubectl "$@"
}

# prepare_node: makes what containerd and kubelet read when they start.
prepare_node() {
    # containerd makes the directory of network namespaces for the first pod that has one.
    mkdir -p /etc/kubernetes /etc/cni/net.d /run/netns
    cp "$NODE_FILES/lab.conflist" /etc/cni/net.d/10-lab.conflist
    # Loaded now: the kernel would load it for the first pod with an address of its own.
    modprobe ipvlan
    cp "$NODE_FILES/ca.crt" /etc/kubernetes/ca.crt
    hostname "$NODE"
    for dir in $KUBELET_DIRS; do
        mkdir -p "$dir" "/var/lib/containers/kubelet$dir"
        mount --bind "/var/lib/containers/kubelet$dir" "$dir"
    done
}

# Started after containerd, which has the images by then.
start_kubelet() {
    read -r kubelet_begun _ </proc/uptime
    run_kubelet
    patiently node_is_ready
    read -r kubelet_ready _ </proc/uptime
    fact node.seconds "$kubelet_begun $kubelet_ready"
}

# run_kubelet: starts kubelet in the background; KUBELET is its process.
run_kubelet() {
    # Since 1.24 there is no other runtime than a remote one, and containerd alone says which image a sandbox has:
    # both flags mean nothing, and are gone in later versions.
    set --
    [ "$("$NODE_FILES/kubelet" --version | cut -d . -f 2)" -ge 24 ] ||
        set -- --container-runtime remote --pod-infra-container-image "$(pause_image)"
    "$NODE_FILES/kubelet" --kubeconfig "$NODE_FILES/kubeconfig" --config "$NODE_FILES/kubelet.yaml" "$@" \
        --container-runtime-endpoint unix:///run/containerd/containerd.sock \
        --hostname-override "$NODE" --node-ip 10.0.2.15 -v=2 >>/run/matrix/kubelet.log 2>&1 &
    # shellcheck disable=SC2034
    KUBELET=$!
}

# Prints the conditions of the node, as the API server has them.
node_conditions() {
    kube get node "$NODE" -o 'jsonpath={range .status.conditions[*]}{.type}={.status}{"\n"}{end}'
}

node_is_ready() { node_conditions | grep -qw 'Ready=True'; }

# Prints the name of the image of a pod's sandbox.
pause_image() { containerd config dump | sed -n 's/.*sandbox_image = "\(.*\)"/\1/p'; }

# The driver root is for containers that are no pods, too.
in_kubelet() { in_podman "$@"; }

# rolled_out NAME: succeeds if the pod of a DaemonSet is Ready.
rolled_out() { [ "$(kube get daemonset "$1" -o 'jsonpath={.status.numberReady}')" = 1 ]; }

# container_of NAME: prints the id of the container of a DaemonSet's pod.
container_of() {
    kube get pods -l "app.kubernetes.io/name=$1" -o 'jsonpath={.items[0].status.containerStatuses[0].containerID}' |
        sed 's,containerd://,,'
}

# without_pods NAME: succeeds if the DaemonSet has no pod any more.
without_pods() { [ -z "$(kube get pods -l "app.kubernetes.io/name=$1" -o name)" ]; }

# watch_exits: writes the ends of containers to a file. kubelet removes a pod with its container's exit code.
watch_exits() {
    ctr --namespace k8s.io events >/run/matrix/events.log 2>&1 &
    # shellcheck disable=SC2034
    EXITS=$!
}

# exit_code ID: prints the exit code of a container that ended since.
exit_code() {
    sed -n "s,^.* /tasks/exit ,,p" /run/matrix/events.log |
        jq -r --arg id "$1" 'select(.container_id == $id and .id == $id) | .exit_status // 0' | tail -n 1
}
