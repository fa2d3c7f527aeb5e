{{/*
The template of a part's pods: (dict "root" $ "part" part "role" role). The role is `server` in a
Deployment. In a gang it is `master`, or `node` of the others, which speak no HTTP.
*/}}
{{- define "penstock.podTemplate" -}}
{{- $values := .root.Values -}}
metadata:
  labels:
    {{- include "penstock.roleLabels" . | nindent 4 }}
    {{- with $values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ include "penstock.config" . | sha256sum }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "penstock.podFields" .root | nindent 2 }}
  {{- with include "penstock.placement" . }}
  {{- . | trim | nindent 2 }}
  {{- end }}
  terminationGracePeriodSeconds: {{ include "penstock.gracePeriod" .root }}
  {{- if and (include "penstock.hubIds" .part | fromJson).ids $values.storage.prefetch.enabled }}
  initContainers:
    {{- include "penstock.prefetchWait" . | nindent 4 }}
  {{- end }}
  containers:
    - {{ include "penstock.container" . | nindent 6 | trim }}
  volumes:
    {{- include "penstock.volumes" . | nindent 4 }}
{{- end -}}

{{/* The container of such a pod. */}}
{{- define "penstock.container" -}}
{{- $values := .root.Values -}}
{{- $offline := eq (include "penstock.isOffline" .root) "true" -}}
name: penstock
image: {{ include "penstock.image" (dict "root" .root "device" .part.device) }}
imagePullPolicy: {{ $values.image.pullPolicy }}
{{- with include "penstock.args" . }}
args:
  {{- . | nindent 2 }}
{{- end }}
env:
  {{- include "penstock.environment" (dict "root" .root "offline" $offline) | nindent 2 }}
  {{- with include "penstock.gangEnvironment" . }}
  {{- . | nindent 2 }}
  {{- end }}
{{- if ne .role "node" }}
ports:
  - {name: http, containerPort: {{ int $values.server.port }}, protocol: TCP}
  {{- if eq $values.multinode.mode "raycluster" }}
  # KubeRay asks the head at these, which it takes from here as soon as any port is named.
  - {name: dashboard, containerPort: 8265, protocol: TCP}
  - {name: gcs-server, containerPort: 6379, protocol: TCP}
  {{- end }}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ $values.preStopSeconds | quote }}]
{{- end }}
{{- if or (ne .role "node") (eq $values.multinode.mode "raycluster") }}
{{ include "penstock.probes" . }}
{{- end }}
{{- with include "penstock.resources" . }}
resources:
  {{- . | nindent 2 }}
{{- end }}
{{- with $values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "penstock.volumeMounts" . | nindent 2 }}
{{- end -}}

{{/* What it runs; nothing where KubeRay says it. */}}
{{- define "penstock.args" -}}
{{- if eq .root.Values.multinode.mode "none" -}}
- serve
{{ include "penstock.configArgs" . }}
{{- else if eq .root.Values.multinode.mode "lws" -}}
{{ include "penstock.nodeArgs" . }}
{{- end -}}
{{- end -}}

{{- define "penstock.configArgs" -}}
- --config
- /etc/penstock/config/penstock.yaml
{{- end -}}
