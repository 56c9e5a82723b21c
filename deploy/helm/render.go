package main

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// options say what is rendered, for which cluster.
type options struct {
	chart, name, namespace string
	kube                   string // 1.36, or nothing for Helm's own
	values                 map[string]any
}

// read puts the values of a file over those there are.
func (o *options) read(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	o.values = loader.MergeMaps(o.values, values)
	return nil
}

// document is an object of Kubernetes, as a template wrote it.
type document struct {
	template string
	text     string
	object   object
}

// object is what is looked at of it.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

func (d document) hook() string { return d.object.Metadata.Annotations["helm.sh/hook"] }

var separator = regexp.MustCompile(`(?m)^---\s*$`)

// notes is the template that is no object.
const notes = "NOTES.txt"

// render returns the objects of the chart, after the checks that Helm makes: of the schema, and of the cluster's
// version.
func render(o options) ([]document, error) {
	chart, err := loader.Load(o.chart)
	if err != nil {
		return nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	if o.kube != "" {
		version, err := common.ParseKubeVersion(o.kube)
		if err != nil {
			return nil, err
		}
		capabilities.KubeVersion = *version
	}
	values, err := util.ToRenderValues(chart, o.values, common.ReleaseOptions{
		Name: o.name, Namespace: o.namespace, Revision: 1, IsInstall: true,
	}, capabilities)
	if err != nil {
		return nil, err
	}
	written, err := engine.Render(chart, values)
	if err != nil {
		return nil, err
	}
	var list []document
	for template, text := range written {
		if path.Base(template) == notes || strings.HasPrefix(path.Base(template), "_") {
			continue
		}
		for _, one := range separator.Split(text, -1) {
			if strings.TrimSpace(one) == "" {
				continue
			}
			d := document{template: template, text: strings.TrimSpace(one)}
			if err := yaml.UnmarshalStrict([]byte(one), &map[string]any{}); err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", template, err, one)
			}
			if err := yaml.Unmarshal([]byte(one), &d.object); err != nil {
				return nil, fmt.Errorf("%s: %w", template, err)
			}
			if d.object.Kind == "" { // comments alone
				continue
			}
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b document) int {
		return cmp.Or(
			cmp.Compare(order(a), order(b)), cmp.Compare(a.template, b.template),
			cmp.Compare(a.object.Metadata.Name, b.object.Metadata.Name))
	})
	return list, nil
}

// kinds are those that others need, in Helm's order.
var kinds = []string{"NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap", "Service"}

func order(d document) int {
	switch i := slices.Index(kinds, d.object.Kind); {
	case strings.Contains(d.hook(), "pre-install"):
		return -1
	case d.hook() != "":
		return len(kinds) + 1
	case i >= 0:
		return i
	}
	return len(kinds)
}
