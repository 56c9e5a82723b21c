package cql

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gocql/gocql"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

const (
	selectCatalog   = "SELECT dataset, number, dropped_to, dropped FROM " + tableSnapshots
	selectPartition = "SELECT number, dropped_to, dropped, version, last, commit_id FROM " + tableSnapshots + " WHERE dataset = ?"
	selectRecord    = "SELECT record, dropped_to, dropped FROM " + tableSnapshots + " WHERE dataset = ? AND number = ?"
	selectNewest    = "SELECT number, record, dropped_to, dropped FROM " + tableSnapshots + " WHERE dataset = ? ORDER BY number DESC LIMIT 1"

	// The condition of each is the version that the partition was read at; of
	// a new partition, that there is none.
	commitSnapshot = "UPDATE " + tableSnapshots + " SET version = ?, last = ?, record = ?, created = ?, commit_id = ? WHERE dataset = ? AND number = ? IF version = "
	dropSnapshot   = "UPDATE " + tableSnapshots + " SET version = ?, dropped = ? WHERE dataset = ? AND number = ? IF version = "
	dropDataset    = "UPDATE " + tableSnapshots + " SET version = ?, dropped_to = ? WHERE dataset = ? IF version = "
	forgetSnapshot = "DELETE FROM " + tableSnapshots + " WHERE dataset = ? AND number = ?"

	insertSelection  = "INSERT INTO " + tableSelections + " (dataset, key, record) VALUES (?, ?, ?)"
	selectSelection  = "SELECT record FROM " + tableSelections + " WHERE dataset = ? AND key = ?"
	selectSelections = "SELECT dataset, key, record FROM " + tableSelections
	deleteSelection  = "DELETE FROM " + tableSelections + " WHERE dataset = ? AND key = ?"
)

// rowsAtOnce is the page size where rows are small.
const rowsAtOnce = 5000

// catalogRow is a snapshot as the catalog lists it.
type catalogRow struct {
	dataset string
	number  int64
	live    bool // not dropped
}

// catalog lists all snapshots, dropped ones too, in no order.
func (s *Store) catalog(ctx context.Context) ([]catalogRow, error) {
	iter := s.db.Query(selectCatalog).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var rows []catalogRow
	for {
		var dataset string
		var number, droppedTo *int64
		var dropped *time.Time
		if !iter.Scan(&dataset, &number, &droppedTo, &dropped) {
			break
		}
		if number != nil { // a dataset without snapshots keeps its counter
			rows = append(rows, catalogRow{dataset, *number, dropped == nil && (droppedTo == nil || *number > *droppedTo)})
		}
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSnapshots, "list the catalog")
	}
	return rows, nil
}

// Datasets implements store.Store.
func (s *Store) Datasets(ctx context.Context) ([]store.Dataset, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	return s.datasets(ctx)
}

func (s *Store) datasets(ctx context.Context) ([]store.Dataset, error) {
	rows, err := s.catalog(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b catalogRow) int {
		if c := strings.Compare(a.dataset, b.dataset); c != 0 {
			return c
		}
		return int(a.number - b.number)
	})
	var list []store.Dataset
	for _, r := range rows {
		if !r.live {
			continue
		}
		if n := len(list); n == 0 || list[n-1].Name != r.dataset {
			list = append(list, store.Dataset{Name: r.dataset})
		}
		d := &list[len(list)-1]
		d.Snapshots = append(d.Snapshots, r.number)
	}
	return list, nil
}

// partition is the state of a dataset: what transactions are conditioned on.
type partition struct {
	version, last int64
	live          []int64              // ascending
	commits       map[int64]gocql.UUID // which commit made a number, of all rows there are
}

func (p *partition) newest() int64 {
	if len(p.live) == 0 {
		return 0
	}
	return p.live[len(p.live)-1]
}

