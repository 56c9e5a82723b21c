package policy

import (
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"gopkg.in/yaml.v3"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

const (
	// maxTenants bounds the tenants of a file.
	maxTenants = 10_000
	// maxWildcards bounds the patterns with * or ? of all tenants. For is linear in them
	// for each call; names without wildcards are in a hash table, and are bounded by the
	// file's size alone.
	maxWildcards = 10_000
)

// hasWildcard reports whether a pattern must be matched one by one.
func hasWildcard(p string) bool { return strings.ContainsAny(p, "*?") }

// ParseTenants compiles the text of a file of tenants. file is its name in messages.
// Errors are of type *Error. docs/formats.md describes the file.
func ParseTenants(file string, text []byte) (*Tenants, error) {
	p := &parser{file: file, kind: "tenants"}
	root, err := p.document(text, `the file is empty, want "tenants:" and a list`)
	if err != nil {
		return nil, err
	}
	var list *yaml.Node
	err = p.mapping(root, "the file", map[string]func(*yaml.Node) error{
		"version": p.version,
		"tenants": func(n *yaml.Node) error {
			if n.Kind != yaml.SequenceNode {
				return p.fail(n, `tenants: want a list, such as "- {name: vision, principals: [ada], weight: 2}"`)
			}
			list = n
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	if list == nil {
		return nil, p.fail(root, `there is no "tenants:", want it with a list`)
	}
	if len(list.Content) > maxTenants {
		return nil, p.fail(list, "%d tenants, want at most %d", len(list.Content), maxTenants)
	}
	var tenants []*Tenant
	// Names may not repeat: statistics and usage are by name.
	lines, wildcards := map[string]int{}, 0
	for _, n := range list.Content {
		t, err := p.tenant(n)
		if err != nil {
			return nil, err
		}
		if before := lines[t.Name]; before > 0 {
			return nil, p.fail(n, "a second tenant is named %q, the first one on line %d; want each name once", t.Name,
				before)
		}
		lines[t.Name] = t.Line
		for _, list := range [][]string{t.Principals, t.Groups} {
			for _, name := range list {
				if hasWildcard(name) {
					wildcards++
				}
			}
		}
		if wildcards > maxWildcards {
			return nil, p.fail(n, "%d patterns with * or ?, want at most %d: groups make them fewer", wildcards,
				maxWildcards)
		}
		tenants = append(tenants, t)
	}
	return compileTenants(tenants), nil
}

// tenant reads one tenant. Shares are kept as fractions of 1, rates in bytes a second.
func (p *parser) tenant(n *yaml.Node) (*Tenant, error) {
	t := &Tenant{Line: n.Line, Terms: admission.Terms{Weight: 1}}
	// An absent ceiling stays zero, which means no limit.
	c := &t.Terms
	share := func(field string, to *float64) func(*yaml.Node) error {
		return func(n *yaml.Node) (err error) { *to, err = p.share(field, n); return err }
	}
	err := p.mapping(n, "a tenant", map[string]func(*yaml.Node) error{
		"name":       func(n *yaml.Node) (err error) { t.Name, err = p.text("name", n); return err },
		"principals": func(n *yaml.Node) (err error) { t.Principals, err = p.members("principals", n); return err },
		"groups":     func(n *yaml.Node) (err error) { t.Groups, err = p.members("groups", n); return err },
		"weight": func(n *yaml.Node) (err error) {
			c.Weight, err = p.number("weight", n, 1_000)
			return err
		},
		"ceilings": func(n *yaml.Node) error {
			return p.mapping(n, "ceilings", map[string]func(*yaml.Node) error{
				"streams": func(n *yaml.Node) error {
					v, err := p.number("streams", n, 1<<20)
					c.Streams = int(v)
					return err
				},
				"bytes_per_second": func(n *yaml.Node) (err error) {
					c.BytesPerSecond, err = p.bytes("bytes_per_second", n)
					return err
				},
				"windows":    share("windows", &c.Windows),
				"spill":      share("spill", &c.Spill),
				"evaluation": share("evaluation", &c.Evaluation),
				"workers":    share("workers", &c.Workers),
				"reads":      share("reads", &c.Reads),
			})
		},
	})
	switch {
	case err != nil:
		return nil, err
	case t.Name == "":
		return nil, p.fail(n, "the tenant has no name, want one, such as name: vision")
	case !tenantName(t.Name):
		return nil, p.fail(n, "name: got %s, want up to 128 letters, digits and . _ @ : / -", schema.Quote(t.Name))
	}
	return t, nil
}

// tenantName reports whether tokens and callers can carry the name: it is
// auth.TenantForm, which this package cannot import.
func tenantName(name string) bool {
	return len(name) <= 128 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
			!strings.ContainsRune("._@:/-", r)
	})
}

// members reads names and patterns. They are checked for repeats with a map, unlike list,
// because a tenant may have as many as the file has room for.
func (p *parser) members(field string, n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, p.fail(n, "%s: want a list, such as %s: [%s]", field, field, n.Value)
	}
	if len(n.Content) == 0 {
		return nil, p.fail(n, "%s: an empty list matches no caller, want names, or the field left out", field)
	}
	out, seen := make([]string, 0, len(n.Content)), make(map[string]bool, len(n.Content))
	for _, item := range n.Content {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		v, err := p.text(field, item)
		switch {
		case err != nil:
			return nil, err
		case len(v) > maxPattern:
			return nil, p.fail(item, "%s: %d bytes, want at most %d", field, len(v), maxPattern)
		case seen[v]:
			return nil, p.fail(item, "%s: %s again, want each once", field, schema.Quote(v))
		}
		seen[v] = true
		out = append(out, v)
	}
	return out, nil
}

// number reads an integer from 1 to most.
func (p *parser) number(field string, n *yaml.Node, most int64) (int64, error) {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil || n.Kind != yaml.ScalarNode || v < 1 || v > most {
		return 0, p.fail(n, "%s: got %s, want a number from 1 to %d", field, schema.Quote(n.Value), most)
	}
	return v, nil
}

// bytes reads a size such as 200MB or 1GiB, in bytes.
func (p *parser) bytes(field string, n *yaml.Node) (int64, error) {
	v, err := humanize.ParseBytes(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode || v < 1 || v > 1<<50 {
		return 0, p.fail(n, "%s: got %s, want a size such as 200MB", field, schema.Quote(n.Value))
	}
	return int64(v), nil
}

// share reads a percentage and returns it as a fraction of 1. The sign is required: 0.5
// could mean half or half a percent.
func (p *parser) share(field string, n *yaml.Node) (float64, error) {
	text, percent := strings.CutSuffix(n.Value, "%")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || n.Kind != yaml.ScalarNode || !percent || !(v > 0 && v <= 100) {
		return 0, p.fail(n, "%s: got %s, want a share of more than 0%% and up to 100%%, such as 25%%", field,
			schema.Quote(n.Value))
	}
	return v / 100, nil
}
