{{/* ValidatingAdmissionPolicy and its binding, about the requests of one service account. `name` is the object's,
`metadata` the rest of it, `account` the service account's name, and `rules`, `variables` and `validations` are YAML. */}}
{{- define "longshore.policy" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  {{- .metadata | nindent 2 }}
spec:
  failurePolicy: Fail
  # The API server's defaults, written out: the map has one owner, and with defaults that an earlier apply left to the
  # server a server-side apply of the same manifest would be a conflict.
  matchConstraints:
    matchPolicy: Equivalent
    namespaceSelector: {}
    objectSelector: {}
    resourceRules:
      {{- .rules | nindent 6 }}
  matchConditions:
    - name: account
      expression: >-
        request.userInfo.username == {{ printf "system:serviceaccount:%s:%s" (include "longshore.namespace" .root) .account | quote }}
  {{- with .variables }}
  variables:
    {{- . | trim | nindent 4 }}
  {{- end }}
  validations:
    {{- .validations | trim | nindent 4 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  {{- .metadata | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* Requests that change a node. */}}
{{- define "longshore.policy.nodeRules" -}}
- apiGroups: [""]
  apiVersions: ["v1"]
  operations: ["UPDATE"]
  resources: ["nodes", "nodes/status"]
  scope: "*"
{{- end }}

{{/* Names of the pod and its node, as the API server writes them into a pod's token: the node's from Kubernetes 1.30 on
(ServiceAccountTokenPodNodeInfo). */}}
{{- define "longshore.policy.own" -}}
- name: own{{ . | title }}
  expression: >-
    request.userInfo.extra[?'authentication.kubernetes.io/{{ . }}-name'][0].orValue('')
{{- end }}

{{/* Differences of a node from the one before: keys of maps. `dyn` because the API's types are no maps to CEL. */}}
{{- define "longshore.policy.nodeVariables" -}}
{{- range list "labels" "annotations" }}
{{- $old := printf "variables.old%s" (title .) }}
{{- $new := printf "variables.%s" . }}
- name: {{ . }}
  expression: object.metadata.?{{ . }}.orValue({})
- name: old{{ . | title }}
  expression: oldObject.metadata.?{{ . }}.orValue({})
- name: changed{{ . | title }}
  expression: >-
    {{ $new }}.filter(k, !(k in {{ $old }}) || {{ $old }}[k] != {{ $new }}[k])
    + {{ $old }}.filter(k, !(k in {{ $new }}))
{{- end }}
{{- range list "metadata" "spec" "status" }}
- name: {{ . }}
  expression: dyn(object).?{{ . }}.orValue({})
- name: old{{ . | title }}
  expression: dyn(oldObject).?{{ . }}.orValue({})
- name: changed{{ . | title }}
  expression: >-
    variables.{{ . }}.filter(k, !(k in variables.old{{ . | title }}) || variables.old{{ . | title }}[k] != variables.{{ . }}[k])
    + variables.old{{ . | title }}.filter(k, !(k in variables.{{ . }}))
{{- end }}
- name: isCordoned
  expression: variables.spec.?unschedulable.orValue(false)
- name: wasCordoned
  expression: variables.oldSpec.?unschedulable.orValue(false)
{{- end }}

{{/* Differences of a node that are allowed, with one validation for each kind of them. `who` is the subject of the
messages; `labels` and `annotations` are conditions on the key `k`, `spec` and `status` lists of keys. */}}
{{- define "longshore.policy.nodeValidations" -}}
{{- $who := .who }}
{{- range $kind, $allowed := dict "labels" .labels "annotations" .annotations }}
- expression: variables.changed{{ $kind | title }}.all(k, {{ $allowed }})
  messageExpression: >-
    "{{ $who }} may not change these {{ $kind }} of a node: " + variables.changed{{ $kind | title }}.filter(k, !({{ $allowed }})).join(", ")
{{- end }}
{{- $metadata := list "labels" "annotations" "managedFields" "resourceVersion" "generation" }}
{{- range $kind, $allowed := dict "metadata" $metadata "spec" .spec "status" .status }}
{{- $condition := ternary "false" (printf "k in ['%s']" (join "', '" $allowed)) (empty $allowed) }}
- expression: variables.changed{{ $kind | title }}.all(k, {{ $condition }})
  messageExpression: >-
    "{{ $who }} may not change these fields of a node's {{ $kind }}: " + variables.changed{{ $kind | title }}.filter(k, !({{ $condition }})).join(", ")
{{- end }}
{{- if has "taints" .spec }}
- expression: >-
    variables.spec.?taints.orValue([]).filter(t, t.key != 'longshore.dev/driver-not-ready')
    == variables.oldSpec.?taints.orValue([]).filter(t, t.key != 'longshore.dev/driver-not-ready')
  message: {{ $who }} may change the taint longshore.dev/driver-not-ready of a node alone
{{- end }}
{{- if has "conditions" .status }}
- expression: >-
    variables.status.?conditions.orValue([]).filter(c, c.type != 'GpuDriverReady')
    == variables.oldStatus.?conditions.orValue([]).filter(c, c.type != 'GpuDriverReady')
  message: {{ $who }} may change the condition GpuDriverReady of a node alone
{{- end }}
{{- end }}

{{/* The end of a cordon that is longshore's. */}}
{{- define "longshore.policy.uncordon" -}}
- expression: variables.isCordoned || !variables.wasCordoned || 'longshore.dev/cordoned' in variables.oldAnnotations
  message: {{ . }} may not uncordon a node that it has not cordoned
{{- end }}

{{/* Keys that an agent writes: crates/cluster/src/names.rs and safe_load/mod.rs. */}}
{{- define "longshore.policy.agentLabels" -}}
k in ['longshore.dev/driver-version', 'longshore.dev/flavour', 'longshore.dev/next-kernel', 'longshore.dev/state']
{{- end }}
{{- define "longshore.policy.agentAnnotations" -}}
k in ['longshore.dev/status', 'longshore.dev/evict-request', 'nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load']
{{- end }}

{{/* The own node alone. */}}
{{- define "longshore.policy.ownNode" -}}
- expression: variables.ownNode != ''
  message: the token of longshore's agent names no node, so that it cannot be compared
- expression: variables.ownNode == object.metadata.name
  messageExpression: >-
    "longshore's agent on node " + variables.ownNode + " may not change node " + object.metadata.name
{{- end }}

{{/* Changes by the evictor: a node whose agent asks for it is cordoned, and the cordon is its own to end. */}}
{{- define "longshore.policy.evictorValidations" -}}
{{- $who := "longshore's evictor" }}
{{- $annotations := "k in ['longshore.dev/cordoned', 'longshore.dev/evictions']" }}
{{- include "longshore.policy.nodeValidations" (dict "who" $who "labels" "false" "annotations" $annotations "spec" (list "unschedulable") "status" list) }}
- expression: variables.wasCordoned || !variables.isCordoned || 'longshore.dev/evict-request' in variables.annotations
  message: {{ $who }} may not cordon a node whose agent does not ask for it
- expression: >-
    !('longshore.dev/cordoned' in variables.annotations) || 'longshore.dev/cordoned' in variables.oldAnnotations
    || (variables.isCordoned && !variables.wasCordoned)
  message: {{ $who }} may not claim a cordon that another program made
{{ include "longshore.policy.uncordon" $who }}
{{- end }}

{{/* Changes by the Job before an uninstall: it takes away what agents and the evictor wrote. */}}
{{- define "longshore.policy.cleanValidations" -}}
{{- $who := "longshore's clean-up" }}
{{- $labels := "k.startsWith('longshore.dev/') && !(k in variables.labels)" }}
{{- $annotations := "(k.startsWith('longshore.dev/') || k == 'nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load') && !(k in variables.annotations)" }}
{{- include "longshore.policy.nodeValidations" (dict "who" $who "labels" $labels "annotations" $annotations "spec" (list "taints" "unschedulable") "status" (list "conditions")) }}
- expression: variables.wasCordoned || !variables.isCordoned
  message: {{ $who }} may not cordon a node
{{ include "longshore.policy.uncordon" $who }}
{{- end }}

{{/* Requests that write events. Those of the core group are the same objects (matchPolicy Equivalent). */}}
{{- define "longshore.policy.eventRules" -}}
- apiGroups: ["events.k8s.io"]
  apiVersions: ["v1"]
  operations: ["CREATE", "UPDATE"]
  resources: ["events"]
  scope: "*"
{{- end }}

{{/* Events of the own pod, about pods and the own node. The argument is CEL's list of the reporting instances. */}}
{{- define "longshore.policy.eventValidations" -}}
- expression: variables.ownNode != '' && variables.ownPod != ''
  message: the token of longshore's agent names no pod or node, so that they cannot be compared
- expression: >-
    object.?reportingController.orValue('') == 'longshore.dev/agent' && object.?reportingInstance.orValue('') in {{ . }}
  message: longshore's agent may write events of longshore.dev/agent and the own pod alone
- expression: >-
    request.operation == 'CREATE' || (oldObject.?reportingController.orValue('') == 'longshore.dev/agent'
    && oldObject.?reportingInstance.orValue('') in {{ . }})
  message: longshore's agent may change events of longshore.dev/agent and the own pod alone
- expression: >-
    object.?regarding.?kind.orValue('') == 'Pod' || (object.?regarding.?kind.orValue('') == 'Node'
    && object.?regarding.?name.orValue('') == variables.ownNode)
  message: longshore's agent may write events about pods and the own node alone
{{- end }}

{{/* Requests that write leases. */}}
{{- define "longshore.policy.leaseRules" -}}
- apiGroups: ["coordination.k8s.io"]
  apiVersions: ["v1"]
  operations: ["CREATE", "UPDATE", "DELETE"]
  resources: ["leases"]
  scope: "*"
{{- end }}

{{/* Build leases: BUILD_LEASE of crates/cluster/src/names.rs. */}}
{{- define "longshore.policy.leaseValidations" -}}
- expression: >-
    (request.operation == 'DELETE' ? oldObject : object).metadata.name.startsWith('longshore-build-')
  message: longshore's agent may write leases whose names begin with longshore-build- alone
{{- end }}
