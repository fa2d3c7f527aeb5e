{{/* Values of autoscaling that could not work. */}}

{{- define "penstock.refuseScaling" -}}
{{- with .Values.autoscaling -}}
{{- if and .keda.enabled (not .keda.prometheus.serverAddress) -}}
{{- fail "autoscaling.keda.enabled is true, but autoscaling.keda.prometheus.serverAddress is empty: KEDA asks your Prometheus, such as http://prometheus-operated.monitoring.svc:9090." -}}
{{- end -}}
{{- if and .hpa.enabled (not .hpa.rowsMetric) (not .hpa.cpuUtilization) -}}
{{- fail "autoscaling.hpa.enabled is true, but autoscaling.hpa.rowsMetric and autoscaling.hpa.cpuUtilization are both empty: it would have nothing to go by." -}}
{{- end -}}
{{- end -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- $scaling := include "penstock.scaling" (dict "root" $ "part" .) | fromJson -}}
{{- if gt (int $scaling.min) (int $scaling.max) -}}
{{- fail (printf "autoscaling.min is %d for %s, more than autoscaling.max, which is %d." (int $scaling.min) .name (int $scaling.max)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