// partition reads a dataset's state. At serial consistency, transactions whose
// outcome is open are settled by it.
func (s *Store) partition(ctx context.Context, dataset string, level gocql.Consistency) (*partition, error) {
	iter := s.db.Query(selectPartition, dataset).WithContext(ctx).Consistency(level).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	p := &partition{commits: map[int64]gocql.UUID{}}
	for {
		var number, droppedTo, version, last *int64
		var dropped *time.Time
		var commit gocql.UUID
		if !iter.Scan(&number, &droppedTo, &dropped, &version, &last, &commit) {
			break
		}
		if version != nil {
			p.version = *version
		}
		if last != nil {
			p.last = *last
		}
		if number == nil {
			continue
		}
		p.commits[*number] = commit
		if dropped == nil && (droppedTo == nil || *number > *droppedTo) {
			p.live = append(p.live, *number)
		}
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSnapshots, fmt.Sprintf("look up dataset %q", dataset))
	}
	slices.Sort(p.live)
	return p, nil
}

// errUncertain: a transaction may have been made or not.
var errUncertain = errors.New("the outcome of the transaction is not known yet")

// transact runs one lightweight transaction on a partition that was read at p.
// It is never repeated by the driver, which could not tell its own success
// from somebody else's.
func (s *Store) transact(ctx context.Context, p *partition, stmt string, args ...any) (applied bool, err error) {
	if p.version == 0 {
		stmt += "null"
	} else {
		stmt += "?"
		args = append(args, p.version)
	}
	return s.cas(ctx, tableSnapshots, stmt, args...)
}

func (s *Store) cas(ctx context.Context, table, stmt string, args ...any) (applied bool, err error) {
	q := s.db.Query(stmt, args...).WithContext(ctx).Consistency(s.catalogLevel()).
		Idempotent(false).RetryPolicy(movingRetries(0)).NoSkipMetadata()
	row := map[string]any{}
	applied, err = q.MapScanCAS(row)
	switch {
	case err == nil:
		return applied, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case uncertain(err):
		return false, fmt.Errorf("%w: %w", errUncertain, s.fault(ctx, err, nil, table, "transaction"))
	default:
		return false, s.fault(ctx, err, nil, table, "transaction")
	}
}

// uncertainTries is how often a transaction is tried whose answers are lost.
const uncertainTries = 5

// Commit implements store.Ingest.
func (in *ingest) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	if err := in.enter(ctx); err != nil {
		return nil, err
	}
	s := in.s
	defer s.life.RUnlock()
	if err := store.CheckCommit(in.dataset, &snap); err != nil {
		return nil, err
	}
	snap.Dataset = in.dataset
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(partsAtOnce)
	for _, c := range snap.Chunks {
		g.Go(func() error { return s.present(gctx, c.BlobRef) })
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("manifest chunk: %w", err)
	}
	return in.commit(ctx, snap)
}

func (in *ingest) commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	s := in.s
	id := gocql.MustRandomUUID()
	snap.Created = time.Now().UTC().Truncate(time.Microsecond)
	var open error // why the last attempt's outcome is not known
	for try := 0; ; {
		p, err := s.partition(ctx, in.dataset, s.serialLevel())
		if err != nil {
			return nil, errors.Join(err, open)
		}
		for number, commit := range p.commits {
			if commit == id { // an attempt whose answer was lost
				snap.Number = number
				return s.reread(snap)
			}
		}
		if err := store.CheckParent(in.dataset, snap.Parent, p.newest()); err != nil {
			return nil, err
		}
		snap.Number = p.last + 1
		record, err := encodeRecord(&snap)
		if err != nil {
			return nil, err
		}
		applied, err := s.transact(ctx, p, commitSnapshot,
			p.version+1, snap.Number, record, snap.Created, id, in.dataset, snap.Number)
		switch {
		case errors.Is(err, errUncertain):
			if try++; try == uncertainTries {
				return nil, fmt.Errorf("commit %s: %w", snapshotName(in.dataset, snap.Number), err)
			}
			open = err
			s.log.InfoContext(ctx, "a commit's outcome is not known; reading it back", "dataset", in.dataset, "number", snap.Number, "error", err)
		case err != nil:
			return nil, fmt.Errorf("commit to %q: %w", in.dataset, err)
		case applied:
			return s.reread(snap)
		}
	}
}

