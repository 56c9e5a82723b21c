package cql

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"bowstring/schema"
)

// Tables of format 1, beside those that both formats have.
const (
	oldSnapshots  = "snapshots"
	oldSelections = "selections"
	oldLeases     = "leases"
)

const (
	selectOldLeases     = "SELECT id, holder FROM " + oldLeases
	selectOldDatasets   = "SELECT DISTINCT dataset FROM " + oldSnapshots
	selectOldPartition  = "SELECT number, dropped_to, dropped, last FROM " + oldSnapshots + " WHERE dataset = ?"
	selectOldRecord     = "SELECT record FROM " + oldSnapshots + " WHERE dataset = ? AND number = ?"
	selectOldSelections = "SELECT record FROM " + oldSelections + " WHERE dataset = ?"
)

// oldDataset is what format 1 keeps of a dataset.
type oldDataset struct {
	name       string
	last       int64   // the greatest number that was given out
	live       []int64 // the numbers of its snapshots, ascending
	selections []*schema.Selection
}

// oldHolders lists the processes of the older program that are at work.
func (s *Store) oldHolders(ctx context.Context) ([]string, error) {
	iter := s.db.Query(selectOldLeases).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var list []string
	var id, holder string
	for iter.Scan(&id, &holder) {
		list = append(list, holder)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, oldLeases, "look for processes of the older program")
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// oldDatasets lists the datasets of format 1, dropped ones too, whose numbers
// are not to be given out again. A commit that was accepted and that nobody has
// completed may be in a partition that this does not list: it was never
// answered, and no reader has seen it.
func (s *Store) oldDatasets(ctx context.Context) ([]string, error) {
	iter := s.db.Query(selectOldDatasets).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var names []string
	var name string
	for iter.Scan(&name) {
		names = append(names, name)
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, oldSnapshots, "list the catalog of format 1")
	}
	slices.Sort(names)
	return names, nil
}

// oldDataset reads a dataset of format 1, its selections if there is a table of
// them. Transactions whose outcome is open are settled by it.
func (s *Store) oldDataset(ctx context.Context, name string, selections bool) (*oldDataset, error) {
	d := &oldDataset{name: name}
	iter := s.db.Query(selectOldPartition,
		name).WithContext(ctx).Consistency(s.serialLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	for {
		var number, droppedTo, last *int64
		var dropped *time.Time
		if !iter.Scan(&number, &droppedTo, &dropped, &last) {
			break
		}
		if last != nil {
			d.last = *last
		}
		if number == nil {
			continue // a dataset without snapshots keeps its counter
		}
		d.last = max(d.last, *number)
		if dropped == nil && (droppedTo == nil || *number > *droppedTo) {
			d.live = append(d.live, *number)
		}
	}
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, oldSnapshots, fmt.Sprintf("read dataset %q of format 1", name))
	}
	slices.Sort(d.live)
	if !selections {
		return d, nil
	}
	return d, s.readOldSelections(ctx, d)
}

func (s *Store) readOldSelections(ctx context.Context, d *oldDataset) error {
	iter := s.db.Query(selectOldSelections,
		d.name).WithContext(ctx).Consistency(s.catalogLevel()).PageSize(rowsAtOnce).Iter()
	host := iter.Host()
	var record string
	var fault error
	for fault == nil && iter.Scan(&record) {
		sel := new(schema.Selection)
		if err := json.Unmarshal([]byte(record), sel); err != nil {
			fault = fmt.Errorf("%w: the record of a selection of %q: %w", schema.ErrDataLoss, d.name, err)
		} else if slices.Contains(d.live, sel.Snapshot) {
			d.selections = append(d.selections, sel)
		}
	}
	if err := iter.Close(); err != nil {
		return s.fault(ctx, err, host, oldSelections, fmt.Sprintf("read the selections of %q of format 1", d.name))
	}
	return fault
}

// oldRecord reads a snapshot of format 1: its JSON, compressed.
func (s *Store) oldRecord(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	iter := s.db.Query(selectOldRecord, dataset, number).WithContext(ctx).Consistency(s.catalogLevel()).Iter()
	host := iter.Host()
	var record []byte
	iter.Scan(&record)
	doing := fmt.Sprintf("read snapshot %s@%d of format 1", dataset, number)
	if err := iter.Close(); err != nil {
		return nil, s.fault(ctx, err, host, oldSnapshots, doing)
	}
	text, err := zstdDecoder.DecodeAll(record, nil)
	snap := new(schema.Snapshot)
	if err == nil {
		err = json.Unmarshal(text, snap)
	}
	if err == nil && (snap.Dataset != dataset || snap.Number != number) {
		err = fmt.Errorf("it is of %s@%d", snap.Dataset, snap.Number)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrDataLoss, doing, err)
	}
	return snap, nil
}

// a nil reader cannot fail
var zstdDecoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
