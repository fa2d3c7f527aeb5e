{{/* How Prometheus scrapes the release's pods, and how its series are told from others'. */}}

{{/* The `job` label of the release's series. */}}
{{- define "penstock.job" -}}
{{- default (include "penstock.fullname" .) .Values.monitoring.job -}}
{{- end -}}

{{/* What selects the release's series in an expression. */}}
{{- define "penstock.series" -}}
{{- printf "namespace=%q, job=%q" .Release.Namespace (include "penstock.job" .) -}}
{{- end -}}

{{/*
An endpoint of a monitor. The operator's label `endpoint`, which is the port's name, would displace the
metrics' own, which is the path of requests: it is dropped.
*/}}
{{- define "penstock.scrapedEndpoint" -}}
port: http
path: /metrics
scheme: {{ include "penstock.scheme" . }}
interval: {{ .Values.monitoring.scrape.interval }}
scrapeTimeout: {{ .Values.monitoring.scrape.timeout }}
{{- with .Values.monitoring.scrape.apiKey }}
{{- if .secret }}
authorization:
  credentials: {name: {{ .secret }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- if .Values.tls.existingSecret }}
{{- with .Values.monitoring.scrape.tls }}
tlsConfig:
  {{- if .insecureSkipVerify }}
  insecureSkipVerify: true
  {{- else }}
  ca:
    secret: {name: {{ default $.Values.tls.existingSecret .caSecret }}, key: {{ .caKey }}}
  {{- end }}
  serverName: {{ default (printf "%s.%s.svc" (include "penstock.fullname" $) $.Release.Namespace) .serverName }}
{{- end }}
{{- end }}
relabelings:
  - {action: replace, targetLabel: job, replacement: {{ include "penstock.job" . | quote }}}
  - {action: labeldrop, regex: endpoint}
{{- end -}}

{{/* Pods and Services of the release: no part, so all parts. */}}
{{- define "penstock.monitorSelector" -}}
namespaceSelector:
  matchNames: [{{ .Release.Namespace }}]
selector:
  matchLabels:
    app.kubernetes.io/name: {{ include "penstock.name" . }}
    app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
