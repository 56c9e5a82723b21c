package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"bowstring/cmd/bowstring/attach"
	"bowstring/cmd/bowstring/source"
	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/object"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// reading is what rows depend on besides the objects. Sets keep it as JSON: an update reads as the attachment before did,
// and what was read otherwise is read again.
type reading struct {
	URL         string            `json:"url"`
	Format      string            `json:"format"`
	Split       string            `json:"split,omitempty"`
	PathColumn  string            `json:"path_column,omitempty"`
	Columns     []string          `json:"columns,omitempty"`
	LeaveOut    []string          `json:"leave_out,omitempty"`
	Text        []string          `json:"text,omitempty"`
	Spread      map[string]int    `json:"spread,omitempty"`
	AsMetadata  []string          `json:"as_metadata,omitempty"`
	Tokens      map[string]string `json:"tokens,omitempty"`
	CountTokens string            `json:"count_tokens,omitempty"`
	Verify      source.Verify     `json:"verify,omitempty"`
	Limit       int64             `json:"limit,omitempty"`
	Lazy        bool              `json:"lazy,omitempty"`
}

func (c *AttachCmd) reading(format string) string {
	r := reading{c.From, format, c.Split, c.PathColumn, c.Columns, c.LeaveOut, c.Text, c.Spread, c.AsMetadata, c.Tokens,
		c.CountTokens, c.Verify, c.Limit, c.Lazy}
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
	c.Tokens, c.CountTokens = r.Tokens, r.CountTokens
	return nil
}

// readAsBefore has what was attached of the same URL before be attached in the same way, unless a flag says otherwise. An
// update that proves what was attached without being read keeps its rows, and reads what has no checksum by then.
func (a *attachment) readAsBefore() {
	c := a.cmd
	for _, b := range a.sets {
		var r reading
		if json.Unmarshal([]byte(b.Set.Reading), &r) != nil || r.URL != c.From {
			continue
		}
		if a.proves = c.Update && c.Prove && r.Lazy; a.proves || !c.Lazy && !c.Prove {
			c.Lazy, c.Prove = r.Lazy, !r.Lazy
		}
		return
	}
}

// An attachment is lazy by itself if reading takes lazySeconds, and lazyTimes as long as
// walking. The speed of a machine is a rule of thumb.
const (
	lazySeconds    = 600
	lazyTimes      = 10
	bytesASecond   = 200e6
	requestsSecond = 3000
)

// decide says whether blobs are not read.
func (c *AttachCmd) decide(e source.Estimate) bool {
	if !c.Lazy && !c.Prove {
		took := func(t source.Toll) float64 { return float64(t.Requests)/requestsSecond + float64(t.Bytes)/bytesASecond }
		c.Lazy = took(e.Through) > max(lazySeconds, lazyTimes*took(e.Walked))
	}
	return c.Lazy
}

// place writes the location of the data as the URL of a bucket with a prefix.
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

// attachGC is the percentage by which the heap of an attachment may grow between two collections.
const attachGC = 25

