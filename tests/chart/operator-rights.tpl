{{- /* deploy/gpu-operator/rights.yaml: rendered by scripts/check-chart as a template of the chart, whose policies it has. */ -}}
# Rights that the GPU operator does not give its driver's service account: for longshore's condition of the node, its
# events and its build lease (docs/cluster/gpu-operator.md), each with an admission policy that restricts the account to
# the own node, the own events, and leases of that name. Kubernetes 1.30 or newer:
#   kubectl apply --filename deploy/gpu-operator/rights.yaml
# Before 1.30 apply none of it: there are no such policies, and without them the agent of one node could write the
# condition of every other node, and the lease by which the operator elects its leader. Longshore goes on without these.
# The policies restrict every container of that account, as the operator's k8s-driver-manager. It writes none of these.
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: longshore-report}
rules:
  - {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
  - {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: longshore-report}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: longshore-report}
subjects: [{kind: ServiceAccount, name: nvidia-driver, namespace: gpu-operator}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: longshore-build-lease, namespace: gpu-operator}
rules:
  - {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: longshore-build-lease, namespace: gpu-operator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: longshore-build-lease}
subjects: [{kind: ServiceAccount, name: nvidia-driver, namespace: gpu-operator}]
{{- $policy := dict "root" . "metadata" "labels: {app.kubernetes.io/name: longshore}" "account" "nvidia-driver" }}
{{- $own := printf "%s\n%s" (include "longshore.policy.own" "node") (include "longshore.policy.own" "pod") }}
{{- $allowed := dict "who" "longshore's agent" "labels" "false" "annotations" "false" "spec" list "status" (list "conditions") }}
{{- $_ := set $policy "name" "longshore-report-own-node" }}
{{- /* Other updates of nodes are the operator's own: its account has rights for them, and uses them. */}}
{{- $_ := set $policy "rules" (include "longshore.policy.nodeRules" . | replace "\"nodes\", " "") }}
{{- $_ := set $policy "variables" (printf "%s\n%s" (include "longshore.policy.own" "node") (include "longshore.policy.nodeVariables" . | trim)) }}
{{- $_ := set $policy "validations" (printf "%s\n%s" (include "longshore.policy.ownNode" .) (include "longshore.policy.nodeValidations" $allowed | trim)) }}
{{ include "longshore.policy" $policy }}
{{- $_ := set $policy "name" "longshore-report-events" }}
{{- $_ := set $policy "rules" (include "longshore.policy.eventRules" .) }}
{{- $_ := set $policy "variables" $own }}
{{- /* The operator's pods are not told their name. */}}
{{- $_ := set $policy "validations" (include "longshore.policy.eventValidations" "[variables.ownPod, variables.ownNode]") }}
{{ include "longshore.policy" $policy }}
{{- $_ := set $policy "name" "longshore-build-lease" }}
{{- $_ := set $policy "rules" (include "longshore.policy.leaseRules" .) }}
{{- $_ := unset $policy "variables" }}
{{- $_ := set $policy "validations" (include "longshore.policy.leaseValidations" .) }}
{{ include "longshore.policy" $policy }}
