package policy

import (
	"fmt"
	"slices"
	"strings"

	"bowstring/schema"
)

// Right is a set of rights on a dataset, one bit each.
type Right uint8

// The rights. Each of the others includes List.
const (
	List  Right = 1 << iota // see that the dataset exists: listings, its record, schema and row counts
	Read                    // see its rows, and select among them
	Write                   // commit snapshots of it
	Drop                    // drop it or its snapshots
	Admin                   // all of the above, and see and cancel the calls of others on it

	all = List | Read | Write | Drop | Admin
)

// rightNames are the rights by the names that files use, in the order of messages.
var rightNames = []struct {
	name  string
	right Right
	grant Right // the right, with the rights that it includes
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

// Rule grants rights on datasets to principals. It is immutable after Parse.
type Rule struct {
	Name       string   // for people; may be ""
	Principals []string // patterns
	Groups     []string // patterns; a principal in one of the groups matches, too
	Datasets   []string // patterns
	Rights     Right
	// Restriction hides rows and columns of the datasets; nil hides nothing.
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

// Caller is the principal and the groups of a call, as package auth has established them.
type Caller struct {
	Principal string // "" for an anonymous caller
	Groups    []string
}

// isFor reports whether the rule matches a caller. An anonymous caller matches only the
// pattern "anonymous", never "*": a rule for all principals does not open the server to
// callers without a token.
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

// Rules are the compiled rules of a file. They are immutable and safe for concurrent use.
// A nil Rules, that is, no file, grants every right to every caller.
type Rules struct {
	rules []*Rule
}

// Decision holds the rights of a caller on a dataset.
type Decision struct {
	Rights Right
	// Restriction hides rows and columns from the caller; nil hides nothing.
	Restriction *schema.Restriction
	// Rule is the rule that decided; nil if no rule matches, or there is no file.
	Rule *Rule
}

// May reports whether the decision grants all of rights.
func (d Decision) May(rights Right) bool { return d.Rights&rights == rights }

// Same reports whether two decisions grant the same rights on the same rows and columns.
// The rules that decided may differ.
func (d Decision) Same(other Decision) bool {
	return d.Rights == other.Rights && d.Restriction.Key() == other.Restriction.Key()
}

// Decide returns the rights of a caller on a dataset. The dataset need not exist. The
// cost is linear in the rules up to the one that decides.
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

// Server returns the rights of a caller on the server as a whole, that is, on every
// present and future dataset. It is the grant of the first rule that matches the caller
// and has the dataset pattern "*", minus each right that an earlier rule for the caller
// withholds on its own datasets. Therefore Server never grants a right that Decide denies
// for some dataset.
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

// List returns the rules in the order of the file. The caller must not change them.
func (rs *Rules) List() []*Rule { return rs.rules }
