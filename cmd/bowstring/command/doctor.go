package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"text/tabwriter"

	"bowstring/fetch/store"
	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/local"
)

// DoctorCmd is bowstring doctor.
type DoctorCmd struct {
	Address string `arg:"" optional:"" name:"store" type:"store" placeholder:"DIR" help:"Store to look at, as --store names it (default: that one)."`
	JSON    bool   `name:"json" help:"Print a JSON object."`
}

// Help says what is looked at.
func (*DoctorCmd) Help() string {
	return `Looks at what a store stands on and at this machine, changes nothing, and prints a line for each thing: ok, a warning, or a problem, and what to do.
In Scylla or Cassandra: nodes, versions, clocks, latencies, replication, tables' settings, tablets, transactions and rights. In a directory: the
file system, its free space, fsync, rights, the index and the segments. Of this machine: limits of files and memory, windows of TCP, and what serve is
configured with: the spill's disk, certificates near their end, rules, the audit log's disk. The exit status is 1 if there is a problem.`
}

// Run looks, and fails if there is a problem.
func (c *DoctorCmd) Run(ctx context.Context, app *App) error {
	addr := c.Address
	if addr == "" {
		var err error
		if addr, err = app.ownStore("doctor"); err != nil {
			return err
		}
	}
	found, err := examine(ctx, addr, app.quietLog())
	if err != nil {
		return err
	}
	here, err := thisSetup(app)
	if err != nil {
		return err
	}
	below := len(found)
	found = append(found, here.examine()...)
	if c.JSON {
		err = printJSON(app.Stdout, struct {
			Store    string         `json:"store"`
			Worst    string         `json:"worst"`
			Findings store.Findings `json:"findings"`
		}{addr, found.Worst(), found})
	} else {
		err = printFindings(app, found)
	}
	if err != nil {
		return err
	}
	return judge(addr, found[:below], found[below:])
}

// judge returns an error that says where problems are, if there are any.
func judge(addr string, below, here store.Findings) error {
	var places []string
	for _, at := range []struct {
		place string
		found store.Findings
	}{{"in " + addr, below}, {"on this machine", here}} {
		problems := int64(0)
		for _, f := range at.found {
			if f.Level == store.LevelProblem {
				problems++
			}
		}
		if problems > 0 {
			places = append(places, plural(problems, "problem")+" "+at.place)
		}
	}
	if len(places) == 0 {
		return nil
	}
	return errors.New(strings.Join(places, ", "))
}

func examine(ctx context.Context, addr string, log *slog.Logger) (store.Findings, error) {
	if cql.IsURI(addr) {
		return cql.Examine(ctx, addr, cql.Options{Logger: log})
	}
	return local.Examine(addr, false), nil
}

func printFindings(app *App, found store.Findings) error {
	var lines strings.Builder
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', 0)
	for _, f := range found {
		says := printable(f.Says)
		if f.Do != "" {
			says += ". To do: " + printable(f.Do)
		}
		if _, err := fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, says); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return app.Printf("%s", lines.String())
}

// logProblems has a server say at its start what is wrong below it, as far as a few
// small reads tell.
func logProblems(ctx context.Context, app *App, dir string, served store.Store) {
	var found store.Findings
	if far, ok := served.(interface {
		Examine(ctx context.Context) store.Findings
	}); ok {
		found = far.Examine(ctx)
	} else if !cql.IsURI(dir) {
		found = local.Examine(dir, true)
	}
	if ctx.Err() != nil {
		return // what failed for that is no problem
	}
	for _, f := range found {
		if f.Level == store.LevelProblem {
			app.Log.WarnContext(ctx, "the store has a problem; bowstring doctor says more", "check", f.Check, "problem",
				f.Says, "do", f.Do)
		}
	}
}
