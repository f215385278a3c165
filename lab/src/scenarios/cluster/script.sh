# shellcheck shell=sh
# The agent as the pod of a DaemonSet, on a node of a real Kubernetes cluster: kubelet and containerd run here,
# API server, controllers and scheduler on the machine below.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

NAME=longshore

# Prints the agent's DaemonSet.
manifest() {
    cat <<END
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: $NAME}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: $NAME}}
  template:
    metadata: {labels: {app.kubernetes.io/name: $NAME}}
    spec:
      hostNetwork: true
      hostPID: true
      priorityClassName: system-node-critical
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 120
      containers:
      - name: $NAME
        image: $IMAGE
        imagePullPolicy: Never
        args: [$(echo "$AGENT_ARGUMENTS" | sed 's/[^ ]*/"&"/g; s/ /, /g')]
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: LONGSHORE_LOG_FORMAT, value: pretty}
        - {name: LONGSHORE_PERSISTENCED, value: "off"}
        securityContext: {privileged: true}
        startupProbe: {exec: {command: [longshore, status, --ready]}, periodSeconds: 2, timeoutSeconds: 10, failureThreshold: 600}
        readinessProbe: {exec: {command: [longshore, status, --ready]}, periodSeconds: 5, timeoutSeconds: 10}
        volumeMounts:
        - {name: run, mountPath: /run/nvidia, mountPropagation: Bidirectional}
        - {name: store, mountPath: /var/lib/longshore}
      volumes:
      - {name: run, hostPath: {path: /run/nvidia, type: DirectoryOrCreate}}
      - {name: store, hostPath: {path: /var/lib/longshore, type: DirectoryOrCreate}}
END
}

# Prints the memory in use, of the guest and of the daemons.
cluster_memory() {
    free -k | awk '/^Mem:/ { print "guest memory in use: " $3 " kB" }'
    ps -C kubelet,containerd -o comm=,rss= | awk '{ print $1 " VmRSS: " $2 " kB" }'
}

events() { kube get events -o 'jsonpath={range .items[*]}{.involvedObject.kind} {.reason}: {.message}{"\n"}{end}'; }

now() { read -r NOW _ </proc/uptime; }

# told COMMAND...: prints what it says, and its exit code in a last line.
told() {
    code=0
    "$@" 2>&1 || code=$?
    echo "exit code $code"
}

# fleet ARGUMENT...: calls the program of an administrator's machine.
fleet() {
    pod_podman run --rm --network host -v "$NODE_FILES:$NODE_FILES:ro" -e "KUBECONFIG=$NODE_FILES/admin.kubeconfig" \
        "$IMAGE" fleet "$@" --kubectl "$NODE_FILES/kubectl"
}

crash_loops() {
    kube get pods -l "app.kubernetes.io/name=$NAME" -o 'jsonpath={..state.waiting.reason}' | grep -q CrashLoopBackOff
}

# crash_loop: reports what the commands of docs/operate/runbook.md say of an agent that ends with each start: it is told to
# install a driver that nobody has. No agent may report on this node: the namespace is asked for.
crash_loop() {
    phase crash-loop
    wanted=$AGENT_ARGUMENTS
    AGENT_ARGUMENTS=$(echo "$wanted" | sed 's/--driver [0-9.]*/--driver 999/')
    manifest | kube apply -f -
    AGENT_ARGUMENTS=$wanted
    patiently crash_loops
    section looped.exec told kube exec daemonset/$NAME -- longshore doctor
    section looped.asked told fleet doctor "$NODE"
    section looped.logs told fleet logs "$NODE" --previous --namespace default
    section looped.doctor told fleet doctor "$NODE" --namespace default
    section looped.pods kube get pods --all-namespaces --field-selector "spec.nodeName=$NODE"
    kube delete daemonset $NAME
    patiently without_pods $NAME
}

start_daemons
prepare_consumers
preload
touch /run/matrix/mark
state before
look before
crash_loop
watch_exits
phase start
now
begun=$NOW
manifest >/run/matrix/manifest.yaml
section applied kube apply -f /run/matrix/manifest.yaml
patiently rolled_out $NAME
now
fact pod.seconds "$begun $NOW"
phase ready
container=$(container_of $NAME)
section ready.node node_conditions
section ready.events events
# By way of the API server, which asks kubelet.
section ready.logs kube logs daemonset/$NAME --tail 3
section ready.exec kube exec daemonset/$NAME -- longshore status --ready
section ready.memory memory
section ready.guest-memory cluster_memory
report_ready ready
phase terminate
# kubelet removes the log with the pod.
tail -n +1 -f /var/log/pods/default_$NAME-*/$NAME/0.log >/run/matrix/agent.log &
tail=$!
now
begun=$NOW
section deleted kube delete daemonset $NAME
patiently without_pods $NAME
now
fact deletion.seconds "$begun $NOW"
kill $tail
wait $tail || true
phase stopped
fact exit-code "$(exit_code "$container")"
# Each line begins with the runtime's time, stream and tag.
section agent-log cut -d ' ' -f 4- /run/matrix/agent.log
section kubelet-log tail -n 100 /run/matrix/kubelet.log
kill "$EXITS"
wait "$EXITS" || true
after
