package policy

import (
	"cmp"
	"slices"

	"bowstring/fetch/admission"
)

// DefaultTenant is the tenant of callers that belong to no other tenant.
const DefaultTenant = "default"

// Tenant is an account with its share and its limits. It is immutable after ParseTenants.
type Tenant struct {
	Name       string
	Principals []string // patterns
	Groups     []string // patterns; a principal in one of the groups belongs, too
	Terms      admission.Terms
	Line       int // of the file, from 1; 0 if the file does not name the tenant
}

// Tenants are the compiled tenants of a file. They are immutable and safe for concurrent
// use. With a nil Tenants, that is, no file, each name that a caller gives is a tenant of
// its own, with equal weight and no limits.
type Tenants struct {
	list   []*Tenant // in the order of the file; DefaultTenant is last if the file does not name it
	byName map[string]*Tenant
	// Names without * and ? are in a hash table, because there may be very many; patterns
	// are tried one by one. The values are indexes in list, the least one if several
	// tenants match.
	principals, groups named
}

// named finds the first tenant, in the order of the file, for a name.
type named struct {
	exact    map[string]int
	patterns []pattern // in the order of the file
}

// pattern is a pattern with wildcards, and the index of its tenant.
type pattern struct {
	text   string
	tenant int
}

// add adds a name or a pattern of a tenant. Tenants are added in the order of the file, so
// an exact name keeps the first tenant that has it.
func (n *named) add(text string, tenant int) {
	if hasWildcard(text) {
		n.patterns = append(n.patterns, pattern{text, tenant})
		return
	}
	if _, ok := n.exact[text]; !ok {
		n.exact[text] = tenant
	}
}

// first returns the first tenant for a name that is before most, or else most. Patterns
// are in the order of the file, so the search ends at the first pattern of a later
// tenant.
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

// compileTenants indexes the tenants. It adds DefaultTenant if the file leaves it out, so
// that every caller has a tenant.
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

// For returns the tenant that a call is charged to. named is the tenant that the call or
// its token names, "" if none: it is used if the file has it. Otherwise the first tenant
// that matches the caller or one of its groups is used, and last DefaultTenant. If ts is
// nil, the result is named. For does not check that the caller may use named: see Has.
func (ts *Tenants) For(who Caller, named string) string {
	if ts == nil {
		return named
	}
	if ts.byName[named] != nil {
		return named
	}
	return cmp.Or(ts.member(who), DefaultTenant)
}

// member returns the first tenant that matches the caller, "" if none does.
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

// Has reports whether a tenant matches the caller, who may then name it in calls.
func (ts *Tenants) Has(tenant string, who Caller) bool {
	if ts == nil || ts.byName[tenant] == nil {
		return false
	}
	t := ts.byName[tenant]
	r := Rule{Principals: t.Principals, Groups: t.Groups}
	return r.isFor(who)
}

// Terms returns the weight and the limits of a tenant. If a reload has removed the tenant
// while its streams run, it gets those of DefaultTenant.
func (ts *Tenants) Terms(tenant string) admission.Terms {
	if ts == nil {
		return admission.Terms{}
	}
	if t := ts.byName[tenant]; t != nil {
		return t.Terms
	}
	return ts.byName[DefaultTenant].Terms
}

// List returns the tenants in the order of the file. The caller must not change them.
func (ts *Tenants) List() []*Tenant { return ts.list }

// Lint reports what the operator has probably not meant: tenants without members, members
// that an earlier tenant has already, and members of DefaultTenant, which needs none.
// Findings are sorted by line.
func (ts *Tenants) Lint() []Finding {
	found := []Finding{}
	seen := map[string]string{}
	for _, t := range ts.list {
		line := max(t.Line, 1)
		if t.Line > 0 && t.Name != DefaultTenant && t.Principals == nil && t.Groups == nil {
			found = append(found, Finding{line, `tenant "` + t.Name +
				`" has no principals and no groups: only callers whose tokens name it are in it`})
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
				Finding{line, `tenant "default" is for all callers without another tenant; it needs no principals or groups`})
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
	return found
}
