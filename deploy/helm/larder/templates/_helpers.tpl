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
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "larder.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "larder.serviceAccount" -}}
{{- if or .Values.serviceAccount.create .Values.serviceAccount.name -}}
{{- default (include "larder.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- fail "serviceAccount.name is needed with serviceAccount.create: false" -}}
{{- end -}}
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

{{/* The key of the Secret with the token that Prometheus sends; empty if it sends none. */}}
{{- define "larder.metricsToken" -}}
{{- if .Values.serviceMonitor.tokenKey -}}
{{- .Values.serviceMonitor.tokenKey -}}
{{- else if and (not .Values.existingSecret) (hasKey .Values.secrets "LARDER_ADMIN__READ_TOKEN") -}}
LARDER_ADMIN__READ_TOKEN
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
- name: LARDER_ADMIN__ADDRESS
  value: {{ printf "0.0.0.0:%d" (int .Values.admin.port) | quote }}
- name: LARDER_ADMIN__EXCLUSIVE
  value: "true"
- name: LARDER_SERVER__WORKERS
  value: {{ .Values.server.workers | quote }}
- name: LARDER_SERVER__DRAIN_NOTICE
  value: {{ printf "%ds" (int .Values.server.drainNoticeSeconds) }}
- name: LARDER_SERVER__DRAIN
  value: {{ printf "%ds" (int .Values.server.drainSeconds) }}
{{- if .Values.server.socketHostPath }}
- name: LARDER_SERVER__UNIX_SOCKET
  value: /run/larder/$(POD_NAME).sock
{{- end }}
- name: LARDER_CACHE__DIR
  value: /var/cache/larder/node
- name: LARDER_CACHE__CAPACITY
  value: {{ .Values.cache.capacity | quote }}
{{- if .Values.tls.secretName }}
- name: LARDER_SERVER__TLS_CERT
  value: /etc/larder-tls/tls.crt
- name: LARDER_SERVER__TLS_KEY
  value: /etc/larder-tls/tls.key
- name: SSL_CERT_FILE # in addition to the image's authorities
  value: /etc/larder-tls/ca.crt
{{- end }}
{{- end -}}

{{/* The names of the variables that secrets and extraEnv have; secrets does not count beside existingSecret. */}}
{{- define "larder.given" -}}
{{- $names := list -}}
{{- range .Values.extraEnv -}}{{- $names = append $names .name -}}{{- end -}}
{{- if not .Values.existingSecret -}}{{- $names = concat $names (keys .Values.secrets) -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* Whether anybody can have made a catalog, and whether it is in a database that all nodes share; what an existing Secret has is
not known here, so it is asked for. */}}
{{- define "larder.hasCatalog" -}}
{{- $given := include "larder.given" . | fromJsonArray -}}
{{- if or .Values.existingSecret (has "LARDER_ADMIN__TOKEN" $given) (has "LARDER_ADMIN__READ_TOKEN" $given) (regexMatch "(?m)^\\s*\\[\\s*admin\\s*\\]" .Values.config) -}}
yes
{{- end -}}
{{- end -}}

{{- define "larder.sharedCatalog" -}}
{{- $given := include "larder.given" . | fromJsonArray -}}
{{- if or (has "LARDER_DATABASE__URL" $given) (regexMatch "(?m)^\\s*url\\s*=\\s*[\"']postgresql" .Values.config) (and .Values.existingSecret (eq .Values.catalog "shared")) -}}
yes
{{- end -}}
{{- end -}}

{{/* Keys and revocations that are in one pod's volume hold at that node only, and go with it. */}}
{{- define "larder.checkCatalog" -}}
{{- $loose := or (gt (int .Values.replicas) 1) (eq .Values.cache.storage.kind "emptyDir") -}}
{{- if and $loose (include "larder.hasCatalog" .) (not (include "larder.sharedCatalog" .)) (ne .Values.catalog "perNode") -}}
{{- if .Values.existingSecret -}}
{{- fail (printf "catalog: say \"shared\" if the Secret %s has LARDER_DATABASE__URL, a PostgreSQL of all nodes; without one, keys and revocations hold at one node only and are lost with its volume: catalog: perNode accepts that" .Values.existingSecret) -}}
{{- else -}}
{{- fail "secrets.LARDER_DATABASE__URL, a PostgreSQL of all nodes, is needed for more than one replica, and for emptyDir: without it, keys and revocations hold at one node only and are lost with its volume; catalog: perNode accepts that" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "larder.mounts" -}}
- {name: cache, mountPath: /var/cache/larder}
- {name: config, mountPath: /etc/larder, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: shared-memory, mountPath: /dev/shm}
{{- if .Values.server.socketHostPath }}
- {name: socket, mountPath: /run/larder}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/larder-tls, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The chart's variables and the user's. Of two of one name Kubernetes takes the last, so a setting would be in two places. */}}
{{- define "larder.allEnvironment" -}}
{{- $own := include "larder.environment" . -}}
{{- $names := list -}}
{{- range fromYamlArray $own -}}{{- $names = append $names .name -}}{{- end -}}
{{- range .Values.extraEnv -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv: %s is set by the chart's own values" .name) -}}
{{- end -}}
{{- end -}}
{{ $own }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "larder.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
