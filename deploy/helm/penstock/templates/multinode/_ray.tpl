{{/* A gang whose nodes Ray starts. */}}

{{/*
What a part's RayJob does: (dict "root" $ "part" part). A running RayJob disregards changes, so its name has
a digest of this.

The job is submitted from the head's pod (SidecarMode), because the other modes wait until that pod is
ready, which it is when the daemon serves. A lost gang is a failed job, which is tried again in a new
cluster.
*/}}
{{- define "penstock.rayJobSpec" -}}
{{- $nodes := int .root.Values.multinode.nodes -}}
entrypoint: penstock serve --config /etc/penstock/config/penstock.yaml --executor ray --nodes {{ $nodes }}
submissionMode: SidecarMode
backoffLimit: 1000000
shutdownAfterJobFinishes: true
rayClusterSpec:
  headGroupSpec:
    rayStartParams:
      {{- include "penstock.rayStartParams" . | nindent 6 }}
    template:
      {{- include "penstock.podTemplate" (merge (dict "role" "master") .) | nindent 6 }}
  workerGroupSpecs:
    - groupName: nodes
      replicas: {{ sub $nodes 1 }}
      minReplicas: {{ sub $nodes 1 }}
      maxReplicas: {{ sub $nodes 1 }}
      rayStartParams:
        {{- include "penstock.rayStartParams" . | nindent 8 }}
      template:
        {{- include "penstock.podTemplate" (merge (dict "role" "node") .) | nindent 8 }}
{{- end -}}

{{/* Ray's object store carries nothing of ours: it leaves /dev/shm to the stages. */}}
{{- define "penstock.rayStartParams" -}}
object-store-memory: "100000000"
{{- if eq .part.device "cuda" }}
num-gpus: {{ int .part.gpus | quote }}
{{- end }}
{{- end -}}
