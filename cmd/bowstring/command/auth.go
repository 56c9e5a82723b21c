package command

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/dustin/go-humanize"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// AuthCmd is bowstring auth. It reads the files of policies and needs no server, so that
// a change can be checked before it is deployed.
type AuthCmd struct {
	Check AuthCheckCmd `cmd:"" help:"Say what somebody may do with a dataset, by which rule, and on whose account."`
	Lint  AuthLintCmd  `cmd:"" help:"Check the files of rules and tenants, and say what in them is likely not meant."`
}

// guardFlags name the files that the commands read.
type guardFlags struct {
	Rules   string `type:"existingfile" placeholder:"FILE" help:"File of rules (default: the one that serve is configured with)."`
	Tenants string `type:"existingfile" placeholder:"FILE" help:"File of tenants (default: the one that serve is configured with, if any)."`
}

// path returns the path of a flag, or else of the setting of serve. It is "" if neither
// is set.
func (*guardFlags) path(app *App, flag, setting string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	// The configuration is that of serve on this machine.
	configured, err := app.settings.effective(setting)
	path, _ := configured.(string)
	return path, err
}

// rules reads the file of rules. The result is nil if no file is named.
func (f *guardFlags) rules(app *App) (string, *policy.Rules, error) {
	return readGuard(app, f, f.Rules, "rules", policy.Parse)
}

// tenants reads the file of tenants. The result is nil if no file is named.
func (f *guardFlags) tenants(app *App) (string, *policy.Tenants, error) {
	return readGuard(app, f, f.Tenants, "tenants", policy.ParseTenants)
}

// readGuard reads and parses one of the files, by the parser that the server uses. It
// returns the path for messages.
func readGuard[T any](app *App, f *guardFlags, flag, what string,
	parse func(string, []byte) (*T, error)) (string, *T, error) {
	path, err := f.path(app, flag, "serve."+what)
	if err != nil || path == "" {
		return "", nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return path, nil, fmt.Errorf("%s: %w", what, err)
	}
	v, err := parse(path, text)
	return path, v, err
}

// read reads both files. It returns a usage error if neither is named, and the errors of
// both files together.
func (f *guardFlags) read(app *App) (guards, error) {
	var g guards
	var errs [2]error
	g.rulesPath, g.rules, errs[0] = f.rules(app)
	g.tenantsPath, g.tenants, errs[1] = f.tenants(app)
	if err := errors.Join(errs[:]...); err != nil {
		return g, err
	}
	if g.rules == nil && g.tenants == nil {
		return g, usagef("there is no file of rules: --rules names one, and so does the setting serve.rules; of " +
			"tenants, --tenants and serve.tenants")
	}
	return g, nil
}

// guards are the parsed files. A file that is not named is nil, and its path "".
type guards struct {
	rulesPath, tenantsPath string
	rules                  *policy.Rules
	tenants                *policy.Tenants
}

// AuthCheckCmd is bowstring auth check.
type AuthCheckCmd struct {
	Principal string   `arg:"" help:"Name of the caller; anonymous for callers without a name."`
	Dataset   string   `arg:"" help:"The dataset, which there need not be."`
	Group     []string `placeholder:"GROUP" help:"A group that the principal is in; may be given again."`
	guardFlags
}

// Run prints the rights of the caller on the dataset and the rule that gives them. It
// decides by the code of the server.
func (c *AuthCheckCmd) Run(app *App) error {
	if err := schema.CheckName("dataset", c.Dataset); err != nil {
		return usagef("%v", err)
	}
	g, err := c.read(app)
	if err != nil {
		return err
	}
	// Rules name callers without a name "anonymous"; the server knows them by "".
	who := policy.Caller{Principal: c.Principal, Groups: c.Group}
	if who.Principal == "anonymous" {
		who.Principal = ""
	}
	// Without a file of rules, Decide allows everything.
	d := g.rules.Decide(who, c.Dataset)
	by := "no rule is for both"
	switch {
	case g.rules == nil:
		by = "there is no file of rules"
	case d.Rule != nil:
		by = fmt.Sprintf("%s of %s", d.Rule, g.rulesPath)
	}
	out := [][2]string{{"may", d.Rights.String()}, {"by", by}}
	// A restriction limits the rows and columns of reads.
	if r := d.Restriction; r != nil {
		out = append(out, [2]string{"rows", cmp.Or(r.Where, "all")})
		columns := "all"
		if r.Columns != nil {
			columns = strings.Join(r.Columns, ", ")
		}
		out = append(out, [2]string{"columns", columns})
	}
	// Rights on the server itself are separate from those on datasets.
	server := g.rules.Server(who)
	out = append(out, [2]string{"server", fmt.Sprintf("%s (collect garbage, see all counters: %t)", server.Rights,
		server.May(policy.Admin))})
	if g.tenants != nil {
		tenant := g.tenants.For(who, "")
		out = append(out, [2]string{"tenant", tenant + ", unless its token names another"},
			[2]string{"gets", termsText(g.tenants.Terms(tenant))})
	}
	for _, line := range out {
		if err := app.Printf("%-8s %s\n", line[0], printable(line[1])); err != nil {
			return err
		}
	}
	return nil
}

// termsText returns the quotas of a tenant as text. A quota of 0 is no limit and left
// out.
func termsText(t fetch.Terms) string {
	out := []string{fmt.Sprintf("weight %d", t.Weight)}
	if t.Streams > 0 {
		out = append(out, fmt.Sprintf("%d streams at once", t.Streams))
	}
	if t.BytesPerSecond > 0 {
		out = append(out, humanize.Bytes(uint64(t.BytesPerSecond))+"/s")
	}
	for _, s := range []struct {
		share float64
		of    string
	}{
		{t.Windows, "window memory"}, {t.Spill, "the spill"}, {t.Evaluation, "evaluation memory"},
		{t.Workers, "evaluation workers"}, {t.Reads, "reads in flight"},
	} {
		if s.share > 0 {
			out = append(out, fmt.Sprintf("%g%% of %s", 100*s.share, s.of))
		}
	}
	return strings.Join(out, ", ")
}

// AuthLintCmd is bowstring auth lint.
type AuthLintCmd struct{ guardFlags }

// Run prints findings about entries that are valid but probably not meant, one in a line.
// Findings are no errors: the exit status stays 0.
func (c *AuthLintCmd) Run(app *App) error {
	g, err := c.read(app)
	if err != nil {
		return err
	}
	// The form FILE:LINE: is what editors jump to.
	show := func(path, what string, n int, found []policy.Finding) error {
		for _, f := range found {
			if err := app.Printf("%s:%d: %s\n", path, f.Line, printable(f.Message)); err != nil {
				return err
			}
		}
		app.Notef("%d %s, %d findings", n, what, len(found))
		return nil
	}
	if g.rules != nil {
		if err := show(g.rulesPath, "rules", len(g.rules.List()), g.rules.Lint()); err != nil {
			return err
		}
	}
	if g.tenants != nil {
		return show(g.tenantsPath, "tenants", len(g.tenants.List()), g.tenants.Lint())
	}
	return nil
}
