package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/store"
	"bowstring/fetch/store/maintenance"
	"bowstring/schema"
	"bowstring/spill"
)

// VerifyCmd is bowstring verify.
type VerifyCmd struct {
	Of       string       `arg:"" name:"store" type:"store" help:"Store to verify."`
	Datasets []datasetRef `arg:"" optional:"" name:"dataset[@n]" help:"Datasets with all their snapshots, or single snapshots (default: all there are)."`

	// Rate, Workers and Memory limit the load on a store that serves meanwhile.
	Rate         size   `placeholder:"SIZE" help:"Read at most this many bytes a second, such as 200MB (default: no limit)."`
	Workers      int    `default:"32" placeholder:"N" help:"Blobs read at once (default: ${default})."`
	Memory       size   `default:"256MiB" placeholder:"SIZE" help:"Memory for the list of blobs; where it is not enough, the manifests are read several times (default: ${default})."`
	EveryReplica bool   `help:"Read each blob from each replica, where the store has several."`
	Resume       string `type:"path" placeholder:"FILE" help:"Write to FILE how far it is, and go on from there if there is such a file."`
	Repair       bool   `help:"Put back what is damaged, from a whole copy in another replica or one of the places named below."`
	Spill        string `type:"path" placeholder:"DIR" help:"Verify the spill in DIR too, and look for whole copies there. No server may have it."`
	From         string `type:"store" placeholder:"STORE" help:"Look for whole copies in another store."`
	Source       string `type:"path" placeholder:"PATH" help:"Look for whole copies in what was imported: PATH as it was given to import."`
	JSON         bool   `name:"json" help:"Print a JSON object."`
}

// Help says what is checked and what the status means.
func (*VerifyCmd) Help() string {
	return `Each blob is read once, however many snapshots share it, and compared with its size, its checksum and its hash.
It runs at the lowest priority. The status is 0 only if nothing is damaged when it ends.`
}

// verified is the output of verify.
type verified struct {
	maintenance.Verification
	Spill   *spill.Verification `json:"spill,omitempty"`
	Seconds float64             `json:"seconds"`
}

// Run verifies the store, and returns an error if damage remains. With --repair it
// replaces a damaged blob by a whole copy. It looks for copies where it is cheapest
// first: in other replicas and the spill during the run, and then in another store and
// the source, which have to be read as a whole.
func (c *VerifyCmd) Run(ctx context.Context, app *App) (err error) {
	if c.Workers < 1 {
		return usagef("--workers: got %d, want 1 or more", c.Workers)
	}
	// A verification takes hours, and must not slow down a server on the same machine.
	lowestPriority()
	src, err := openStore(ctx, c.Of, false, app.quietLog())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	opts := maintenance.VerifyOptions{Rate: int64(c.Rate), Workers: c.Workers, EveryReplica: c.EveryReplica,
		Resume: c.Resume}
	// Without --repair the places are still searched, and the output says where whole
	// copies are.
	if c.Repair {
		opts.Repair = src
	}
	found := verified{}
	// The spill is verified first. A copy that is damaged there is removed and not used.
	if c.Spill != "" {
		// A spill may have whole copies of blobs that the store has lost.
		cache, err := openIdleSpill(c.Spill, app.quietLog())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cache.Close()) }()
		opts.Elsewhere = append(opts.Elsewhere, inSpill(c.Spill, cache))
		v := cache.Verify(ctx)
		found.Spill = &v
	}
	var other store.Store
	if c.From != "" {
		if other, err = openStore(ctx, c.From, false, app.quietLog()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, other.Close()) }()
		// A store under hashes has equal blobs under equal keys.
		opts.Elsewhere = append(opts.Elsewhere, maintenance.Place{Name: c.From, Get: other.Get})
	}
	// The snapshots are read once here. Snapshots that are made later are not verified.
	scope, err := c.scope(ctx, src)
	if err != nil {
		return err
	}
	// The time does not include reading the list of snapshots.
	begun := time.Now()
	if found.Verification, err = c.verify(ctx, app, scope, opts); err != nil {
		return err
	}
	// Blobs of the other store may have other keys. Only if damage remains, its manifests
	// are read.
	if other != nil && found.Lasting() > 0 {
		if err := c.fromStore(ctx, scope, other, opts.Repair, &found.Verification); err != nil {
			return fmt.Errorf("look for whole copies in %s: %w", c.From, err)
		}
	}
	if c.Source != "" && found.Lasting() > 0 {
		if err := c.fromSource(ctx, scope, opts.Repair, &found.Verification); err != nil {
			return err
		}
	}
	found.Seconds = time.Since(begun).Seconds()
	if err := c.print(app, &found); err != nil {
		return err
	}
	// A damaged blob that was repaired is no failure.
	if n := found.Lasting(); n > 0 {
		return fmt.Errorf("%w: %s in %s", schema.ErrDataLoss, plural(n, "damaged blob"), c.Of)
	}
	return ctx.Err()
}

