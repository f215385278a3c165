{{/* Name of the chart. */}}
{{- define "longshore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the objects: at most 63 characters, as labels and host names have. */}}
{{- define "longshore.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "longshore.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "longshore.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of the objects of a pool; without pools, of all objects. */}}
{{- define "longshore.poolName" -}}
{{- $name := include "longshore.fullname" . }}
{{- if .pool }}{{ printf "%s-%s" ($name | trunc (int (sub 62 (len .pool))) | trimSuffix "-") .pool }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{/* Namespace of the objects. */}}
{{- define "longshore.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{/* Name of cluster-wide objects: two releases in two namespaces may have the same name. */}}
{{- define "longshore.clusterName" -}}
{{- $name := include "longshore.fullname" . }}
{{- $namespace := include "longshore.namespace" . }}
{{- if eq $name $namespace }}{{ $name }}{{ else }}{{ printf "%s-%s" $namespace $name }}{{ end }}
{{- end }}

{{- define "longshore.selectorLabels" -}}
app.kubernetes.io/name: {{ include "longshore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels that select the pods of a DaemonSet. */}}
{{- define "longshore.poolLabels" -}}
{{ include "longshore.selectorLabels" . }}
{{- if .pool }}
longshore.dev/pool: {{ .pool }}
{{- end }}
{{- end }}

{{- define "longshore.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "longshore.poolLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object, but for its name. `of` has more labels and annotations. */}}
{{- define "longshore.metadataWith" -}}
labels:
  {{- include "longshore.labels" .root | nindent 2 }}
  {{- with .of.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mergeOverwrite (deepCopy .root.Values.commonAnnotations) (default dict .of.annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Metadata of an object, but for its name. */}}
{{- define "longshore.metadata" -}}
{{- include "longshore.metadataWith" (dict "root" . "of" dict) }}
{{- end }}

{{- define "longshore.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "longshore.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Reference of an image by its values. */}}
{{- define "longshore.imageOf" -}}
{{- $registry := default .image.registry .root.Values.global.imageRegistry }}
{{- $repository := ternary (printf "%s/%s" $registry .image.repository) .image.repository (ne $registry "") }}
{{- if .image.digest }}{{ printf "%s@%s" $repository .image.digest }}{{ else }}{{ printf "%s:%s" $repository (default .tag .image.tag) }}{{ end }}
{{- end }}

{{- define "longshore.image" -}}
{{- include "longshore.imageOf" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* Secrets for pulling images, each once. */}}
{{- define "longshore.pullSecrets" -}}
{{- $names := list }}
{{- range concat (default list .Values.global.imagePullSecrets) .Values.imagePullSecrets }}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) }}
{{- end }}
{{- with uniq $names }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Address of other hosts' readers: its port, or nothing where only the node itself reaches it. */}}
{{- define "longshore.metricsPort" -}}
{{- if and (regexMatch ":[0-9]+$" .Values.listen) (not (regexMatch "^(unix:|127\\.|\\[::1\\])" .Values.listen)) }}
{{- regexFind "[0-9]+$" .Values.listen }}
{{- end }}
{{- end }}

{{/* Seconds of a span: 1m20s. */}}
{{- define "longshore.seconds" -}}
{{- $seconds := 0 }}
{{- range regexFindAll "[0-9]+[a-z]+" . -1 }}
{{- $count := regexFind "[0-9]+" . | int }}
{{- $unit := regexFind "[a-z]+" . }}
{{- $seconds = add $seconds (mul $count (get (dict "h" 3600 "m" 60 "s" 1) $unit)) }}
{{- end }}
{{- $seconds }}
{{- end }}

{{/* Label `job` of the agents' metrics. */}}
{{- define "longshore.job" -}}
{{- $monitor := printf "%s/%s" (default (include "longshore.namespace" .) .Values.podMonitor.namespace) (include "longshore.fullname" .) }}
{{- $labels := merge (include "longshore.selectorLabels" . | fromYaml) .Values.podLabels }}
{{- default $monitor (get $labels .Values.podMonitor.jobLabel) }}
{{- end }}
