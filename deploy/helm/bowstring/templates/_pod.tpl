{{- /* The pod of a server, for a StatefulSet and for a DaemonSet. */ -}}
{{- define "bowstring.pod" -}}
{{- $scheme := ternary "HTTPS" "HTTP" (ne (include "bowstring.tlsSecret" .) "") -}}
metadata:
  labels:
    {{- include "bowstring.labels" . | nindent 4 }}
    app.kubernetes.io/component: server
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # Settings are read at the start: others make new pods.
    checksum/config: {{ merge (include "bowstring.serve" . | fromYaml) .Values.config (dict "log-level" .Values.logLevel "log-format" .Values.logFormat) | toJson | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "bowstring.serviceAccount" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- include "bowstring.podSecurity" . | nindent 4 }}
  # Time to settle, to drain, and to close the store.
  terminationGracePeriodSeconds: {{ add .Values.drain.settleSeconds .Values.drain.seconds 30 }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and .Values.topologySpread (eq .Values.kind "StatefulSet") }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "bowstring.selector" . | nindent 10 }}
  {{- end }}
  containers:
    - name: bowstring
      image: {{ include "bowstring.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/bowstring/config/bowstring.yaml]
      env:
        # The image names a store of its own in the environment, which stands above the settings.
        - {name: BOWSTRING_STORE, value: {{ .Values.store.address | quote }}}
        {{- include "bowstring.storeEnv" . | nindent 8 }}
        {{- if .Values.cluster.name }}
        # Each server is a node by the name of its pod, which a StatefulSet keeps, as it does the cache.
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: BOWSTRING_SERVE_NODE, value: $(POD)}
        - {name: BOWSTRING_SERVE_ADVERTISE, value: "{{ ternary "grpc+tls" "grpc" (ne (include "bowstring.tlsSecret" .) "") }}://$(POD).{{ include "bowstring.fullname" . }}-peers.{{ .Release.Namespace }}.svc:8815"}
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: flight, containerPort: 8815}
        - {name: admin, containerPort: 9815}
      # Nothing answers before the store is open, which a slow one and the index of a spill that was not closed may delay.
      startupProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: admin, scheme: {{ $scheme }}}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      lifecycle:
        # The program drains at SIGTERM. Before that, balancers have to learn that it is going.
        preStop: {sleep: {seconds: {{ .Values.drain.settleSeconds }}}}
      securityContext: {{- include "bowstring.containerSecurity" . | nindent 8 }}
      resources: {{- toYaml .Values.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/bowstring/config, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- include "bowstring.storeMounts" . | nindent 8 }}
        {{- if include "bowstring.tlsSecret" . }}
        - {name: tls, mountPath: /etc/bowstring/tls, readOnly: true}
        {{- end }}
        {{- if .Values.auth.tokens.secret }}
        - {name: tokens, mountPath: /etc/bowstring/tokens, readOnly: true}
        {{- end }}
        {{- if and .Values.cluster.name .Values.cluster.keySecret }}
        - {name: cluster, mountPath: /etc/bowstring/cluster, readOnly: true}
        {{- end }}
        {{- if .Values.admin.tokenSecret }}
        - {name: admin, mountPath: /etc/bowstring/admin, readOnly: true}
        {{- end }}
        {{- if .Values.rules }}
        - {name: rules, mountPath: /etc/bowstring/rules, readOnly: true}
        {{- end }}
        {{- if .Values.audit.size }}
        - {name: audit, mountPath: /audit}
        {{- end }}
        {{- if ne .Values.spill.volume "none" }}
        - {name: spill, mountPath: /spill}
        {{- end }}
        {{- if .Values.local.path }}
        - {name: local, mountPath: /local}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "bowstring.fullname" . }}}
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
    {{- include "bowstring.storeVolumes" . | nindent 4 }}
    {{- with include "bowstring.tlsSecret" . }}
    - name: tls
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.auth.tokens.secret }}
    - name: tokens
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if and .Values.cluster.name .Values.cluster.keySecret }}
    - name: cluster
      secret: {secretName: {{ .Values.cluster.keySecret }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.admin.tokenSecret }}
    - name: admin
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.rules }}
    - name: rules
      configMap: {name: {{ include "bowstring.fullname" . }}-rules}
    {{- end }}
    {{- if eq .Values.spill.volume "ephemeral" }}
    - name: spill
      ephemeral:
        volumeClaimTemplate:
          spec: {{- include "bowstring.spillClaim" . | nindent 12 }}
    {{- else if eq .Values.spill.volume "emptyDir" }}
    - name: spill
      emptyDir: {sizeLimit: {{ .Values.spill.size }}}
    {{- else if eq .Values.spill.volume "hostPath" }}
    - name: spill
      hostPath: {path: {{ .Values.spill.path | quote }}, type: Directory}
    {{- end }}
    {{- with .Values.local.path }}
    - name: local
      hostPath: {path: {{ . | quote }}, type: Directory}
    {{- end }}
{{- end -}}

{{- define "bowstring.spillClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.spill.storageClass }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .Values.spill.size }}}}
{{- end -}}