// scope returns what to verify. A resumed run verifies the snapshots that it began with,
// also if there are more by now: its position is in their list of blobs.
func (c *VerifyCmd) scope(ctx context.Context, src store.Store) (maintenance.Scope, error) {
	names := namesOf(c.Datasets)
	if c.Resume != "" {
		// A missing file is no error: the run begins.
		begun, err := maintenance.Resumed(c.Resume)
		if err != nil {
			return maintenance.Scope{}, err
		}
		if len(names) == 0 {
			names = begun
		}
	}
	snaps, err := maintenance.Snapshots(ctx, src, names)
	if err != nil {
		return maintenance.Scope{}, err
	}
	// Bitmaps of selections are blobs as well.
	selections, err := maintenance.Selections(ctx, src, snaps)
	return maintenance.Scope{Source: src, Snapshots: snaps, Selections: selections, Memory: int64(c.Memory)}, err
}

// verify runs the verification with a bar.
func (c *VerifyCmd) verify(ctx context.Context, app *App, scope maintenance.Scope,
	opts maintenance.VerifyOptions) (maintenance.Verification, error) {
	_, size := scope.Size()
	bar := app.progress("verify", size, "bytes")
	defer func() { _ = bar.Exit() }() // drawing is best effort
	opts.Progress = func(v maintenance.Verification) { _ = bar.Set64(min(v.Bytes, size)) }
	return maintenance.Verify(ctx, scope, opts)
}

// fromStore looks for copies of damaged blobs in another store. It reads only datasets of
// the same names, because a copy of a store keeps the names.
func (c *VerifyCmd) fromStore(ctx context.Context, scope maintenance.Scope, other, to store.Store,
	found *maintenance.Verification) error {
	m := maintenance.NewMender(scope, to, found)
	if m.Wants() == 0 {
		return nil
	}
	list, err := other.Datasets(ctx)
	if err != nil {
		return err
	}
	var names []maintenance.Name
	for _, d := range list {
		// Other datasets of the other store cannot be copies of these.
		if slices.ContainsFunc(scope.Snapshots, func(snap *schema.Snapshot) bool { return snap.Dataset == d.Name }) {
			names = append(names, maintenance.Name{Dataset: d.Name})
		}
	}
	if len(names) == 0 {
		return nil
	}
	snaps, err := maintenance.Snapshots(ctx, other, names)
	if err != nil {
		return err
	}
	return m.From(ctx, c.From, maintenance.Scope{Source: other, Snapshots: snaps, Memory: int64(c.Memory)}, found)
}

// fromSource looks for copies of damaged blobs in the data that was imported. It stops
// when all are found.
func (c *VerifyCmd) fromSource(ctx context.Context, scope maintenance.Scope, to store.Store,
	found *maintenance.Verification) error {
	src, err := source.Open(ctx, c.Source, source.Options{Format: "auto"})
	if err != nil {
		return err
	}
	// Ids do not matter here, and import reports bad samples of the source.
	reader, err := source.NewReader(src, source.ReadOptions{Dataset: "verify", Split: "train", Verify: "none"})
	if err != nil {
		return err
	}
	m := maintenance.NewMender(scope, to, found)
	for b, err := range reader.Batches(ctx) {
		if err != nil {
			return err
		}
		if m.Wants() == 0 {
			break
		}
		for _, column := range b.Blobs {
			for _, data := range column {
				if data == nil {
					continue
				}
				if err := m.Offer(ctx, c.Source, data, found); err != nil {
					return err
				}
			}
		}
	}
	return ctx.Err()
}

