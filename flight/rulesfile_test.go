package flight

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/flight/auth"
	"bowstring/flight/policy"
)

// A file of rules is used after it has changed and was read twice. A wrong one changes
// nothing, and the log has the reason and the place once.
func TestRulesFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var buf lockedBuffer
	log := slog.New(slog.NewTextHandler(&buf, nil))
	if _, err := openRules(name, nil, log); err == nil {
		t.Error("a file that is not there was opened")
	}
	const first = "rules:\n  - {principals: [ada], datasets: [d], rights: [read], where: 'a == 1'}\n"
	write("rules:\n  - {principals: [ada]}")
	if _, err := openRules(name, nil, log); err == nil ||
		!strings.Contains(err.Error(), name+":2:5: the rule is for no dataset") {
		t.Error(err)
	}
	write(first)
	f, err := openRules(name, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	rights := func() string { return f.Current().Load().Decide(policy.Caller{Principal: "ada"}, "d").Rights.String() }
	if f.Check(t.Context()) || rights() != "list, read" {
		t.Error("it has not changed")
	}
	write(strings.Replace(first, "[read], where: 'a == 1'", "[write]", 1))
	if f.Check(t.Context()) || rights() != "list, read" {
		t.Error("a text that may be half written was taken")
	}
	if !f.Check(t.Context()) || rights() != "list, write" {
		t.Error("a changed text was not taken:", rights())
	}
	write("rules:\n  - {principals: [ada], datasets: [d], rights: [raed]}\n")
	for range 3 {
		if f.Check(t.Context()) || rights() != "list, write" {
			t.Error("a wrong text was taken:", rights())
		}
	}
	if n := strings.Count(buf.String(), "did you mean"); n != 1 || !strings.Contains(buf.String(), ":2:49") {
		t.Errorf("said %d times: %s", n, &buf)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if f.Check(t.Context()) || rights() != "list, write" {
		t.Error("a file that has gone was taken")
	}
	write(first)
	if f.Check(t.Context()); !f.Check(t.Context()) || rights() != "list, read" {
		t.Error("the right text was not taken:", rights())
	}
}

// A file that has another text at each read counts as unreadable: its first text does not
// stay in force for ever. A file that changes twice in a row is readable.
func TestRulesFileThatChangesAlways(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(n int) {
		t.Helper()
		text := fmt.Sprintf("# %d\nrules:\n  - {principals: [ada], datasets: [d], rights: [read]}\n", n)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	sources := auth.NewSources(0, log)
	write(0)
	f, err := openRules(name, sources, log)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= auth.MostTexts; n++ {
		write(n)
		if f.Check(t.Context()) || sources.Closed() != nil {
			t.Fatalf("after %d changes: %v", n, sources.Closed())
		}
	}
	for n := auth.MostTexts + 1; n < auth.MostTexts+5; n++ {
		write(n)
		if f.Check(t.Context()) || sources.Closed() == nil {
			t.Fatalf("after %d changes in a row the first text holds", n)
		}
	}
	if !f.Check(t.Context()) || sources.Closed() != nil {
		t.Errorf("a text that stays is not taken: %v", sources.Closed())
	}
}

func openRules(name string, sources *auth.Sources, log *slog.Logger) (*auth.File[policy.Rules], error) {
	return auth.OpenFile("rules", name, policy.Parse, func(rs *policy.Rules) int { return len(rs.List()) }, sources, log)
}
