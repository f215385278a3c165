{{/* "true" where the cluster has admission policies (ValidatingAdmissionPolicy v1, from Kubernetes 1.30 on) and they are
wished. */}}
{{- define "longshore.hasPolicies" -}}
{{- if eq .Values.rbac.nodePolicy "always" }}true
{{- else if and (eq .Values.rbac.nodePolicy "auto") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}true
{{- end }}
{{- end }}

{{/* "true" where the policies are rendered: with the rights that they restrict. */}}
{{- define "longshore.policies" -}}
{{- if and .Values.rbac.create (include "longshore.hasPolicies" .) }}true{{ end }}
{{- end }}

{{/* "true" where `value`, which is auto, true or false, is on: auto is, where there are policies. */}}
{{- define "longshore.isOn" -}}
{{- if eq (toString .value) "auto" }}{{ include "longshore.hasPolicies" .root }}{{ else if .value }}true{{ end }}
{{- end }}

{{/* "true" where the agent reports to the node. */}}
{{- define "longshore.reports" -}}
{{- include "longshore.isOn" (dict "root" . "value" .Values.cluster.report) }}
{{- end }}

{{/* "true" where hosts that compile agree by Lease objects, if any publishes. */}}
{{- define "longshore.leases" -}}
{{- include "longshore.isOn" (dict "root" . "value" .Values.cluster.buildLease) }}
{{- end }}

{{/* "true" where the agent may change its node. */}}
{{- define "longshore.changesNodes" -}}
{{- if or (include "longshore.reports" .) .Values.cluster.evict }}true{{ end }}
{{- end }}

{{/* "true" where the nodes are cleaned before an uninstall. Without policies no account may change every node, unless
that is wished: then the agents write nothing on them either. */}}
{{- define "longshore.cleansNodes" -}}
{{- if and .Values.uninstall.cleanNodes .Values.rbac.create }}
{{- if or (include "longshore.hasPolicies" .) (and (eq .Values.rbac.nodePolicy "never") (include "longshore.changesNodes" .)) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Rules of the agent's account: sets `cluster` and `own` of `into`, lists, and `leases`, true where Lease objects are
among them. One service account for all pools: the rights that any of them needs. */}}
{{- define "longshore.rights" -}}
{{- $into := .into }}
{{- $cluster := .root.Values.cluster }}
{{- $all := dict }}
{{- include "longshore.pools" (dict "root" .root "into" $all) }}
{{- $waits := false }}
{{- $selects := false }}
{{- $asksForVersion := false }}
{{- $publishes := false }}
{{- range $all.pools }}
{{- if .Values.driver.waitToChange }}{{ $waits = true }}{{ end }}
{{- /* Labels that every node keeps are not read again. */}}
{{- if or (omit (default dict .Values.nodeSelector) "kubernetes.io/os" "kubernetes.io/arch") .Values.affinity.nodeAffinity .Values.nodeFeatureDiscovery.select }}{{ $selects = true }}{{ end }}
{{- if not .Values.driver.version }}{{ $asksForVersion = true }}{{ end }}
{{- if include "longshore.publishes" . }}{{ $publishes = true }}{{ end }}
{{- end }}
{{- $changes := include "longshore.changesNodes" .root }}
{{- $rules := list }}
{{- $own := list }}
{{- $nodes := list }}
{{- if or $changes (and $cluster.keepForSuccessor $selects) }}{{ $nodes = append $nodes "get" }}{{ end }}
{{- /* A safe load is asked for by a patch: without that right nothing is to be watched. */}}
{{- if and $changes $waits (not $cluster.evict) }}{{ $nodes = append $nodes "watch" }}{{ end }}
{{- if $changes }}{{ $nodes = append $nodes "patch" }}{{ end }}
{{- if $nodes }}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes") "verbs" $nodes) }}
{{- end }}
{{- if include "longshore.reports" .root }}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "nodes/status") "verbs" (list "patch")) }}
{{- $rules = append $rules (dict "apiGroups" (list "events.k8s.io") "resources" (list "events") "verbs" (list "create" "patch")) }}
{{- end }}
{{- if or $cluster.keepForSuccessor $asksForVersion }}
{{- $own = append $own (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "get")) }}
{{- end }}
{{- if $cluster.keepForSuccessor }}
{{- $own = append $own (dict "apiGroups" (list "apps") "resources" (list "daemonsets") "verbs" (list "get")) }}
{{- $own = append $own (dict "apiGroups" (list "") "resources" (list "namespaces") "verbs" (list "get")) }}
{{- end }}
{{- if and $publishes (include "longshore.leases" .root) }}
{{- $own = append $own (dict "apiGroups" (list "coordination.k8s.io") "resources" (list "leases") "verbs" (list "get" "create" "update" "delete")) }}
{{- $_ := set $into "leases" true }}
{{- end }}
{{- $_ := set $into "cluster" $rules }}
{{- $_ := set $into "own" $own }}
{{- end }}

{{/* "true" where the agent asks the API server for anything, so that its container needs a token. */}}
{{- define "longshore.usesToken" -}}
{{- $rights := dict }}
{{- include "longshore.rights" (dict "root" . "into" $rights) }}
{{- if or $rights.cluster $rights.own }}true{{ end }}
{{- end }}

{{/* A role and its binding. `kind` is Role or ClusterRole, `rules` a list. */}}
{{- define "longshore.role" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ include "longshore.namespace" .root }}
  {{- end }}
  {{- .metadata | nindent 2 }}
rules:
  {{- range .rules }}
  - {{ toJson . }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- if eq .kind "Role" }}
  namespace: {{ include "longshore.namespace" .root }}
  {{- end }}
  {{- .metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .account }}
    namespace: {{ include "longshore.namespace" .root }}
{{- end }}

{{/* Name of the evictor's objects. */}}
{{- define "longshore.evictorName" -}}
{{ include "longshore.fullname" . | trunc 55 | trimSuffix "-" }}-evictor
{{- end }}

{{/* Labels of the evictor's pods: none of those that select the agents' pods. */}}
{{- define "longshore.evictorLabels" -}}
app.kubernetes.io/name: {{ include "longshore.name" . }}-evictor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Metadata of the evictor's objects, but for their names. */}}
{{- define "longshore.evictorMetadata" -}}
{{- $metadata := include "longshore.metadata" . | fromYaml }}
{{- $_ := set $metadata "labels" (merge (include "longshore.evictorLabels" . | fromYaml) $metadata.labels) }}
{{- toYaml $metadata }}
{{- end }}
