package policy

import (
	"cmp"
	"slices"

	"bowstring/fetch/admission"
)

// DefaultTenant is on whose account those call who are in no other tenant.
const DefaultTenant = "default"

// Tenant is who gets a part of what the server has.
type Tenant struct {
	Name       string
	Principals []string // patterns
	Groups     []string // patterns; who is in one is meant, too
	Terms      admission.Terms
	Line       int // of the file, from 1; 0 where the file does not name it
}

// Tenants are those of a file, compiled. They are immutable and safe for concurrent use.
// A nil Tenants has each be a tenant that callers name, with equal terms and no ceilings.
type Tenants struct {
	list   []*Tenant // DefaultTenant last, if the file does not name it
	byName map[string]*Tenant
	// Names without * and ? are looked up, as there may be very many; of patterns each
	// is looked at. The values are indexes in list, the least if there are several.
	principals, groups named
}

// named finds the first tenant for a name.
type named struct {
	exact    map[string]int
	patterns []pattern // in the order of the file
}

type pattern struct {
	text   string
	tenant int
}

func (n *named) add(text string, tenant int) {
	if hasWildcard(text) {
		n.patterns = append(n.patterns, pattern{text, tenant})
		return
	}
	if _, ok := n.exact[text]; !ok {
		n.exact[text] = tenant
	}
}

// first returns the first tenant for a name, or most if none before that is.
func (n *named) first(name string, most int) int {
	if at, ok := n.exact[name]; ok {
		most = min(most, at)
	}
	for _, p := range n.patterns {
		if p.tenant >= most {
			break
		}
		if match(p.text, name) {
			return p.tenant
		}
	}
	return most
}

func compileTenants(list []*Tenant) *Tenants {
	ts := &Tenants{list: list, byName: map[string]*Tenant{}, principals: named{exact: map[string]int{}},
		groups: named{exact: map[string]int{}}}
	if !slices.ContainsFunc(list, func(t *Tenant) bool { return t.Name == DefaultTenant }) {
		ts.list = append(ts.list, &Tenant{Name: DefaultTenant, Terms: admission.Terms{Weight: 1}})
	}
	for i, t := range ts.list {
		ts.byName[t.Name] = t
		t.Terms.Several = len(ts.list) > 1
		for _, p := range t.Principals {
			ts.principals.add(p, i)
		}
		for _, g := range t.Groups {
			ts.groups.add(g, i)
		}
	}
	return ts
}

// For says on whose account a caller calls. named is the tenant that it has named, or that
// what let it in has, "" if none: it counts if the file has it. Otherwise the first
// tenant is the caller's that names it or one of its groups; and then the default one.
func (ts *Tenants) For(who Caller, named string) string {
	if ts == nil {
		return named
	}
	if ts.byName[named] != nil {
		return named
	}
	return cmp.Or(ts.member(who), DefaultTenant)
}

// member returns the first tenant that names the caller, "" if none does.
func (ts *Tenants) member(who Caller) string {
	none := len(ts.list)
	at := none
	if who.Principal == "" {
		at = ts.principals.first(anonymous, none)
	} else if who.Principal != anonymous {
		at = ts.principals.first(who.Principal, none)
		for _, g := range who.Groups {
			at = ts.groups.first(g, at)
		}
	}
	if at == none {
		return ""
	}
	return ts.list[at].Name
}

// Has reports whether a tenant names the caller, who may then call on its account.
func (ts *Tenants) Has(tenant string, who Caller) bool {
	if ts == nil || ts.byName[tenant] == nil {
		return false
	}
	t := ts.byName[tenant]
	r := Rule{Principals: t.Principals, Groups: t.Groups}
	return r.isFor(who)
}

// Terms are what a tenant gets. One that is not in the file, as it was when its streams
// began, gets what the default one does.
func (ts *Tenants) Terms(tenant string) admission.Terms {
	if ts == nil {
		return admission.Terms{}
	}
	if t := ts.byName[tenant]; t != nil {
		return t.Terms
	}
	return ts.byName[DefaultTenant].Terms
}

// List returns the tenants in the order of the file. The caller does not change them.
func (ts *Tenants) List() []*Tenant { return ts.list }

// Lint looks for what is likely not meant: tenants that nobody is in, and ceilings that
// leave others less than they may have.
func (ts *Tenants) Lint() []Finding {
	found := []Finding{}
	seen := map[string]string{}
	for _, t := range ts.list {
		line := max(t.Line, 1)
		if t.Line > 0 && t.Name != DefaultTenant && t.Principals == nil && t.Groups == nil {
			found = append(found, Finding{line, `tenant "` + t.Name +
				`" names nobody: only callers whose tokens name it are in it`})
		}
		for kind, list := range map[string][]string{"principal": t.Principals, "group": t.Groups} {
			for _, p := range list {
				if before, ok := seen[kind+p]; ok {
					found = append(found, Finding{line, `tenant "` + t.Name + `" names ` + kind + ` "` + p +
						`", who is in tenant "` + before + `" before`})
					continue
				}
				seen[kind+p] = t.Name
			}
		}
		if t.Line > 0 && t.Name == DefaultTenant && (t.Principals != nil || t.Groups != nil) {
			found = append(found,
				Finding{line, `tenant "default" is that of all who are in no other; it need name nobody`})
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
	return found
}
