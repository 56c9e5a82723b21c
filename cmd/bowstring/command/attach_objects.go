package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/cmd/bowstring/attach"
	"bowstring/cmd/bowstring/source"
	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// reading is what rows depend on besides the objects. Sets keep it as JSON: an update reads as the attachment before did,
// and what was read otherwise is read again.
type reading struct {
	URL        string         `json:"url"`
	Format     string         `json:"format"`
	Split      string         `json:"split,omitempty"`
	PathColumn string         `json:"path_column,omitempty"`
	Columns    []string       `json:"columns,omitempty"`
	LeaveOut   []string       `json:"leave_out,omitempty"`
	Text       []string       `json:"text,omitempty"`
	Spread     map[string]int `json:"spread,omitempty"`
	AsMetadata []string       `json:"as_metadata,omitempty"`
	Verify     source.Verify  `json:"verify,omitempty"`
	Limit      int64          `json:"limit,omitempty"`
}

func (c *AttachCmd) reading(format string) string {
	r := reading{c.From, format, c.Split, c.PathColumn, c.Columns, c.LeaveOut, c.Text, c.Spread, c.AsMetadata, c.Verify,
		c.Limit}
	text, _ := json.Marshal(r) // it is made of texts and numbers
	return string(text)
}

// resume takes the flags of the attachment before.
func (c *AttachCmd) resume(text string) error {
	var r reading
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return fmt.Errorf("%w: how the dataset was attached cannot be read (%w): name the URL, and what else there was",
			schema.ErrInvalid, err)
	}
	c.From, c.Format, c.Split, c.PathColumn, c.Columns, c.LeaveOut = r.URL, r.Format, r.Split, r.PathColumn, r.Columns,
		r.LeaveOut
	c.Text, c.Spread, c.AsMetadata, c.Verify, c.Limit = r.Text, r.Spread, r.AsMetadata, r.Verify, r.Limit
	return nil
}

// place writes where the data lies as the URL of a bucket with a prefix.
func (c *AttachCmd) place() error {
	if object.IsURL(c.From) {
		_, _, err := object.SplitURL(c.From)
		return err
	}
	dir, err := filepath.Abs(c.From)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); err != nil && !strings.ContainsAny(dir, "*?[{") {
		return fmt.Errorf("%w: %s is no URL (s3://, gs://, az://, https://, file://), and there is no such directory: %w; of "+
			"a table, want KEYSPACE.TABLE and a store in its cluster", schema.ErrNotFound, c.From, err)
	}
	c.From = (&url.URL{Scheme: "file", Path: dir}).String()
	return nil
}

// attachObjects attaches what lies in a bucket or a directory.
func (c *AttachCmd) attachObjects(ctx context.Context, app *App, addr string) (err error) {
	for name, set := range map[string]bool{"metadata": c.Metadata != "", "split-column": c.SplitColumn != "",
		"media": c.Media != "", "skip-existing": c.SkipExisting} {
		if set {
			return usagef("--%s is of tables in Scylla or Cassandra", name)
		}
	}
	known := !c.Update || c.Dataset != ""
	if c.Update {
		if c.Mode != "create" {
			return usagef("--update and --mode exclude each other: an update replaces")
		}
		c.Mode, c.Dataset = "replace", cmp.Or(c.Dataset, c.From)
	}
	if known {
		if err := c.place(); err != nil {
			return err
		}
	}
	if err := c.ReadFlags.complete(&c.Dataset, lastPart(c.From)); err != nil {
		return err
	}
	st, err := openStore(ctx, addr, true, app.quietLog())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	a := &attachment{cmd: c, store: st, begun: time.Now()}
	if err := a.findBase(ctx); err != nil {
		return err
	}
	if !known {
		text, err := a.onlyReading()
		if err == nil {
			err = c.resume(text)
		}
		if err != nil {
			return err
		}
	}
	return a.run(ctx, app)
}

// lastPart is the last part of a URL's path, or its bucket.
func lastPart(from string) string {
	if bucket, prefix, err := object.SplitURL(from); err == nil {
		if prefix = strings.Trim(prefix, "/"); prefix != "" {
			return path.Base(prefix)
		}
		bucket, _, _ = strings.Cut(bucket, "?")
		return path.Base(bucket)
	}
	return path.Base(from)
}

// attachment is one run of attach. It is the sink of what is read.
type attachment struct {
	cmd   *AttachCmd
	store store.Store
	begun time.Time

	base    *schema.Snapshot // that is there; nil for none
	sets    []attach.Base    // of base
	rows    *attach.Rows     // of base, if they are replaced
	listing *attach.Listing
	w       *ingest.Writer // nil for a dry run
	counts  updated
}

// findBase looks at the snapshot that there is.
func (a *attachment) findBase(ctx context.Context) (err error) {
	a.base, err = a.store.Snapshot(ctx, a.cmd.Dataset, 0)
	switch {
	case errors.Is(err, schema.ErrNotFound) && !a.cmd.Update:
		return nil
	case err != nil:
		return err
	}
	for _, ref := range a.base.Sets {
		if ref.Blob == (schema.BlobRef{}) { // of the store itself
			continue
		}
		blob, err := a.store.Get(ctx, ref.Blob)
		if err != nil {
			return fmt.Errorf("read object set %s of %s@%d: %w", ref.Prefix, a.base.Dataset, a.base.Number, err)
		}
		set, err := schema.DecodeObjectSet(blob.Bytes())
		blob.Release()
		if err != nil {
			return err
		}
		a.sets = append(a.sets, attach.Base{Ref: ref, Set: set})
	}
	return nil
}

