package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

const someTenants = `
version: 1
tenants:
  - name: vision
    principals: [ada, "vision-*", anonymous]
    groups: [team-vision]
    weight: 4
    ceilings: {streams: 64, bytes_per_second: 500MB, windows: 50%, spill: 30%, evaluation: 25%, workers: 12.5%, reads: 40%}
  - {name: audio, principals: [bob, vision-bob], groups: ["team-*"]}
  - {name: batch}
`

func parsed(t *testing.T, text string) *Tenants {
	t.Helper()
	ts, err := ParseTenants("tenants.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestTenantsOf(t *testing.T) {
	ts := parsed(t, someTenants)
	for _, c := range []struct {
		who         Caller
		named, want string
	}{
		{Caller{Principal: "ada"}, "", "vision"},
		{Caller{Principal: "vision-x"}, "", "vision"},
		{Caller{Principal: "vision-bob"}, "", "vision"}, // the first in the file
		{Caller{Principal: "bob"}, "", "audio"},
		{Caller{Principal: "eve", Groups: []string{"team-vision"}}, "", "vision"},
		{Caller{Principal: "eve", Groups: []string{"team-x", "team-vision"}}, "", "vision"},
		{Caller{Principal: "eve", Groups: []string{"team-x"}}, "", "audio"},
		{Caller{Principal: "eve"}, "", "default"},
		{Caller{}, "", "vision"},
		{Caller{Principal: "anonymous"}, "", "default"},
		{Caller{Principal: "ada"}, "batch", "batch"},
		{Caller{Principal: "ada"}, "gone", "vision"},
		{Caller{Principal: "eve"}, "gone", "default"},
	} {
		if got := ts.For(c.who, c.named); got != c.want {
			t.Errorf("%+v, named %q: got %s, want %s", c.who, c.named, got, c.want)
		}
	}
	want := admission.Terms{Weight: 4, Streams: 64, BytesPerSecond: 500_000_000, Windows: 0.5, Spill: 0.3,
		Evaluation: 0.25, Workers: 0.125, Reads: 0.4, Several: true}
	if got := ts.Terms("vision"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ts.Terms("gone"); got != ts.Terms(DefaultTenant) || got.Weight != 1 {
		t.Errorf("a tenant that is gone gets %+v", got)
	}
	if !ts.Has("audio", Caller{Principal: "bob"}) || ts.Has("audio", Caller{Principal: "ada"}) ||
		ts.Has("gone", Caller{Principal: "ada"}) {
		t.Error("who may call on whose account")
	}
	var none *Tenants
	if none.For(Caller{Principal: "ada"}, "x") != "x" || none.Terms("x") != (admission.Terms{}) {
		t.Error("without a file")
	}
}

func TestTenantsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "the file is empty",
		"a: [":                              "this is no YAML",
		"version: 1":                        `there is no "tenants:"`,
		"tenants: x":                        "want a list",
		"tenants: [x]":                      "a tenant: want fields",
		"tenants: [{weight: 1}]":            "has no name",
		"tenants: [{name: 'a b'}]":          "want up to 128 letters",
		"tenants: [{name: a, wieght: 2}]":   `did you mean "weight"?`,
		"tenants: [{name: a}, {name: a}]":   "a second tenant",
		"tenants: [{name: a, weight: 0}]":   "from 1 to 1000",
		"tenants: [{name: a, weight: 1.5}]": "from 1 to 1000",
		"tenants: [{name: a, principals: [b, b]}]":               "again",
		"tenants: [{name: a, principals: []}]":                   "an empty list",
		"tenants: [{name: a, ceilings: {streams: 0}}]":           "streams: got",
		"tenants: [{name: a, ceilings: {windows: 0.5}}]":         "such as 25%",
		"tenants: [{name: a, ceilings: {windows: 0%}}]":          "more than 0%",
		"tenants: [{name: a, ceilings: {reads: NaN%}}]":          "more than 0%",
		"tenants: [{name: a, ceilings: {spill: 101%}}]":          "up to 100%",
		"tenants: [{name: a, ceilings: {bytes_per_second: -1}}]": "a size such as",
		"tenants: [{name: a, ceilings: {memory: 5%}}]":           "unknown field",
	} {
		_, err := ParseTenants("tenants.yaml", []byte(text))
		var fault *Error
		if !errors.As(err, &fault) || !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "tenants.yaml:") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// Very many principals cost one look-up each, and no comparison with all others.
func TestTenantsOfManyPrincipals(t *testing.T) {
	var b strings.Builder
	b.WriteString("tenants:\n")
	for i := range 100 {
		fmt.Fprintf(&b, "  - {name: t%d, principals: [", i)
		for j := range 100 {
			fmt.Fprintf(&b, "p%d, ", 100*i+j)
		}
		b.WriteString("'*-x']}\n")
	}
	ts := parsed(t, b.String())
	for i := range 10_000 {
		if got, want := ts.For(Caller{Principal: fmt.Sprintf("p%d", i)}, ""), fmt.Sprintf("t%d", i/100); got != want {
			t.Fatalf("p%d: got %s, want %s", i, got, want)
		}
	}
	if got := ts.For(Caller{Principal: "p-x"}, ""); got != "t0" {
		t.Errorf("by pattern: %s", got)
	}
}

func TestTenantsLint(t *testing.T) {
	found := parsed(t, someTenants+"  - {name: default, principals: [ada]}\n").Lint()
	var all []string
	for _, f := range found {
		all = append(all, fmt.Sprintf("%d: %s", f.Line, f.Message))
	}
	got := strings.Join(all, "\n")
	for _, want := range []string{`10: tenant "batch" has no principals`,
		`11: tenant "default" names principal "ada", who is in tenant "vision" before`, `it needs no principals`} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
}
