package policy

import (
	"fmt"
	"slices"
)

// Finding is a valid entry of a file that the operator has probably not meant.
type Finding struct {
	Line    int
	Message string
}

// Lint reports rules that never decide because earlier rules cover them, rules that grant
// every principal more than read, and rules of administrators that an earlier rule
// narrows.
func (rs *Rules) Lint() []Finding {
	found := []Finding{}
	add := func(r *Rule, format string, args ...any) {
		found = append(found, Finding{r.Line, r.String() + " " + fmt.Sprintf(format, args...)})
	}
	admin := false
	// The cost is quadratic in the rules, but Lint runs only in commands that
	// check a file.
	for i, r := range rs.rules {
		for _, before := range rs.rules[:i] {
			if before.shadows(r) {
				add(r, "never decides: the %s is for all that it is for, and the first one decides; put the "+
					"narrower one first", before)
				break
			}
		}
		if slices.Contains(r.Principals, everything) && r.Rights&(Write|Drop|Admin) != 0 {
			add(r, "lets everybody who has a name %s", r.Rights&(Write|Drop|Admin))
		}
		if slices.Contains(r.Principals, anonymous) && r.Rights&(Write|Drop|Admin) != 0 {
			add(r, "lets callers without a name %s", r.Rights&(Write|Drop|Admin))
		}
		if slices.Contains(r.Groups, anonymous) {
			add(r, "names a group %q: callers without a name are in no group; they are principals: [%[1]s]", anonymous)
		}
		if r.Rights&Admin != 0 && slices.Contains(r.Datasets, everything) {
			admin = true
			if before := rs.narrower(i); before != nil {
				add(r, "grants admin on the datasets \"*\", and the %s decides before it on some of them without "+
					"admin: callers that both are for cannot collect garbage or see what the server as a whole does; put "+
					"the rule of administrators first", before)
			}
		}
	}
	// A file without administrators is valid, but it cannot be maintained through the
	// server.
	if !admin {
		found = append(found,
			Finding{1,
				`no rule grants admin on the datasets "*": no principal can collect garbage or see what the server as a whole does`})
	}
	return found
}

// narrower returns the first rule before rule i that grants no admin and may match a
// caller of rule i; nil if there is none.
func (rs *Rules) narrower(i int) *Rule {
	r := rs.rules[i]
	for _, before := range rs.rules[:i] {
		if before.Rights&Admin == 0 && (overlap(before.Principals, r.Principals) || overlap(before.Groups, r.Groups) ||
			len(r.Groups) > 0 && slices.Contains(before.Principals, everything)) {
			return before
		}
	}
	return nil
}

// overlap reports whether a pattern of one list covers a pattern of the other.
func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool {
		return slices.ContainsFunc(b, func(y string) bool {
			return (x == anonymous) == (y == anonymous) && (covers(x, y) || covers(y, x))
		})
	})
}

// shadows reports whether the rule matches every caller and dataset that the other one
// matches.
func (r *Rule) shadows(other *Rule) bool {
	within := func(narrow, wide []string) bool {
		return !slices.ContainsFunc(narrow, func(n string) bool {
			return !slices.ContainsFunc(wide, func(w string) bool { return covers(w, n) })
		})
	}
	principals := slices.DeleteFunc(slices.Clone(r.Principals), func(p string) bool { return p == anonymous })
	named := slices.DeleteFunc(slices.Clone(other.Principals), func(p string) bool { return p == anonymous })
	if len(named) < len(other.Principals) && len(principals) == len(r.Principals) {
		return false // it alone is for callers without a name
	}
	// A member of a group has a name, which the principal pattern "*" matches.
	everybody := slices.Contains(principals, everything)
	return within(other.Datasets, r.Datasets) && within(named, principals) &&
		(everybody || within(other.Groups, r.Groups))
}
