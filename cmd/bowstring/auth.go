package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"bowstring/flight/rules"
	"bowstring/schema"
)

// AuthCmd is bowstring auth.
type AuthCmd struct {
	Check AuthCheckCmd `cmd:"" help:"Say what somebody may do with a dataset, and by which rule."`
	Lint  AuthLintCmd  `cmd:"" help:"Check a file of rules, and say what in it is likely not meant."`
}

// rulesFlag names the file of rules of the commands that look at one.
type rulesFlag struct {
	Rules string `type:"existingfile" placeholder:"FILE" help:"File of rules (default: the one that serve is configured with)."`
}

// read reads the file that the flag or the configuration names.
func (f *rulesFlag) read(app *App) (string, *rules.Rules, error) {
	path := f.Rules
	if path == "" {
		configured, err := app.settings.effective("serve.rules")
		if err != nil {
			return "", nil, err
		}
		path, _ = configured.(string)
	}
	if path == "" {
		return "", nil, usagef("there is no file of rules: --rules names one, and so does the setting serve.rules")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return path, nil, fmt.Errorf("rules: %w", err)
	}
	rs, err := rules.Parse(path, text)
	return path, rs, err
}

// AuthCheckCmd is bowstring auth check.
type AuthCheckCmd struct {
	Principal string   `arg:"" help:"Who calls; anonymous for callers without a name."`
	Dataset   string   `arg:"" help:"The dataset, which there need not be."`
	Group     []string `placeholder:"GROUP" help:"A group that the principal is in; may be given again."`
	rulesFlag
}

// Run prints what the rules say.
func (c *AuthCheckCmd) Run(app *App) error {
	if err := schema.CheckName("dataset", c.Dataset); err != nil {
		return usagef("%v", err)
	}
	path, rs, err := c.read(app)
	if err != nil {
		return err
	}
	who := rules.Who{Principal: c.Principal, Groups: c.Group}
	if who.Principal == "anonymous" {
		who.Principal = ""
	}
	d := rs.Decide(who, c.Dataset)
	by := "no rule is for both"
	if d.Rule != nil {
		by = fmt.Sprintf("%s of %s", d.Rule, path)
	}
	out := [][2]string{{"may", d.Rights.String()}, {"by", by}}
	if r := d.Restriction; r != nil {
		out = append(out, [2]string{"rows", cmp.Or(r.Where, "all")})
		columns := "all"
		if r.Columns != nil {
			columns = strings.Join(r.Columns, ", ")
		}
		out = append(out, [2]string{"columns", columns})
	}
	server := rs.Server(who)
	out = append(out, [2]string{"server", fmt.Sprintf("%s (collect garbage, see all counters: %t)", server.Rights, server.May(rules.Admin))})
	for _, line := range out {
		if err := app.Printf("%-8s %s\n", line[0], printable(line[1])); err != nil {
			return err
		}
	}
	return nil
}

// AuthLintCmd is bowstring auth lint.
type AuthLintCmd struct{ rulesFlag }

// Run prints what is likely not meant, a line each.
func (c *AuthLintCmd) Run(app *App) error {
	path, rs, err := c.read(app)
	if err != nil {
		return err
	}
	found := rs.Lint()
	for _, f := range found {
		if err := app.Printf("%s:%d: %s\n", path, f.Line, printable(f.Message)); err != nil {
			return err
		}
	}
	app.Notef("%d rules, %d findings", len(rs.List()), len(found))
	return nil
}
