package policy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const example = `
version: 1
rules:
  - name: operators
    groups: [ops]
    datasets: ["*"]
    rights: [admin]
  - name: barred
    principals: [mallory]
    datasets: ["*"]
    rights: []
  - name: team-a
    principals: ["svc-a-*", ada]
    groups: [team-a]
    datasets: [imagenet, "a-*"]
    rights: [read]
    where: 'tenant == "a"'
    columns: [id, label, image]
  - name: everybody
    principals: ["*"]
    datasets: [public, "a-?"]
    rights: [read, write]
  - name: stranger
    principals: [anonymous]
    datasets: [public]
    rights: [list]
`

func parse(t *testing.T, text string) *Rules {
	t.Helper()
	rs, err := Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func TestDecide(t *testing.T) {
	rs := parse(t, example)
	for _, tt := range []struct {
		principal, groups, dataset string
		may, rule, where           string
	}{
		{"root", "ops", "anything", "list, read, write, drop, admin", "operators", ""},
		{"mallory", "", "public", "nothing", "barred", ""},
		{"mallory", "ops", "public", "list, read, write, drop, admin", "operators", ""}, // the first decides
		{"ada", "", "imagenet", "list, read", "team-a", `tenant == "a"`},
		{"ada", "", "a-1", "list, read", "team-a", `tenant == "a"`}, // not everybody's
		{"svc-a-", "", "a-", "list, read", "team-a", `tenant == "a"`},
		{"svc-b-1", "team-a", "a-x", "list, read", "team-a", `tenant == "a"`},
		{"svc-b-1", "", "a-x", "list, read, write", "everybody", ""},
		{"svc-b-1", "", "a-xy", "nothing", "", ""},
		{"svc-b-1", "", "imagenet", "nothing", "", ""},
		{"", "", "public", "list", "stranger", ""},
		{"", "", "a-x", "nothing", "", ""},
		{"anonymous", "", "public", "list, read, write", "everybody", ""}, // it has a name
	} {
		var groups []string
		if tt.groups != "" {
			groups = []string{tt.groups}
		}
		d := rs.Decide(Caller{tt.principal, groups}, tt.dataset)
		rule, where := "", ""
		if d.Rule != nil {
			rule = d.Rule.Name
		}
		if d.Restriction != nil {
			where = d.Restriction.Where
		}
		if d.Rights.String() != tt.may || rule != tt.rule || where != tt.where {
			t.Errorf("%+v: %s by %q, where %q", tt, d.Rights, rule, where)
		}
	}
	if !rs.Server(Caller{"x", []string{"ops"}}).May(Admin) || rs.Server(Caller{"ada", nil}).May(List) ||
		rs.Server(Caller{}).May(List) {
		t.Error("rights to the server")
	}
	var none *Rules
	if d := none.Decide(Caller{}, "d"); !d.May(Admin|Write) || !none.Server(Caller{}).May(Admin) || d.Rule != nil ||
		d.Restriction != nil {
		t.Errorf("without a file: %+v", d)
	}
	if d := parse(t, "rules: []").Decide(Caller{"root", nil}, "d"); d.Rights != 0 {
		t.Errorf("an empty list grants %s", d.Rights)
	}
}

// An error has the place of the mistake and the correct form.
func TestErrors(t *testing.T) {
	const ok = "rules:\n  - principals: [a]\n    datasets: [d]\n    rights: [read]\n"
	for _, tt := range []struct{ text, place, says string }{
		{"", "1:1", "empty"},
		{"rules", "1:1", "want fields"},
		{"version: 1", "1:1", `no "rules:"`},
		{"version: 2\nrules: []", "1:10", "want 1"},
		{"rulez: []", "1:1", `did you mean "rules"?`},
		{"rules: []\nrules: []", "2:1", "twice"},
		{"rules: 3", "1:8", "want a list"},
		{"rules: [a: [}", "1:1", "no YAML"},
		{"rules:\n\t- a", "2:1", "no YAML"},
		{"rules: []\n---\nrules: []", "1:1", "several documents"},
		{"rules:\n  - {}", "2:5", "matches no caller"},
		{"rules:\n  - principals: [a]", "2:5", "for no dataset"},
		{"rules:\n  - {principals: [a], datasets: [d]}", "2:5", "no rights"},
		{"rules:\n  - {principals: [], datasets: [d], rights: []}", "2:18", "empty list"},
		{"rules:\n  - {principals: a, datasets: [d], rights: []}", "2:18", "want a list, such as principals: [a]"},
		{"rules:\n  - {principals: [a, a], datasets: [d], rights: []}", "2:22", "again"},
		{"rules:\n  - {principals: [[a]], datasets: [d], rights: []}", "2:19", "want text"},
		{"rules:\n  - {principals: [a], datasets: ['d/*'], rights: []}", "2:34", "want a name"},
		{"rules:\n  - {principals: [a], datasets: ['d@3'], rights: []}", "2:34", "all snapshots"},
		{"rules:\n  - {principals: [a], datasets: [d], rights: [raed]}", "2:47", `did you mean "read"?`},
		{"rules:\n  - {principals: [a], datasets: [d], right: [read]}", "2:38", `did you mean "rights"?`},
		{ok + "    where: 'label =='\n", "5:", "where"},
		{ok + "    where: ''\n", "5:12", "leave the field out"},
		{ok + "    columns: []\n", "5:14", "shows nothing"},
		{ok + "    columns: [position]\n", "5:15", "left out"},
		{ok + "    columns: ['im*']\n", "5:15", "no patterns"},
		{ok + "    name: x\n  - {name: x, principals: [a], datasets: [d], rights: []}", "6:5", "each name once"},
		{"rules:\n  - {principals: [a], datasets: [d], rights: [write], where: 'a == 1'}", "2:62",
			"list and read at most"},
		{"rules:\n  - {principals: [a], datasets: [d], rights: [admin], columns: [a]}", "2:64",
			"list and read at most"},
		{"rules: &r [*r]", "1:", "rule"},
		{"\xff", "1:1", "UTF-8"},
	} {
		_, err := Parse("r.yaml", []byte(tt.text))
		if err == nil {
			t.Errorf("%q was taken", tt.text)
			continue
		}
		if e := new(Error); !errors.As(err, &e) || !errors.Is(err, schema.ErrInvalid) ||
			!strings.HasPrefix(err.Error(), "r.yaml:"+tt.place) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v; want it at %s, and %q", tt.text, err, tt.place, tt.says)
		}
	}
}

