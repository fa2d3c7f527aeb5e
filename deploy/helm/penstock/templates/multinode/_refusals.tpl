{{/* Values that a gang could not work with. */}}

{{- define "penstock.refuseMultinode" -}}
{{- if include "penstock.isGang" . -}}
{{- $mode := printf "multinode.mode is %s" .Values.multinode.mode -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- $names := (include "penstock.servedNames" . | fromJson).names -}}
{{- if gt (len $names) 1 -}}
{{- fail (printf "%s, but the pods of %s serve %d models, and a gang serves one: name one in models, or set layout to perModel." $mode .name (len $names)) -}}
{{- end -}}
{{- include "penstock.refuseStages" (dict "root" $ "part" . "model" (first .models)) -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (not (kindIs "invalid" .minAvailable)) -}}
{{- fail (printf "podDisruptionBudget.minAvailable is %v, but %s: each pod that is moved ends a whole gang; set podDisruptionBudget.maxUnavailable." .minAvailable $mode) -}}
{{- end -}}
{{- end -}}
{{- include "penstock.refuseGangPort" . -}}
{{- end -}}
{{- if eq .Values.multinode.mode "raycluster" -}}{{- include "penstock.refuseRay" . -}}{{- end -}}
{{- end -}}

{{/* A port of the master's, or of Ray's: by KubeRay's defaults, and Ray's own for its workers. */}}
{{- define "penstock.refuseGangPort" -}}
{{- $port := int .Values.server.port -}}
{{- $first := include "penstock.clusterPort" . | int -}}
{{- $taken := and (ge $port $first) (lt $port (add $first 3 | int)) -}}
{{- if eq .Values.multinode.mode "raycluster" -}}
{{- $taken = or (has $port (list 6379 8080 8265 52365)) (and (gt $port 10000) (lt $port 20000)) -}}
{{- end -}}
{{- if $taken -}}
{{- fail (printf "server.port is %d, but multinode.mode is %s: the gang itself listens there." $port .Values.multinode.mode) -}}
{{- end -}}
{{- end -}}

{{/* Stages that are not one a GPU, or not one a node: (dict "root" $ "part" part "model" model). */}}
{{- define "penstock.refuseStages" -}}
{{- $options := .model.options | default dict -}}
{{- $stages := $options.pipeline_stages | default 1 | int -}}
{{- $nodes := int .root.Values.multinode.nodes -}}
{{- $device := $options.device | default .part.device -}}
{{- if gt ($options.data_parallel_size | default 1 | int) 1 -}}
{{- fail (printf "options.data_parallel_size of the model %s is %v, but multinode.mode is %s: a gang is a single engine." .model.name $options.data_parallel_size .root.Values.multinode.mode) -}}
{{- end -}}
{{- if hasPrefix "cuda:" $device -}}
{{- fail (printf "options.device of the model %s is %s, but multinode.mode is %s: a gang uses every GPU of its pods." .model.name $device .root.Values.multinode.mode) -}}
{{- end -}}
{{- $where := printf "options.pipeline_stages of the model %s is %d" .model.name $stages -}}
{{- if eq $device "cuda" -}}
{{- $gpus := mul $nodes (int .part.gpus) -}}
{{- if ne $stages (int $gpus) -}}
{{- fail (printf "%s, but must be %d: multinode.nodes is %d and gpus is %d, and each GPU has a stage." $where $gpus $nodes (int .part.gpus)) -}}
{{- end -}}
{{- else if lt $stages $nodes -}}
{{- fail (printf "%s, less than multinode.nodes, which is %d: each node needs a stage." $where $nodes) -}}
{{- end -}}
{{- end -}}

{{/* A RayJob is one gang, and makes its secret itself. */}}
{{- define "penstock.refuseRay" -}}
{{- $mode := "multinode.mode is raycluster" -}}
{{- with .Values.multinode.existingSecret -}}
{{- fail (printf "multinode.existingSecret is %s, but %s: there the master makes its secret itself." . $mode) -}}
{{- end -}}
{{- if include "penstock.autoscaled" . -}}
{{- fail (printf "%s, but autoscaling is enabled: a RayJob is one gang; set multinode.mode to lws." $mode) -}}
{{- end -}}
{{- if eq .Values.strategy.type "RollingUpdate" -}}
{{- fail (printf "strategy.type is RollingUpdate, but %s: a changed RayJob takes the place of the old one." $mode) -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (not (kindIs "invalid" .maxUnavailable)) -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %v, but %s: its budget is one pod of its gang." .maxUnavailable $mode) -}}
{{- end -}}
{{- end -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- if ne (int .replicas) 1 -}}
{{- fail (printf "replicas of %s is %d, but %s: a RayJob is one gang; set multinode.mode to lws, or install other releases." .name (int .replicas) $mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
