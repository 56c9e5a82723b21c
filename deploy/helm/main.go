// Command helm renders Bowstring's chart as `helm template` does, by Helm's own library.
//
//	helm --values FILE [--kube 1.36] [--name bowstring] [--namespace default] CHART
//
// It prints YAML documents in the order in which Helm would apply them, those of hooks first.
// It is for the tests; people have Helm.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
)

func main() {
	o := options{}
	var values files
	flag.Var(&values, "values", "`FILE` of values; more of them override")
	flag.StringVar(&o.kube, "kube", "", "`VERSION` of Kubernetes (default: Helm's)")
	flag.StringVar(&o.name, "name", "bowstring", "`NAME` of the release")
	flag.StringVar(&o.namespace, "namespace", "default", "`NAMESPACE` of the release")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn) // Helm says of each link that it is one
	if err := run(o, values, flag.Args()); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func run(o options, values, args []string) error {
	if len(args) != 1 {
		return errors.New("want the chart's directory")
	}
	o.chart = args[0]
	for _, path := range values {
		if err := o.read(path); err != nil {
			return err
		}
	}
	documents, err := render(o)
	if err != nil {
		return err
	}
	for _, d := range documents {
		if _, err := fmt.Printf("---\n# %s\n%s\n", d.template, d.text); err != nil {
			return err
		}
	}
	return nil
}

// files is a flag that may be given several times.
type files []string

func (f *files) String() string { return strings.Join(*f, ",") }

// Set is called by flag.
func (f *files) Set(path string) error {
	*f = append(*f, path)
	return nil
}
