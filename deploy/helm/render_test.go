package main

import (
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

const chart = "bowstring"

func TestMain(m *testing.M) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // Helm says of each link that it is one
	os.Exit(m.Run())
}

// versions are Kubernetes's that a chart is rendered for: the oldest that Chart.yaml takes, and where something
// changes.
var versions = []string{"1.30", "1.33", "1.36"}

// variants are the files of values that the chart is tried with, by name.
func variants(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil || len(files) < 12 {
		t.Fatalf("%d variants of values, want 12 or more: %v", len(files), err)
	}
	found := map[string]string{}
	for _, f := range files {
		found[strings.TrimSuffix(filepath.Base(f), "-values.yaml")] = f
	}
	return found
}

// mustRender renders a variant.
func mustRender(t *testing.T, file, kube string) []document {
	t.Helper()
	o := options{chart: chart, name: "feed", namespace: "training", kube: kube}
	if err := o.read(file); err != nil {
		t.Fatal(err)
	}
	list, err := render(o)
	if err != nil {
		t.Fatalf("%s, Kubernetes %s: %v", file, kube, err)
	}
	return list
}

// find returns the one object of a kind whose name ends so; nil if there is none.
func find(t *testing.T, list []document, kind, suffix string) map[string]any {
	t.Helper()
	for _, d := range list {
		if d.object.Kind == kind && strings.HasSuffix(d.object.Metadata.Name, suffix) {
			var found map[string]any
			if err := yaml.Unmarshal([]byte(d.text), &found); err != nil {
				t.Fatal(err)
			}
			return found
		}
	}
	return nil
}

// at goes down a path of names in an object.
func at(t *testing.T, from any, path ...string) any {
	t.Helper()
	for _, name := range path {
		m, ok := from.(map[string]any)
		if !ok {
			t.Fatalf("nothing at %s of %v", name, path)
		}
		from = m[name]
	}
	return from
}

