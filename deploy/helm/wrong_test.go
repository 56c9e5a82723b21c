package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Values that cannot be are refused, with what would be right.
func TestWrongValues(t *testing.T) {
	const store = "store: {address: 'cql://db/photos'}\n"
	const open = store + "insecure: true\n"
	for _, c := range []struct{ name, values, want string }{
		{"no store", "insecure: true", "store.address: there is none; give cql://HOST/KEYSPACE"},
		{"a directory", "store: {address: /data}\ninsecure: true", "/store/address"},
		{"a password in the address", "store: {address: 'cql://me:secret@db/photos'}\ninsecure: true",
			"/store/address"},
		{"no certificate", store, "tls: there is no certificate; give tls.secret or tls.certManager, or " +
			"insecure: true"},
		{"no authentication", store + "tls: {secret: a}", "auth: there is no authentication; give auth.tokens.secret"},
		{"metrics for all", store + "tls: {secret: a}\nauth: {tokens: {secret: b}}",
			"admin.tokenSecret: there is none"},
		{"two certificates", open + "tls: {secret: a, certManager: {enabled: true, issuer: b}}",
			"one of them makes the certificate"},
		{"no issuer", open + "tls: {certManager: {enabled: true}}", "tls.certManager.issuer: there is none"},
		{"clients' certificates alone", open + "tls: {clientCA: true}", "tls.clientCA: there is no certificate"},
		{"no audience", open + "auth: {oidc: {issuer: 'https://id'}}", "auth.oidc.audience: there is none"},
		{"a provider without TLS", open + "auth: {oidc: {issuer: 'http://id', audience: a}}", "/auth/oidc/issuer"},
		{"no replication", "store: {address: 'cql://db/photos', init: {enabled: true}}\ninsecure: true",
			"store.init.replication: there is none"},
		{"replication of nothing", "store: {address: 'cql://db/photos', init: {enabled: true, replication: " +
			"'0'}}\ninsecure: true",
			"/store/init/replication"},
		{"claims of a DaemonSet", open + "kind: DaemonSet",
			"a DaemonSet has no claims; give ephemeral, emptyDir or hostPath"},
		{"an audit log of a DaemonSet", open + "kind: DaemonSet\nspill: {volume: none}\naudit: {size: 1Gi}",
			"audit.size: a DaemonSet has no claims"},
		{"no path", open + "spill: {volume: hostPath}", "spill.path: there is none"},
		{"memory shared by several servers", open + "local: {path: /run/bowstring}",
			"local.path: several servers of a StatefulSet"},
		{"references to nothing", open + "local: {references: true}", "local.references: nothing is shared"},
		{"references without a spill", open + "kind: DaemonSet\nspill: {volume: none}\n" +
			"local: {path: /run/bowstring, references: true}", "there is no spill whose files could be read"},
		{"references beside rules", open + "kind: DaemonSet\nspill: {volume: emptyDir}\nrules: a\n" +
			"local: {path: /run/bowstring, references: true}", "can read every blob of the spill"},
		{"references beside tenants", open + "kind: DaemonSet\nspill: {volume: emptyDir}\nconfig: {tenants: a}\n" +
			"local: {path: /run/bowstring, references: true}", "can read every blob of the spill"},
		{"a mode that is a number", open + "local: {mode: 600}", "/local/mode"},
		{"a cluster of a DaemonSet", open + "kind: DaemonSet\nspill: {volume: emptyDir}\ncluster: {name: c}",
			"cluster.name: only servers of a StatefulSet"},
		{"a cluster without caches", open + "spill: {volume: none}\ncluster: {name: c}",
			"a server without a cache owns nothing"},
		{"a cluster without a key", store + "tls: {secret: a}\nauth: {tokens: {secret: b}}\nadmin: {tokenSecret: " +
			"c}\ncluster: {name: c}", "cluster.keySecret: there is none"},
		{"only the same node", open + "service: {sameNode: only}", "only takes a server on each node"},
		{"a DaemonSet that scales", open + "kind: DaemonSet\nspill: {volume: none}\nautoscaling: {kind: hpa}",
			"as many servers as nodes"},
		{"no Prometheus", open + "autoscaling: {kind: keda}", "autoscaling.prometheus: there is none"},
		{"more than there may be", open + "autoscaling: {kind: hpa, min: 9}",
			"got 9, want no more than autoscaling.max, 8"},
		{"a setting of the chart's", open + "config: {listen: ':1'}", "config.listen: the chart sets it"},
		{"a list of settings", open + "config: {max-streams: [1]}", "/config/max-streams"},
		{"another kind", open + "kind: Deployment", "/kind"},
		{"no such value", open + "replicsa: 3", "replicsa"},
		{"no such value below", open + "spill: {sise: 3Gi}", "sise"},
		{"a number as text", open + "replicas: three", "/replicas"},
		{"no size", open + "spill: {size: much}", "/spill/size"},
		{"no drain", open + "drain: {seconds: 0}", "/drain/seconds"},
		{"a name with capitals", open + "tls: {secret: TLS}", "/tls/secret"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options{chart: chart, name: "feed", namespace: "training"}
			if err := yaml.Unmarshal([]byte(c.values), &o.values); err != nil {
				t.Fatal(err)
			}
			list, err := render(o)
			if err == nil {
				t.Fatalf("renders %d objects, want an error with %q", len(list), c.want)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %q, want %q in it", err, c.want)
			}
		})
	}
}
