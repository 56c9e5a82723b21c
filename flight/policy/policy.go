package policy

import (
	"fmt"
	"slices"
	"strings"

	"bowstring/schema"
)

// Right is something that a caller may do with a dataset, or several such things.
type Right uint8

// The rights. Each of the others includes List.
const (
	List  Right = 1 << iota // see that it is there: listings, its record, its schema, counts of rows
	Read                    // see its rows, and select among them
	Write                   // commit snapshots of it
	Drop                    // drop it or its snapshots
	Admin                   // all of it, and see and end what others do with it

	all = List | Read | Write | Drop | Admin
)

var rightNames = []struct {
	name  string
	right Right
	grant Right // with what it includes
}{
	{"list", List, List},
	{"read", Read, Read | List},
	{"write", Write, Write | List},
	{"drop", Drop, Drop | List},
	{"admin", Admin, all},
}

// String lists the names of the rights, separated by commas.
func (r Right) String() string {
	var names []string
	for _, n := range rightNames {
		if r&n.right != 0 {
			names = append(names, n.name)
		}
	}
	if names == nil {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

// Rule grants rights on datasets to principals.
type Rule struct {
	Name       string   // for people; may be ""
	Principals []string // patterns
	Groups     []string // patterns; who is in one is meant, too
	Datasets   []string // patterns
	Rights     Right
	// Restriction is what of the datasets can be seen; nil stands for all.
	Restriction *schema.Restriction
	Line        int // of the file, from 1
}

// String names the rule for people.
func (r *Rule) String() string {
	if r.Name == "" {
		return fmt.Sprintf("rule on line %d", r.Line)
	}
	return fmt.Sprintf("rule %q on line %d", r.Name, r.Line)
}

// Caller is a caller.
type Caller struct {
	Principal string // "" is nobody who has a name
	Groups    []string
}

// isFor reports whether the rule is for a caller.
func (r *Rule) isFor(who Caller) bool {
	if who.Principal == "" {
		return slices.Contains(r.Principals, anonymous)
	}
	for _, p := range r.Principals {
		if p != anonymous && match(p, who.Principal) {
			return true
		}
	}
	return slices.ContainsFunc(who.Groups, func(g string) bool { return anyMatch(r.Groups, g) })
}

// Rules are those of a file, compiled. They are immutable and safe for concurrent use. A
// nil Rules grants everything to everybody: there is no file.
type Rules struct {
	rules []*Rule
}

// Decision is what a caller may do with a dataset.
type Decision struct {
	Rights Right
	// Restriction is what of the rows and columns exists for the caller; nil: all.
	Restriction *schema.Restriction
	// Rule is the one that says so; nil if none is for the caller and the dataset, or
	// there is no file.
	Rule *Rule
}

// May reports whether all these rights are granted.
func (d Decision) May(rights Right) bool { return d.Rights&rights == rights }

// Same reports whether two decisions grant the same.
func (d Decision) Same(other Decision) bool {
	return d.Rights == other.Rights && d.Restriction.Key() == other.Restriction.Key()
}

// Decide says what a caller may do with a dataset, whether there is one of that name or
// not. It costs a look at each rule up to the one that decides.
func (rs *Rules) Decide(who Caller, dataset string) Decision {
	if rs == nil {
		return Decision{Rights: all}
	}
	for _, r := range rs.rules {
		if r.isFor(who) && anyMatch(r.Datasets, dataset) {
			return Decision{r.Rights, r.Restriction, r}
		}
	}
	return Decision{}
}

// Server says what a caller may do with the server as a whole, that is, with every dataset,
// those to come included: what the first rule grants that is for the caller and for the
// dataset pattern "*", less what an earlier rule for the caller does not grant on datasets
// of its own. So it never grants what Decide does not for some name.
func (rs *Rules) Server(who Caller) Decision {
	if rs == nil {
		return Decision{Rights: all}
	}
	rights := all
	for _, r := range rs.rules {
		if !r.isFor(who) {
			continue
		}
		if rights &= r.Rights; slices.Contains(r.Datasets, everything) {
			return Decision{rights, r.Restriction, r}
		}
	}
	return Decision{}
}

// List returns the rules in order. The caller does not change them.
func (rs *Rules) List() []*Rule { return rs.rules }
