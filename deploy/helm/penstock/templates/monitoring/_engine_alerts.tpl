{{/* Alerts about engines, as a list of rules. */}}

{{- define "penstock.engineAlerts" -}}
{{- $alerts := .Values.monitoring.prometheusRule.alerts -}}
{{- $series := include "penstock.series" . -}}
{{- $find := printf "kubectl --namespace %s get pods --selector app.kubernetes.io/instance=%s" .Release.Namespace .Release.Name -}}
{{- $scope := dict "root" . -}}

{{- range (include "penstock.servedNames" .Values | fromJson).names }}
{{ include "penstock.alert" (merge (dict
  "name" "PenstockModelDown"
  "settings" $alerts.modelDown
  "expr" (printf "(sum(penstock_engine_up{%s, model=%q}) or vector(0)) < 1" $series .)
  "labels" (dict "model" . "namespace" $.Release.Namespace)
  "summary" "No replica serves {{ $labels.model }}"
  "description" "No pod that Prometheus scrapes has a ready engine for {{ $labels.model }}: requests for it get 503, or no connection."
  "runbook" (printf "%s shows what the pods do. Pending: no node has what they ask for (kubectl describe pod). Running and not ready: the model is still loading, or lost stages are started again; the pod's log says which, how far it is, and why. CrashLoopBackOff: the last lines of kubectl logs --previous name the reason and the setting to change. All ready: Prometheus does not reach them; look at its page of targets and at networkPolicy.from." $find)
) $scope) }}
{{- end }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockReplicaDown"
  "settings" $alerts.replicaDown
  "for" ($alerts.replicaDown.for | default (printf "%ds" (add (include "penstock.startupBudget" . | int) 60)))
  "expr" (printf "penstock_engine_up{%s} < 1" $series)
  "summary" "{{ $labels.pod }} does not serve {{ $labels.model }}"
  "description" "For longer than a start may take, {{ $labels.pod }} has had no ready engine for {{ $labels.model }}{{ with $labels.copy }}, copy {{ . }}: others may serve{{ end }}."
  "runbook" "kubectl logs of the pod says what it waits for: a first start that takes longer than server.startupSeconds ends the daemon, stages that are lost are started again, and each loss is there with its reason. After max_restarts losses the daemon ends, so a pod that says nothing new cannot end either: delete it, and keep its log."
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockRestarting"
  "settings" $alerts.restarting
  "expr" (printf `max by (namespace, job, pod) (resets(penstock_http_requests_total{%s, endpoint="/metrics"}[1h])) >= %v` $series $alerts.restarting.times)
  "summary" "{{ $labels.pod }} restarts again and again"
  "description" "The daemon of {{ $labels.pod }} has started anew {{ $value }} times within an hour."
  "runbook" "kubectl logs --previous of the pod ends with the reason: a model that cannot start, or more losses than max_restarts allows. Where the container was killed (kubectl describe pod says OOMKilled) raise resources.limits.memory."
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockEngineRestarting"
  "settings" $alerts.engineRestarting
  "expr" (printf "max by (namespace, job, pod, model) (increase(penstock_engine_restarts_total{%s}[1h])) >= %v" $series $alerts.engineRestarting.times)
  "summary" "{{ $labels.model }} on {{ $labels.pod }} is started again and again"
  "description" "Stages of {{ $labels.model }} on {{ $labels.pod }}, alone or with their core, were lost and started again {{ $value | humanize }} times within an hour. Each time its requests waited for as long as a start takes; those of a lost core failed."
  "runbook" "kubectl logs of the pod has a line for each loss, with its reason; /status shows the last one. A stage without memory: lower memory_share or max_running, or raise resources.limits.memory. A stage that stands still or has a CUDA error: look for Xid errors of the GPU in the node's kernel log and drain the node. One request that its stages do not survive is found at the third loss and fails alone: the log of API processes names its id."
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockEngineStalled"
  "settings" $alerts.engineStalled
  "expr" (printf "penstock_engine_stalled_seconds{%s} > %v" $series $alerts.engineStalled.seconds)
  "summary" "A step of {{ $labels.model }} on {{ $labels.pod }} does not end"
  "description" "The oldest step in flight is {{ $value | humanizeDuration }} old; all requests for {{ $labels.model }} on {{ $labels.pod }} wait for it."
  "runbook" (printf "At server.stallSeconds (%v) the daemon names the stage that stands still in its log and starts all stages again; requests go on then. If that repeats, look for Xid errors of the GPU in the node's kernel log and drain the node. If steps are only slow, raise the alert's seconds." .Values.server.stallSeconds)
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockQueueGrowing"
  "settings" $alerts.queueGrowing
  "expr" (printf "sum by (namespace, job, model) (penstock_engine_waiting_rows{%s}) > %v and sum by (namespace, job, model) (deriv(penstock_engine_waiting_rows{%s}[10m])) > 0" $series $alerts.queueGrowing.rows $series)
  "summary" "The queue of {{ $labels.model }} grows"
  "description" "{{ $value | humanize }} sequences wait for {{ $labels.model }}, and they become more: its replicas compute less than what arrives."
  "runbook" "Add replicas: raise autoscaling.max, or replicas without an autoscaler; where pods are Pending, nodes are missing. Until they are ready, clients wait, and are refused with 429 once the expected wait is too long (max_queue_seconds). The dashboard's row Load shows which endpoint the requests come to."
) $scope) }}

{{ include "penstock.alert" (merge (dict
  "name" "PenstockKVCacheFull"
  "settings" $alerts.kvCacheFull
  "expr" (printf "penstock_engine_kv_usage_ratio{%s} > %v" $series $alerts.kvCacheFull.share)
  "summary" "The KV cache of {{ $labels.model }} on {{ $labels.pod }} is full"
  "description" "Running sequences hold {{ $value | humanizePercentage }} of the KV cache's blocks: new ones wait for memory, and running ones may be preempted and computed again."
  "runbook" "Add replicas, or give the model more GPUs (gpus and pipeline_stages). Otherwise lower max_model_len or max_running, so that fewer or shorter sequences run at once. memory_share below its default leaves memory unused."
) $scope) }}
{{- end -}}