func TestLint(t *testing.T) {
	if got := parse(t, example).Lint(); len(got) != 1 ||
		!strings.Contains(got[0].Message, "lets everybody who has a name write") {
		t.Errorf("%+v", got)
	}
	got := fmt.Sprint(parse(t, `
rules:
  - {principals: ["*"], datasets: ["a*"], rights: [read]}
  - {principals: [ada], groups: [g], datasets: ["ab*", a], rights: [write]}
  - {principals: [anonymous], datasets: [a], rights: [drop]}
  - {groups: [anonymous], datasets: [b], rights: [read]}
`).Lint())
	for _, want := range []string{"rule on line 4 never decides: the rule on line 3",
		"lets callers without a name drop", "no group", "no rule grants admin"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not said: %s", want, got)
		}
	}
	if strings.Contains(got, "line 5 never") {
		t.Errorf("a rule for callers without a name is not shadowed: %s", got)
	}
}

// Patterns match as path.Match does for names without a slash. They take little time,
// whatever the pattern is.
func TestMatch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	word := func(letters string) string {
		b := make([]byte, r.IntN(8))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	matched := 0
	for range 20_000 {
		pattern, name := word("ab*?"), word("ab")
		want, err := path.Match(pattern, name)
		if err != nil {
			t.Fatal(err)
		}
		if got := match(pattern, name); got != want {
			t.Fatalf("%q of %q: %t, want %t", name, pattern, got, want)
		}
		if want {
			matched++
		}
		// covers holds name by name: if a wide pattern covers a narrow one, it matches each name that the narrow one matches.
		if other := word("ab*?"); covers(other, pattern) && want && !match(other, name) {
			t.Fatalf("%q is said to cover %q, and not %q", other, pattern, name)
		}
	}
	if matched < 100 {
		t.Errorf("only %d matched", matched)
	}
	if match(strings.Repeat("a*", 500)+"b", strings.Repeat("a", 1000)) {
		t.Error("matched")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("rules: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		rs, err := Parse("f", []byte(text))
		if (rs == nil) == (err == nil) {
			t.Fatal(rs, err)
		}
		if rs != nil {
			rs.Decide(Caller{"a", []string{"b"}}, "d")
			rs.Lint()
		}
	})
}
