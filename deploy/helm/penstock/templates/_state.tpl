{{/*
The folder for files and batches of clients. One daemon has it at a time, so it is on a claim only
where a Deployment has one pod, which is then replaced in place.
*/}}

{{/* Whether a part keeps it on a claim: (dict "root" $ "part" part). "true" or nothing. */}}
{{- define "penstock.hasState" -}}
{{- $claim := .root.Values.state.claim -}}
{{- if kindIs "invalid" $claim -}}
{{- $claim = not (or .root.Values.server.options.state_dir (include "penstock.severalPods" .)) -}}
{{- end -}}
{{- if $claim -}}true{{- end -}}
{{- end -}}

{{/* Whether a part may have more than one pod: "true" or nothing. */}}
{{- define "penstock.severalPods" -}}
{{- if or (include "penstock.autoscaled" .root) (gt (int .part.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{- define "penstock.stateClaim" -}}
{{- printf "%s-state" .part.name | include "penstock.label" -}}
{{- end -}}

{{- define "penstock.stateMount" -}}/var/lib/penstock{{- end -}}

{{/* How a part's pods are replaced. */}}
{{- define "penstock.strategyType" -}}
{{- $inPlace := or (include "penstock.hasState" .) (eq .root.Values.multinode.mode "raycluster") -}}
{{- default (ternary "Recreate" "RollingUpdate" (not (empty $inPlace))) .root.Values.strategy.type -}}
{{- end -}}

{{/* Whether an upgrade starts a part's new pod before it ends the old one: "true" or nothing. */}}
{{- define "penstock.surges" -}}
{{- $none := has (toString .root.Values.strategy.maxSurge) (list "0" "0%") -}}
{{- if and (eq (include "penstock.strategyType" .) "RollingUpdate") (not $none) -}}true{{- end -}}
{{- end -}}

{{- define "penstock.refuseState" -}}
{{- $values := .Values -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- $scope := dict "root" $ "part" . -}}
{{- if include "penstock.hasState" $scope -}}
{{- with $values.server.options.state_dir -}}
{{- fail (printf "state.claim is true and server.options.state_dir is %s: a daemon has one folder for files and batches." .) -}}
{{- end -}}
{{- if include "penstock.autoscaled" $ -}}
{{- fail (printf "state.claim is true, but %s is autoscaled: one daemon at a time has the folder for files and batches." .name) -}}
{{- end -}}
{{- if gt (int .replicas) 1 -}}
{{- fail (printf "state.claim is true, but replicas of %s is %d: one daemon at a time has the folder for files and batches." .name (int .replicas)) -}}
{{- end -}}
{{- if include "penstock.surges" $scope -}}
{{- fail (printf "strategy.type is RollingUpdate and strategy.maxSurge is %v, but one daemon at a time has the claim with files and batches of %s: set strategy.type to Recreate, or state.claim to false." $values.strategy.maxSurge .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
