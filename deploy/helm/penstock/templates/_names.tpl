{{/* Names and labels of objects. */}}

{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A text as a part of a DNS label: `Qwen/Qwen3-8B` is `qwen-qwen3-8b`. */}}
{{- define "penstock.slug" -}}
{{- regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" -}}
{{- end -}}

{{/* A name of at most so many characters: (dict "name" name "most" 63). A digest tells apart what is cut off. */}}
{{- define "penstock.shortened" -}}
{{- if gt (len .name) (int .most) -}}
{{- printf "%s-%s" (trunc (sub .most 9 | int) .name | trimSuffix "-") (sha256sum .name | trunc 8) -}}
{{- else -}}
{{- .name -}}
{{- end -}}
{{- end -}}

{{- define "penstock.label" -}}
{{- include "penstock.shortened" (dict "name" . "most" 63) -}}
{{- end -}}

{{/* Labels of every object of the release. */}}
{{- define "penstock.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: penstock
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What selects a part's pods: (dict "root" $ "part" part). */}}
{{- define "penstock.selectorLabels" -}}
app.kubernetes.io/name: {{ include "penstock.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part.component }}
{{- end -}}

{{/* Labels of a part's pods that have one role: (dict "root" $ "part" part "role" role). */}}
{{- define "penstock.roleLabels" -}}
{{ include "penstock.selectorLabels" . }}
{{- if ne .role "server" }}
penstock-role: {{ .role }}
{{- end }}
{{- end -}}

{{/* What selects the pods of a part that speak HTTP: (dict "root" $ "part" part). */}}
{{- define "penstock.servingLabels" -}}
{{- include "penstock.roleLabels" (merge (dict "role" (ternary "master" "server" (eq (include "penstock.isGang" .root) "true"))) .) -}}
{{- end -}}

{{/* Labels of an object of one part: (dict "root" $ "part" part). */}}
{{- define "penstock.partLabels" -}}
{{ include "penstock.labels" .root }}
app.kubernetes.io/component: {{ .part.component }}
{{- end -}}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "penstock.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}
