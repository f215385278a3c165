{{/* Name of the builder's objects. */}}
{{- define "longshore.builderName" -}}
{{ include "longshore.fullname" . | trunc 55 | trimSuffix "-" }}-builder
{{- end }}

{{/* Labels of the builder's pods: none of those that select the agents' pods. */}}
{{- define "longshore.builderLabels" -}}
app.kubernetes.io/name: {{ include "longshore.name" . }}-builder
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Metadata of the builder's objects, but for their names. */}}
{{- define "longshore.builderMetadata" -}}
{{- $metadata := include "longshore.metadata" . | fromYaml }}
{{- $_ := set $metadata "labels" (merge (include "longshore.builderLabels" . | fromYaml) $metadata.labels) }}
{{- toYaml $metadata }}
{{- end }}

{{/* Name of the ConfigMap in which the builder records its highest index. */}}
{{- define "longshore.indexRecordName" -}}
{{ include "longshore.builderName" . }}-index
{{- end }}

{{/* "true" where the agents of a DaemonSet read that record: a builder writes an index, and they need one. */}}
{{- define "longshore.readsIndexRecord" -}}
{{- if and .Values.builder.enabled .Values.signatures.requireIndex }}true{{ end }}
{{- end }}

{{/* "true" where the builder writes that record: the agents of any pool read it. */}}
{{- define "longshore.recordsIndex" -}}
{{- $all := dict }}
{{- include "longshore.pools" (dict "root" . "into" $all) }}
{{- $reads := "" }}
{{- range $all.pools }}{{ if include "longshore.readsIndexRecord" . }}{{ $reads = "true" }}{{ end }}{{ end }}
{{- $reads }}
{{- end }}

{{/* Secrets of the builder, by the name of their volume. */}}
{{- define "longshore.builderSecrets" -}}
{{- range $name, $secret := dict "registry-login" .Values.builder.loginSecret "publish" .Values.builder.signKeySecret "module-signing" .Values.builder.moduleSigningSecret }}
{{- if $secret }}
{{ $name }}: {{ $secret | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Variables of the builder by name, as YAML: those of the values, without builder.env. Drivers and flavours are those of
all pools; one pool that leaves its driver to the configuration leaves all to it. */}}
{{- define "longshore.builderEnv" -}}
{{- $env := dict }}
{{- $all := dict }}
{{- include "longshore.pools" (dict "root" . "into" $all) }}
{{- $of := dict "drivers" .Values.builder.drivers "flavours" .Values.builder.flavours }}
{{- range $key, $value := dict "drivers" "version" "flavours" "flavour" }}
{{- if not (get $of $key) }}
{{- $found := list }}
{{- $isWhole := true }}
{{- range $all.pools }}
{{- $one := get .Values.driver $value | toString }}
{{- if $one }}{{ $found = append $found $one }}{{ else }}{{ $isWhole = false }}{{ end }}
{{- end }}
{{- if $isWhole }}{{ $_ := set $of $key (uniq $found) }}{{ end }}
{{- end }}
{{- end }}
{{- with $of.drivers }}{{ $_ := set $env "LONGSHORE_BUILDER_DRIVERS" (join "," .) }}{{ end }}
{{- with $of.flavours }}{{ $_ := set $env "LONGSHORE_BUILDER_FLAVOURS" (join "," .) }}{{ end }}
{{- $_ := set $env "LONGSHORE_PUBLISH" .Values.builder.reference }}
{{- $_ := set $env "LONGSHORE_PUBLISH_KEY" "/secrets/publish/cosign.key" }}
{{- $_ := set $env "LONGSHORE_PUBLISH_ATTEST" "true" }}
{{- if .Values.builder.loginSecret }}{{ $_ := set $env "DOCKER_CONFIG" "/secrets/registry-login" }}{{ end }}
{{- if .Values.builder.moduleSigningSecret }}
{{- $_ := set $env "LONGSHORE_MODULE_KEY" "/secrets/module-signing/tls.key" }}
{{- $_ := set $env "LONGSHORE_MODULE_CERTIFICATE" "/secrets/module-signing/tls.crt" }}
{{- end }}
{{- $_ := set $env "LONGSHORE_LISTEN" .Values.builder.listen }}
{{- $_ := set $env "LONGSHORE_LOG" .Values.log.level }}
{{- $_ := set $env "LONGSHORE_LOG_FORMAT" .Values.log.format }}
{{- include "longshore.proxyInto" (dict "values" .Values.proxy "env" $env) }}
{{- toYaml $env }}
{{- end }}

{{/* Variables that builder.env may not set, each with the value that does. */}}
{{- define "longshore.builderReserved" -}}
COSIGN_PASSWORD: builder.signKeySecret
KBUILD_SIGN_PIN: builder.moduleSigningSecret
LONGSHORE_STORE: the chart
LONGSHORE_STATE_DIR: the chart
LONGSHORE_CONFIG: builder.config
LONGSHORE_PUBLISH: builder.reference
LONGSHORE_PUBLISH_KEY: builder.signKeySecret
{{- end }}
