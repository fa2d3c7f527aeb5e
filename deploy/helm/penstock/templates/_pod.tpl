{{/* What pods and containers of the image have in common. */}}

{{/* (dict "root" $ "device" "cpu") */}}
{{- define "penstock.image" -}}
{{- $image := .root.Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- $suffix := ternary "-cuda" "" (eq .device "cuda") -}}
{{- printf "%s:%s" $image.repository (default (print .root.Chart.AppVersion $suffix) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Fields of every pod of the release. */}}
{{- define "penstock.podFields" -}}
serviceAccountName: {{ include "penstock.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Nodes on which a pod may run, by a part's values or the chart's. */}}
{{- define "penstock.nodes" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where a part's pod runs: (dict "root" $ "part" part). */}}
{{- define "penstock.placement" -}}
{{- include "penstock.nodes" .part }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "penstock.selectorLabels" $ | fromYaml)) }}
  - {{- merge (deepCopy .) (ternary dict $own (hasKey . "labelSelector")) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* A part's resources with its GPUs: (dict "root" $ "part" part). */}}
{{- define "penstock.resources" -}}
{{- $resources := deepCopy .part.resources -}}
{{- if eq .part.device "cuda" -}}
{{- $limits := merge (dict .root.Values.gpuResourceName (int .part.gpus)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Whether models are on a claim: "true" or nothing. */}}
{{- define "penstock.hasClaim" -}}
{{- if or .Values.storage.create .Values.storage.existingClaim -}}true{{- end -}}
{{- end -}}

{{/* Whether the daemon never asks the hub: "true" or nothing. */}}
{{- define "penstock.isOffline" -}}
{{- if or .Values.hub.offline .Values.storage.prefetch.enabled -}}true{{- end -}}
{{- end -}}

{{- define "penstock.claimName" -}}
{{- default (printf "%s-models" (include "penstock.fullname" .)) .Values.storage.existingClaim -}}
{{- end -}}

{{/*
The environment of a container that may ask the hub: (dict "root" $ "offline" false). Downloads are
kept on the claim if there is one, otherwise in HOME.
*/}}
{{- define "penstock.environment" -}}
{{- $values := .root.Values -}}
- name: HOME
  value: /home/penstock
{{- if include "penstock.hasClaim" .root }}
- name: HF_HOME
  value: {{ $values.storage.mountPath }}/huggingface
{{- end }}
{{- if .offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- else }}
{{- with $values.hub.endpoint }}
- name: HF_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with $values.hub.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $values.hub.key }}}
{{- end }}
{{- end }}
{{- with $values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The folders that a container may write to: there is nothing else with a read-only root. */}}
{{- define "penstock.scratchMounts" -}}
- {name: home, mountPath: /home/penstock}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "penstock.scratchVolumes" -}}
- name: home
  emptyDir: {sizeLimit: {{ .Values.cache.sizeLimit }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmp.sizeLimit }}}
{{- end -}}
