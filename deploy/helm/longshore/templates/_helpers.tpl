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

{{/* Name of cluster-wide objects: two releases in two namespaces may have the same name. */}}
{{- define "longshore.clusterName" -}}
{{- $name := include "longshore.fullname" . }}
{{- if eq $name .Release.Namespace }}{{ $name }}{{ else }}{{ printf "%s-%s" .Release.Namespace $name }}{{ end }}
{{- end }}

{{- define "longshore.selectorLabels" -}}
app.kubernetes.io/name: {{ include "longshore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "longshore.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "longshore.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object, but for its name. */}}
{{- define "longshore.metadata" -}}
labels:
  {{- include "longshore.labels" . | nindent 2 }}
{{- with .Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "longshore.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "longshore.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "longshore.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Variables of the agent by name, as YAML: those of the values, then `env`, which wins. */}}
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
{{- with .conflictingDrivers }}{{ $_ := set $env "LONGSHORE_CONFLICTING_DRIVERS" . }}{{ end }}
{{- with .nextKernel }}{{ $_ := set $env "LONGSHORE_NEXT_KERNEL" . }}{{ end }}
{{- with .onBusy }}{{ $_ := set $env "LONGSHORE_ON_BUSY" . }}{{ end }}
{{- $_ := set $env "LONGSHORE_WAIT_TO_CHANGE" (printf "%v" (or .waitToChange $.Values.cluster.evict)) }}
{{- if .gpuDirectRdma }}{{ $_ := set $env "GPU_DIRECT_RDMA_ENABLED" "true" }}{{ end }}
{{- end }}
{{- range $key, $name := dict "report" "REPORT" "taint" "TAINT" "featuresFile" "FEATURES_FILE" "evict" "EVICT" "evictDeadline" "EVICT_DEADLINE" "keepForSuccessor" "KEEP_FOR_SUCCESSOR" "buildLease" "BUILD_LEASE" }}
{{- $_ := set $env (printf "LONGSHORE_CLUSTER_%s" $name) (printf "%v" (get $.Values.cluster $key)) }}
{{- end }}
{{- with .Values.cdi.spec }}{{ $_ := set $env "LONGSHORE_CDI_SPEC" . }}{{ end }}
{{- with .Values.cdi.capabilities }}{{ $_ := set $env "LONGSHORE_CDI_CAPABILITIES" (join "," .) }}{{ end }}
{{- with .Values.store.maxSize }}{{ $_ := set $env "LONGSHORE_STORE_MAX_SIZE" . }}{{ end }}
{{- $_ := set $env "LONGSHORE_LISTEN" .Values.listen }}
{{- $_ := set $env "LONGSHORE_LOG" .Values.log.level }}
{{- $_ := set $env "LONGSHORE_LOG_FORMAT" .Values.log.format }}
{{- with .Values.registries.references }}{{ $_ := set $env "LONGSHORE_REGISTRIES" (join "," .) }}{{ end }}
{{- if .Values.registries.loginSecret }}{{ $_ := set $env "DOCKER_CONFIG" "/secrets/registry-login" }}{{ end }}
{{- if .Values.signatures.secret }}
{{- $files := list }}
{{- range .Values.signatures.keys }}{{ $files = append $files (printf "/secrets/signatures/%s" .) }}{{ end }}
{{- $_ := set $env "LONGSHORE_SIGNATURE_KEYS" (join "," $files) }}
{{- end }}
{{- with .Values.signatures.attestations }}{{ $_ := set $env "LONGSHORE_REQUIRE_ATTESTATION" (join "," .) }}{{ end }}
{{- with .Values.publish.reference }}{{ $_ := set $env "LONGSHORE_PUBLISH" . }}{{ end }}
{{- if .Values.publish.signKeySecret }}{{ $_ := set $env "LONGSHORE_PUBLISH_KEY" "/secrets/publish/cosign.key" }}{{ end }}
{{- if .Values.moduleSigning.secret }}
{{- $_ := set $env "LONGSHORE_MODULE_KEY" "/secrets/module-signing/tls.key" }}
{{- $_ := set $env "LONGSHORE_MODULE_CERTIFICATE" "/secrets/module-signing/tls.crt" }}
{{- end }}
{{- with .Values.proxy.http }}{{ $_ := set $env "http_proxy" . }}{{ end }}
{{- with .Values.proxy.https }}{{ $_ := set $env "https_proxy" . }}{{ end }}
{{- with .Values.proxy.none }}{{ $_ := set $env "no_proxy" . }}{{ end }}
{{- toYaml (merge (deepCopy .Values.env) $env) }}
{{- end }}

{{/* Container fields that the agent and its init container share. */}}
{{- define "longshore.container" -}}
image: {{ include "longshore.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  # Bidirectional mounts, which expose the driver root to the node, need a privileged container.
  privileged: true
  runAsUser: 0
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
env:
  {{- range $name, $value := include "longshore.env" . | fromYaml }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- with .Values.publish.signKeySecret }}
  - name: COSIGN_PASSWORD
    valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: cosign.password, optional: true}}
  {{- end }}
  {{- with .Values.moduleSigning.secret }}
  - name: KBUILD_SIGN_PIN
    valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: passphrase, optional: true}}
  {{- end }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}
  - name: NODE_IP
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.hostIP}}
  - name: POD_NAME
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
volumeMounts:
  - name: config
    mountPath: /etc/longshore
    readOnly: true
  - name: run-nvidia
    mountPath: /run/nvidia
    mountPropagation: Bidirectional
  - name: run-longshore
    mountPath: /run/longshore
  - name: store
    mountPath: /var/lib/longshore
  {{- if .Values.registries.loginSecret }}
  - name: registry-login
    mountPath: /secrets/registry-login
    readOnly: true
  {{- end }}
  {{- if .Values.signatures.secret }}
  - name: signatures
    mountPath: /secrets/signatures
    readOnly: true
  {{- end }}
  {{- if .Values.publish.signKeySecret }}
  - name: publish
    mountPath: /secrets/publish
    readOnly: true
  {{- end }}
  {{- if .Values.moduleSigning.secret }}
  - name: module-signing
    mountPath: /secrets/module-signing
    readOnly: true
  {{- end }}
  {{- if .Values.certificates.configMap }}
  - name: certificates
    mountPath: /usr/local/share/ca-certificates
    readOnly: true
  {{- end }}
  {{- range $index, $mount := .Values.mounts }}
  - name: mount-{{ $index }}
    mountPath: {{ $mount.path | quote }}
    readOnly: true
  {{- end }}
{{- end }}