// Every variant renders for every version, each object once, and Helm's linter has nothing to say.
func TestVariantsRender(t *testing.T) {
	kindsSeen := map[string]bool{}
	for name, file := range variants(t) {
		t.Run(name, func(t *testing.T) {
			for _, kube := range versions {
				seen := map[[2]string]bool{}
				for _, d := range mustRender(t, file, kube) {
					id := [2]string{d.object.Kind, d.object.Metadata.Name}
					if seen[id] || d.object.Metadata.Name == "" {
						t.Errorf("%s %q twice, or without a name", d.object.Kind, d.object.Metadata.Name)
					}
					seen[id], kindsSeen[d.object.Kind] = true, true
				}
			}
			o := options{}
			if err := o.read(file); err != nil {
				t.Fatal(err)
			}
			for _, m := range lint.RunAll(chart, o.values, "training").Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
	want := []string{
		"Certificate", "ConfigMap", "DaemonSet", "HorizontalPodAutoscaler", "Job", "NetworkPolicy", "Pod",
		"PodDisruptionBudget",
		"PrometheusRule", "ScaledObject", "Service", "ServiceAccount", "ServiceMonitor", "StatefulSet",
	}
	if got := slices.Sorted(maps.Keys(kindsSeen)); !reflect.DeepEqual(got, want) {
		t.Errorf("the variants show %v, want %v", got, want)
	}
}

// Rules and dashboards are those of deploy, whatever Helm does to them on the way.
func TestRulesAndDashboards(t *testing.T) {
	list := mustRender(t, variants(t)["monitoring"], "")
	var want, got any
	data, err := os.ReadFile("../prometheus/bowstring.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	got = at(t, find(t, list, "PrometheusRule", ""), "spec")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the rules are\n%v\nwant\n%v", got, want)
	}
	boards, ok := at(t, find(t, list, "ConfigMap", "-dashboards"), "data").(map[string]any)
	files, err := filepath.Glob("../grafana/*.json")
	if err != nil || !ok || len(boards) != len(files) || len(files) == 0 {
		t.Fatalf("%d dashboards, want %d: %v", len(boards), len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		text, _ := boards[filepath.Base(file)].(string)
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the chart's %s is another: %v", filepath.Base(file), err)
		}
	}
	labels := at(t, find(t, list, "Service", "-peers"), "metadata", "labels")
	monitor := find(t, list, "ServiceMonitor", "")
	endpoint := at(t, monitor, "spec", "endpoints").([]any)[0]
	if job := at(t, endpoint, "relabelings").([]any)[0]; !reflect.DeepEqual(job,
		map[string]any{"targetLabel": "job", "replacement": "bowstring"}) {
		t.Errorf("the job of the servers is %v, and the rules ask for bowstring", job)
	}
	for name, value := range at(t, monitor, "spec", "selector", "matchLabels").(map[string]any) {
		if at(t, labels, name) != value {
			t.Errorf("the monitor asks for %s=%v, and the service has not got that", name, value)
		}
	}
}

// Every pod is within the standard "restricted"; one with a directory of its node is not, for that reason alone.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	pods := 0
	for name, file := range variants(t) {
		for _, d := range mustRender(t, file, "") {
			var o struct{ Template corev1.PodTemplateSpec }
			var shell struct{ Spec json.RawMessage }
			if err := yaml.Unmarshal([]byte(d.text), &shell); err != nil {
				t.Fatal(err)
			}
			switch d.object.Kind {
			case "Pod":
				err = json.Unmarshal(shell.Spec, &o.Template.Spec)
			case "StatefulSet", "DaemonSet", "Job":
				err = json.Unmarshal(shell.Spec, &o)
			default:
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			pods++
			result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &o.Template.ObjectMeta,
				&o.Template.Spec))
			if name == "daemonset" && d.object.Kind == "DaemonSet" {
				if result.Allowed || !reflect.DeepEqual(result.ForbiddenReasons, []string{"restricted volume types"}) {
					t.Errorf("%s: %v", name, result.ForbiddenDetail())
				}
			} else if !result.Allowed {
				t.Errorf("%s: %s %s: %s", name, d.object.Kind, d.object.Metadata.Name, result.ForbiddenDetail())
			}
			if token := o.Template.Spec.AutomountServiceAccountToken; token == nil || *token {
				t.Errorf("%s: %s %s has a token for Kubernetes", name, d.object.Kind, d.object.Metadata.Name)
			}
		}
	}
	if pods < 20 {
		t.Errorf("%d pods looked at", pods)
	}
}

// A pod has the time that draining takes, mounts what it names, and its settings make a new pod when they change.
func TestPods(t *testing.T) {
	sums := map[string]bool{}
	for name, file := range variants(t) {
		list := mustRender(t, file, "")
		for _, kind := range []string{"StatefulSet", "DaemonSet"} {
			workload := find(t, list, kind, "")
			if workload == nil {
				continue
			}
			var template corev1.PodTemplateSpec
			data, err := json.Marshal(at(t, workload, "spec", "template"))
			if err == nil {
				err = json.Unmarshal(data, &template)
			}
			if err != nil {
				t.Fatal(err)
			}
			spec := template.Spec
			container := spec.Containers[0]
			if grace, settle := *spec.TerminationGracePeriodSeconds,
				container.Lifecycle.PreStop.Sleep.Seconds; grace < settle+300+10 {
				t.Errorf("%s: a pod has %d s to end, and takes %d to settle and 300 to drain", name, grace, settle)
			}
			volumes := map[string]bool{}
			claims, _ := at(t, workload, "spec", "volumeClaimTemplates").([]any)
			for _, claim := range claims {
				volumes[at(t, claim, "metadata", "name").(string)] = true
			}
			for _, v := range spec.Volumes {
				volumes[v.Name] = true
			}
			for _, m := range container.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s: %s is mounted, and no volume", name, m.Name)
				}
			}
			sum := template.Annotations["checksum/config"]
			if sum == "" {
				t.Errorf("%s: no checksum of the settings", name)
			}
			sums[sum] = true
			name := at(t, workload, "metadata", "name").(string)
			settings, _ := at(t, find(t, list, "ConfigMap", name), "data", "bowstring.yaml").(string)
			for _, path := range regexp.MustCompile(`/etc/bowstring/\w+`).FindAllString(settings, -1) {
				if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
					return m.MountPath == path
				}) {
					t.Errorf("%s: the settings name %s, and nothing is mounted there", name, path)
				}
			}
		}
	}
	audited := find(t, mustRender(t, variants(t)["rules"], ""), "StatefulSet", "")
	if kept := at(t, audited, "spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"); kept != "Retain" {
		t.Errorf("claims with an audit log: %v when the release goes, want Retain", kept)
	}
	if len(sums) < 8 {
		t.Errorf("%d different sums of settings", len(sums))
	}
}