// attachObjects attaches the data of a bucket or a directory.
func (c *AttachCmd) attachObjects(ctx context.Context, app *App, addr string) (err error) {
	for name, set := range map[string]bool{"metadata": c.Metadata != "", "split-column": c.SplitColumn != "",
		"media": c.Media != "", "skip-existing": c.SkipExisting} {
		if set {
			return usagef("--%s is of tables in Scylla or Cassandra", name)
		}
	}
	// Most of the memory is lists that stay; it costs little to look for what is free in it more often.
	defer debug.SetGCPercent(debug.SetGCPercent(attachGC))
	if c.Lazy && c.Prove {
		return usagef("--lazy and --prove exclude each other: one reads no blob, the other all")
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
	st, err := openFarStore(ctx, addr, true, nil, readBuckets{requests: c.asked.of()}, app.quietLog())
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
	sets    []attach.Base    // of base, and of what was interrupted
	rows    *attach.Rows     // of base, if they are replaced
	kept    *attach.Kept     // rows of shards that need not be read; nil for none
	listing *attach.Listing
	w       *ingest.Writer // nil for a dry run
	saved   *saved         // nil where nothing is put down on the way
	proves  bool           // blobs without a checksum are read once the rows are attached
	counts  updated
	tars    map[string]bool // that were read, of those whose index is to be written
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
	a.sets, err = readSets(ctx, a.store, a.base)
	return err
}

// readSets reads the object sets that a snapshot names.
func readSets(ctx context.Context, st store.Store, snap *schema.Snapshot) (sets []attach.Base, err error) {
	for _, ref := range snap.Sets {
		if ref.Blob == (schema.BlobRef{}) { // of the store itself
			continue
		}
		blob, err := st.Get(ctx, ref.Blob)
		if err != nil {
			return nil, fmt.Errorf("read object set %s of %s@%d: %w", ref.Prefix, snap.Dataset, snap.Number, err)
		}
		set, err := schema.DecodeObjectSet(blob.Bytes())
		blob.Release()
		if err != nil {
			return nil, err
		}
		sets = append(sets, attach.Base{Ref: ref, Set: set})
	}
	return sets, nil
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
	mode, err := ingest.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	if mode == ingest.Replace && a.base != nil {
		if a.rows, err = attach.ReadRows(ctx, a.store, a.base, source.AddedColumns()); err != nil {
			return err
		}
		for i := range a.sets {
			a.sets[i].Rows = append(a.sets[i].Rows, a.rows)
		}
	}
	if !c.DryRun {
		if a.saved, err = a.findSaved(ctx); err != nil {
			return err
		}
		if a.saved != nil {
			defer func() { err = errors.Join(err, a.saved.Close()) }()
		}
	}
	a.readAsBefore()
	src, reader, err := a.open(ctx, app)
	if err != nil {
		return err
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
	if a.saved != nil {
		if err := a.saved.begin(ctx, app, src, reader.Schema()); err != nil {
			return err
		}
	}
	a.tars = map[string]bool{}
	if err := c.into(ctx, app, sum, src, reader, a); err != nil || c.DryRun || !c.WriteIndex {
		return err
	}
	return a.writeIndexes(ctx, app, src.Files())
}

// indexesAtOnce is how many indexes are written at once: headers of a tar are found one by one.
const indexesAtOnce = 16

// writeIndexes leaves an index beside each tar that was read. One that is there is not replaced.
func (a *attachment) writeIndexes(ctx context.Context, app *App, files *source.Files) error {
	kind := a.cmd.IndexFormat
	var made atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(indexesAtOnce)
	for _, tar := range slices.Sorted(maps.Keys(a.tars)) {
		group.Go(func() error {
			var index bytes.Buffer
			if err := files.WriteIndex(ctx, tar, kind, &index); err != nil {
				return fmt.Errorf("the dataset is attached; index of %s: %w", source.Quoted(tar), err)
			}
			name := kind.Name(tar)
			_, outcome, err := files.Bucket().Put(ctx, name, index.Bytes(), object.Condition{Absent: true})
			switch {
			case outcome == object.Moved: // there is one
			case err != nil:
				return fmt.Errorf("the dataset is attached; write %s (%s): %w", source.Quoted(name), outcome, err)
			default:
				made.Add(1)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	app.Notef("wrote the indexes of %s of %s", humanize.Comma(made.Load()), plural(int64(len(a.tars)), "tar"))
	return nil
}

// open opens the source. Where shards that were not read would have other columns now, it is opened again, to be read.
func (a *attachment) open(ctx context.Context, app *App) (source.Source, *source.Reader, error) {
	c := a.cmd
	from := c.sourceOptions()
	from.Decide, from.Index, from.Inventory = c.decide, c.Index, c.Inventory
	from.TokenBlobs = true // they stay in place
	from.Begin = func(e source.Estimate) error {
		a.estimate(app, e)
		return nil
	}
	bases, err := a.bases(ctx)
	if err != nil {
		return nil, nil, err
	}
	if c.Limit == 0 && len(bases) > 0 {
		from.Kept = func(format, bucket string, objects []schema.Object) (source.Kept, error) {
			l, err := attach.NewListing(bucket, c.reading(format), c.Lazy, objects, a.sets)
			if err != nil {
				return nil, err
			}
			if a.kept = l.Kept(c.Dataset, bases); !a.kept.Any() {
				a.kept = nil
				return nil, nil //nolint:nilnil // there are none
			}
			return a.kept, nil
		}
	}
	for {
		src, err := source.Open(ctx, c.From, from)
		if err != nil {
			return nil, nil, err
		}
		opts := c.readOptions(c.Dataset)
		opts.InPlace = true
		reader, err := source.NewReader(src, opts)
		if err != nil {
			return nil, nil, err
		}
		if a.kept != nil && (len(c.DropColumn) > 0 || !reader.Take(a.kept.Schema())) {
			app.Notef("the columns are other ones than before: all is read again")
			from.Kept, a.kept = nil, nil
			continue
		}
		bucket, objects, err := src.Files().Objects()
		if err != nil {
			return nil, nil, err
		}
		if c.Lazy && !src.Walked() && a.kept == nil {
			app.Notef("%s does not have the offsets of its samples: all is read", src.Format())
		}
		a.listing, err = attach.NewListing(bucket, c.reading(src.Format()), c.Lazy && src.Walked(), objects, a.sets)
		if err != nil {
			return nil, nil, err
		}
		a.knowRows(reader)
		return src, reader, nil
	}
}

// knowRows avoids reading samples whose extents have not changed.
func (a *attachment) knowRows(reader *source.Reader) {
	var rows []*attach.Rows
	for _, r := range a.before() {
		if r.Fits(reader.Schema()) {
			rows = append(rows, r)
		}
	}
	if rows == nil || !a.listing.Keeps() {
		return
	}
	reader.Know(func(id schema.ID, at []source.Extent) *source.Known {
		for _, r := range rows {
			if known := a.listing.Known(r, id, at); known != nil {
				return known
			}
		}
		return nil
	})
}

// before are the rows that there are: of the snapshot that is replaced, and of what was interrupted.
func (a *attachment) before() (all []*attach.Rows) {
	if a.rows != nil {
		all = append(all, a.rows)
	}
	if a.saved != nil && a.saved.rows != nil {
		all = append(all, a.saved.rows)
	}
	return all
}

// bases are those of before whose rows are as they were attached, with the same columns.
func (a *attachment) bases(ctx context.Context) (all []*attach.Rows, err error) {
	for _, r := range slices.Backward(a.before()) {
		if r == a.rows {
			if ok, err := a.asAttached(ctx); !ok || err != nil {
				return all, err
			}
		}
		if len(all) == 0 || all[0].Schema().Equal(r.Schema()) {
			all = append(all, r)
		}
	}
	return all, nil
}

// asAttached reports whether the rows of the snapshot that is replaced are as attachments
// made them. Other changes of rows, a merge or a deletion, mark their sets. Programs that
// set no marks left the sets of the snapshot before, which are compared, down to the one
// that the first of several appends has added to.
func (a *attachment) asAttached(ctx context.Context) (bool, error) {
	attached := func(snap *schema.Snapshot) (all []schema.SetRef) {
		for _, ref := range snap.Sets {
			if ref.Blob != (schema.BlobRef{}) {
				all = append(all, ref)
			}
		}
		return all
	}
	if slices.ContainsFunc(attached(a.base), func(ref schema.SetRef) bool { return ref.Altered }) {
		return false, nil
	}
	for snap := a.base; snap.Parent != 0; {
		parent, err := a.store.Snapshot(ctx, snap.Dataset, snap.Parent)
		if errors.Is(err, schema.ErrNotFound) { // it was dropped
			return snap != a.base, nil
		}
		if err != nil {
			return false, err
		}
		if !appended(parent, snap) {
			return !slices.EqualFunc(attached(snap), attached(parent), func(a, b schema.SetRef) bool {
				return a.Prefix == b.Prefix
			}), nil
		}
		snap = parent
	}
	return true, nil
}

// appended reports whether a snapshot has all rows of the one before, as they were there, and then others.
func appended(before, snap *schema.Snapshot) bool {
	n := len(before.Chunks)
	return n < len(snap.Chunks) && slices.EqualFunc(before.Chunks, snap.Chunks[:n], func(a, b schema.Chunk) bool {
		return a.BlobRef == b.BlobRef && a.Rows == b.Rows
	})
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
	price, exact := object.ListPrices().Find(bucket)
	takes := func(t source.Toll) string {
		text := fmt.Sprintf("about %s%s for %s", most, plural(t.Requests, "request"), humanize.Bytes(uint64(t.Bytes)))
		if price != nil {
			bill := object.Cost(object.Counts{Gets: t.Requests, BytesIn: t.Bytes}, price, object.InRegion)
			text += fmt.Sprintf(", $%s by the list prices of %s within its region", bill.Total, price.Name(exact))
		}
		return text
	}
	app.Notef("%s of %s in %s", plural(e.Files, "object"), humanize.Bytes(uint64(e.Bytes)), bucket)
	switch {
	case !e.Walks():
		app.Notef("all is read: %s", takes(e.Through))
	case a.proves:
		app.Notef("blobs without a checksum are read, the others are not: %s", takes(e.Through))
	case a.cmd.Lazy:
		app.Notef("no blob is read, and each gets its checksum when it is first read: %s; --prove reads all: %s", takes(e.Walked),
			takes(e.Through))
	default:
		app.Notef("all is read: %s; --lazy reads no blob: %s", takes(e.Through), takes(e.Walked))
	}
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
			if data == nil && b.At[c][row].IsZero() {
				continue
			}
			ref, err := a.listing.Ref(b.At[c][row], data)
			if err != nil {
				return fmt.Errorf("%s: %w", source.Quoted(b.Keys[row]), err)
			}
			if at := b.At[c][row]; a.cmd.WriteIndex && at.Unit == nil && strings.HasSuffix(at.File, ".tar") {
				a.tars[at.File] = true
			}
			refs[c][row] = &ref
		}
	}
	for row, id := range b.IDs {
		switch {
		case a.rows != nil && a.rows.Same(id, func(column int) *schema.BlobRef { return refs[column][row] }):
			a.counts.Kept++
		case a.rows != nil && a.listing.Proves(a.rows, a.sets, id, func(column int) source.Extent {
			return b.At[column][row]
		}, func(column int) *schema.BlobRef { return refs[column][row] }):
			a.counts.Proven++
		case a.rows != nil && a.rows.Has(id):
			a.counts.Changed++
		default:
			a.counts.New++
		}
	}
	if a.w == nil {
		return nil
	}
	if a.saved != nil {
		if err := a.saved.write(ctx, b, refs); err != nil {
			return err
		}
	}
	return a.w.WriteRefs(ctx, b.Split, b.IDs, b.Meta, refs)
}

// Commit implements sink.
func (a *attachment) Commit(ctx context.Context, sum *summary) error {
	if a.rows != nil {
		a.counts.Gone = a.base.Rows() - a.counts.Kept - a.counts.Proven - a.counts.Changed
	}
	if a.w == nil {
		return nil
	}
	if err := a.putSets(ctx, a.w); err != nil {
		return err
	}
	snap, changed, err := a.w.Commit(ctx)
	if err != nil {
		return err
	}
	if a.saved != nil {
		if err := a.saved.drop(ctx); err != nil {
			return err
		}
	}
	if a.proves {
		if err := a.prove(ctx, snap.Number); err != nil {
			return fmt.Errorf("the dataset is attached; prove %s@%d: %w", snap.Dataset, snap.Number, err)
		}
	}
	sum.Snapshot, sum.Changed, sum.Notes = snap.Number, changed, append(sum.Notes, a.w.Notes()...)
	sum.Mixing, err = a.mixing(ctx, snap)
	return err
}

// prove reads what of a snapshot has no checksum. Rows of the snapshot before that get one are proven, and not kept.
func (a *attachment) prove(ctx context.Context, number int64) error {
	snap, err := a.store.Snapshot(ctx, a.cmd.Dataset, number)
	if err != nil {
		return err
	}
	return attach.Prove(ctx, a.store, snap, func(id schema.ID, refs []*schema.BlobRef) {
		if a.rows != nil && a.rows.Same(id, func(column int) *schema.BlobRef { return refs[column] }) {
			a.counts.Kept--
			a.counts.Proven++
		}
	})
}

// attachedBlock is the block of the shuffle whose mixing is measured.
const attachedBlock = "8MiB"

// mixing measures how well a shuffle of blocks mixes what was attached.
func (a *attachment) mixing(ctx context.Context, snap *schema.Snapshot) (m *fetch.Mixing, err error) {
	if snap.Rows() == 0 {
		return nil, nil //nolint:nilnil // that there is nothing to mix is no error
	}
	e, err := fetch.NewEngine(a.store, fetch.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	job, err := e.Open(ctx, schema.Request{Dataset: snap.Dataset, Snapshot: snap.Number,
		Shuffle: &schema.Shuffle{Block: attachedBlock}})
	if err != nil {
		return nil, err
	}
	defer job.Close()
	return e.Mixing(ctx, job)
}

// putSets makes a snapshot name the sets that have blobs by now.
func (a *attachment) putSets(ctx context.Context, w *ingest.Writer) error {
	for _, ref := range a.listing.KeptSets() {
		if !a.store.Traits().Segments {
			w.KeepSet(ref)
			continue
		}
		// Its segment belongs to the snapshot before, and goes with it.
		i := slices.IndexFunc(a.sets, func(b attach.Base) bool { return b.Ref.Prefix == ref.Prefix })
		if err := w.PutSet(ctx, a.sets[i].Set); err != nil {
			return err
		}
	}
	for set := range a.listing.Made {
		if err := w.PutSet(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// Close implements sink. The caller that opened the writer and the store closes them.
func (a *attachment) Close() error { return nil }
