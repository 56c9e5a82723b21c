{{- /* What the schema cannot say: values that contradict each other, each with what would be right. */ -}}
{{- define "bowstring.check" -}}
{{- $v := .Values -}}
{{- $tls := or $v.tls.secret $v.tls.certManager.enabled -}}
{{- $known := or $v.auth.tokens.secret $v.auth.oidc.issuer $v.tls.clientCA -}}
{{- if not $v.store.address -}}
{{- fail "store.address: there is none; give cql://HOST/KEYSPACE, the store that all servers share" -}}
{{- end -}}
{{- if and $v.store.init.enabled (not $v.store.init.replication) -}}
{{- fail "store.init.replication: there is none; give the number of replicas, such as 3, or DC=N,…" -}}
{{- end -}}
{{- if and $v.tls.secret $v.tls.certManager.enabled -}}
{{- fail "tls: secret and certManager.enabled are both set; one of them makes the certificate" -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (not $v.tls.certManager.issuer) -}}
{{- fail "tls.certManager.issuer: there is none; give the name of an issuer" -}}
{{- end -}}
{{- if and $v.tls.clientCA (not $tls) -}}
{{- fail "tls.clientCA: there is no certificate; give tls.secret or tls.certManager" -}}
{{- end -}}
{{- if not $v.insecure -}}
{{- if not $tls -}}
{{- fail "tls: there is no certificate; give tls.secret or tls.certManager, or insecure: true for a network without other users" -}}
{{- end -}}
{{- if not $known -}}
{{- fail "auth: there is no authentication; give auth.tokens.secret, auth.oidc.issuer or tls.clientCA, or insecure: true to accept all callers" -}}
{{- end -}}
{{- if not $v.admin.tokenSecret -}}
{{- fail "admin.tokenSecret: there is none; give a secret with the token for metrics, or insecure: true to show them to everybody" -}}
{{- end -}}
{{- end -}}
{{- if $v.cluster.name -}}
{{- if ne $v.kind "StatefulSet" -}}
{{- fail "cluster.name: only servers of a StatefulSet have names by which they reach each other; give kind: StatefulSet, or no cluster" -}}
{{- end -}}
{{- if eq $v.spill.volume "none" -}}
{{- fail "cluster.name: a server without a cache owns nothing; give a spill.volume, or no cluster" -}}
{{- end -}}
{{- if and $known (not $v.cluster.keySecret) -}}
{{- fail "cluster.keySecret: there is none; give a secret with what the servers know each other by" -}}
{{- end -}}
{{- end -}}
{{- if and $v.auth.oidc.issuer (not $v.auth.oidc.audience) -}}
{{- fail "auth.oidc.audience: there is none; give whom the provider's tokens have to be for" -}}
{{- end -}}
{{- if and (eq $v.kind "DaemonSet") (eq $v.spill.volume "claim") -}}
{{- fail "spill.volume: a DaemonSet has no claims; give ephemeral, emptyDir or hostPath, or none" -}}
{{- end -}}
{{- if and (eq $v.kind "DaemonSet") $v.audit.size -}}
{{- fail "audit.size: a DaemonSet has no claims; give a StatefulSet, or no audit log" -}}
{{- end -}}
{{- if and (eq $v.spill.volume "hostPath") (not $v.spill.path) -}}
{{- fail "spill.path: there is none; give the directory on each node, which user 65532 can write" -}}
{{- end -}}
{{- if and $v.local.path (ne $v.kind "DaemonSet") -}}
{{- fail "local.path: several servers of a StatefulSet may be on one node, and have one socket; give kind: DaemonSet" -}}
{{- end -}}
{{- if and $v.local.references (not $v.local.path) -}}
{{- fail "local.references: nothing is shared; give local.path" -}}
{{- end -}}
{{- if and $v.local.references (eq $v.spill.volume "none") -}}
{{- fail "local.references: there is no spill whose files could be read; give a spill.volume, or false" -}}
{{- end -}}
{{- if and $v.local.references (or $v.rules (hasKey $v.config "tenants")) -}}
{{- fail "local.references: who has them can read every blob of the spill, whatever rules and tenants say; give false, or neither" -}}
{{- end -}}
{{- if and (eq $v.service.sameNode "only") (ne $v.kind "DaemonSet") -}}
{{- fail "service.sameNode: only takes a server on each node, which a DaemonSet has; give prefer" -}}
{{- end -}}
{{- if and (ne $v.autoscaling.kind "none") (ne $v.kind "StatefulSet") -}}
{{- fail "autoscaling.kind: a DaemonSet has as many servers as nodes; give none" -}}
{{- end -}}
{{- if and (eq $v.autoscaling.kind "keda") (not $v.autoscaling.prometheus) -}}
{{- fail "autoscaling.prometheus: there is none; give its address, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if gt (int $v.autoscaling.min) (int $v.autoscaling.max) -}}
{{- fail (printf "autoscaling.min: got %d, want no more than autoscaling.max, %d" (int $v.autoscaling.min) (int $v.autoscaling.max)) -}}
{{- end -}}
{{- range $own := list "admin" "admin-cert" "admin-key" "admin-token-file" "advertise" "audit" "cluster" "cluster-ca" "cluster-key-file" "drain-timeout" "insecure" "listen" "local" "local-mode" "local-references" "local-uid" "node" "ready-file" "rules" "spill" "spill-bytes" "spill-keep-free" "tls-cert" "tls-client-ca" "tls-key" "tokens" -}}
{{- if hasKey $v.config $own -}}
{{- fail (printf "config.%s: the chart sets it; there is a value for it" $own) -}}
{{- end -}}
{{- end -}}
{{- end -}}