// onlyReading is how the snapshot was attached, if all of it was in one way.
func (a *attachment) onlyReading() (string, error) {
	var found []string
	for _, b := range a.sets {
		if !slices.Contains(found, b.Set.Reading) {
			found = append(found, b.Set.Reading)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("%w: %s@%d was not attached to a bucket or a directory", schema.ErrInvalid, a.base.Dataset,
			a.base.Number)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: %s@%d was attached from %d places, or in several ways, and an update replaces all rows: name "+
		"the URL and the flags of the one to take", schema.ErrInvalid, a.base.Dataset, a.base.Number, len(found))
}

func (a *attachment) run(ctx context.Context, app *App) (err error) {
	c := a.cmd
	from := c.sourceOptions()
	from.Begin = func(e source.Estimate) error {
		a.estimate(app, e)
		return nil
	}
	src, err := source.Open(ctx, c.From, from)
	if err != nil {
		return err
	}
	bucket, objects, err := src.Files().Objects()
	if err != nil {
		return err
	}
	mode, err := ingest.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	how := c.reading(src.Format())
	if a.listing, err = attach.NewListing(bucket, how, objects, a.sets); err != nil {
		return err
	}
	opts := c.readOptions(c.Dataset)
	opts.InPlace = true
	reader, err := source.NewReader(src, opts)
	if err != nil {
		return err
	}
	if mode == ingest.Replace && a.base != nil {
		if a.rows, err = attach.ReadRows(ctx, a.store, a.base, source.AddedColumns()); err != nil {
			return err
		}
		if a.listing.Keeps() && a.rows.Fits(reader.Schema()) {
			reader.Know(func(id schema.ID, at []source.Extent) *source.Known { return a.listing.Known(a.rows, id, at) })
		}
	}
	sum := newSummary(c.Dataset, &c.ReadFlags, src, reader.Schema())
	sum.verb, sum.begun = verb{"attach", "attaches", "attached"}, a.begun
	if a.rows != nil {
		sum.Update = &a.counts
	}
	if !c.DryRun {
		a.w, err = ingest.New(ctx, a.store, ingest.Options{Dataset: c.Dataset, Source: src.Describe(),
			Schema: reader.Schema(), Mode: mode, Workers: c.Workers, Drop: c.DropColumn})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.w.Close()) }()
	}
	return c.into(ctx, app, sum, src, reader, a)
}

// estimate says how much there is to be read, before it is.
func (a *attachment) estimate(app *App, e source.Estimate) {
	bucket, _, err := object.SplitURL(a.cmd.From)
	if err != nil || e.Files == 0 {
		return
	}
	most := ""
	if a.base != nil {
		most = "at most "
	}
	text := fmt.Sprintf("%s of %s in %s: about %s%s", plural(e.Files, "object"), humanize.Bytes(uint64(e.Bytes)), bucket, most,
		plural(e.Through.Requests, "request"))
	if price, exact := object.ListPrices().Of(bucket); price != nil {
		bill := object.Cost(object.Counts{Gets: e.Through.Requests, BytesIn: e.Through.Bytes}, price, object.InRegion)
		text += fmt.Sprintf(", $%s by the list prices of %s, read within its region", bill.Total, price.Name(exact))
	}
	app.Notef("%s", text)
}

// Write implements sink.
func (a *attachment) Write(ctx context.Context, b *source.Batch) error {
	refs := make([][]*schema.BlobRef, len(b.Blobs))
	for c, column := range b.Blobs {
		refs[c] = make([]*schema.BlobRef, len(column))
		for row, data := range column {
			if b.Known != nil && b.Known[row] != nil {
				if refs[c][row] = b.Known[row].Refs[c]; refs[c][row] != nil {
					a.listing.Keep(refs[c][row].Key)
				}
				continue
			}
			if data == nil {
				continue
			}
			ref, err := a.listing.Ref(b.At[c][row], data)
			if err != nil {
				return fmt.Errorf("%s: %w", source.Quoted(b.Keys[row]), err)
			}
			refs[c][row] = &ref
		}
	}
	for row, id := range b.IDs {
		switch {
		case a.rows != nil && a.rows.Same(id, func(column int) *schema.BlobRef { return refs[column][row] }):
			a.counts.Kept++
		case a.rows != nil && a.rows.Has(id):
			a.counts.Changed++
		default:
			a.counts.New++
		}
	}
	if a.w == nil {
		return nil
	}
	return a.w.WriteRefs(ctx, b.Split, b.IDs, b.Meta, refs)
}

// Commit implements sink.
func (a *attachment) Commit(ctx context.Context, sum *summary) error {
	if a.rows != nil {
		a.counts.Gone = a.base.Rows() - a.counts.Kept - a.counts.Changed
	}
	if a.w == nil {
		return nil
	}
	for _, ref := range a.listing.KeptSets() {
		a.w.KeepSet(ref)
	}
	for set := range a.listing.Made {
		if err := a.w.PutSet(ctx, set); err != nil {
			return err
		}
	}
	snap, changed, err := a.w.Commit(ctx)
	if err != nil {
		return err
	}
	sum.Snapshot, sum.Changed, sum.Notes = snap.Number, changed, append(sum.Notes, a.w.Notes()...)
	return nil
}

// Close implements sink. The caller that opened the writer and the store closes them.
func (a *attachment) Close() error { return nil }