// reread returns a snapshot as any reader will find it, sharing no memory with
// the caller's.
func (s *Store) reread(snap schema.Snapshot) (*schema.Snapshot, error) {
	record, err := encodeRecord(&snap)
	if err != nil {
		return nil, err
	}
	return decodeRecord(snap.Dataset, snap.Number, record)
}

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)) // nil writers cannot fail
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
)

// encodeRecord is the snapshot's JSON, compressed: a manifest of 10^9 rows has
// 15,000 chunks, whose record passes through a transaction.
func encodeRecord(snap *schema.Snapshot) ([]byte, error) {
	record, err := json.Marshal(snap)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	return encoder.EncodeAll(record, nil), nil
}

func decodeRecord(dataset string, number int64, record []byte) (*schema.Snapshot, error) {
	text, err := decoder.DecodeAll(record, nil)
	snap := new(schema.Snapshot)
	if err == nil {
		err = json.Unmarshal(text, snap)
	}
	if err == nil && (snap.Dataset != dataset || snap.Number != number) {
		err = fmt.Errorf("it is of %s", snapshotName(snap.Dataset, snap.Number))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the record of snapshot %s: %w", schema.ErrDataLoss, snapshotName(dataset, number), err)
	}
	return snap, nil
}

// record reads a snapshot's record, nil if there is none or it was dropped.
// With dropped, dropped ones are returned too.
func (s *Store) record(ctx context.Context, dataset string, number int64, dropped bool) (*schema.Snapshot, error) {
	iter := s.db.Query(selectRecord, dataset, number).WithContext(ctx).Consistency(s.catalogLevel()).Iter()
	host := iter.Host()
	var record []byte
	var to *int64
	var at *time.Time
	found := iter.Scan(&record, &to, &at)
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSnapshots, "read snapshot "+snapshotName(dataset, number))
	}
	if !found || record == nil || !dropped && (at != nil || to != nil && number <= *to) {
		return nil, nil
	}
	return decodeRecord(dataset, number, record)
}

// newestRecord reads the record of the greatest number, nil if there is none or
// it was dropped: then another may be the newest.
func (s *Store) newestRecord(ctx context.Context, dataset string) (*schema.Snapshot, error) {
	iter := s.db.Query(selectNewest, dataset).WithContext(ctx).Consistency(s.catalogLevel()).Iter()
	host := iter.Host()
	var record []byte
	var number, to *int64
	var at *time.Time
	found := iter.Scan(&number, &record, &to, &at)
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSnapshots, "read the newest snapshot of "+dataset)
	}
	if !found || number == nil || record == nil || at != nil || to != nil && *number <= *to {
		return nil, nil
	}
	return decodeRecord(dataset, *number, record)
}

// newest reads the newest snapshot: mostly in one round trip, as it mostly has
// the greatest number.
func (s *Store) newest(ctx context.Context, dataset string) (*schema.Snapshot, error) {
	snap, err := s.newestRecord(ctx, dataset)
	if err != nil || snap != nil {
		return snap, err
	}
	p, err := s.partition(ctx, dataset, s.catalogLevel())
	if err != nil {
		return nil, err
	}
	number := p.newest()
	if number == 0 {
		return nil, s.missing(ctx, dataset, 0)
	}
	return s.record(ctx, dataset, number, false)
}

