{{/*
A Job downloads the models to the claim and then leaves a file there, named by a digest of the models.
Pods wait for that file, so that they start with whole models and without the hub.
*/}}

{{/* The configuration file with which `penstock config` downloads all models. */}}
{{- define "penstock.prefetchConfig" -}}
{{- $models := list -}}
{{- range (include "penstock.hubIds" .Values | fromJson).ids -}}
{{- $models = append $models (dict "model" . "device" "cpu") -}}
{{- end -}}
{{- dict "models" $models | toYaml -}}
{{- end -}}

{{- define "penstock.prefetchDigest" -}}
{{- include "penstock.prefetchConfig" . | sha256sum | trunc 8 -}}
{{- end -}}

{{- define "penstock.prefetchMarker" -}}
{{- printf "%s/.penstock-prefetched-%s" .Values.storage.mountPath (include "penstock.prefetchDigest" .) -}}
{{- end -}}

{{/* The init container that waits: (dict "root" $ "part" part). */}}
{{- define "penstock.prefetchWait" -}}
- name: wait-for-models
  image: {{ include "penstock.image" (dict "root" .root "device" .part.device) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  command: [sh, -c, 'trap exit TERM; until [ -e "$0" ]; do sleep 2; done', {{ include "penstock.prefetchMarker" .root }}]
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {cpu: 100m, memory: 32Mi}
  {{- with .root.Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: models, mountPath: {{ .root.Values.storage.mountPath }}, readOnly: true}
{{- end -}}
