{{/* How long things may take: what follows from the values. All times are in seconds. */}}

{{/* Until a pod must be ready. The daemon gives up first, and says why. */}}
{{- define "penstock.startupBudget" -}}
{{- addf .Values.server.startupSeconds .Values.probes.startup.marginSeconds | ceil | int -}}
{{- end -}}

{{/* Until a rollout has failed: no pod is ready by then, though the Job had its time too. */}}
{{- define "penstock.progressDeadline" -}}
{{- $prefetch := .Values.storage.prefetch -}}
{{- add (include "penstock.startupBudget" .) (ternary $prefetch.activeDeadlineSeconds 0 $prefetch.enabled) 120 -}}
{{- end -}}

{{/* The least grace period: serving on, draining, and 15 s for processes to end. */}}
{{- define "penstock.leastGrace" -}}
{{- addf .Values.preStopSeconds .Values.server.drainSeconds 15 | ceil | int -}}
{{- end -}}

{{- define "penstock.gracePeriod" -}}
{{- default (include "penstock.leastGrace" .) .Values.terminationGracePeriodSeconds | int -}}
{{- end -}}

{{/*
The probes of a container, by its role. A daemon starts what hangs or is lost again by itself, after
`stall_timeout`, or ends after it has drained for the requests of its other models: the live probe is
for one that does neither, and waits longer. A node speaks no HTTP, but where Ray starts it, its raylet does; KubeRay's own
probes ask by wget, which the image lacks.
*/}}
{{- define "penstock.probes" -}}
{{- $values := .root.Values -}}
{{- $probes := $values.probes -}}
{{- $live := addf (max $values.server.stallSeconds $values.server.drainSeconds) $probes.live.marginSeconds -}}
{{- $asked := dict "live" "/health/live" "ready" "/health/ready" "port" "http" "scheme" (include "penstock.scheme" .root | upper) -}}
{{- if eq .role "node" -}}
{{- $raylet := "/api/local_raylet_healthz" -}}
{{- $asked = dict "live" $raylet "ready" $raylet "port" 52365 "scheme" "HTTP" -}}
{{- end -}}
startupProbe:
  httpGet: {path: {{ $asked.ready }}, port: {{ $asked.port }}, scheme: {{ $asked.scheme }}}
  periodSeconds: {{ $probes.startup.periodSeconds }}
  timeoutSeconds: {{ $probes.startup.timeoutSeconds }}
  failureThreshold: {{ divf (include "penstock.startupBudget" .root) $probes.startup.periodSeconds | ceil | int }}
livenessProbe:
  httpGet: {path: {{ $asked.live }}, port: {{ $asked.port }}, scheme: {{ $asked.scheme }}}
  periodSeconds: {{ $probes.live.periodSeconds }}
  timeoutSeconds: {{ $probes.live.timeoutSeconds }}
  failureThreshold: {{ divf $live $probes.live.periodSeconds | ceil | int }}
readinessProbe:
  httpGet: {path: {{ $asked.ready }}, port: {{ $asked.port }}, scheme: {{ $asked.scheme }}}
  periodSeconds: {{ $probes.ready.periodSeconds }}
  timeoutSeconds: {{ $probes.ready.timeoutSeconds }}
  failureThreshold: {{ $probes.ready.failureThreshold }}
{{- end -}}
