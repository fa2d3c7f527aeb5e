{{/* Values of monitoring that could not work. */}}

{{- define "penstock.refuseMonitoring" -}}
{{- with .Values.monitoring -}}
{{- if and .serviceMonitor.enabled .podMonitor.enabled -}}
{{- fail "monitoring.serviceMonitor.enabled and monitoring.podMonitor.enabled are both true: Prometheus would count every pod twice." -}}
{{- end -}}
{{- $monitored := or .serviceMonitor.enabled .podMonitor.enabled -}}
{{- if and $monitored $.Values.server.options.metrics_key (not .scrape.apiKey.secret) -}}
{{- fail "server.options.metrics_key is true, but monitoring.scrape.apiKey.secret is empty: Prometheus could not read the metrics." -}}
{{- end -}}
{{- $stalled := .prometheusRule.alerts.engineStalled -}}
{{- $lost := $.Values.server.stallSeconds -}}
{{- if and .prometheusRule.enabled $stalled.enabled $lost (ge (float64 $stalled.seconds) (float64 $lost)) -}}
{{- fail (printf "monitoring.prometheusRule.alerts.engineStalled.seconds is %v: it could never fire, because at server.stallSeconds, %v, the stages are started again." $stalled.seconds $lost) -}}
{{- end -}}
{{- end -}}
{{- end -}}
