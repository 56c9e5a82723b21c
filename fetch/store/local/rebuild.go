package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// RebuildOptions configures a rebuild.
type RebuildOptions struct {
	// Logger receives messages for operators. Default: slog.Default().
	Logger *slog.Logger
	// Payloads also reads every blob and verifies its checksum; damaged blobs are left
	// out. Otherwise only data that was not known to be durable is verified.
	Payloads bool
	// Lossy takes what can be read of the catalog if both copies are damaged. Without it
	// Rebuild fails then.
	Lossy bool
	// Progress may be nil. The caller's goroutine calls it.
	Progress func(RebuildProgress)

	step func(string) // for tests: called between steps
}

// RebuildProgress is the progress of a rebuild.
type RebuildProgress struct {
	Segments, OfSegments int
	Bytes, OfBytes       int64
}

// RebuildReport is the result of a rebuild.
type RebuildReport struct {
	Snapshots int    `json:"snapshots"`
	Blobs     int64  `json:"blobs"`
	Bytes     int64  `json:"bytes"`
	Segments  int    `json:"segments"`
	Catalog   string `json:"catalog"` // the copy used: database, journal, or what is left of both
	// Damage lists ranges of segments without a valid record.
	Damage []string `json:"damage"`
	// Missing lists the snapshots with missing blobs.
	Missing []MissingBlobs `json:"missing"`
}

// MissingBlobs says that a snapshot refers to blobs that the store does not have.
type MissingBlobs struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Blobs    int64  `json:"blobs"`
	Chunks   int64  `json:"chunks"` // missing chunks of its manifest; the blobs of their rows are unknown
}

// Directories of a new database before it replaces the old one, and of the old one
// afterwards.
const (
	newPebbleDir = "pebble.new"
	oldPebbleDir = "pebble.old"
)

// Rebuild makes a new database for a store. The catalog comes from the intact copy, or,
// if both are intact, from the newer one. The index is made from the headers in the
// segments. Then Rebuild reads every manifest, and checks that all blobs exist. The old
// database stays in pebble.old. An interrupted Rebuild can be repeated.
func Rebuild(ctx context.Context, dir string, opts RebuildOptions) (RebuildReport, error) {
	r, err := rebuild(ctx, dir, opts)
	if err != nil {
		return r, fmt.Errorf("rebuild the store in %s: %w", dir, err)
	}
	return r, nil
}

// rebuild is Rebuild with the directory locked.
func rebuild(ctx context.Context, dir string, opts RebuildOptions) (_ RebuildReport, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Progress == nil {
		opts.Progress = func(RebuildProgress) {}
	}
	if exists, err := checkFormat(dir); err != nil {
		return RebuildReport{}, err
	} else if !exists {
		return RebuildReport{}, fmt.Errorf("%w: there is no store in %s", schema.ErrNotFound, dir)
	}
	if opts.step == nil {
		opts.step = func(string) {}
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return RebuildReport{}, err
	}
	defer func() { err = errors.Join(err, lock.release()) }()

	b := &rebuilding{
		ctx: ctx, opts: opts, report: RebuildReport{Damage: []string{}, Missing: []MissingBlobs{}},
		old: newStore(dir, Options{Logger: opts.Logger}.withDefaults()),
	}
	defer b.old.end()
	if err := b.findCatalog(); err != nil {
		return b.report, err
	}
	if err := b.make(); err != nil {
		return b.report, err
	}
	return b.report, b.swap()
}

// rebuilding is one run of Rebuild, or of OpenDamaged. One goroutine uses it.
type rebuilding struct {
	ctx    context.Context // of the call
	opts   RebuildOptions
	report RebuildReport

	old     *Store // as it was found; its database may be unreadable
	rows    change // of the catalog
	version version

	s       *Store // with the new database
	reading bool   // nothing in the directory is changed, for OpenDamaged
}

