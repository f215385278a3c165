{{/* Variables of the agent by name, as YAML: those of the values, without `env`. */}}
{{- define "longshore.env" -}}
{{- $env := dict }}
{{- with .Values.driver }}
{{- with .version }}{{ $_ := set $env "LONGSHORE_DRIVER" (printf "%v" .) }}{{ end }}
{{- with .flavour }}{{ $_ := set $env "LONGSHORE_FLAVOUR" . }}{{ end }}
{{- with .extraModules }}{{ $_ := set $env "LONGSHORE_EXTRA_MODULES" (join "," .) }}{{ end }}
{{- range $module, $parameters := .parameters }}
{{- $_ := set $env (printf "LONGSHORE_PARAMETERS_%s" ($module | upper | replace "-" "_")) $parameters }}
{{- end }}
{{- if not .compile }}{{ $_ := set $env "LONGSHORE_COMPILE" "false" }}{{ end }}
{{- with .noGpu }}{{ $_ := set $env "LONGSHORE_NO_GPU" . }}{{ end }}
{{- with .missingGpus }}{{ $_ := set $env "LONGSHORE_MISSING_GPUS" . }}{{ end }}
{{- with .ended }}{{ $_ := set $env "LONGSHORE_ENDED_DRIVER" . }}{{ end }}
{{- with .vulnerable }}{{ $_ := set $env "LONGSHORE_VULNERABLE_DRIVER" . }}{{ end }}
{{- with .supportTable }}{{ $_ := set $env "LONGSHORE_SUPPORT_TABLE" . }}{{ end }}
{{- with .conflictingDrivers }}{{ $_ := set $env "LONGSHORE_CONFLICTING_DRIVERS" . }}{{ end }}
{{- with .nextKernel }}{{ $_ := set $env "LONGSHORE_NEXT_KERNEL" . }}{{ end }}
{{- with .onBusy }}{{ $_ := set $env "LONGSHORE_ON_BUSY" . }}{{ end }}
{{- $_ := set $env "LONGSHORE_WAIT_TO_CHANGE" (printf "%v" (or .waitToChange $.Values.cluster.evict)) }}
{{- if .gpuDirectRdma }}{{ $_ := set $env "GPU_DIRECT_RDMA_ENABLED" "true" }}{{ end }}
{{- end }}
{{- range $key, $name := dict "taint" "TAINT" "featuresFile" "FEATURES_FILE" "evict" "EVICT" "evictDeadline" "EVICT_DEADLINE" "keepForSuccessor" "KEEP_FOR_SUCCESSOR" }}
{{- $_ := set $env (printf "LONGSHORE_CLUSTER_%s" $name) (printf "%v" (get $.Values.cluster $key)) }}
{{- end }}
{{- $_ := set $env "LONGSHORE_CLUSTER_REPORT" (ternary "true" "false" (eq (include "longshore.reports" .) "true")) }}
{{- $_ := set $env "LONGSHORE_CLUSTER_BUILD_LEASE" (ternary "true" "false" (eq (include "longshore.leases" .) "true")) }}
{{- with .Values.cdi.spec }}{{ $_ := set $env "LONGSHORE_CDI_SPEC" . }}{{ end }}
{{- with .Values.cdi.capabilities }}{{ $_ := set $env "LONGSHORE_CDI_CAPABILITIES" (join "," .) }}{{ end }}
{{- with .Values.store.maxSize }}{{ $_ := set $env "LONGSHORE_STORE_MAX_SIZE" . }}{{ end }}
{{- $_ := set $env "LONGSHORE_LISTEN" .Values.listen }}
{{- $_ := set $env "LONGSHORE_LOG" .Values.log.level }}
{{- $_ := set $env "LONGSHORE_LOG_FORMAT" .Values.log.format }}
{{- $registries := .Values.registries.references }}
{{- if .Values.builder.enabled }}
{{- $registries = prepend $registries .Values.builder.reference | uniq }}
{{- $_ := set $env "LONGSHORE_REGISTRY_WAIT" .Values.builder.wait }}
{{- end }}
{{- with $registries }}{{ $_ := set $env "LONGSHORE_REGISTRIES" (join "," .) }}{{ end }}
{{- if .Values.registries.loginSecret }}{{ $_ := set $env "DOCKER_CONFIG" "/secrets/registry-login" }}{{ end }}
{{- if .Values.signatures.secret }}
{{- $files := list }}
{{- range .Values.signatures.keys }}{{ $files = append $files (printf "/secrets/signatures/%s" .) }}{{ end }}
{{- $_ := set $env "LONGSHORE_SIGNATURE_KEYS" (join "," $files) }}
{{- end }}
{{- with .Values.signatures.attestations }}{{ $_ := set $env "LONGSHORE_REQUIRE_ATTESTATION" (join "," .) }}{{ end }}
{{- if .Values.signatures.requireIndex }}{{ $_ := set $env "LONGSHORE_REQUIRE_INDEX" "true" }}{{ end }}
{{- with int64 .Values.signatures.indexMinimum }}{{ $_ := set $env "LONGSHORE_INDEX_MINIMUM" (printf "%d" .) }}{{ end }}
{{- if include "longshore.readsIndexRecord" . }}{{ $_ := set $env "LONGSHORE_INDEX_MINIMUM_FILE" "/etc/longshore-index/index-minimum" }}{{ end }}
{{- with .Values.publish.reference }}{{ $_ := set $env "LONGSHORE_PUBLISH" . }}{{ end }}
{{- include "longshore.proxyInto" (dict "values" .Values.proxy "env" $env) }}
{{- toYaml $env }}
{{- end }}

