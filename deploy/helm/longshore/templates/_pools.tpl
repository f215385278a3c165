{{/* Lists the pools in `into`, each with the context of the templates: its values are laid over those of the chart.
Without pools it is one context without a name. */}}
{{- define "longshore.pools" -}}
{{- $root := .root }}
{{- include "longshore.formerNames" $root.Values }}
{{- $pools := list }}
{{- range $pool := default (list dict) $root.Values.pools }}
{{- $values := deepCopy (omit $root.Values "pools") }}
{{- include "longshore.lay" (dict "onto" $values "over" (omit $pool "name")) }}
{{- $pools = append $pools (dict "Values" $values "Chart" $root.Chart "Release" $root.Release "Capabilities" $root.Capabilities "Template" $root.Template "pool" (get $pool "name")) }}
{{- end }}
{{- $_ := set .into "pools" $pools }}
{{- end }}

{{/* Lays the map `over` onto another one: maps are merged, everything else is replaced, also by false or nothing, which
sprig's merge would leave out. */}}
{{- define "longshore.lay" -}}
{{- $onto := .onto }}
{{- range $key, $value := .over }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $onto $key)) }}
{{- include "longshore.lay" (dict "onto" (get $onto $key) "over" $value) }}
{{- else }}
{{- $_ := set $onto $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Selection of nodes by a pool's values, as JSON, for comparisons. */}}
{{- define "longshore.selection" -}}
{{- dict "nodeSelector" .Values.nodeSelector "nodeAffinity" (default dict .Values.affinity.nodeAffinity) "nodeFeatureDiscovery" .Values.nodeFeatureDiscovery.select | toJson }}
{{- end }}

{{/* Fails where two pools have the same name, or are known to choose the same node: by equal selectors, or where the
labels of one are among those of the other. */}}
{{- define "longshore.poolsChecked" -}}
{{- $names := list }}
{{- $root := .root }}
{{- $common := $root.Values.nodeSelector }}
{{- $pools := .pools }}
{{- range $index, $pool := $root.Values.pools }}
{{- if has $pool.name $names }}
{{- fail (printf "pools[%d].name: %s is the name of another pool" $index $pool.name) }}
{{- end }}
{{- $names = append $names $pool.name }}
{{- if not (or $pool.nodeSelector (get (default dict $pool.affinity) "nodeAffinity")) }}
{{- fail (printf "pools[%d] (%s) has no nodeSelector or affinity.nodeAffinity of its own, and would choose the nodes of the other pools" $index $pool.name) }}
{{- end }}
{{- end }}
{{- range $first, $a := $pools }}
{{- range $second, $b := $pools }}
{{- if lt $first $second }}
{{- if eq (include "longshore.selection" $a) (include "longshore.selection" $b) }}
{{- fail (printf "pools %s and %s choose the same nodes: their nodeSelector and affinity are equal" $a.pool $b.pool) }}
{{- end }}
{{- if eq (include "longshore.isWithin" (dict "wide" $a "narrow" $b)) "true" }}
{{- fail (printf "pool %s chooses each node of pool %s, too: give its nodeSelector another value of a label that both have" $a.pool $b.pool) }}
{{- else if eq (include "longshore.isWithin" (dict "wide" $b "narrow" $a)) "true" }}
{{- fail (printf "pool %s chooses each node of pool %s, too: give its nodeSelector another value of a label that both have" $b.pool $a.pool) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" where each node of the pool `narrow` is one of the pool `wide`, which selects by labels alone. */}}
{{- define "longshore.isWithin" -}}
{{- $isWithin := and (not .wide.Values.affinity.nodeAffinity) (or (not .wide.Values.nodeFeatureDiscovery.select) .narrow.Values.nodeFeatureDiscovery.select) }}
{{- $narrow := .narrow.Values.nodeSelector }}
{{- range $label, $value := .wide.Values.nodeSelector }}
{{- if ne (get $narrow $label | toString) ($value | toString) }}{{ $isWithin = false }}{{ end }}
{{- end }}
{{- $isWithin }}
{{- end }}

{{/* Pairs of pools of which it is not known that they exclude each other: no label has two values in their nodeSelectors,
and none has an affinity. */}}
{{- define "longshore.maybeShared" -}}
{{- $pools := .pools }}
{{- range $first, $a := $pools }}
{{- range $second, $b := $pools }}
{{- if and (lt $first $second) (not (or $a.Values.affinity.nodeAffinity $b.Values.affinity.nodeAffinity)) }}
{{- $isApart := false }}
{{- range $label, $value := $a.Values.nodeSelector }}
{{- if and (hasKey $b.Values.nodeSelector $label) (ne (get $b.Values.nodeSelector $label) $value) }}{{ $isApart = true }}{{ end }}
{{- end }}
{{- if not $isApart }} {{ $a.pool }} and {{ $b.pool }};{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
