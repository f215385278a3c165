{{/* Failures that the schema cannot express: those of the release. `pools` has the contexts of its pools. */}}
{{- define "longshore.checked" -}}
{{- $pools := .pools }}
{{- with .root }}
{{- if gt (include "longshore.seconds" .Values.cluster.evictDeadline | int) 3600 }}
{{- fail (printf "cluster.evictDeadline (%s) is longer than an hour" .Values.cluster.evictDeadline) }}
{{- end }}
{{- include "longshore.rightsChecked" . }}
{{- if and .Values.cluster.taint (not (include "longshore.reports" .)) }}
{{- fail (printf "cluster.taint needs cluster.report, which sets and removes the taint (it is %v, and off)" .Values.cluster.report) }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not (include "longshore.metricsPort" .)) }}
{{- fail (printf "podMonitor.enabled needs an address that Prometheus reaches: set listen to 0.0.0.0:9470 (it is %s now)" .Values.listen) }}
{{- end }}
{{- include "longshore.builderChecked" . }}
{{- if and (eq .Values.dnsPolicy "None") (not .Values.dnsConfig) }}
{{- fail "dnsPolicy None needs dnsConfig, with the name servers" }}
{{- end }}
{{- if and .Values.networkPolicy.enabled .Values.hostNetwork }}
{{- fail "networkPolicy.enabled needs hostNetwork=false: a NetworkPolicy does not hold for pods on the node's network" }}
{{- end }}
{{- if .Values.pools }}
{{- include "longshore.poolsChecked" (dict "root" . "pools" $pools) }}
{{- end }}
{{- end }}
{{- range $pools }}
{{- include "longshore.poolChecked" . }}
{{- end }}
{{- end }}