{{/* Handler of a probe: HTTP where the kubelet reaches the agent's address, else the agent's own command. */}}
{{- define "longshore.probe" -}}
{{- $listen := .root.Values.listen }}
{{- $address := regexReplaceAll ":[0-9]+$" $listen "" | trimPrefix "[" | trimSuffix "]" }}
{{- $anywhere := has $address (list "0.0.0.0" "::") }}
{{- if and (regexMatch ":[0-9]+$" $listen) (not (hasPrefix "unix:" $listen)) (or .root.Values.hostNetwork $anywhere) }}
httpGet:
  {{- if not $anywhere }}
  host: {{ $address | quote }}
  {{- end }}
  port: {{ regexFind "[0-9]+$" $listen }}
  path: {{ .path }}
{{- else }}
exec:
  command: [longshore, status, {{ .option }}]
{{- end }}
{{- toYaml .probe | nindent 0 }}
{{- end }}

{{/* "true" where the agent's address is reached from other hosts. */}}
{{- define "longshore.listensBeyondLoopback" -}}
{{- if and (regexMatch ":[0-9]+$" .Values.listen) (not (regexMatch "^(unix:|127\\.|\\[::1\\])" .Values.listen)) }}true{{ end }}
{{- end }}

{{/* "true" where the agent may change nodes. */}}
{{- define "longshore.changesNodes" -}}
{{- if or .Values.cluster.report .Values.cluster.evict }}true{{ end }}
{{- end }}

{{/* "true" where a repository to push compiled modules to may be set: by its value, `config` or `env`. */}}
{{- define "longshore.publishes" -}}
{{- if or .Values.publish.reference .Values.env.LONGSHORE_PUBLISH (regexMatch "(?m)^[^#\\n]*publish" .Values.config) }}true{{ end }}
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

{{/* "true" where the ValidatingAdmissionPolicy is rendered. */}}
{{- define "longshore.nodePolicy" -}}
{{- if .Values.rbac.create }}
{{- if eq .Values.rbac.nodePolicy "always" }}true
{{- else if and (eq .Values.rbac.nodePolicy "auto") (include "longshore.changesNodes" .) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}true
{{- end }}
{{- end }}
{{- end }}

{{/* Failures that the schema cannot express. */}}
{{- define "longshore.checked" -}}
{{- $span := regexFind "[0-9].*$" .Values.driver.onBusy }}
{{- if $span }}
{{- $seconds := include "longshore.seconds" $span }}
{{- if gt (int $seconds) 3600 }}
{{- fail (printf "driver.onBusy (%s) is longer than an hour" .Values.driver.onBusy) }}
{{- end }}
{{- if lt (int .Values.terminationGracePeriodSeconds) (int (add $seconds 30)) }}
{{- fail (printf "terminationGracePeriodSeconds (%v) must be at least 30 s longer than driver.onBusy (%s): the kubelet would kill the agent while it uninstalls the driver" .Values.terminationGracePeriodSeconds .Values.driver.onBusy) }}
{{- end }}
{{- end }}
{{- if gt (include "longshore.seconds" .Values.cluster.evictDeadline | int) 3600 }}
{{- fail (printf "cluster.evictDeadline (%s) is longer than an hour" .Values.cluster.evictDeadline) }}
{{- end }}
{{- if and .Values.cluster.taint (not .Values.cluster.report) }}
{{- fail "cluster.taint needs cluster.report, which sets and removes the taint" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not (include "longshore.listensBeyondLoopback" .)) }}
{{- fail (printf "podMonitor.enabled needs an address that Prometheus reaches: set listen to 0.0.0.0:9470, which is %s" .Values.listen) }}
{{- end }}
{{- if and .Values.publish.signKeySecret (not .Values.publish.reference) }}
{{- fail "publish.signKeySecret needs publish.reference, the repository to push to" }}
{{- end }}
{{- if and .Values.nodeFeatureDiscovery.select .Values.affinity.nodeAffinity }}
{{- fail "nodeFeatureDiscovery.select and affinity.nodeAffinity exclude each other" }}
{{- end }}
{{- range $index, $mount := .Values.mounts }}
{{- range list "/" "/bin" "/bundle.tar" "/dev" "/etc" "/etc/longshore" "/lib" "/proc" "/run" "/run/longshore" "/run/nvidia" "/secrets" "/sys" "/usr" "/usr/local" "/usr/local/bin" "/usr/local/share/ca-certificates" "/var" "/var/lib/longshore" }}
{{- if eq (trimSuffix "/" $mount.path) (trimSuffix "/" .) }}
{{- fail (printf "mounts[%d].path: %s is the agent's own" $index $mount.path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