{{/* Sets the proxies in `env`. */}}
{{- define "longshore.proxyInto" -}}
{{- $env := .env }}
{{- with .values.http }}{{ $_ := set $env "http_proxy" . }}{{ end }}
{{- with .values.https }}{{ $_ := set $env "https_proxy" . }}{{ end }}
{{- with .values.none }}{{ $_ := set $env "no_proxy" . }}{{ end }}
{{- end }}

{{/* Variables that `env` may not set, each with the value that does. */}}
{{- define "longshore.reserved" -}}
NODE_NAME: the pod
NODE_IP: the pod
POD_NAME: the pod
POD_NAMESPACE: the pod
COSIGN_PASSWORD: builder.signKeySecret, at the builder alone
KBUILD_SIGN_PIN: builder.moduleSigningSecret, at the builder alone
LONGSHORE_PUBLISH_KEY: builder.signKeySecret, at the builder alone
LONGSHORE_MODULE_KEY: builder.moduleSigningSecret, at the builder alone
LONGSHORE_STORE: store.hostPath
LONGSHORE_STATE_DIR: the chart
LONGSHORE_CONFIG: config
LONGSHORE_LISTEN: listen
LONGSHORE_ON_BUSY: driver.onBusy
LONGSHORE_WAIT_TO_CHANGE: driver.waitToChange
LONGSHORE_CLUSTER_REPORT: cluster.report
LONGSHORE_CLUSTER_TAINT: cluster.taint
LONGSHORE_CLUSTER_FEATURES_FILE: cluster.featuresFile
LONGSHORE_CLUSTER_EVICT: cluster.evict
LONGSHORE_CLUSTER_EVICT_DEADLINE: cluster.evictDeadline
LONGSHORE_CLUSTER_KEEP_FOR_SUCCESSOR: cluster.keepForSuccessor
LONGSHORE_CLUSTER_BUILD_LEASE: cluster.buildLease
{{- end }}

{{/* "true" where a repository to push compiled modules to may be set: by its value, `config` or `env`. */}}
{{- define "longshore.publishes" -}}
{{- $publishes := or .Values.publish.reference (regexMatch "(?m)^[^#\\n]*publish" .Values.config) }}
{{- range .Values.env }}{{ if eq .name "LONGSHORE_PUBLISH" }}{{ $publishes = true }}{{ end }}{{ end }}
{{- if $publishes }}true{{ end }}
{{- end }}
