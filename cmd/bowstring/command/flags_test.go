package command

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// settingsIn are the settings that a configuration file with a text has.
func settingsIn(t *testing.T, text string) settings {
	t.Helper()
	path := t.TempDir() + "/config.yaml"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _ := bowstring()
	app := &App{globals: p.Globals, Stdout: io.Discard, Stderr: io.Discard}
	parser, err := p.parser(app)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"config", "print", "--config", path}); err != nil {
		t.Fatal(err)
	}
	return app.settings
}

// rewrite makes the part of a file that a pattern finds what it is to be, or says that it is not.
func rewrite(t *testing.T, path, pattern, want string) {
	t.Helper()
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(pattern).FindIndex(have)
	if at == nil {
		t.Fatalf("%s has no %s", path, pattern)
	}
	now := string(have[:at[0]]) + want + string(have[at[1]:])
	switch {
	case now == string(have):
	case !*update:
		t.Errorf("%s does not have the settings that there are; -update puts that right", path)
	default:
		if err := os.WriteFile(path, []byte(now), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
}

// docs/cli.md has each setting of serve, with its unit, its default and its meaning.
func TestSettingsInDocs(t *testing.T) {
	const begin, end = "<!-- settings: made by go test ./cmd/bowstring/command -run TestSettings -update -->\n",
		"<!-- end of the settings -->\n"
	rewrite(t, "../../../docs/cli.md", "(?s)"+regexp.QuoteMeta(begin)+".*"+regexp.QuoteMeta(end),
		begin+settingsTable(settingsIn(t, ""))+"\n"+end)
}

func settingsTable(s settings) string {
	var b strings.Builder
	group := ""
	cell := strings.NewReplacer("|", `\|`)
	for _, key := range s.keys {
		f := s.known[key]
		if f.Group == nil {
			continue
		}
		if f.Group.Title != group {
			group = f.Group.Title
			fmt.Fprintf(&b, "\n**%s**\n\n| flag | default | meaning |\n|---|---|---|\n", group)
		}
		name := "--" + f.Name
		if f.PlaceHolder != "" {
			name += " " + f.PlaceHolder
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", cell.Replace(name), cell.Replace(defaultOf(f)), cell.Replace(f.Help))
	}
	return b.String()
}

// The chart takes the settings that there are, and no others.
func TestSettingsInChart(t *testing.T) {
	s := settingsIn(t, "")
	properties := map[string]any{}
	for _, f := range s.known {
		if f.Group == nil {
			continue
		}
		kinds := []string{"string", "number"}
		if f.IsBool() {
			kinds = []string{"boolean"}
		}
		properties[f.Name] = map[string]any{"type": kinds, "description": f.Help + " Default: " + defaultOf(f) + "."}
	}
	text, err := json.MarshalIndent(map[string]any{"type": "object", "additionalProperties": false,
		"properties": properties}, "  ", " ")
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, "../../../deploy/helm/bowstring/values.schema.json", `(?s)"config": \{.*?\n  \},`, `"config": `+string(text)+",")

	check, err := os.ReadFile("../../../deploy/helm/bowstring/templates/_check.tpl")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`range \$own := list (.*?) -}}`).FindSubmatch(check)
	for _, name := range strings.Fields(string(list[1])) {
		if name = strings.Trim(name, `"`); properties[name] == nil {
			t.Errorf("the chart says that it sets %s, which is no setting", name)
		}
	}
}

// The template says nothing that is not so: without its comment signs it is a configuration file, in which each setting
// has its default.
func TestSettingsInTemplate(t *testing.T) {
	s := settingsIn(t, "")
	text, err := template(s)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^( *)# ([a-z-]+: .*# .*default: .*)$`)
	full := settingsIn(t, line.ReplaceAllString(string(text), "$1$2"))
	for _, key := range full.keys {
		if _, ok := full.file[key]; !ok && full.known[key].Tag.Type != "path" { // an empty path is none
			t.Errorf("%s is not in the template", key)
		}
		got, err := full.effective(key)
		want, other := s.effective(key)
		if err != nil || other != nil {
			t.Fatal(key, err, other)
		}
		if key != "store" && !reflect.DeepEqual(got, want) && fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v in the template, and %v is the default", key, got, want)
		}
	}
}

// A first look shows a dozen settings, and each has help that ends as a sentence does, and a unit or a choice.
func TestSettingsAreSaid(t *testing.T) {
	s := settingsIn(t, "")
	var basic []string
	for _, key := range s.keys {
		f := s.known[key]
		if f.Tag.Has("basic") {
			basic = append(basic, f.Name)
		}
		if !strings.HasSuffix(f.Help, ".") || f.Group != nil && f.PlaceHolder == "" && !f.IsBool() {
			t.Errorf("%s: %q, unit %q", key, f.Help, f.PlaceHolder)
		}
		if f.Group != nil && strings.Contains(f.Help, "(default") {
			t.Errorf("%s: its help says its default twice", key)
		}
	}
	if len(basic) != 12 || !slices.Contains(basic, "listen") {
		t.Errorf("%d settings are shown first: %s", len(basic), basic)
	}
}
