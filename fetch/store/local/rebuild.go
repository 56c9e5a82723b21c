package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store/protocol"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// RebuildOptions says how a database is made anew.
type RebuildOptions struct {
	// Logger gets what an operator should know. Default: slog.Default().
	Logger *slog.Logger
	// Payloads also reads every blob and compares it with its checksum; what
	// differs is left out. Otherwise that is done for what was not known to be stored.
	Payloads bool
	// Lossy takes of the catalog what can be read, if both copies are damaged.
	Lossy bool
	// Progress may be nil. It is called by the calling goroutine.
	Progress func(RebuildProgress)

	step func(string) // for tests: called between what it does
}

// RebuildProgress is how far a rebuild has come.
type RebuildProgress struct {
	Segments, OfSegments int
	Bytes, OfBytes       int64
}

// RebuildReport is what a rebuild has found.
type RebuildReport struct {
	Snapshots int    `json:"snapshots"`
	Blobs     int64  `json:"blobs"`
	Bytes     int64  `json:"bytes"`
	Segments  int    `json:"segments"`
	Catalog   string `json:"catalog"` // which copy: database, journal, or what is left of both
	// Damage is stretches of segments in which there is nothing that checks.
	Damage []string `json:"damage"`
	// Missing is, for each snapshot of which something is not there, how much.
	Missing []MissingBlobs `json:"missing"`
}

// MissingBlobs says that a snapshot refers to blobs that the store has not.
type MissingBlobs struct {
	Dataset  string `json:"dataset"`
	Snapshot int64  `json:"snapshot"`
	Blobs    int64  `json:"blobs"`
	Chunks   int64  `json:"chunks"` // of its manifest, the blobs of whose rows are not known
}

// The directories of a new database before it takes its place, and of the one that it has
// taken it from.
const (
	newPebbleDir = "pebble.new"
	oldPebbleDir = "pebble.old"
)

// Rebuild makes a store's database anew: the catalog from whichever of its two copies is
// whole and newer, the index from the headers in the segments. Every manifest is then
// read, and all that it names looked for. The database that there was is kept beside
// the new one, in pebble.old. Whenever it is interrupted, it can be begun again.
func Rebuild(ctx context.Context, dir string, opts RebuildOptions) (RebuildReport, error) {
	r, err := rebuild(ctx, dir, opts)
	if err != nil {
		return r, fmt.Errorf("rebuild the store in %s: %w", dir, err)
	}
	return r, nil
}

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

// rebuilding is one run of Rebuild.
type rebuilding struct {
	ctx    context.Context // of the call that this is
	opts   RebuildOptions
	report RebuildReport

	old     *Store // as it was found; it may have no database
	rows    change // of the catalog
	version version

	s       *Store // with the new database
	reading bool   // nothing in the directory is changed
}

// findCatalog reads both copies of the catalog and takes the one that is whole, and newer
// if both are.
func (b *rebuilding) findCatalog() error {
	s := b.old
	h, err := readJournal(s.opts.fs, s.journal.dir)
	if err != nil {
		return fmt.Errorf("read the catalog's journal: %w", err)
	}
	db, dbErr := b.readDatabase()
	switch {
	case dbErr == nil && db.change >= h.seen:
		b.rows, b.version, b.report.Catalog = db.rows, db.version, "database"
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

// mergeRows takes all rows that there are. Numbers that were given out are not given out
// again; what was dropped may be back.
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
	for name, copies := range partitions {
		for row, v := range protocol.Merge(name, copies[:]...) {
			merged[string(rowKey(name, row))] = v
		}
	}
	return merged
}

// found is what a damaged database still says.
type found struct {
	rows change
	version
}

// readDatabase reads the catalog of the database that there is, as far as it can be. The
// error says why it is not all of it.
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

// make fills a new database, and looks whether all is there that the catalog names.
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
	return b.lookForAll()
}

// fill writes the index and the catalog into the new database.
func (b *rebuilding) fill() error {
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

// swap puts the new database in the place of the old one at one moment, and begins the
// journal anew. The change that it has then is newer than any in the old journal.
func (b *rebuilding) swap() error {
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
		// Between the two there is no database, which a store without is refused for.
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

func oneChange(c change) iter.Seq2[change, error] {
	return func(yield func(change, error) bool) { yield(c, nil) }
}