// findCatalog reads both copies of the catalog, and takes the intact one; if both are
// intact, the newer one. If neither is, it fails, or merges them if Lossy is set.
func (b *rebuilding) findCatalog() error {
	s := b.old
	h, err := readJournal(s.opts.fs, s.journal.dir)
	if err != nil {
		return fmt.Errorf("read the catalog's journal: %w", err)
	}
	db, dbErr := b.readDatabase()
	switch {
	// The database is intact, and has every change that left a trace in the journal.
	case dbErr == nil && db.change >= h.seen:
		b.rows, b.version, b.report.Catalog = db.rows, db.version, "database"
	// The journal is intact up to its end.
	case h.damage == nil && h.change > 0 && h.change == h.seen:
		b.rows, b.version, b.report.Catalog = h.rows, h.version, "journal"
	default:
		if dbErr == nil {
			dbErr = fmt.Errorf("%w: it has gone back to change %d", schema.ErrDataLoss, db.change)
		}
		if h.damage == nil {
			h.damage = fmt.Errorf("%w: it ends with change %d of %d", schema.ErrDataLoss, h.change, h.seen)
		}
		if !b.opts.Lossy || len(h.rows)+len(db.rows) == 0 {
			return fmt.Errorf("%w: neither copy of the catalog is whole. Database: %s. Journal: %s. "+
				"With --lossy, what can be read of them is kept", schema.ErrDataLoss, dbErr, h.damage)
		}
		b.rows, b.report.Catalog = mergeRows(h.rows, db.rows), "what is left of both copies"
		b.version = version{change: max(h.seen, db.change), digest: rowsDigest(b.rows)}
	}
	return nil
}

// mergeRows takes all rows of both copies. Numbers that were assigned are not assigned
// again. Deleted rows may reappear.
func mergeRows(journal, database change) change {
	merged := change{}
	maps.Copy(merged, database)
	maps.Copy(merged, journal)
	partitions := map[string][2]map[string][]byte{}
	for i, from := range []change{database, journal} {
		for key, v := range from {
			if key[0] != prefixRow {
				continue
			}
			name, row, ok := splitRowKey([]byte(key))
			if !ok {
				continue
			}
			copies := partitions[name]
			if copies[i] == nil {
				copies[i] = map[string][]byte{}
			}
			copies[i][row] = v
			partitions[name] = copies
			delete(merged, key)
		}
	}
	// The rows of a partition depend on each other, so the protocol merges them.
	for name, copies := range partitions {
		for row, v := range protocol.Merge(name, copies[:]...) {
			merged[string(rowKey(name, row))] = v
		}
	}
	return merged
}

// found is the readable content of a damaged database.
type found struct {
	rows change
	version
}

// readDatabase reads as much of the existing database's catalog as it can. The error says
// why a part is missing.
func (b *rebuilding) readDatabase() (f found, err error) {
	s := b.old
	f.rows = change{}
	if s.db, err = openDatabase(s.pebble(), s.opts, reading); err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.db.Close()) }()
	for rows, e := range s.mirroredRows() {
		for k, v := range rows {
			f.rows[k] = v
		}
		err = errors.Join(err, e)
	}
	v, e := s.value(keyVersion)
	if e == nil && v != nil {
		f.version, e = decodeVersion(v)
	}
	if err = errors.Join(err, e); err != nil {
		return f, err
	}
	digest := rowsDigest(f.rows)
	if v != nil && digest != f.digest {
		return f, fmt.Errorf("%w: its rows are not those of its change %d", schema.ErrDataLoss, f.change)
	}
	f.digest = digest
	return f, nil
}

// make fills a new database, and checks that everything that the catalog names exists.
func (b *rebuilding) make() (err error) {
	dir := b.old.dir
	if err := os.RemoveAll(filepath.Join(dir, newPebbleDir)); err != nil {
		return err
	}
	b.s = newStore(dir, b.old.opts)
	b.s.database = newPebbleDir
	defer b.s.end()
	if err := newDatabase(b.s.pebble(), b.s.opts); err != nil {
		return err
	}
	if b.s.db, err = openDatabase(b.s.pebble(), b.s.opts, writing); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.s.db.Close()) }()
	b.s.set = b.s.newSet(true)
	defer func() { b.s.set.Close() }()
	defer func() { err = errors.Join(err, b.s.Store.Close()) }()
	if err := b.fill(); err != nil {
		return err
	}
	if err := b.s.db.Flush(); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	return b.checkAll()
}

// fill writes the index and the catalog into the new database. The catalog gets a new
// version, because the records of segments have changed.
func (b *rebuilding) fill() error {
	// The index comes first, because it changes the records of segments in the catalog.
	if err := b.indexSegments(); err != nil {
		return err
	}
	b.version = version{b.version.change + 1, rowsDigest(b.rows)}
	b.rows[string(keyVersion)] = b.version.encode()
	b.rows[string(keyState)] = state{Clean: true, Boot: b.s.boot}.encode()
	if err := b.write(b.rows); err != nil {
		return err
	}
	list, err := b.s.Datasets(b.ctx)
	for _, d := range list {
		b.report.Snapshots += len(d.Snapshots)
	}
	return err
}

