{{/* Labels of the pods of hooks: none of those that select the agents' pods. */}}
{{- define "longshore.hookLabels" -}}
app.kubernetes.io/name: {{ include "longshore.name" . }}-hook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Metadata of an object of a hook, but for its name. Objects of a lower weight are made before the others; all of them
are deleted after the hook has passed, and before the next one. */}}
{{- define "longshore.hookMetadata" -}}
labels:
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
  {{- include "longshore.hookLabels" .root | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  {{- with .root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  helm.sh/hook: {{ .hook }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* Service account of a hook, and its rights: `rules` in the own namespace, `nodeRules` in the cluster, and
`validations` of what it changes on nodes, where there are policies. */}}
{{- define "longshore.hookAccount" -}}
{{- $metadata := include "longshore.hookMetadata" (dict "root" .root "hook" .hook "weight" -5) }}
{{- $clusterName := printf "%s-%s" (include "longshore.namespace" .root) .name }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ include "longshore.namespace" .root }}
  {{- $metadata | nindent 2 }}
{{- if and .validations (include "longshore.policies" .root) }}
{{ include "longshore.policy" (dict "root" .root "metadata" $metadata "account" .name "name" $clusterName "rules" (include "longshore.policy.nodeRules" .root) "variables" (include "longshore.policy.nodeVariables" .root) "validations" .validations) }}
{{- end }}
{{- with .rules }}
{{ include "longshore.role" (dict "root" $.root "kind" "Role" "metadata" $metadata "account" $.name "name" $.name "rules" .) }}
{{- end }}
{{- with .nodeRules }}
{{ include "longshore.role" (dict "root" $.root "kind" "ClusterRole" "metadata" $metadata "account" $.name "name" $clusterName "rules" .) }}
{{- end }}
{{- end }}

{{/* Fields of a hook's pod. */}}
{{- define "longshore.hookPod" -}}
serviceAccountName: {{ .name }}
enableServiceLinks: false
{{- if .root.Values.hooks.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with include "longshore.pullSecrets" .root | trim }}
{{ . }}
{{- end }}
{{ include "longshore.helperSelector" (dict "root" .root "given" .root.Values.hooks.nodeSelector) }}
{{- with .root.Values.hooks.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Node selector of a pod that is no agent's: `given`, or the nodes of Linux. Where the image is only on nodes into which
it was imported, it runs on those of the release. */}}
{{- define "longshore.helperSelector" -}}
{{- $selector := dict "kubernetes.io/os" "linux" }}
{{- if .given }}
{{- $selector = .given }}
{{- else if eq (.root.Values.global.imageRegistry | default .root.Values.image.registry) "localhost" }}
{{- $selector = merge $selector (default dict .root.Values.nodeSelector) }}
{{- end -}}
nodeSelector:
  {{- toYaml $selector | nindent 2 }}
{{- end }}

{{/* Fields of a hook's container, of the agent's image: the API server is asked with the service account of the pod. */}}
{{- define "longshore.hookContainer" -}}
image: {{ include "longshore.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
# A person reads it, after a failure.
env: [{name: LONGSHORE_LOG_FORMAT, value: pretty}]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- with .Values.hooks.resources }}
{{- include "longshore.resources" . | nindent 0 }}
{{- end }}
{{- end }}

{{/* DaemonSets of the release, NAMESPACE/NAME, with commas between. */}}
{{- define "longshore.hookSets" -}}
{{- $sets := list }}
{{- range .names }}{{ $sets = append $sets (printf "%s/%s" (include "longshore.namespace" $.root) .) }}{{ end }}
{{- join "," $sets }}
{{- end }}