// Clients reach a server on their node, by what the cluster's version knows.
func TestSameNode(t *testing.T) {
	all := variants(t)
	for _, c := range []struct{ variant, kube, field, want string }{
		{"tokens", "1.30", "trafficDistribution", "PreferClose"},
		{"tokens", "1.36", "trafficDistribution", "PreferSameNode"},
		{"daemonset", "1.30", "internalTrafficPolicy", "Local"},
	} {
		list := mustRender(t, all[c.variant], c.kube)
		if got := at(t, find(t, list, "Service", "feed-bowstring"), "spec", c.field); got != c.want {
			t.Errorf("%s on %s: %s is %v, want %s", c.variant, c.kube, c.field, got, c.want)
		}
	}
}

// A cache in an emptyDir takes a share of that, not of the node's disk, of which the kubelet evicts who takes more than
// that.
func TestEmptyDir(t *testing.T) {
	for _, c := range []struct{ spill, want string }{
		{"volume: emptyDir, size: 100Gi", "90.000Gi"},
		{"volume: emptyDir, size: 1.5T, share: 50%", "0.750T"},
		{"volume: emptyDir, size: 100Gi, share: 20GiB", "20GiB"},
		{"volume: claim, size: 100Gi", "90%"},
	} {
		o := options{chart: chart, name: "feed", namespace: "training"}
		if err := yaml.Unmarshal([]byte("store: {address: 'cql://db/photos'}\ninsecure: true\nspill: {"+c.spill+"}"),
			&o.values); err != nil {
			t.Fatal(err)
		}
		list, err := render(o)
		if err != nil {
			t.Fatal(err)
		}
		settings, _ := at(t, find(t, list, "ConfigMap", "bowstring"), "data", "bowstring.yaml").(string)
		if !strings.Contains(settings+"\n", "spill-bytes: "+c.want+"\n") {
			t.Errorf("%s: the settings are\n%s\nwant spill-bytes: %s", c.spill, settings, c.want)
		}
	}
}

// Servers reach each other, independent of their clients.
func TestServersReachEachOther(t *testing.T) {
	o := options{chart: chart, name: "feed", namespace: "training"}
	const values = "store: {address: 'cql://db/photos'}\ninsecure: true\nnetworkPolicy: {clients: " +
		"[{namespaceSelector: {matchLabels: {team: a}}}]}"
	if err := yaml.Unmarshal([]byte(values), &o.values); err != nil {
		t.Fatal(err)
	}
	list, err := render(o)
	if err != nil {
		t.Fatal(err)
	}
	p := find(t, list, "NetworkPolicy", "")
	from, _ := at(t, at(t, p, "spec", "ingress").([]any)[0], "from").([]any)
	if len(from) != 2 || !reflect.DeepEqual(at(t, from[1], "podSelector"), at(t, p, "spec", "podSelector")) {
		t.Errorf("the servers' port is open to %v, want clients and servers", from)
	}
}
