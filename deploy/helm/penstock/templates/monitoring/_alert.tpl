{{/*
One alert, or nothing if its values switch it off: (dict "root" $ "name" … "settings" its values
"expr" … "labels" {} "summary" … "description" … "runbook" …). Texts may hold Prometheus' templates.
*/}}
{{- define "penstock.alert" -}}
{{- if .settings.enabled -}}
- alert: {{ .name }}
  expr: {{ .expr | quote }}
  for: {{ .for | default .settings.for }}
  labels:
    severity: {{ .settings.severity }}
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .root.Values.monitoring.prometheusRule.alertLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    summary: {{ .summary | quote }}
    description: {{ .description | quote }}
    runbook: {{ .runbook | quote }}
{{- end -}}
{{- end -}}
