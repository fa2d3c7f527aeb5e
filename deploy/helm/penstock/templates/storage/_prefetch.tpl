{{/*
A Job downloads the models to the claim and then leaves a file there, named by a digest of the models.
Pods wait for that file, so that they start with whole models and without the hub.
*/}}

{{/* The configuration file with which `penstock config` downloads all models. */}}
{{- define "penstock.prefetchConfig" -}}
{{- $models := list -}}
{{- $seen := list -}}
{{- range .Values.models -}}
{{- if and (include "penstock.isHubId" .model) (not (has .model $seen)) -}}
{{- $read := pick (.options | default dict) "task" "rerank" -}}
{{- $models = append $models (merge (dict "model" .model "device" "cpu") $read) -}}
{{- $seen = append $seen .model -}}
{{- end -}}
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

{{/* What the Job does. A Job cannot be changed, so its name has a digest of this. */}}
{{- define "penstock.prefetchSpec" -}}
backoffLimit: {{ int .Values.storage.prefetch.backoffLimit }}
activeDeadlineSeconds: {{ int .Values.storage.prefetch.activeDeadlineSeconds }}
template:
  metadata:
    labels:
      {{- include "penstock.selectorLabels" (dict "root" . "part" (dict "component" "prefetch")) | nindent 6 }}
      {{- with .Values.commonLabels }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
  spec:
    {{- include "penstock.podFields" . | nindent 4 }}
    {{- with include "penstock.nodes" .Values }}
    {{- . | trim | nindent 4 }}
    {{- end }}
    restartPolicy: Never
    containers:
      - name: prefetch
        image: {{ include "penstock.image" (dict "root" . "device" .Values.device) }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        command:
          - sh
          - -c
          - penstock config --check --config /etc/penstock/config/penstock.yaml && touch "$0"
          - {{ include "penstock.prefetchMarker" . }}
        env:
          {{- include "penstock.environment" (dict "root" . "offline" false) | nindent 10 }}
        resources:
          {{- toYaml .Values.storage.prefetch.resources | nindent 10 }}
        {{- with .Values.securityContext }}
        securityContext:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        volumeMounts:
          - {name: config, mountPath: /etc/penstock/config, readOnly: true}
          - {name: models, mountPath: {{ .Values.storage.mountPath }}}
          {{- include "penstock.scratchMounts" . | nindent 10 }}
          {{- with .Values.extraVolumeMounts }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    volumes:
      - name: config
        configMap: {name: {{ include "penstock.fullname" . }}-prefetch}
      - name: models
        persistentVolumeClaim: {claimName: {{ include "penstock.claimName" . }}}
      {{- include "penstock.scratchVolumes" . | nindent 6 }}
      {{- with .Values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}