// print prints the damaged blobs with the snapshots and rows that refer to them, and the
// totals as messages.
func (c *VerifyCmd) print(app *App, v *verified) error {
	if c.JSON {
		return printJSON(app.Stdout, v)
	}
	out := table{numbers: []bool{false, true}}
	// A store without damage prints no table at all.
	if len(v.Damaged) > 0 {
		out.add("BLOB", "SIZE", "STATE", "IN")
	}
	for i := range v.Damaged {
		d := &v.Damaged[i]
		state := "damaged, no whole copy found"
		switch {
		case d.Repaired:
			state = "repaired from " + d.Whole
		// A repair can fail too, for instance on a full disk.
		case d.Whole != "" && c.Repair:
			state = "damaged still: " + d.Problem
		case d.Whole != "":
			state = "damaged, whole in " + d.Whole
		}
		// A shared blob has a line for each of its occurrences.
		for j, in := range d.In {
			where := fmt.Sprintf("%s@%d %s%s", in.Dataset, in.Snapshot, in.What, rowsOf(in))
			if j == 0 {
				out.add(d.Key.String(), humanize.Comma(d.Size), state, where)
			} else {
				out.add("", "", "", where)
			}
		}
	}
	if err := out.print(app.Stdout); err != nil {
		return err
	}
	// The totals are messages, so that a pipe gets the damaged blobs alone.
	rate := float64(v.Bytes) / 1e6 / max(v.Seconds, 1e-6)
	app.Notef("%s of %s, %s in %.1f s, %.0f MB/s", plural(v.Blobs, "blob"), plural(int64(len(v.Snapshots)), "snapshot"),
		humanize.IBytes(uint64(v.Bytes)), v.Seconds, rate)
	if v.Spill != nil {
		app.Notef("%s in the spill, %s of them damaged and taken out", plural(v.Spill.Blobs, "blob"),
			humanize.Comma(v.Spill.Damaged))
	}
	if v.Proof != nil {
		app.Notef("checksums are %s", proofText(v.Proof))
	}
	if v.Repaired > 0 {
		app.Notef("%s repaired", plural(v.Repaired, "blob"))
	}
	if v.Beyond > 0 {
		app.Notef("%s more are damaged and not listed", plural(v.Beyond, "blob"))
	}
	return nil
}

// rowsOf returns the rows of an occurrence, for people. For a blob of the manifest it
// returns the range of rows that the blob describes.
func rowsOf(in maintenance.Occurrence) string {
	switch {
	case in.What == "manifest" && len(in.Rows) >= 2:
		return fmt.Sprintf(", %s from %d", plural(in.Count, "row"), in.Rows[0])
	case len(in.Rows) == 0:
		return ""
	case len(in.Rows) == 1:
		return fmt.Sprintf(", row %d", in.Rows[0])
	}
	const most = 5
	var rows []string
	for _, row := range in.Rows[:min(len(in.Rows), most)] {
		rows = append(rows, fmt.Sprint(row))
	}
	text := ", rows " + strings.Join(rows, " ")
	if in.Count > most {
		text += fmt.Sprintf(" and %s more", humanize.Comma(in.Count-most))
	}
	return text
}

// inSpill returns a spill as a place to look for copies.
func inSpill(dir string, cache *spill.Cache) maintenance.Place {
	return maintenance.Place{Name: "the spill in " + dir, Get: func(_ context.Context, ref schema.BlobRef) (schema.Blob,
		error) {
		if b, ok := cache.Get(ref, spill.Place{}); ok {
			return b, nil
		}
		return schema.Blob{}, fmt.Errorf("%w: blob %s in the spill", schema.ErrNotFound, ref.Key)
	}}
}

// namesOf returns the names of the datasets of the arguments.
func namesOf(refs []datasetRef) []maintenance.Name {
	var names []maintenance.Name
	for _, ref := range refs {
		names = append(names, maintenance.Name{Dataset: ref.Name, Number: ref.Snapshot, Tag: ref.Tag})
	}
	return names
}
