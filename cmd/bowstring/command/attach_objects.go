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

// reading is what the rows depend on besides the objects. An object set stores it as
// JSON. An update reads in the same way as the attachment before. Rows that were read in
// another way cannot be kept and are read again.
//
// The JSON is compared as text. A new field therefore needs omitempty, or all datasets
// would be read again after an upgrade.
type reading struct {
	// The fields are those flags of ReadFlags that change rows, in the order of reading
	// below.
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

// reading returns the JSON of how this command reads.
func (c *AttachCmd) reading(format string) string {
	r := reading{c.From, format, c.Split, c.PathColumn, c.Columns, c.LeaveOut, c.Text, c.Spread, c.AsMetadata, c.Tokens,
		c.CountTokens, c.Verify, c.Limit, c.Lazy}
	text, _ := json.Marshal(r) // cannot fail: texts and numbers only
	return string(text)
}

// resume sets the flags to those of the attachment before. Lazy is not among them: see
// readAsBefore.
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

// readAsBefore chooses --lazy or --prove as the attachment of the same URL before did,
// unless a flag says otherwise. An update with --prove of a lazy dataset keeps its rows,
// and then reads the blobs that have no checksum.
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

// lazySeconds and lazyTimes decide whether an attachment is lazy by default. It is, if
// reading takes more than 10 minutes and more than 10 times as long as walking the headers.
// The other two are the speed of a machine, as a rule of thumb: bytes and requests a second.
const (
	lazySeconds    = 600
	lazyTimes      = 10
	bytesASecond   = 200e6
	requestsSecond = 3000
)

// decide returns whether blobs are not read. --lazy or --prove decides. Without both, the
// estimated time does, and the result is set in Lazy.
func (c *AttachCmd) decide(e source.Estimate) bool {
	if !c.Lazy && !c.Prove {
		took := func(t source.Toll) float64 { return float64(t.Requests)/requestsSecond + float64(t.Bytes)/bytesASecond }
		c.Lazy = took(e.Through) > max(lazySeconds, lazyTimes*took(e.Walked))
	}
	return c.Lazy
}

// place makes From the URL of a bucket with a prefix. A directory becomes a file:// URL
// with an absolute path, so that an update works from any working directory. A pattern
// names no file itself and is not checked here.
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

// attachGC is the percentage by which the heap of an attachment may grow between two
// garbage collections. Go's default is 100.
const attachGC = 25

// attachObjects attaches the data of a bucket or a directory. With --update and no URL it
// takes the URL and flags from the dataset's object sets.
func (c *AttachCmd) attachObjects(ctx context.Context, app *App, addr string) (err error) {
	for name, set := range map[string]bool{"metadata": c.Metadata != "", "split-column": c.SplitColumn != "",
		"media": c.Media != "", "skip-existing": c.SkipExisting} {
		if set {
			return usagef("--%s is of tables in Scylla or Cassandra", name)
		}
	}
	// Most of the memory is lists that stay until the end. The default would double the
	// process for them, and more frequent collections cost little.
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
	// If only the dataset is named, From is its name until resume has the URL.
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
	// The base is read before the URL is known, because the base may have it.
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

// lastPart returns the last part of a URL's path, or else its bucket. It is the default
// name of the dataset.
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

// attachment is one run of attach on objects. It is the sink of the rows that are read:
// into calls Write for each batch, from one goroutine, and then Commit.
type attachment struct {
	cmd   *AttachCmd
	store store.Store
	begun time.Time

	base *schema.Snapshot // the snapshot that exists; nil for none
	sets []attach.Base    // object sets of base, and of an interrupted attachment
	rows *attach.Rows     // of base, if they are replaced
	// kept and listing are set by open. The listing has the objects of this run, and
	// assigns the keys of their blobs.
	kept    *attach.Kept // rows of shards that need not be read; nil for none
	listing *attach.Listing
	w       *ingest.Writer // nil for a dry run
	saved   *saved         // nil if nothing is saved on the way
	proves  bool           // blobs without a checksum are read after the rows are attached
	counts  updated
	tars    map[string]bool // tars that were read, if their indexes are to be written
}

// findBase reads the newest snapshot and its object sets. It is an error for an update
// alone that there is none.
func (a *attachment) findBase(ctx context.Context) (err error) {
	a.base, err = a.store.Snapshot(ctx, a.cmd.Dataset, 0)
	switch {
	// Without --update, a dataset that does not exist will be created.
	case errors.Is(err, schema.ErrNotFound) && !a.cmd.Update:
		return nil
	case err != nil:
		return err
	}
	a.sets, err = readSets(ctx, a.store, a.base)
	return err
}

// readSets reads the object sets that a snapshot refers to. It returns an error if one of
// them is missing, because without it rows of the snapshot would silently be read again.
func readSets(ctx context.Context, st store.Store, snap *schema.Snapshot) (sets []attach.Base, err error) {
	for _, ref := range snap.Sets {
		if ref.Blob == (schema.BlobRef{}) { // the set of the store's own blobs
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

// onlyReading returns how the snapshot was attached. If its sets were attached in several
// ways it returns an error: an update replaces all rows, and would lose those of the
// others.
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

// run does the attachment. The order matters. The rows of the base must be known before
// open decides what to read, and the writer needs the schema that open finds.
func (a *attachment) run(ctx context.Context, app *App) (err error) {
	c := a.cmd
	mode, err := ingest.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	if mode == ingest.Replace && a.base != nil {
		// Only a replacement can keep rows: append adds new ones to those of the base.
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
	// open may read the headers of all objects, and takes the longest of these steps.
	src, reader, err := a.open(ctx, app)
	if err != nil {
		return err
	}
	// From here on the summary has the time of the whole command, findBase included.
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

// indexesAtOnce is the number of indexes that are written at once. Each needs the headers
// of its tar one after another, so that one index alone waits for the bucket most of the
// time.
const indexesAtOnce = 16

// writeIndexes writes an index next to each tar that was read. An existing index is not
// replaced. The dataset exists by then, and the errors say so.
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
			// The index is next to the tar, where its readers look for it.
			name := kind.Name(tar)
			_, outcome, err := files.Bucket().Put(ctx, name, index.Bytes(), object.Condition{Absent: true})
			switch {
			// The condition Absent makes the check and the write one step: another
			// process may write the same index.
			case outcome == object.Moved: // an index exists
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

// open opens the source, and sets kept and listing. If shards were kept but the columns
// have changed, it opens the source again without kept shards, and reads everything.
func (a *attachment) open(ctx context.Context, app *App) (source.Source, *source.Reader, error) {
	c := a.cmd
	// Decide is called by the source after it has an estimate, and before it reads.
	from := c.sourceOptions()
	from.Decide, from.Index, from.Inventory = c.decide, c.Index, c.Inventory
	from.TokenBlobs = true // blobs of tokens stay in place as well
	from.Begin = func(e source.Estimate) error {
		a.estimate(app, e)
		return nil
	}
	// With --limit no rows are kept: which samples are the first N must be found by
	// reading.
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
		// The loop runs at most twice: without kept rows the condition below is false.
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

// knowRows lets the reader skip samples whose extents have not changed. It works below
// the level of kept shards: a changed tar may have many samples that are where they were.
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

// before returns the rows that exist: those of the snapshot to be replaced, and those of
// an interrupted attachment.
func (a *attachment) before() (all []*attach.Rows) {
	if a.rows != nil {
		all = append(all, a.rows)
	}
	if a.saved != nil && a.saved.rows != nil {
		all = append(all, a.saved.rows)
	}
	return all
}

// bases returns those of before whose rows are as they were attached and that have the
// same columns. The newest, of the interrupted attachment, come first.
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
	// Sets without a blob are the store's own, and no objects.
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
	// Snapshots of several appends name the same sets.
	for snap := a.base; snap.Parent != 0; {
		parent, err := a.store.Snapshot(ctx, snap.Dataset, snap.Parent)
		if errors.Is(err, schema.ErrNotFound) { // the parent was dropped
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

// appended reports whether snap begins with all chunks of before, unchanged, and has
// more.
func appended(before, snap *schema.Snapshot) bool {
	n := len(before.Chunks)
	return n < len(snap.Chunks) && slices.EqualFunc(before.Chunks, snap.Chunks[:n], func(a, b schema.Chunk) bool {
		return a.BlobRef == b.BlobRef && a.Rows == b.Rows
	})
}

// estimate prints how much will be read, before it is read. The user can then stop an
// expensive attachment. Nothing is printed for sources without files, or that are not in
// a bucket.
func (a *attachment) estimate(app *App, e source.Estimate) {
	bucket, _, err := object.SplitURL(a.cmd.From)
	if err != nil || e.Files == 0 {
		return
	}
	// With a base, rows may be kept, so that the estimate is an upper bound.
	most := ""
	if a.base != nil {
		most = "at most "
	}
	// Only known clouds have list prices. Elsewhere the estimate has no cost.
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
	// Phase 1: references. A cell without data and without an extent is null.
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
	// Phase 2: counts. A row of the base is kept if all of its references are the same.
	// It is proven if they differ only by a checksum that was missing before.
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
	// Phase 3: the rows go to the saved dataset as well as to the new snapshot.
	if a.saved != nil {
		if err := a.saved.write(ctx, b, refs); err != nil {
			return err
		}
	}
	return a.w.WriteRefs(ctx, b.Split, b.IDs, b.Meta, refs)
}

// Commit implements sink. The sets are stored before the snapshot that refers to them.
// The saved rows are dropped only after the commit.
func (a *attachment) Commit(ctx context.Context, sum *summary) error {
	if a.rows != nil {
		// Each row of the base is kept, proven, changed, or gone.
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

// prove reads the blobs of a snapshot that have no checksum. A row that gets its
// checksums this way counts as proven, and no longer as kept.
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

// mixing measures how well a shuffle of blocks mixes the attached rows. Objects of one
// class next to each other mix badly, and users learn it here instead of in training.
func (a *attachment) mixing(ctx context.Context, snap *schema.Snapshot) (m *fetch.Mixing, err error) {
	if snap.Rows() == 0 {
		return nil, nil //nolint:nilnil // that there is nothing to mix is no error
	}
	// The engine computes the same order as a job would get.
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

// putSets makes the snapshot of w refer to the sets that have blobs by now.
func (a *attachment) putSets(ctx context.Context, w *ingest.Writer) error {
	for _, ref := range a.listing.KeptSets() {
		if !a.store.Traits().Segments {
			w.KeepSet(ref)
			continue
		}
		// In such a store the set's segment belongs to the snapshot before, and is
		// deleted with it. The new snapshot needs a copy.
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

// Close implements sink. It does nothing: the caller closes the writer and the store.
func (a *attachment) Close() error { return nil }