// Prepare does what would otherwise cost the first reader some round trips: the
// statements that reading takes are prepared, by asking for what no name can
// name, the lease is written, and some memory for blobs is touched, in bytes.
func (s *Store) Prepare(ctx context.Context, memory int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.buffers.touch(memory) })
	g.Go(func() error { return s.lease.ensureReading(ctx) })
	g.Go(func() error {
		_, err := s.newestRecord(ctx, " ")
		return err
	})
	g.Go(func() error {
		_, err := s.record(ctx, " ", 0, false)
		return err
	})
	g.Go(func() error {
		r := newReading(ctx, selectPart, 0)
		r.bind(&r.key, 0)
		if err := s.readCell(s.db, r, s.config.Read, tableParts); !errors.Is(err, gocql.ErrNotFound) {
			return err
		}
		return nil
	})
	return g.Wait()
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	if err := s.lease.ensureReading(ctx); err != nil {
		return nil, err
	}
	asked := number
	// Repeated if what was found is dropped between two reads.
	for {
		var snap *schema.Snapshot
		var err error
		if asked == 0 {
			snap, err = s.newest(ctx, dataset)
		} else {
			snap, err = s.record(ctx, dataset, number, false)
		}
		if err != nil {
			return nil, err
		}
		if snap != nil {
			number = snap.Number
		}
		if snap != nil && s.lease.hold(snapshotName(dataset, number)) {
			// A collection that has listed the leases already would not know.
			if err := s.lease.renew(ctx); err != nil {
				return nil, err
			}
			if snap, err = s.record(ctx, dataset, number, false); err != nil {
				return nil, err
			}
		}
		switch {
		case snap != nil:
			return snap, nil
		case asked != 0:
			return nil, s.missing(ctx, dataset, number)
		}
	}
}

// missing says which dataset or snapshot there is not, and which there are.
func (s *Store) missing(ctx context.Context, dataset string, number int64) error {
	list, err := s.datasets(ctx)
	if err != nil {
		return err
	}
	return store.NoSnapshot(list, dataset, number)
}

