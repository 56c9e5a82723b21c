package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"bowstring/fetch/store/backup"
	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/tend"
	"bowstring/schema"
)

// BackupCmd is bowstring backup.
type BackupCmd struct {
	Paths []string     `arg:"" name:"store dir" help:"Store to back up, and directory that the backup is in or is made in. With --list or --prune the directory alone."`
	Only  []datasetRef `name:"dataset" placeholder:"DATASET[@N]" help:"Back up only these (default: all snapshots of all datasets)."`
	Keep  int          `placeholder:"N" help:"Then keep the newest N generations, and remove the others."`
	List  bool         `help:"List the generations."`
	Prune bool         `help:"Make no new generation: only remove what --keep does not keep."`
	transferFlags
}

// Help says what a backup is.
func (*BackupCmd) Help() string {
	return `A generation is all there is in the store at one time. Only blobs that no earlier generation has are written. A backup
that is stopped leaves the earlier generations as they are, and the next one goes on where it was. bowstring verify DIR checks the newest generation, and
bowstring copy takes single datasets out of it.`
}

// Run backs up, lists or prunes.
func (c *BackupCmd) Run(ctx context.Context, app *App) error {
	if err := c.check(); err != nil {
		return err
	}
	for i, path := range c.Paths {
		if !cql.IsURI(path) {
			c.Paths[i] = kong.ExpandPath(path)
		}
	}
	switch {
	case c.Keep < 0:
		return usagef("--keep: got %d, want 1 or more", c.Keep)
	case c.List && c.Prune:
		return usagef("--list and --prune are two things")
	case c.Prune && c.Keep == 0:
		return usagef("--prune: say by --keep how many generations are to stay")
	case c.List || c.Prune:
		if len(c.Paths) != 1 {
			return usagef("--list and --prune work on a backup: name its directory, and nothing else")
		}
		if c.List {
			return c.list(app, c.Paths[0])
		}
		return c.prune(app, c.Paths[0])
	case len(c.Paths) != 2:
		return usagef("backup wants a STORE and a DIR, and got %d of them", len(c.Paths))
	}
	return c.write(ctx, app, c.Paths[0], c.Paths[1])
}

func (c *BackupCmd) write(ctx context.Context, app *App, addr, dir string) (err error) {
	src, err := openStore(ctx, addr, false, app.quietLog())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	scope, err := scopeOf(ctx, src, c.Only)
	if err != nil {
		return err
	}
	begun := time.Now()
	done, err := c.generation(ctx, app, addr, dir, scope)
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(app.Stdout, struct {
			backup.Report
			Seconds float64 `json:"seconds"`
		}{done, time.Since(begun).Seconds()})
	} else {
		app.Notef("generation %d in %s: %s, %s, %s of %s, of which %s with %s are new, in %.1f s", done.Generation, dir,
			plural(done.Snapshots, "snapshot"), plural(done.Selections, "selection"),
			plural(done.Blobs, "blob"), humanize.IBytes(uint64(done.Bytes)),
			humanize.Comma(done.New), humanize.IBytes(uint64(done.NewBytes)), time.Since(begun).Seconds())
	}
	if err == nil && c.Keep > 0 {
		err = c.prune(app, dir)
	}
	return err
}

func (c *BackupCmd) generation(ctx context.Context, app *App, addr, dir string,
	scope tend.Scope) (backup.Report, error) {
	_, size := scope.Size()
	bar := app.byteProgress("backup", size)
	defer func() { _ = bar.Exit() }() // drawing is best effort
	return backup.Write(ctx, dir, scope, backup.Options{
		Store: storeName(addr), Rate: int64(c.Rate), Workers: c.Workers,
		Progress: func(r backup.Report) { _ = bar.Set64(min(r.Bytes, size)) },
	})
}

func (c *BackupCmd) list(app *App, dir string) error {
	numbers, err := backup.List(dir)
	if err != nil {
		return err
	}
	list := []backup.About{}
	for _, n := range numbers {
		g, err := backup.Open(dir, n)
		if err != nil {
			return err
		}
		list = append(list, g.About())
		if err := g.Close(); err != nil {
			return err
		}
	}
	if c.JSON {
		return printJSON(app.Stdout, list)
	}
	out := table{numbers: []bool{true, false, true, true, true}}
	out.add("GENERATION", "CREATED", "SNAPSHOTS", "BLOBS", "BYTES", "STORE")
	for _, a := range list {
		out.add(fmt.Sprint(a.Generation), a.Created.Format(time.RFC3339), humanize.Comma(int64(len(a.Snapshots))),
			humanize.Comma(a.Blobs), humanize.IBytes(uint64(a.Bytes)), a.Store)
	}
	return out.print(app.Stdout)
}

func (c *BackupCmd) prune(app *App, dir string) error {
	p, err := backup.Prune(dir, c.Keep)
	if err != nil {
		return err
	}
	if c.JSON && c.Prune {
		return printJSON(app.Stdout, p)
	}
	app.Notef("%s and %s removed, %s freed", plural(int64(len(p.Generations)), "generation"), plural(p.Packs, "pack"),
		humanize.IBytes(uint64(p.FreedBytes)))
	return nil
}

// RestoreCmd is bowstring restore.
type RestoreCmd struct {
	Dir        string       `arg:"" type:"path" help:"Directory with the backup."`
	To         string       `arg:"" name:"store" type:"store" help:"Store to restore into, which is made if there is none."`
	Datasets   []datasetRef `arg:"" optional:"" name:"dataset[@n]" help:"Restore only these (default: all snapshots of all datasets)."`
	Generation int64        `placeholder:"N" help:"Generation to restore (default: the newest)."`
	transferFlags
}

// Help says what a restored store has.
func (*RestoreCmd) Help() string {
	return `What is restored has the numbers, times, selections and tags that it had, and a dataset that is restored whole gives out no
number that it has given out. What the store has already is left as it is, so that
a restore that was stopped goes on where it was. A dataset that has given out other snapshots with those numbers is a conflict.`
}

// Run restores.
func (c *RestoreCmd) Run(ctx context.Context, app *App) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if c.Generation < 0 {
		return usagef("--generation: got %d, want 1 or more", c.Generation)
	}
	g, err := backup.Open(c.Dir, c.Generation)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	snaps, err := tend.Snapshots(ctx, g, namesOf(c.Datasets))
	if err != nil {
		return err
	}
	if len(snaps) == 0 {
		return fmt.Errorf("%w: generation %d has no snapshot", schema.ErrNotFound, g.About().Generation)
	}
	return c.transfer(ctx, app, "restore", g, c.To, snaps, tend.CopyOptions{Selections: true, Numbers: true})
}
