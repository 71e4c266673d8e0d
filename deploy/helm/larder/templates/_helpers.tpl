{{- define "larder.fullname" -}}
{{- if contains "larder" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-larder" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "larder.selector" -}}
app.kubernetes.io/name: larder
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "larder.labels" -}}
{{ include "larder.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "larder.scheme" -}}
{{- ternary "https" "http" (ne .Values.tls.secretName "") -}}
{{- end -}}

{{/* Whether anything secret is given, and where it is. */}}
{{- define "larder.secret" -}}
{{- if .Values.existingSecret -}}
{{- .Values.existingSecret -}}
{{- else if .Values.secrets -}}
{{- include "larder.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* What a gateway is told besides its file and its secrets. $(POD_NAME) is filled in by Kubernetes. */}}
{{- define "larder.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: LARDER_FLEET__NODE
  value: $(POD_NAME)
- name: LARDER_FLEET__ADVERTISE
  value: {{ printf "%s://$(POD_NAME).%s-nodes.%s.svc.%s:%d" (include "larder.scheme" .) (include "larder.fullname" .) .Release.Namespace .Values.fleet.clusterDomain (int .Values.server.port) | quote }}
- name: LARDER_FLEET__ZONE
  value: {{ .Values.fleet.zone | quote }}
- name: LARDER_SERVER__HOST
  value: 0.0.0.0
- name: LARDER_SERVER__PORT
  value: {{ .Values.server.port | quote }}
- name: LARDER_SERVER__WORKERS
  value: {{ .Values.server.workers | quote }}
- name: LARDER_SERVER__DRAIN
  value: {{ printf "%ds" (int .Values.server.drainSeconds) }}
- name: LARDER_CACHE__DIR
  value: /var/cache/larder/node
- name: LARDER_CACHE__CAPACITY
  value: {{ .Values.cache.capacity | quote }}
{{- if .Values.tls.secretName }}
- name: LARDER_SERVER__TLS_CERT
  value: /etc/larder-tls/tls.crt
- name: LARDER_SERVER__TLS_KEY
  value: /etc/larder-tls/tls.key
- name: SSL_CERT_FILE # besides the authorities of the image
  value: /etc/larder-tls/ca.crt
{{- end }}
{{- end -}}

{{- define "larder.mounts" -}}
- {name: cache, mountPath: /var/cache/larder}
- {name: config, mountPath: /etc/larder, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/larder-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "larder.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