// write puts rows into the new database.
func (b *rebuilding) write(rows change) error {
	batch := b.s.db.NewBatch()
	defer batch.Close()
	for k, v := range rows {
		if err := batch.Set([]byte(k), v, nil); err != nil {
			return err
		}
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	return nil
}

// swap replaces the old database with the new one, atomically if the file system can, and
// begins a new journal file. The new change number is greater than any in the old
// journal.
func (b *rebuilding) swap() error {
	// The old database is moved away only when the new one is complete.
	dir := b.old.dir
	now, next, old := b.old.pebble(), filepath.Join(dir, newPebbleDir), filepath.Join(dir, oldPebbleDir)
	b.opts.step("made")
	if err := errors.Join(os.RemoveAll(old), segment.SyncDir(next)); err != nil {
		return err
	}
	b.opts.step("cleared")
	err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, now, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		b.opts.step("exchanged")
		err = os.Rename(next, old)
	case errors.Is(err, unix.ENOENT):
		err = os.Rename(next, now) // there was none
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		// Between the two renames there is no database, and such a store cannot be opened.
		if err = os.Rename(now, old); err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.Rename(next, now)
		}
	}
	if err := errors.Join(err, segment.SyncDir(dir)); err != nil {
		return fmt.Errorf("put the new database in its place: %w", err)
	}
	b.opts.step("in place")
	j := b.old.journal
	rows := change{}
	for k, v := range b.rows {
		if isMirrored(k) {
			rows[k] = v
		}
	}
	err = errors.Join(j.write(nil, b.version, oneChange(rows)), j.close())
	b.opts.step("journal")
	return err
}

// oneChange yields one change.
func oneChange(c change) iter.Seq2[change, error] {
	return func(yield func(change, error) bool) { yield(c, nil) }
}

// reindexBatch is how many entries of a new index are written at once, to bound the
// memory of the batch.
const reindexBatch = 4096

// indexSegments makes the index from the headers in all segment files, including files
// that the catalog does not know.
func (b *rebuilding) indexSegments() error {
	dir := filepath.Join(b.s.dir, segmentsDir)
	ids, err := segment.List(dir)
	if err != nil {
		return err
	}
	sizes := map[uint32]int64{}
	p := RebuildProgress{OfSegments: len(ids)}
	for _, id := range ids {
		st, err := os.Stat(filepath.Join(dir, segment.FileName(id)))
		if err != nil {
			return err
		}
		sizes[id] = st.Size()
		p.OfBytes += st.Size()
	}
	b.opts.Progress(p)
	total := count{}
	for _, id := range ids {
		if err := b.indexSegment(id, sizes[id], &total, func(at int64) {
			b.opts.Progress(RebuildProgress{p.Segments, p.OfSegments, p.Bytes + at, p.OfBytes})
		}); err != nil {
			return fmt.Errorf("segment %d: %w", id, err)
		}
		p.Segments, p.Bytes = p.Segments+1, p.Bytes+sizes[id]
		b.opts.Progress(p)
	}
	b.settleRecords(ids)
	b.report.Segments, b.report.Blobs, b.report.Bytes = len(ids), total.blobs, total.bytes
	if err := b.s.db.Merge(keyCount, total.encode(), pebble.NoSync); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	return nil
}

// settleRecords adjusts the catalog to the segment files that exist: none of them is to
// be unlinked, and no new segment gets the number of one.
func (b *rebuilding) settleRecords(ids []uint32) {
	next := uint32(0)
	if v := b.rows[string(keySegment)]; len(v) == 4 {
		next = binary.LittleEndian.Uint32(v)
	}
	for _, id := range ids {
		next = max(next, id+1)
		// Its blobs have been indexed, so it must not be unlinked.
		delete(b.rows, string(freedKey(id)))
	}
	b.rows[string(keySegment)] = binary.LittleEndian.AppendUint32(nil, next)
}

