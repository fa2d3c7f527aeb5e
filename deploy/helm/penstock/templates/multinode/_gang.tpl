{{/*
Pods of one model that start, serve and end together: a gang. The first is the master of docs/hosts.md,
the others its nodes. A LeaderWorkerSet has as many gangs as a part has replicas, a RayJob one.
*/}}

{{/* Whether parts are gangs: "true" or nothing. */}}
{{- define "penstock.isGang" -}}
{{- if ne .Values.multinode.mode "none" -}}true{{- end -}}
{{- end -}}

{{/* The first of the master's three ports. */}}
{{- define "penstock.clusterPort" -}}7000{{- end -}}

{{/*
The name of a part's LeaderWorkerSet, whose pods have 16 characters more. Its controller makes a headless
Service of this name, so that the part's own Service needs another one.
*/}}
{{- define "penstock.gangName" -}}
{{- printf "%s-gang" (include "penstock.shortened" (dict "name" .name "most" 42)) -}}
{{- end -}}

{{- define "penstock.clusterSecret" -}}
{{- default (printf "%s-cluster-secret" (include "penstock.fullname" .)) .Values.multinode.existingSecret -}}
{{- end -}}

{{/*
What a pod of a LeaderWorkerSet runs: (dict "root" $ "part" part "role" role). The master knows its own
address before the cluster's DNS does. A node waits for it, because a container that restarts has the whole
gang made anew.
*/}}
{{- define "penstock.nodeArgs" -}}
{{- $port := include "penstock.clusterPort" . -}}
{{- if eq .role "master" -}}
- serve
{{ include "penstock.configArgs" . }}
- --nodes
- $(LWS_GROUP_SIZE)
- --master
- "[$(POD_IP)]:{{ $port }}"
{{- else -}}
- join
- --rejoin
- --node-rank
- $(LWS_WORKER_INDEX)
- --master
- $(LWS_LEADER_ADDRESS):{{ $port }}
{{- with .root.Values.server.options.log_level }}
- --log-level
- {{ . }}
{{- end }}
{{- end }}
- --cluster-secret-file
- /etc/penstock/cluster/secret
{{- end -}}

{{/* More of the environment of a gang's pods. Ray reports its use to its makers unless it is told not to. */}}
{{- define "penstock.gangEnvironment" -}}
{{- if eq .root.Values.multinode.mode "raycluster" -}}
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
{{- else if eq .role "master" -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
{{- end -}}
{{- end -}}

{{/* Rules by which a part's pods reach each other: the master's ports, gloo's, NCCL's and Ray's. */}}
{{- define "penstock.gangPeers" -}}
ports:
  - {protocol: TCP}
{{ .direction }}:
  - podSelector:
      matchLabels:
        {{- include "penstock.selectorLabels" . | nindent 8 }}
{{- end -}}
