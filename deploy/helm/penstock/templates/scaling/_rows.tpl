{{/* What both autoscalers go by: sequences that wait or run, and how many of them a pod should have. */}}

{{/* A part's bounds, the model's own before the chart's: (dict "root" $ "part" part), as JSON. */}}
{{- define "penstock.scaling" -}}
{{- $chart := pick .root.Values.autoscaling "min" "max" "rowsPerReplica" -}}
{{- merge (deepCopy (.part.autoscaling | default dict)) $chart | toJson -}}
{{- end -}}

{{/* The rows of all pods of a part, as an expression: (dict "root" $ "part" part). */}}
{{- define "penstock.rows" -}}
{{- $series := include "penstock.series" .root -}}
{{- if eq .root.Values.layout "perModel" -}}
{{- $series = printf "%s, model=%q" $series (first .part.models).name -}}
{{- end -}}
sum(penstock_engine_running_rows{ {{- $series -}} }) + sum(penstock_engine_waiting_rows{ {{- $series -}} })
{{- end -}}

{{/* What is scaled, a Deployment or gangs: (dict "root" $ "part" part). */}}
{{- define "penstock.scaleTarget" -}}
scaleTargetRef:
  {{- if include "penstock.isGang" .root }}
  apiVersion: leaderworkerset.x-k8s.io/v1
  kind: LeaderWorkerSet
  name: {{ include "penstock.gangName" .part }}
  {{- else }}
  apiVersion: apps/v1
  kind: Deployment
  name: {{ .part.name }}
  {{- end }}
{{- end -}}
