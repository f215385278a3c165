# shellcheck shell=sh
# A node whose driver is changed by an administrator of its cluster, who works on the machine below
# (administrator): helm install, a pod that uses the GPU, helm upgrade, helm uninstall. The two agree
# on their steps by the ConfigMap `lab`. This script reports the node's own view.
# shellcheck source-path=SCRIPTDIR/../../guest/scripts source=lib.sh
. /run/matrix/lib.sh
# shellcheck source=ready.sh
. /run/matrix/ready.sh

# done_so_far STEP: tells the administrator of a step.
done_so_far() { kube patch configmap lab --type merge --patch "{\"data\":{\"$1\":\"yes\"}}" >/dev/null; }

# await_step STEP: waits for a step of the administrator's.
await_step() { kube wait configmap/lab --for "jsonpath={.data.$1}=yes" --timeout 1h >/dev/null; }

start_daemons
preload
python3 -B /run/matrix/device_plugin.py nvidia.com/gpu=0 >/run/matrix/device-plugin.log 2>&1 &
touch /run/matrix/mark
state before
look before
watch_exits
done_so_far clean
phase start
await_step used
phase ready
section ready.node node_conditions
report_ready ready
section ready.identity identity
done_so_far seen
await_step upgraded
phase upgraded
report_ready upgraded
section upgraded.identity identity
section upgraded.memory memory
done_so_far compared
await_step removed
phase stopped
fact exit-code "$(exit_code "$(kube get configmap lab -o 'jsonpath={.data.container}')")"
section kubelet-log tail -n 100 /run/matrix/kubelet.log
section device-plugin cat /run/matrix/device-plugin.log
kill "$EXITS"
wait "$EXITS" || true
after
put_back