// indexSegment indexes one segment. Data that is not known to be durable is written
// again, synced and then verified, unless the directory must not be changed.
func (b *rebuilding) indexSegment(id uint32, size int64, total *count, progress func(at int64)) error {
	record, known := segmentRecord{}, false
	if v := b.rows[string(segmentKey(id))]; v != nil {
		r, err := decodeSegmentRecord(v)
		record, known = r, err == nil
	}
	durable := min(record.durable, size)
	if !known || durable < segment.HeaderSize {
		durable = 0
	}
	// While the same kernel runs, reading does not prove that data is on the disk: see
	// mending.tail.
	if size > durable && !b.reading {
		if err := b.s.set.Rewrite(id, durable, size); err != nil {
			b.note(fmt.Errorf("what was not known to be stored cannot be: %w", err))
			size = durable
		}
	}
	b.rows[string(segmentKey(id))] = segmentRecord{durable: size, end: max(size, segment.HeaderSize)}.encode()
	g, err := b.s.set.Attach(id, size, size, false)
	if err != nil {
		b.note(err)
		return nil
	}
	w := indexWriter{b: b, batch: b.s.db.NewIndexedBatch(), total: total}
	defer func() { _ = w.batch.Close() }() // it is discarded on an error
	read := func(opts segment.ScanOptions, end int64) error {
		n := 0
		for rec, err := range g.Scan(opts) {
			if n++; n%1024 == 0 {
				progress(rec.Offset)
				if b.ctx.Err() != nil {
					return b.ctx.Err()
				}
			}
			switch {
			case errors.Is(err, schema.ErrDataLoss):
				b.note(err)
			case err != nil:
				return err
			case rec.Offset >= end:
				return nil
			case !rec.Void:
				if err := w.add(id, rec); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if b.opts.Payloads || durable == 0 {
		err = read(segment.ScanOptions{Payloads: true}, size)
	} else {
		err = read(segment.ScanOptions{}, durable)
		if err == nil && durable < size {
			err = read(segment.ScanOptions{From: durable, Payloads: true}, size)
		}
	}
	if err != nil {
		return err
	}
	return w.flush()
}

// note adds a line to the report's Damage.
func (b *rebuilding) note(damage error) { b.report.Damage = append(b.report.Damage, damage.Error()) }

// indexWriter writes index entries in batches.
type indexWriter struct {
	b     *rebuilding
	batch *pebble.Batch
	total *count
}

// add adds the entry of a record, unless an earlier record of the same blob is intact.
func (w *indexWriter) add(id uint32, rec segment.Record) error {
	e := entry{Location: segment.Location{Segment: id, Offset: rec.Offset, Length: rec.Length}, sum: rec.Sum}
	var key [33]byte
	v, closer, err := w.batch.Get(blobKey(&key, &rec.Key))
	switch {
	case err == nil:
		old, err := decodeEntry(v)
		if err := errors.Join(err, closer.Close()); err != nil {
			return err
		}
		// A collection that was killed leaves two copies of a blob. The first is kept if it is intact.
		if w.b.holds(old) {
			return nil
		}
		w.total.blobs--
		w.total.bytes -= old.Length
	case !errors.Is(err, pebble.ErrNotFound):
		return err
	}
	var value [entrySize]byte
	if err := w.batch.Set(blobKey(&key, &rec.Key), e.encode(&value), nil); err != nil {
		return err
	}
	w.total.blobs++
	w.total.bytes += rec.Length
	if w.batch.Count() >= reindexBatch {
		return w.flush()
	}
	return nil
}

// holds reports whether the bytes of an entry have its checksum.
func (b *rebuilding) holds(e entry) bool {
	blob, err := b.s.set.Get(e.Location)
	if err != nil {
		return false
	}
	defer blob.Release()
	return schema.BlobRef{Size: e.Length, Sum: e.sum}.Check(blob.Bytes()) == nil
}

// flush commits the batch, and begins a new one.
func (w *indexWriter) flush() error {
	if err := errors.Join(w.batch.Commit(pebble.NoSync), w.batch.Close()); err != nil {
		return fmt.Errorf("write the database: %w", err)
	}
	w.batch = w.b.s.db.NewIndexedBatch()
	return nil
}

// checkAll checks that everything that the snapshots refer to exists, and reports what
// does not.
func (b *rebuilding) checkAll() error {
	list, err := b.s.Datasets(b.ctx)
	if err != nil {
		return err
	}
	whole := map[schema.Key]bool{} // chunks that snapshots share are read once
	for _, d := range list {
		for _, number := range d.Snapshots {
			snap, err := b.s.Snapshot(b.ctx, d.Name, number)
			if errors.Is(err, schema.ErrDataLoss) {
				b.note(err)
				continue
			} else if err != nil {
				return err
			}
			missing := MissingBlobs{Dataset: d.Name, Snapshot: number}
			for _, set := range snap.Sets {
				if set.Blob == (schema.BlobRef{}) {
					continue
				}
				lacks, err := b.lacks(set.Blob)
				if err != nil {
					return err
				}
				if lacks {
					missing.Blobs++
				}
			}
			for _, c := range snap.Chunks {
				if b.ctx.Err() != nil {
					return b.ctx.Err()
				}
				if whole[c.Key] {
					continue
				}
				blobs, err := b.missingOf(snap, c)
				if errors.Is(err, schema.ErrDataLoss) || errors.Is(err, schema.ErrNotFound) {
					missing.Chunks++
					continue
				} else if err != nil {
					return err
				}
				missing.Blobs += blobs
				whole[c.Key] = blobs == 0
			}
			if missing.Blobs+missing.Chunks > 0 {
				b.report.Missing = append(b.report.Missing, missing)
			}
		}
	}
	return nil
}

// missingOf counts the missing blobs of a chunk of a manifest. Blobs in other buckets do
// not count.
func (b *rebuilding) missingOf(snap *schema.Snapshot, c schema.Chunk) (missing int64, err error) {
	attached := map[schema.ObjectPrefix]bool{}
	for _, set := range snap.Sets {
		attached[set.Prefix] = true
	}
	err = b.s.eachRef(snap, c, func(ref schema.BlobRef) error {
		if attached[schema.ObjectPrefix(ref.Key[:len(schema.ObjectPrefix{})])] {
			return nil // it is in a bucket
		}
		lacks, err := b.lacks(ref)
		if lacks {
			missing++
		}
		return err
	})
	return missing, err
}

// lacks reports whether a blob is missing, or differs from its reference in size or
// checksum.
func (b *rebuilding) lacks(ref schema.BlobRef) (bool, error) {
	e, ok, err := b.s.entry(ref.Key)
	return !ok || e.Length != ref.Size || e.sum != ref.Sum || !b.s.set.Holds(e.Location), err
}

// eachRef visits the references in a chunk of a snapshot's manifest, and those to its
// pages.
func (s *Store) eachRef(snap *schema.Snapshot, c schema.Chunk, visit func(schema.BlobRef) error) error {
	get := func(ref schema.BlobRef) (schema.Blob, error) {
		blob, _, err := s.get(ref.Key)
		return blob, err
	}
	return schema.EachPage(snap, c, get, func(page schema.Chunk, _ int64, man *schema.Manifest) error {
		if c.Pages > 0 {
			if err := visit(page.BlobRef); err != nil {
				return err
			}
		}
		for col := range schema.BlobFields(snap.Schema) {
			for pos := range man.Rows() {
				if ref, ok := man.Blob(col, pos); ok {
					if err := visit(ref); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
}

// OpenDamaged opens a store with a damaged database for reading, so that intact blobs
// stay readable. The catalog is the intact copy. The index is made in memory from the
// headers in the segments, with about 100 bytes per blob. Nothing in the directory is
// changed. A call that would change the store returns a schema.ErrDataLoss that says how
// to repair it. If neither copy of the catalog is intact, OpenDamaged returns an error.
// The caller closes the store.
func OpenDamaged(ctx context.Context, dir string, opts Options) (*Store, error) {
	s, err := openDamaged(ctx, dir, opts.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("open the damaged store in %s: %w", dir, err)
	}
	return s, nil
}

// openDamaged is OpenDamaged without the context in errors.
func openDamaged(ctx context.Context, dir string, opts Options) (_ *Store, err error) {
	if exists, err := checkFormat(dir); err != nil {
		return nil, err
	} else if !exists {
		return nil, fmt.Errorf("%w: there is no store in %s", schema.ErrNotFound, dir)
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.release())
		}
	}()
	b := &rebuilding{
		ctx: ctx, opts: RebuildOptions{Logger: opts.Logger, Progress: func(RebuildProgress) {}},
		old: newStore(dir, opts), reading: true,
	}
	defer b.old.end()
	if err := b.findCatalog(); err != nil {
		return nil, err
	}
	// The index is in a database in memory, so the calls that read are the same as for an
	// intact store.
	inMemory := opts
	inMemory.fs = vfs.NewMem()
	s := newStore(dir, inMemory)
	s.damaged = damaged("change the store in "+dir,
		errors.New("its database is damaged, so that it is open for reading only"))
	if s.db, err = openDatabase(s.pebble(), inMemory, writing); err != nil {
		s.end()
		return nil, err
	}
	s.set = s.newSet(true)
	b.s = s
	if err := b.fill(); err != nil {
		s.end()
		s.set.Close()
		return nil, errors.Join(err, s.db.Close())
	}
	for _, damage := range b.report.Damage {
		s.log.WarnContext(ctx, "a stretch of a segment is damaged", "damage", damage)
	}
	s.count.blobs.Store(b.report.Blobs)
	s.count.bytes.Store(b.report.Bytes)
	s.lock = lock
	return s, nil
}