{{/* Fails where a builder has not all that it needs, or the agents would push beside it. */}}
{{- define "longshore.builderChecked" -}}
{{- with .Values.builder }}
{{- if .enabled }}
{{- if not .reference }}
{{- fail "builder.enabled needs builder.reference, the repository to push to" }}
{{- end }}
{{- if not .signKeySecret }}
{{- fail "builder.enabled needs builder.signKeySecret: the agents take no modules of a builder without a signature" }}
{{- end }}
{{- if not $.Values.signatures.secret }}
{{- fail "builder.enabled needs signatures.secret, with the public key of builder.signKeySecret" }}
{{- end }}
{{- if $.Values.publish.reference }}
{{- fail "builder.enabled and publish.reference exclude each other: agents beside a builder push nothing" }}
{{- end }}
{{- if eq .signKeySecret $.Values.signatures.secret }}
{{- fail (printf "signatures.secret is builder.signKeySecret (%s), and would bring the private key to every node: make a Secret of cosign.pub alone" .signKeySecret) }}
{{- end }}
{{- if and .loginSecret (eq .loginSecret $.Values.registries.loginSecret) }}
{{- fail (printf "registries.loginSecret is builder.loginSecret (%s), and would bring the login that pushes to every node: use one that pulls" .loginSecret) }}
{{- end }}
{{- if gt (include "longshore.seconds" .wait | int) 3600 }}
{{- fail (printf "builder.wait (%s) is longer than an hour" .wait) }}
{{- end }}
{{- $reserved := include "longshore.builderReserved" $ | fromYaml }}
{{- range $index, $one := .env }}
{{- if hasKey $reserved $one.name }}
{{- fail (printf "builder.env[%d]: %s is set by %s" $index $one.name (get $reserved $one.name)) }}
{{- end }}
{{- end }}
{{- $required := (default dict (default dict .affinity).nodeAffinity).requiredDuringSchedulingIgnoredDuringExecution }}
{{- if not (or .nodeSelector $required .anyNode) }}
{{- fail "builder.enabled needs builder.nodeSelector, or a builder.affinity that requires nodes: whoever takes over a GPU node changes most labels of that node, and would draw the pod with the signing keys there. Name a label that kubelets cannot set on themselves, as node-restriction.kubernetes.io/longshore-builder (kubectl label node NAME node-restriction.kubernetes.io/longshore-builder=yes), or wish for exactly that with builder.anyNode=true" }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails where the rights of the agents could be used by one node against the others. */}}
{{- define "longshore.rightsChecked" -}}
{{- $rights := dict }}
{{- include "longshore.rights" (dict "root" . "into" $rights) }}
{{- if .Values.rbac.create }}
{{- if not (or (include "longshore.hasPolicies" .) (eq .Values.rbac.nodePolicy "never")) }}
{{- $version := .Capabilities.KubeVersion.Version }}
{{- range $value, $is := dict "cluster.report" (eq (toString .Values.cluster.report) "true") "cluster.evict" .Values.cluster.evict "cluster.buildLease" (and (eq (toString .Values.cluster.buildLease) "true") $rights.leases) }}
{{- if $is }}
{{- fail (printf "%s=true needs the admission policies of Kubernetes 1.30, and this is %s: without them whoever takes over one node may change every other node and lease with its agent's rights. Leave it out, or wish for exactly that with rbac.nodePolicy=never" $value $version) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $rights.leases (eq (include "longshore.namespace" .) "kube-system") }}
{{- fail "cluster.buildLease would let each agent read the leases of kube-system, those of the control plane among them: use another namespace, or cluster.buildLease=false" }}
{{- end }}
{{- if and (or $rights.cluster $rights.own) (eq (include "longshore.serviceAccountName" .) "default") }}
{{- fail "the agent's rights would be those of every pod of the namespace whose service account is `default`: with serviceAccount.create=false set serviceAccount.name to another one, or rbac.create=false" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Failures of the values of one DaemonSet. */}}
{{- define "longshore.poolChecked" -}}
{{- $of := ternary "" (printf "pool %s: " .pool) (empty .pool) }}
{{- $span := regexFind "[0-9].*$" .Values.driver.onBusy }}
{{- if $span }}
{{- $seconds := include "longshore.seconds" $span }}
{{- if gt (int $seconds) 3600 }}
{{- fail (printf "%sdriver.onBusy (%s) is longer than an hour" $of .Values.driver.onBusy) }}
{{- end }}
{{- if lt (int .Values.terminationGracePeriodSeconds) (int (add $seconds 30)) }}
{{- fail (printf "%sterminationGracePeriodSeconds (%v) must be at least 30 s longer than driver.onBusy (%s): the kubelet would kill the agent while it uninstalls the driver" $of .Values.terminationGracePeriodSeconds .Values.driver.onBusy) }}
{{- end }}
{{- end }}
{{- if and .Values.nodeFeatureDiscovery.select .Values.affinity.nodeAffinity }}
{{- fail (printf "%snodeFeatureDiscovery.select and affinity.nodeAffinity exclude each other" $of) }}
{{- end }}
{{- $reserved := include "longshore.reserved" . | fromYaml }}
{{- $names := list }}
{{- range $index, $one := .Values.env }}
{{- if hasKey $reserved $one.name }}
{{- fail (printf "%senv[%d]: %s is set by %s" $of $index $one.name (get $reserved $one.name)) }}
{{- end }}
{{- if has $one.name $names }}
{{- fail (printf "%senv[%d]: %s is there twice" $of $index $one.name) }}
{{- end }}
{{- $names = append $names $one.name }}
{{- end }}
{{- if and .Values.bundle.hostPath .Values.bundle.image }}
{{- fail (printf "%sbundle.image: set bundle.hostPath or bundle.image, not both" $of) }}
{{- end }}
{{- if .Values.uninstall.cleanNodes }}
{{- if lt (include "longshore.seconds" .Values.uninstall.timeout | int) (int .Values.terminationGracePeriodSeconds) }}
{{- fail (printf "%suninstall.timeout: %s is shorter than terminationGracePeriodSeconds (%v), so that no uninstall would pass while an agent uses that time; helm's --timeout has to be longer than both" $of .Values.uninstall.timeout .Values.terminationGracePeriodSeconds) }}
{{- end }}
{{- end }}
{{- range $name, $timeout := dict "uninstall.timeout" .Values.uninstall.timeout "test.timeout" .Values.test.timeout }}
{{- if gt (include "longshore.seconds" $timeout | int) 86400 }}
{{- fail (printf "%s: 24h at most, not %s" $name $timeout) }}
{{- end }}
{{- end }}
{{- $own := list "/" "/bin" "/bundle.tar" "/dev" "/etc" "/etc/longshore" "/etc/longshore-index" "/lib" "/proc" "/run" "/run/longshore" "/run/nvidia" "/secrets" "/sys" "/tmp" "/usr" "/usr/local" "/usr/local/bin" "/usr/local/share/ca-certificates" "/var" "/var/lib/longshore" "/var/run" "/var/run/secrets/kubernetes.io/serviceaccount" }}
{{- range $index, $mount := .Values.mounts }}
{{- if has $mount.path $own }}
{{- fail (printf "%smounts[%d].path: %s is the agent's own" $of $index $mount.path) }}
{{- end }}
{{- end }}
{{- range $index, $mount := .Values.extraVolumeMounts }}
{{- if has (trimSuffix "/" (toString $mount.mountPath)) $own }}
{{- fail (printf "%sextraVolumeMounts[%d].mountPath: %s is the agent's own" $of $index $mount.mountPath) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Fails for values of an older chart, with the new name. `helm upgrade --reuse-values` repeats an older chart's
defaults, which are values then. */}}
{{- define "longshore.formerNames" -}}
{{- $older := "a value of an older chart (helm upgrade --reuse-values repeats them: use --reset-then-reuse-values)" }}
{{- if not (hasKey . "evictor") }}
{{- fail "the values of an older chart are repeated, without the defaults of this one (helm upgrade --reuse-values does so): use --reset-then-reuse-values" }}
{{- end }}
{{- if hasKey .publish "signKeySecret" }}
{{- fail (printf "publish.signKeySecret is %s, and brought the private key to every node: it is builder.signKeySecret now, of a Deployment that alone signs and pushes (docs/supply-chain/builder.md)" $older) }}
{{- end }}
{{- $pools := list . }}
{{- range .pools }}{{ $pools = append $pools . }}{{ end }}
{{- range $pools }}
{{- if hasKey . "moduleSigning" }}
{{- fail (printf "moduleSigning is %s, and brought the private key to every node: it is builder.moduleSigningSecret now, of a Deployment that alone signs and pushes (docs/supply-chain/builder.md)" $older) }}
{{- end }}
{{- end }}
{{- if hasKey .image "pullSecrets" }}
{{- fail (printf "image.pullSecrets is %s: it is imagePullSecrets now, a list of {name: SECRET}" $older) }}
{{- end }}
{{- if kindIs "map" .env }}
{{- fail (printf "env as a map is %s: it is a list now, of {name: NAME, value: TEXT}" $older) }}
{{- end }}
{{- if hasKey .updateStrategy "maxUnavailable" }}
{{- fail (printf "updateStrategy.maxUnavailable is %s: it is updateStrategy.rollingUpdate.maxUnavailable now" $older) }}
{{- end }}
{{- if get . "kubectl" }}
{{- fail (printf "kubectl is %s: helm test and uninstall.cleanNodes run the agent's own image now, so remove it (--set kubectl=null); kubectl.resources is hooks.resources now" $older) }}
{{- end }}
{{- $first := regexFind "^[^/]+/" .image.repository | trimSuffix "/" }}
{{- if or (contains "." $first) (contains ":" $first) (eq $first "localhost") }}
{{- fail (printf "image.repository (%s) begins with a registry, as %s: set image.registry=%s and image.repository=%s" .image.repository $older $first (trimPrefix (printf "%s/" $first) .image.repository)) }}
{{- end }}
{{- range $index, $pool := .pools }}
{{- if kindIs "map" $pool.env }}
{{- fail (printf "pools[%d].env is a list of {name: NAME, value: TEXT}" $index) }}
{{- end }}
{{- end }}
{{- end }}
