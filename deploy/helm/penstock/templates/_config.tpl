{{/* The daemon's configuration file: docs/configuration.md. */}}

{{/* A part's file, as YAML: (dict "root" $ "part" part). Without models the demo models are served. Clients
     can store files on a claim, or where an option names a folder: a pod's HOME goes with it. */}}
{{- define "penstock.config" -}}
{{- $values := .root.Values -}}
{{- $server := $values.server -}}
{{- $state := ternary (print (include "penstock.stateMount" .) "/state") "none" (eq (include "penstock.hasState" .) "true") -}}
{{- $config := merge (deepCopy $server.options) (dict "state_dir" $state) -}}
{{- if $values.inferencePool.enabled -}}{{- $_ := set $config "metrics_alias" "vllm" -}}{{- end -}}
{{- $_ := set $config "host" $server.host -}}
{{- $_ := set $config "port" $server.port -}}
{{- $_ := set $config "api_workers" $server.apiWorkers -}}
{{- $_ := set $config "startup_timeout" $server.startupSeconds -}}
{{- $_ := set $config "drain_timeout" $server.drainSeconds -}}
{{- $_ := set $config "stall_timeout" $server.stallSeconds -}}
{{- if $values.auth.existingSecret -}}
{{- $_ := set $config "api_key_files" (list "/etc/penstock/keys/api-keys") -}}
{{- end -}}
{{- if $values.tls.existingSecret -}}
{{- $_ := set $config "tls_cert" "/etc/penstock/tls/tls.crt" -}}
{{- $_ := set $config "tls_key" "/etc/penstock/tls/tls.key" -}}
{{- end -}}
{{- with .part.models -}}
{{- $models := list -}}
{{- range . -}}
{{- $model := deepCopy (.options | default dict) -}}
{{- $_ := set $model "model" .model -}}
{{- $_ := set $model "names" (concat (list .name) (.aliases | default list)) -}}
{{- if not $model.device -}}{{- $_ := set $model "device" $.part.device -}}{{- end -}}
{{- $models = append $models $model -}}
{{- end -}}
{{- $_ := set $config "models" $models -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* http or https, as the daemon itself speaks it. */}}
{{- define "penstock.scheme" -}}
{{- if .Values.tls.existingSecret -}}https{{- else -}}http{{- end -}}
{{- end -}}