// Drop implements store.Store. A dropped snapshot's selections go with it. Its
// record stays until a collection finds that no process reads it any more.
func (s *Store) Drop(ctx context.Context, dataset string, number int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	var open error
	for try := 0; ; {
		p, err := s.partition(ctx, dataset, s.serialLevel())
		if err != nil {
			return errors.Join(err, open)
		}
		if len(p.live) == 0 || number != 0 && !slices.Contains(p.live, number) {
			if open != nil { // it was this call
				break
			}
			return s.missing(ctx, dataset, number)
		}
		var applied bool
		if number == 0 {
			applied, err = s.transact(ctx, p, dropDataset, p.version+1, p.last, dataset)
		} else {
			applied, err = s.transact(ctx, p, dropSnapshot, p.version+1, time.Now(), dataset, number)
		}
		if errors.Is(err, errUncertain) {
			if try++; try < uncertainTries {
				open = err
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("drop from %q: %w", dataset, err)
		}
		if applied {
			break
		}
	}
	return s.dropSelections(ctx, dataset, number)
}

func (s *Store) dropSelections(ctx context.Context, dataset string, number int64) error {
	list, err := s.selections(ctx, dataset)
	if err != nil {
		return err
	}
	for _, sel := range list {
		if number == 0 || sel.Snapshot == number {
			if err := s.forgetSelection(ctx, sel, s.clock.now()); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetSelection removes a selection as it was written until then, in
// microseconds: what was saved later stays.
func (s *Store) forgetSelection(ctx context.Context, sel *schema.Selection, until int64) error {
	q := s.db.Query(deleteSelection, sel.Dataset, sel.Bitmap.Key[:]).Consistency(s.catalogLevel()).WithTimestamp(until)
	return s.exec(ctx, q, tableSelections, "remove a selection")
}

// SaveSelection implements store.Store.
func (s *Store) SaveSelection(ctx context.Context, in store.Ingest, sel schema.Selection) error {
	own, ok := in.(*ingest)
	if !ok || own.s != s {
		return fmt.Errorf("%w: the ingest is not one of this store", schema.ErrInvalid)
	}
	if err := own.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	if sel.Dataset != own.dataset {
		return fmt.Errorf("%w: a selection of %q saved through an ingest into %q", schema.ErrInvalid, sel.Dataset, own.dataset)
	}
	if err := s.present(ctx, sel.Bitmap); err != nil {
		return fmt.Errorf("selection bitmap: %w", err)
	}
	p, err := s.partition(ctx, sel.Dataset, s.catalogLevel())
	if err != nil {
		return err
	}
	if !slices.Contains(p.live, sel.Snapshot) {
		return s.missing(ctx, sel.Dataset, sel.Snapshot)
	}
	if sel.Created.IsZero() {
		sel.Created = time.Now().UTC().Truncate(time.Microsecond)
	}
	old, err := s.selectionRecord(ctx, sel.Dataset, sel.Bitmap.Key)
	if err != nil {
		return err
	}
	if old != nil && old.Snapshot == sel.Snapshot && !old.Expired(time.Now()) {
		if !old.Extend(sel.Expires) {
			return nil
		}
		sel = *old
	}
	return s.putSelection(ctx, &sel)
}

// putSelection writes a selection's record.
func (s *Store) putSelection(ctx context.Context, sel *schema.Selection) error {
	record, err := json.Marshal(sel)
	if err != nil {
		return fmt.Errorf("encode the selection: %w", err)
	}
	q := s.db.Query(insertSelection, sel.Dataset, sel.Bitmap.Key[:], string(record)).
		Consistency(s.catalogLevel()).WithTimestamp(s.clock.now())
	return s.exec(ctx, q, tableSelections, "save a selection")
}

// RenewSelection implements store.Store. A drop at the same time may come first:
// the next collection removes what has no snapshot.
func (s *Store) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	sel, err := s.Selection(ctx, dataset, name)
	if err != nil || !sel.Extend(until) {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.putSelection(ctx, sel)
}

// selectionRecord reads a selection's record, nil if there is none.
func (s *Store) selectionRecord(ctx context.Context, dataset string, key schema.Key) (*schema.Selection, error) {
	iter := s.db.Query(selectSelection, dataset, key[:]).WithContext(ctx).Consistency(s.catalogLevel()).Iter()
	host := iter.Host()
	var record string
	found := iter.Scan(&record)
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSelections, "read a selection")
	}
	if !found {
		return nil, nil
	}
	return decodeSelection(record)
}

// Selection implements store.Store.
func (s *Store) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	key, err := schema.ParseKey(name)
	if err != nil {
		return nil, fmt.Errorf("selection name: %w", err)
	}
	sel, err := s.selectionRecord(ctx, dataset, key)
	if err == nil && sel != nil && sel.Expired(time.Now()) {
		err = store.SelectionExpired(sel)
	}
	if sel != nil || err != nil {
		return sel, err
	}
	p, err := s.partition(ctx, dataset, s.catalogLevel())
	if err != nil {
		return nil, err
	}
	if p.newest() == 0 {
		return nil, s.missing(ctx, dataset, 0)
	}
	list, err := s.selections(ctx, dataset)
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: dataset %q has no selection %s among its %d", schema.ErrNotFound, dataset, name, len(list))
}

func decodeSelection(record string) (*schema.Selection, error) {
	sel := new(schema.Selection)
	if err := json.Unmarshal([]byte(record), sel); err != nil {
		return nil, fmt.Errorf("%w: the record of a selection: %w", schema.ErrDataLoss, err)
	}
	return sel, nil
}

// selections lists those of a dataset, or of all if dataset is empty.
func (s *Store) selections(ctx context.Context, dataset string) ([]*schema.Selection, error) {
	q := s.db.Query(selectSelections)
	if dataset != "" {
		q = s.db.Query(selectSelections+" WHERE dataset = ?", dataset)
	}
	iter := q.WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var list []*schema.Selection
	var of, record string
	var key []byte
	for iter.Scan(&of, &key, &record) {
		sel, err := decodeSelection(record)
		if err != nil {
			return nil, errors.Join(err, iter.Close())
		}
		list = append(list, sel)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, tableSelections, "list the selections")
	}
	return list, nil
}
