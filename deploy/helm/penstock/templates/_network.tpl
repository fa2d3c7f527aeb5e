{{/* What Ingress, HTTPRoute and NetworkPolicy share. */}}

{{/* The port of the hub, or of its mirror. */}}
{{- define "penstock.hubPort" -}}
{{- $url := urlParse (default "https://huggingface.co" .Values.hub.endpoint) -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" -}}
{{- default (ternary "80" "443" (eq $url.scheme "http")) $port -}}
{{- end -}}

{{/* Rules that let a pod ask DNS. */}}
{{- define "penstock.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{/* Rules that let a pod ask DNS and the hub. */}}
{{- define "penstock.hubEgress" -}}
{{ include "penstock.dnsEgress" . }}
- ports:
    - {port: {{ include "penstock.hubPort" . }}, protocol: TCP}
{{- end -}}

{{/* Annotations of ingress-nginx: (dict "root" $ "path" "/chat"). */}}
{{- define "penstock.nginxAnnotations" -}}
nginx.ingress.kubernetes.io/proxy-read-timeout: {{ .root.Values.ingress.timeoutSeconds | int | quote }}
nginx.ingress.kubernetes.io/proxy-send-timeout: {{ .root.Values.ingress.timeoutSeconds | int | quote }}
nginx.ingress.kubernetes.io/proxy-body-size: "0"
nginx.ingress.kubernetes.io/proxy-buffering: "off"
nginx.ingress.kubernetes.io/backend-protocol: {{ include "penstock.scheme" .root | upper }}
{{- if ne .path "/" }}
nginx.ingress.kubernetes.io/use-regex: "true"
nginx.ingress.kubernetes.io/rewrite-target: /$2
{{- end }}
{{- end -}}
