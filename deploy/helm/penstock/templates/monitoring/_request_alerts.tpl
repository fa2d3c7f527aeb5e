{{/* Alerts about answers, as a list of rules. Probes and scrapes are no requests. */}}

{{- define "penstock.requestAlerts" -}}
{{- $alerts := .Values.monitoring.prometheusRule.alerts -}}
{{- $series := include "penstock.series" . -}}
{{- $scope := dict "root" . -}}
{{- $answers := printf `sum by (namespace, job) (rate(penstock_http_requests_total{%s, endpoint!~"/health.*|/metrics|/|other"}[5m]))` $series -}}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockErrorRate"
  "settings" $alerts.errorRate
  "expr" (printf `sum by (namespace, job) (rate(penstock_failures_total{%s}[5m])) / %s > %v` $series $answers $alerts.errorRate.share)
  "summary" "{{ $labels.job }} fails requests"
  "description" "{{ $value | humanizePercentage }} of the answers of {{ $labels.job }} are failures, by status 500 or by the end of a stream: the requests were right."
  "runbook" "The pods' logs name every such request by its id and say why. engine_dead: an engine core was lost, or stages more often than max_restarts allows; the same log has the reason, that of kubectl logs --previous if the daemon has ended since. row_failed: that request alone cannot be computed. The dashboard's row Refusals and errors shows which endpoint fails."
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockRefusals"
  "settings" $alerts.refusals
  "expr" (printf `sum by (namespace, job) (rate(penstock_http_requests_total{%s, status=~"429|503"}[5m])) / %s > %v` $series $answers $alerts.refusals.share)
  "summary" "{{ $labels.job }} refuses requests"
  "description" "{{ $value | humanizePercentage }} of the answers of {{ $labels.job }} are 429 or 503: there is more load than its replicas take, or some are not ready."
  "runbook" "The dashboard's row Refusals and errors shows the reasons. overloaded: add replicas, or raise the limit that the answers name. draining, not_ready, unhealthy: requests reach pods that start, end or start a lost engine again; raise preStopSeconds if your load balancer is slower than that."
) $scope) }}
{{- end -}}
