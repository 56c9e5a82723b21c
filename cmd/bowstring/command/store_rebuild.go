package command

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// StoreRebuildCmd is bowstring store rebuild.
type StoreRebuildCmd struct {
	Dir      string `arg:"" optional:"" type:"store" help:"Directory of the store, if not the one that --store names."`
	Payloads bool   `help:"Also read every blob and leave out what differs from its checksum."`
	Lossy    bool   `help:"If both copies of the catalog are damaged, keep what can be read of them."`
	JSON     bool   `name:"json" help:"Print a JSON object."`
}

// Run makes the database anew.
func (c *StoreRebuildCmd) Run(ctx context.Context, app *App) error {
	dir := c.Dir
	if dir == "" {
		var err error
		if dir, err = app.ownStore("store rebuild"); err != nil {
			return err
		}
	}
	if cql.IsURI(dir) {
		return usagef("store rebuild works on a store in a directory, and %s is in a database of its own", dir)
	}
	bar := app.progress("", -1, "bytes")
	defer func() { _ = bar.Exit() }()
	report, err := local.Rebuild(ctx, dir, local.RebuildOptions{
		Logger: app.Log, Payloads: c.Payloads, Lossy: c.Lossy,
		Progress: func(p local.RebuildProgress) {
			bar.Describe(fmt.Sprintf("segment %d of %d", p.Segments, p.OfSegments))
			bar.ChangeMax64(p.OfBytes)
			_ = bar.Set64(p.Bytes) // drawing is not worth failing for
		},
	})
	if err != nil {
		return err
	}
	_ = bar.Finish()
	if c.JSON {
		if err := printJSON(app.Stdout, report); err != nil {
			return err
		}
	} else if err := c.print(app, dir, report); err != nil {
		return err
	}
	if len(report.Missing) > 0 {
		return fmt.Errorf("%w: %s miss blobs; all else is there again", schema.ErrDataLoss,
			plural(int64(len(report.Missing)), "snapshot"))
	}
	return nil
}

func (c *StoreRebuildCmd) print(app *App, dir string, r local.RebuildReport) error {
	err := app.Printf("rebuilt %s: %s, from the %s; %s of %s in %s\n", dir, plural(int64(r.Snapshots), "snapshot"),
		r.Catalog,
		plural(r.Blobs, "blob"), humanize.IBytes(uint64(r.Bytes)), plural(int64(r.Segments), "segment"))
	if err != nil {
		return err
	}
	for _, d := range r.Damage {
		if err := app.Printf("damaged: %s\n", d); err != nil {
			return err
		}
	}
	for _, m := range r.Missing {
		if err := app.Printf("missing: %s@%d: %s, and %s of its manifest\n", m.Dataset, m.Snapshot,
			plural(m.Blobs, "blob"), plural(m.Chunks, "chunk")); err != nil {
			return err
		}
	}
	return nil
}
