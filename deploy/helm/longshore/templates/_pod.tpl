{{/* Probe by the agent's own command, over its socket: an address could be held by another program. */}}
{{- define "longshore.probe" -}}
exec:
  command: [longshore, status, {{ .option }}]
{{- toYaml .probe | nindent 0 }}
{{- end }}

{{/* Container fields that the agent and its init container share. The agent's has a token (`account`). */}}
{{- define "longshore.containerOf" -}}
{{- $account := .account -}}
image: {{ .image | quote }}
{{- with .root }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  # Bidirectional mounts, which expose the driver root to the node, need a privileged container.
  privileged: true
  runAsUser: 0
  readOnlyRootFilesystem: true
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
env:
  {{- $given := list }}
  {{- range .Values.env }}{{ $given = append $given .name }}{{ end }}
  {{- range $name, $value := include "longshore.env" . | fromYaml }}
  {{- if not (has $name $given) }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  {{- end }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: spec.nodeName}}
  - name: NODE_IP
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.hostIP}}
  - name: POD_NAME
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: config
    mountPath: /etc/longshore
    readOnly: true
  - name: container-run
    mountPath: /run
  - name: container-tmp
    mountPath: /tmp
  - name: run-nvidia
    mountPath: /run/nvidia
    mountPropagation: Bidirectional
  - name: run-longshore
    mountPath: /run/longshore
  - name: store
    mountPath: /var/lib/longshore
  {{- if and $account (include "longshore.usesToken" .) }}
  - name: api-access
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
  {{- end }}
  {{- range $name, $secret := include "longshore.secrets" . | fromYaml }}
  - name: {{ $name }}
    mountPath: /secrets/{{ $name }}
    readOnly: true
  {{- end }}
  {{- if include "longshore.readsIndexRecord" . }}
  # A directory, so that the kubelet follows the ConfigMap.
  - name: index-record
    mountPath: /etc/longshore-index
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
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Secrets of the values, by the name of their volume. */}}
{{- define "longshore.secrets" -}}
{{- range $name, $secret := dict "registry-login" .Values.registries.loginSecret "signatures" .Values.signatures.secret }}
{{- if $secret }}
{{ $name }}: {{ $secret | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Volume of one of `mounts`. */}}
{{- define "longshore.mounted" -}}
- name: mount-{{ .index }}
  {{- with .mount }}
  {{- if .secret }}
  secret:
    secretName: {{ .secret | quote }}
    defaultMode: 0400
  {{- else if .configMap }}
  configMap:
    name: {{ .configMap | quote }}
  {{- else }}
  hostPath:
    path: {{ .hostPath | quote }}
  {{- end }}
  {{- end }}
{{- end }}

{{/* Volumes of the pod. */}}
{{- define "longshore.volumes" -}}
- name: config
  configMap:
    name: {{ include "longshore.poolName" . }}
# Mount points of the daemons' sockets, and temporary files: the container's root is read-only.
- name: container-run
  emptyDir: {medium: Memory}
- name: container-tmp
  emptyDir: {}
- name: run-nvidia
  hostPath: {path: /run/nvidia, type: DirectoryOrCreate}
- name: run-longshore
  hostPath: {path: /run/longshore, type: DirectoryOrCreate}
- name: store
  hostPath: {path: {{ .Values.store.hostPath | quote }}, type: DirectoryOrCreate}
{{- if include "longshore.usesToken" . }}
# As a kubelet mounts it into every container of a pod, here for the agent's alone.
- name: api-access
  projected:
    defaultMode: 0400
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {apiVersion: v1, fieldPath: metadata.namespace}}]}
{{- end }}
{{- range $name, $secret := include "longshore.secrets" . | fromYaml }}
- name: {{ $name }}
  secret:
    secretName: {{ $secret | quote }}
    defaultMode: 0400
{{- end }}
{{- if include "longshore.readsIndexRecord" . }}
- name: index-record
  configMap:
    name: {{ include "longshore.indexRecordName" . }}
    optional: true
{{- end }}
{{- with .Values.certificates.configMap }}
- name: certificates
  configMap:
    name: {{ . | quote }}
{{- end }}
{{- range $index, $mount := .Values.mounts }}
{{ include "longshore.mounted" (dict "index" $index "mount" $mount) }}
{{- end }}
{{- with .Values.bundle.hostPath }}
- name: bundle
  hostPath: {path: {{ . | quote }}, type: File}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Selection of nodes: selector, affinity and tolerations of the pod. */}}
{{- define "longshore.scheduling" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $apart := list }}
{{- if not .Values.controlPlaneNodes }}
{{- /* Labels of kubeadm before 1.24 are the second; newer API servers warn of it. */}}
{{- range ternary (list "control-plane" "master") (list "control-plane") (semverCompare "<1.24.0-0" .Capabilities.KubeVersion.Version) }}
{{- $apart = append $apart (dict "key" (printf "node-role.kubernetes.io/%s" .) "operator" "DoesNotExist") }}
{{- end }}
{{- end }}
{{- $terms := list }}
{{- if .Values.nodeFeatureDiscovery.select }}
{{- range list "pci-10de" "pci-0300_10de" "pci-0302_10de" }}
{{- $label := printf "feature.node.kubernetes.io/%s.present" . }}
{{- $terms = append $terms (dict "matchExpressions" (prepend $apart (dict "key" $label "operator" "In" "values" (list "true")))) }}
{{- end }}
{{- else if $apart }}
{{- $terms = append $terms (dict "matchExpressions" $apart) }}
{{- end }}
{{- $affinity := deepCopy .Values.affinity }}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- if and $terms (not (get (default dict $affinity.nodeAffinity) $required)) }}
{{- $_ := set $affinity "nodeAffinity" (merge (dict $required (dict "nodeSelectorTerms" $terms)) (default dict $affinity.nodeAffinity)) }}
{{- end }}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Affinity of pods with more rights than an agent: whoever has taken over a node has the tokens and keys of its pods, so
nodes without a GPU come first, of these the workers. */}}
{{- define "longshore.apart" -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference: {matchExpressions: [{key: nvidia.com/gpu.present, operator: DoesNotExist}]}
    - weight: 100
      preference: {matchExpressions: [{key: longshore.dev/driver-version, operator: DoesNotExist}]}
    - weight: 50
      preference: {matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: DoesNotExist}]}
{{- end }}

{{/* Resources of a container. Amounts are texts: a server-side apply, as by helm 4, is refused by older API servers with
numbers. */}}
{{- define "longshore.resources" -}}
{{- $resources := dict }}
{{- range $kind, $amounts := . }}
{{- $texts := dict }}
{{- range $name, $amount := $amounts }}{{ $_ := set $texts $name (toString $amount) }}{{ end }}
{{- $_ := set $resources $kind $texts }}
{{- end -}}
resources:
  {{- toYaml $resources | nindent 2 }}
{{- end }}
