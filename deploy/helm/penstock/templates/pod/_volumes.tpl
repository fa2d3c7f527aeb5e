{{/* The volumes of a part's pods, and where they are mounted: (dict "root" $ "part" part "role" role). */}}

{{- define "penstock.volumeMounts" -}}
{{- $values := .root.Values -}}
{{- $hub := (include "penstock.hubIds" .part | fromJson).ids -}}
{{- if ne .role "node" -}}
- {name: config, mountPath: /etc/penstock/config, readOnly: true}
{{- if $values.auth.existingSecret }}
- {name: keys, mountPath: /etc/penstock/keys, readOnly: true}
{{- end }}
{{- if $values.tls.existingSecret }}
- {name: tls, mountPath: /etc/penstock/tls, readOnly: true}
{{- end }}
{{- end }}
{{- if eq $values.multinode.mode "lws" }}
- {name: cluster, mountPath: /etc/penstock/cluster, readOnly: true}
{{- end }}
{{- if include "penstock.hasClaim" .root }}
- {name: models, mountPath: {{ $values.storage.mountPath }}, readOnly: {{ or (eq (include "penstock.isOffline" .root) "true") (not $hub) }}}
{{- end }}
{{- if and (ne .role "node") (include "penstock.hasState" .) }}
- {name: state, mountPath: {{ include "penstock.stateMount" . }}}
{{- end }}
{{ include "penstock.scratchMounts" .root }}
- {name: shm, mountPath: /dev/shm}
{{- with $values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.volumes" -}}
{{- $values := .root.Values -}}
{{- if ne .role "node" -}}
- name: config
  configMap: {name: {{ .part.name }}-config}
{{- with $values.auth }}
{{- if .existingSecret }}
- name: keys
  secret:
    secretName: {{ .existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .key }}, path: api-keys}]
{{- end }}
{{- end }}
{{- with $values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if eq $values.multinode.mode "lws" }}
- name: cluster
  secret:
    secretName: {{ include "penstock.clusterSecret" .root }}
    defaultMode: 0440
    items: [{key: {{ $values.multinode.key }}, path: secret}]
{{- end }}
{{- if include "penstock.hasClaim" .root }}
- name: models
  persistentVolumeClaim: {claimName: {{ include "penstock.claimName" .root }}}
{{- end }}
{{- if and (ne .role "node") (include "penstock.hasState" .) }}
- name: state
  persistentVolumeClaim: {claimName: {{ include "penstock.stateClaim" . }}}
{{- end }}
{{ include "penstock.scratchVolumes" .root }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ $values.shm.size }}}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
