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

{{/* Service account of a hook, and its rights: `rules` in the own namespace, `nodeRules` in the cluster. */}}
{{- define "longshore.hookAccount" -}}
{{- $root := .root }}
{{- $name := .name }}
{{- $namespace := include "longshore.namespace" .root }}
{{- $metadata := include "longshore.hookMetadata" (dict "root" .root "hook" .hook "weight" -5) }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $namespace }}
  {{- $metadata | nindent 2 }}
{{- if .root.Values.rbac.create }}
{{- range $kind, $rules := dict "Role" .rules "ClusterRole" .nodeRules }}
{{- $object := ternary $name (printf "%s-%s" $namespace $name) (eq $kind "Role") }}
{{- if $rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $object }}
  {{- if eq $kind "Role" }}
  namespace: {{ $namespace }}
  {{- end }}
  {{- $metadata | nindent 2 }}
rules:
  {{- range $rules }}
  - {{ toJson . }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $object }}
  {{- if eq $kind "Role" }}
  namespace: {{ $namespace }}
  {{- end }}
  {{- $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $object }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $namespace }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fields of a hook's pod. Where the image is only on nodes into which it was imported, it runs on those of the release. */}}
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
{{- $selector := dict "kubernetes.io/os" "linux" }}
{{- if .root.Values.hooks.nodeSelector }}
{{- $selector = .root.Values.hooks.nodeSelector }}
{{- else if eq (.root.Values.global.imageRegistry | default .root.Values.image.registry) "localhost" }}
{{- $selector = merge $selector (default dict .root.Values.nodeSelector) }}
{{- end }}
nodeSelector:
  {{- toYaml $selector | nindent 2 }}
{{- with .root.Values.hooks.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
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
