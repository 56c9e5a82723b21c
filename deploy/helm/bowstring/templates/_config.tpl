{{- /* The settings below serve, as the values have them. */ -}}
{{- define "bowstring.serve" -}}
listen: ":8815"
admin: ":9815"
drain-timeout: {{ .Values.drain.seconds }}s
{{- if .Values.insecure }}
insecure: true
{{- end }}
{{- if include "bowstring.tlsSecret" . }}
tls-cert: /etc/bowstring/tls/tls.crt
tls-key: /etc/bowstring/tls/tls.key
admin-cert: /etc/bowstring/tls/tls.crt
admin-key: /etc/bowstring/tls/tls.key
{{- if .Values.tls.clientCA }}
tls-client-ca: /etc/bowstring/tls/ca.crt
{{- end }}
{{- end }}
{{- with .Values.auth.tokens }}
{{- if .secret }}
tokens: /etc/bowstring/tokens/{{ .key }}
{{- end }}
{{- end }}
{{- with .Values.auth.oidc }}
{{- if .issuer }}
oidc-issuer: {{ .issuer | quote }}
oidc-audience: {{ .audience | quote }}
{{- end }}
{{- end }}
{{- with .Values.admin }}
{{- if .tokenSecret }}
admin-token-file: /etc/bowstring/admin/{{ .tokenKey }}
{{- end }}
{{- end }}
{{- with .Values.cluster }}
{{- if .name }}
cluster: {{ .name | quote }}
{{- if .keySecret }}
cluster-key-file: /etc/bowstring/cluster/{{ .key }}
{{- end }}
{{- if and .ca (include "bowstring.tlsSecret" $) }}
cluster-ca: /etc/bowstring/tls/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.rules }}
rules: /etc/bowstring/rules/rules.yaml
{{- end }}
{{- with .Values.local }}
{{- if .path }}
local: /local/socket
local-mode: {{ .mode | quote }}
{{- $uids := list }}
{{- range .uids }}{{ $uids = append $uids (int64 .) }}{{ end }}{{- /* or a large one is 1e+09 */}}
{{- with $uids }}
local-uid: {{ join "," . | quote }}
{{- end }}
{{- if .references }}
local-references: true
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.audit.size }}
audit: /audit/audit.jsonl
{{- end }}
{{- if ne .Values.spill.volume "none" }}
spill: /spill/cache
spill-bytes: {{ include "bowstring.spillBytes" . | quote }}
{{- end }}
{{- end -}}

{{- /* A share of the file system, which is the volume; but that of an emptyDir is the node's, and a pod that has more than its
size there is evicted. */ -}}
{{- define "bowstring.spillBytes" -}}
{{- with .Values.spill -}}
{{- if and (eq .volume "emptyDir") (hasSuffix "%" .share) -}}
{{- $number := regexFind "^[0-9.]+" .size -}}
{{- printf "%.3f%s" (divf (mulf (float64 $number) (float64 (trimSuffix "%" .share))) 100.0) (trimPrefix $number .size) -}}
{{- else -}}
{{- .share -}}
{{- end -}}
{{- end -}}
{{- end -}}
