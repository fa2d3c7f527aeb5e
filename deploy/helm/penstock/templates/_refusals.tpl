{{/*
Combinations of values that could not work. Each fails with one sentence that names the value; the
schema refuses unknown keys, wrong types and numbers out of range before.
*/}}
{{- define "penstock.refusals" -}}
{{- include "penstock.refuseImage" . -}}
{{- include "penstock.refuseModels" . -}}
{{- include "penstock.refuseDefaultModel" . -}}
{{- include "penstock.refuseGpus" . -}}
{{- include "penstock.refuseMultinode" . -}}
{{- include "penstock.refuseTimes" . -}}
{{- include "penstock.refuseReplicas" . -}}
{{- include "penstock.refuseState" . -}}
{{- include "penstock.refuseStorage" . -}}
{{- include "penstock.refuseNetwork" . -}}
{{- include "penstock.refusePool" . -}}
{{- include "penstock.refuseMonitoring" . -}}
{{- end -}}

{{- define "penstock.refuseImage" -}}
{{- with .Values.image -}}
{{- if and (eq .tag "latest") (not .digest) (eq .pullPolicy "IfNotPresent") -}}
{{- fail "image.tag is latest and image.pullPolicy is IfNotPresent: nodes would run whichever image they pulled first; name a version, or set image.pullPolicy to Always." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseModels" -}}
{{- $perModel := eq .Values.layout "perModel" -}}
{{- if and $perModel (not .Values.models) -}}
{{- fail "layout is perModel, but models is empty: name at least one model." -}}
{{- end -}}
{{- $names := dict -}}
{{- $slugs := dict -}}
{{- range $index, $model := .Values.models -}}
{{- $where := printf "models[%d]" $index -}}
{{- range concat (list .name) (.aliases | default list) -}}
{{- if hasKey $names . -}}
{{- fail (printf "%s is called %q, as %s is: requests could not tell them apart." $where . (get $names .)) -}}
{{- end -}}
{{- $_ := set $names . $where -}}
{{- end -}}
{{- if $perModel -}}
{{- $slug := include "penstock.slug" .name -}}
{{- if not $slug -}}
{{- fail (printf "%s.name is %q: with layout perModel it needs a letter a to z or a digit, because objects are named by it." $where .name) -}}
{{- end -}}
{{- if hasKey $slugs $slug -}}
{{- fail (printf "%s.name is %q and gives objects the name %s, as %s does." $where .name $slug (get $slugs $slug)) -}}
{{- end -}}
{{- $_ := set $slugs $slug $where -}}
{{- else -}}
{{- range $key, $_ := omit . "name" "aliases" "model" "options" -}}
{{- fail (printf "%s.%s is set, but layout is shared: a model has its own only with layout perModel." $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseDefaultModel" -}}
{{- with .Values.server.options.default_model -}}
{{- $default := . -}}
{{- range (include "penstock.parts" $ | fromJson).parts -}}
{{- $names := list -}}
{{- range .models -}}
{{- $names = concat $names (list .name) (.aliases | default list) -}}
{{- end -}}
{{- if and $names (not (has $default $names)) -}}
{{- fail (printf "server.options.default_model is %q, but no model of %s is called so: its pods would not start." $default .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseGpus" -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- $part := . -}}
{{- $cuda := eq .device "cuda" -}}
{{- if and $cuda (lt (int .gpus) 1) -}}
{{- fail (printf "gpus is %d and device is cuda for %s: a pod needs at least 1." (int .gpus) .name) -}}
{{- end -}}
{{- if hasKey (.resources.limits | default dict) $.Values.gpuResourceName -}}
{{- fail (printf "resources.limits of %s has %s: set gpus instead." .name $.Values.gpuResourceName) -}}
{{- end -}}
{{- range .models -}}
{{- $options := .options | default dict -}}
{{- $device := $options.device | default $part.device -}}
{{- if hasPrefix "cuda" $device -}}
{{- if not $cuda -}}
{{- fail (printf "options.device of the model %s is %s, but device is cpu: its pod has no GPU." .name $device) -}}
{{- end -}}
{{- $needed := add (trimPrefix "cuda:" $device | atoi) (mul ($options.pipeline_stages | default 1) ($options.data_parallel_size | default 1)) -}}
{{- if and (gt $needed (int64 $part.gpus)) (not (include "penstock.isGang" $)) -}}
{{- fail (printf "gpus is %d, but the model %s needs %d: options.device, options.pipeline_stages and options.data_parallel_size say so." (int $part.gpus) .name $needed) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseTimes" -}}
{{- $least := include "penstock.leastGrace" . | int -}}
{{- if lt (include "penstock.gracePeriod" . | int) $least -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but must be at least %d: preStopSeconds and server.drainSeconds, and 15 for processes to end." (int .Values.terminationGracePeriodSeconds) $least) -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseReplicas" -}}
{{- $values := .Values -}}
{{- with .Values.autoscaling -}}
{{- if and .keda.enabled .hpa.enabled -}}
{{- fail "autoscaling.keda.enabled and autoscaling.hpa.enabled are both true: two autoscalers would undo each other's work." -}}
{{- end -}}
{{- end -}}
{{- include "penstock.refuseScaling" . -}}
{{- with .Values.strategy -}}
{{- if and (ne .type "Recreate") (has (toString .maxUnavailable) (list "0" "0%")) (has (toString .maxSurge) (list "0" "0%")) -}}
{{- fail "strategy.maxUnavailable and strategy.maxSurge are both 0: no pod could ever be replaced." -}}
{{- end -}}
{{- end -}}
{{- if .Values.podDisruptionBudget.enabled -}}
{{- range (include "penstock.parts" . | fromJson).parts -}}
{{- $pods := int .replicas -}}
{{- if include "penstock.autoscaled" $ -}}
{{- $pods = (include "penstock.scaling" (dict "root" $ "part" .) | fromJson).min | int -}}
{{- end -}}
{{- include "penstock.refuseBudget" (dict "budget" $values.podDisruptionBudget "pods" $pods "name" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict "budget" values "pods" their least number "name" of the Deployment) */}}
{{- define "penstock.refuseBudget" -}}
{{- $least := .budget.minAvailable -}}
{{- $most := .budget.maxUnavailable -}}
{{- $never := printf "with %d of %s no pod could ever be moved, and no node drained." .pods .name -}}
{{- if and (not (kindIs "invalid" $least)) (not (kindIs "invalid" $most)) -}}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable are both set: a budget has one of them." -}}
{{- end -}}
{{- if has (toString $most) (list "0" "0%") -}}
{{- fail (printf "podDisruptionBudget.maxUnavailable is %v: %s" $most $never) -}}
{{- end -}}
{{- if not (kindIs "invalid" $least) -}}
{{- $needed := int $least -}}
{{- if hasSuffix "%" (toString $least) -}}
{{- $needed = divf (mulf (trimSuffix "%" $least | atoi) .pods) 100 | ceil | int -}}
{{- end -}}
{{- if and (gt .pods 0) (ge $needed .pods) -}}
{{- fail (printf "podDisruptionBudget.minAvailable is %v: %s" $least $never) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseStorage" -}}
{{- $values := .Values -}}
{{- $parts := (include "penstock.parts" . | fromJson).parts -}}
{{- $hub := (include "penstock.hubIds" .Values | fromJson).ids -}}
{{- with .Values.storage -}}
{{- if and .create .existingClaim -}}
{{- fail (printf "storage.create is true and storage.existingClaim is %s: a pod has one claim for models." .existingClaim) -}}
{{- end -}}
{{- $claim := or .create (not (empty .existingClaim)) -}}
{{- if .prefetch.enabled -}}
{{- if not $claim -}}
{{- fail "storage.prefetch.enabled is true, but there is no claim to download to: set storage.create or storage.existingClaim." -}}
{{- end -}}
{{- if $values.hub.offline -}}
{{- fail "storage.prefetch.enabled and hub.offline are both true: the Job could not ask the hub." -}}
{{- end -}}
{{- if not $hub -}}
{{- fail "storage.prefetch.enabled is true, but no entry of models has a hub id as its model." -}}
{{- end -}}
{{- end -}}
{{- if and $values.hub.offline $hub (not $claim) -}}
{{- fail (printf "hub.offline is true, but the model %s is on the hub, and there is no claim that could hold it: set storage.existingClaim." (first $hub)) -}}
{{- end -}}
{{- if and $claim (eq (join "" .accessModes) "ReadOnlyMany") -}}
{{- range $value, $writes := dict "storage.create" .create "storage.prefetch.enabled" .prefetch.enabled -}}
{{- if $writes -}}
{{- fail (printf "%s is true, but storage.accessModes is ReadOnlyMany alone: nothing could write the models." $value) -}}
{{- end -}}
{{- end -}}
{{- if and $hub (not $values.hub.offline) -}}
{{- fail (printf "storage.accessModes is ReadOnlyMany alone, so that the model %s cannot be downloaded: if the claim has it, set hub.offline." (first $hub)) -}}
{{- end -}}
{{- end -}}
{{- if and $claim (not (has "ReadWriteMany" .accessModes)) (not (has "ReadOnlyMany" .accessModes)) -}}
{{- include "penstock.refuseSeveralNodes" (dict "root" $ "parts" $parts) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A claim of one node, and pods that need not be on one: (dict "root" $ "parts" parts). */}}
{{- define "penstock.refuseSeveralNodes" -}}
{{- $surge := .root.Values.strategy.maxSurge -}}
{{- $modes := printf "storage.accessModes is %s, for pods of one node," (join ", " .root.Values.storage.accessModes) -}}
{{- $other := "use a claim that is ReadWriteMany or ReadOnlyMany." -}}
{{- if gt (len .parts) 1 -}}
{{- fail (printf "%s but layout is perModel with %d models, each with pods of its own: %s" $modes (len .parts) $other) -}}
{{- end -}}
{{- if include "penstock.isGang" .root -}}
{{- fail (printf "%s but multinode.nodes is %d: %s" $modes (int .root.Values.multinode.nodes) $other) -}}
{{- end -}}
{{- $part := first .parts -}}
{{- if include "penstock.autoscaled" .root -}}
{{- $most := (include "penstock.scaling" (dict "root" .root "part" $part) | fromJson).max | int -}}
{{- if gt $most 1 -}}
{{- fail (printf "%s but autoscaling.max is %d: %s" $modes $most $other) -}}
{{- end -}}
{{- else if gt (int $part.replicas) 1 -}}
{{- fail (printf "%s but replicas is %d: %s" $modes (int $part.replicas) $other) -}}
{{- end -}}
{{- if include "penstock.surges" (dict "root" .root "part" $part) -}}
{{- fail (printf "%s but strategy.maxSurge is %v: on another node the new pod would wait forever for the claim that the old one holds; set strategy.type to Recreate." $modes $surge) -}}
{{- end -}}
{{- end -}}

{{- define "penstock.refuseNetwork" -}}
{{- $values := .Values -}}
{{- $parts := (include "penstock.parts" . | fromJson).parts -}}
{{- with .Values.service -}}
{{- if and .nodePort (eq .type "ClusterIP") -}}
{{- fail (printf "service.nodePort is %d, but service.type is ClusterIP." (int .nodePort)) -}}
{{- end -}}
{{- if and .nodePort (gt (len $parts) 1) -}}
{{- fail (printf "service.nodePort is %d, but layout is perModel with %d Services." (int .nodePort) (len $parts)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.enabled is true, but httpRoute.parentRefs is empty: name the Gateway." -}}
{{- end -}}
{{- if or .Values.ingress.enabled .Values.httpRoute.enabled -}}
{{- $seen := dict -}}
{{- range $parts -}}
{{- $where := print .host "|" .path -}}
{{- if hasKey $seen $where -}}
{{- fail (printf "%s and %s would have the same host and path in ingress or httpRoute: give their models a host or path of their own." (get $seen $where) .name) -}}
{{- end -}}
{{- $_ := set $seen $where .name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An endpoint picker reads the metrics of one model from each pod, over HTTP and without a key. */}}
{{- define "penstock.refusePool" -}}
{{- if .Values.inferencePool.enabled -}}
{{- $parts := (include "penstock.parts" . | fromJson).parts -}}
{{- range $parts -}}
{{- $names := (include "penstock.servedNames" . | fromJson).names -}}
{{- if gt (len $names) 1 -}}
{{- fail (printf "inferencePool.enabled is true, but the pods of %s serve %d models, and an endpoint picker reads the load of one: name one in models, or set layout to perModel." .name (len $names)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.inferencePool.endpointPicker.service -}}
{{- if gt (len $parts) 1 -}}
{{- fail (printf "inferencePool.endpointPicker.service is %s, but layout is perModel with %d pools: an endpoint picker has one." . (len $parts)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls.existingSecret -}}
{{- fail (printf "inferencePool.enabled is true and tls.existingSecret is %s: a pool's pods are asked over plain HTTP." .) -}}
{{- end -}}
{{- if .Values.server.options.metrics_key -}}
{{- fail "inferencePool.enabled and server.options.metrics_key are both true: an endpoint picker sends no key for /metrics." -}}
{{- end -}}
{{- end -}}
{{- end -}}
