{{- define "bowstring.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 48 characters, so that suffixes and a StatefulSet's hash fit into 63. */ -}}
{{- define "bowstring.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "bowstring.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "bowstring.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "bowstring.selector" -}}
app.kubernetes.io/name: {{ include "bowstring.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bowstring.labels" -}}
{{ include "bowstring.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "bowstring.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "bowstring.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "bowstring.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "bowstring.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{ include "bowstring.fullname" . }}-tls
{{- else -}}
{{ .Values.tls.secret }}
{{- end -}}
{{- end -}}

{{- define "bowstring.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "bowstring.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Environment of whatever opens the store. */ -}}
{{- define "bowstring.storeEnv" -}}
{{- with .Values.store.credentials }}
{{- if .secret }}
- name: BOWSTRING_CQL_USER
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: {{ .userKey }}}}
- name: BOWSTRING_CQL_PASSWORD_FILE
  value: /etc/bowstring/credentials/{{ .passwordKey }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "bowstring.storeMounts" -}}
{{- if .Values.store.credentials.secret }}
- {name: credentials, mountPath: /etc/bowstring/credentials, readOnly: true}
{{- end }}
{{- if .Values.store.files }}
- {name: store, mountPath: /etc/bowstring/store, readOnly: true}
{{- end }}
{{- end -}}

{{- define "bowstring.storeVolumes" -}}
{{- with .Values.store.credentials }}
{{- if .secret }}
- name: credentials
  secret: {secretName: {{ .secret }}, defaultMode: 0440, items: [{key: {{ .passwordKey }}, path: {{ .passwordKey }}}]}
{{- end }}
{{- end }}
{{- with .Values.store.files }}
- name: store
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}
