package policy

import (
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

// oracle returns the rights of a caller on a dataset as docs/formats.md defines them: those
// of the first rule that matches both.
func oracle(list []plainRule, principal string, groups []string, dataset string) map[string]bool {
	like := func(patterns []string, name string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, name); return ok })
	}
	for _, r := range list {
		named := principal != "" && like(slices.DeleteFunc(slices.Clone(r.principals), func(p string) bool {
			return p == "anonymous"
		}), principal)
		nameless := principal == "" && slices.Contains(r.principals, "anonymous")
		grouped := principal != "" && slices.ContainsFunc(groups, func(g string) bool { return like(r.groups, g) })
		if (named || nameless || grouped) && like(r.datasets, dataset) {
			granted := map[string]bool{}
			for _, right := range r.rights {
				granted[right], granted["list"] = true, true
				if right == "admin" {
					granted["read"], granted["write"], granted["drop"] = true, true, true
				}
			}
			return granted
		}
	}
	return nil
}

// plainRule is a rule in the words of the file.
type plainRule struct{ principals, groups, datasets, rights []string }

func (r plainRule) text() string {
	quoted := func(list []string) string { return `["` + strings.Join(list, `", "`) + `"]` }
	text := "  - {datasets: " + quoted(r.datasets) + ", rights: [" + strings.Join(r.rights, ", ") + "]"
	if r.principals != nil {
		text += ", principals: " + quoted(r.principals)
	}
	if r.groups != nil {
		text += ", groups: " + quoted(r.groups)
	}
	return text + "}\n"
}

// Each right on the server is a right on every dataset. Each right on every possible dataset is a right on the
// server, if a rule for "*" grants it.
func TestServerIsEveryDataset(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	some := func(of ...string) (list []string) {
		for _, one := range of {
			if r.IntN(len(of)) == 0 {
				list = append(list, one)
			}
		}
		return list
	}
	names := []string{"a", "b", "secret-1", "secret-2", "team-a-x", "team-b", "unheard-of", "zz"}
	granted, barred := 0, 0
	for range 20_000 {
		var list []plainRule
		text := "rules:\n"
		for range 1 + r.IntN(5) {
			one := plainRule{
				principals: some("ada", "bob", "*", "a*", "anonymous"), groups: some("ops", "o*", "team"),
				datasets: some("*", "*", "*", "secret-*", "team-?-x", "a", "zz"),
				rights:   some("list", "read", "write", "drop", "admin", "admin"),
			}
			one.datasets, one.rights = unique(one.datasets), unique(one.rights)
			if one.datasets == nil || one.principals == nil && one.groups == nil {
				continue
			}
			list = append(list, one)
			text += one.text()
		}
		if len(list) == 0 {
			continue
		}
		rs, err := Parse("r", []byte(text))
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		rs.Lint()
		who := Caller{Principal: []string{"", "ada", "bob", "eve"}[r.IntN(4)], Groups: some("ops", "team")}
		for _, right := range rightNames {
			every := true
			for _, name := range names {
				if is := oracle(list, who.Principal, who.Groups, name)[right.name]; rs.Decide(who,
					name).May(right.right) != is {
					t.Fatalf("%+v, %s on %s: want %t by\n%s", who, right.name, name, is, text)
				} else if !is {
					every = false
				}
			}
			switch is := rs.Server(who).May(right.right); {
			case is && !every:
				t.Fatalf("%+v has %s to the server, and not on all of %q, by\n%s", who, right.name, names, text)
			case !is && every && !strings.Contains(text, "team-?-x") && exact(list, who):
				t.Fatalf("%+v has %s on all of %q, and not to the server, by\n%s", who, right.name, names, text)
			case is:
				granted++
			default:
				barred++
			}
		}
	}
	if granted < 500 || barred < 500 {
		t.Errorf("%d rights were granted and %d were not", granted, barred)
	}
}

// exact reports whether each rule for a caller, up to the first for "*", decides for some name: none is shadowed.
func exact(list []plainRule, who Caller) bool {
	var before []string
	for _, r := range list {
		rule := Rule{Principals: r.principals, Groups: r.groups}
		if !rule.isFor(who) {
			continue
		}
		if slices.ContainsFunc(r.datasets, func(d string) bool { return slices.Contains(before, d) }) {
			return false
		}
		if slices.Contains(r.datasets, "*") {
			return true
		}
		before = append(before, r.datasets...)
	}
	return false
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// An administrator of all datasets except one has no admin right on the server. Lint
// reports that.
func TestServerLessWhatIsBarred(t *testing.T) {
	rs := parse(t, `
rules:
  - {name: sealed, principals: [ada, bob], datasets: ["secret-*"], rights: [list]}
  - {name: admins, groups: [ops], principals: [ada], datasets: ["*"], rights: [admin]}
`)
	if d := rs.Server(Caller{Principal: "ada"}); d.May(Admin) || !d.May(List) {
		t.Errorf("ada, whom the first rule bars, has %s to the server", d.Rights)
	}
	if d := rs.Server(Caller{Principal: "eve", Groups: []string{"ops"}}); !d.May(Admin) {
		t.Errorf("eve, for whom the first rule is not, has %s", d.Rights)
	}
	if got := rs.Lint(); len(got) != 1 || !strings.Contains(got[0].Message, `rule "sealed"`) ||
		!strings.Contains(got[0].Message, "administrators first") {
		t.Errorf("%+v", got)
	}
}
