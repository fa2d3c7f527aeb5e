{{/*
The parts of a release, as JSON: {"parts": [...]}. A part is a Deployment and its Service. With layout
`shared` there is one, with `perModel` one for each model. Read them by

    range (include "penstock.parts" $ | fromJson).parts

A part has `name` (of its objects), `component` (in its pods' labels), `models`, `device`, `gpus`,
`replicas`, `resources`, `nodeSelector` and `tolerations`; `host` and `path` are empty unless the model
has its own.
*/}}
{{- define "penstock.parts" -}}
{{- $parts := list -}}
{{- if eq .Values.layout "perModel" -}}
{{- range .Values.models -}}
{{- $slug := include "penstock.slug" .name -}}
{{- $name := printf "%s-%s" (include "penstock.fullname" $) $slug -}}
{{- $part := include "penstock.partDefaults" $ | fromJson -}}
{{- $_ := set $part "name" (include "penstock.label" $name) -}}
{{- $_ := set $part "component" (include "penstock.label" $slug) -}}
{{- $_ := set $part "models" (list .) -}}
{{- range $key, $value := omit . "name" "aliases" "model" "options" -}}
{{- $_ := set $part $key $value -}}
{{- end -}}
{{- $parts = append $parts $part -}}
{{- end -}}
{{- else -}}
{{- $part := include "penstock.partDefaults" . | fromJson -}}
{{- $_ := set $part "name" (include "penstock.fullname" .) -}}
{{- $_ := set $part "component" "server" -}}
{{- $_ := set $part "models" .Values.models -}}
{{- $parts = append $parts $part -}}
{{- end -}}
{{- dict "parts" $parts | toJson -}}
{{- end -}}

{{/* What a part has unless its model has its own, as JSON. */}}
{{- define "penstock.partDefaults" -}}
{{- $part := pick .Values "device" "gpus" "replicas" "resources" "nodeSelector" "tolerations" -}}
{{- merge (dict "host" "" "path" "") $part | toJson -}}
{{- end -}}

{{/* Whether an autoscaler decides how many pods there are: "true" or nothing. */}}
{{- define "penstock.autoscaled" -}}
{{- if or .Values.autoscaling.keda.enabled .Values.autoscaling.hpa.enabled -}}true{{- end -}}
{{- end -}}

{{/* Whether a model (its value `model`) is a hub id, not a folder: "true" or nothing. */}}
{{- define "penstock.isHubId" -}}
{{- if not (regexMatch "^[/.~]" .) -}}true{{- end -}}
{{- end -}}

{{/* The hub ids among the models of a part, or of the whole chart, as JSON: {"ids": [...]}. */}}
{{- define "penstock.hubIds" -}}
{{- $ids := list -}}
{{- range .models -}}
{{- if include "penstock.isHubId" .model -}}{{- $ids = append $ids .model -}}{{- end -}}
{{- end -}}
{{- dict "ids" ($ids | uniq | sortAlpha) | toJson -}}
{{- end -}}

{{/*
The first names of the models of a part, or of the whole chart, as JSON: {"names": [...]}. Without
models these are the demo models.
*/}}
{{- define "penstock.servedNames" -}}
{{- $names := list -}}
{{- range .models -}}{{- $names = append $names .name -}}{{- end -}}
{{- dict "names" (default (list "penstock-demo" "all-MiniLM-L6-v2") $names) | toJson -}}
{{- end -}}
