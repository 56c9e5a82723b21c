package protocol

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Names of rows. Those with a slash are followed by the name of what they describe.
const (
	rowState     = "state" // of Control
	rowHead      = "head"
	rowSnapshot  = "snapshot/"
	rowIngest    = "ingest/"
	rowSelection = "selection/"
	rowTag       = "tag/"
	rowProof     = "proof/"
	rowRun       = "run/"
)

// Passing reports whether a row has no meaning any more once the process that wrote it
// has ended. A database that only one process uses may keep such rows in memory.
func Passing(row string) bool { return strings.HasPrefix(row, rowIngest) }

// Merge makes one partition from the rows of damaged copies. It takes every row of any
// copy; of equal names, that of a later copy. Numbers that were assigned are not assigned
// again. A dropped snapshot may reappear.
func Merge(name string, copies ...map[string][]byte) map[string][]byte {
	rows := map[string][]byte{}
	var newest control
	var last head
	for _, from := range copies {
		maps.Copy(rows, from)
		if c, err := decodeControl(Partition{Rows: from}); err == nil && c.Epoch > newest.Epoch {
			newest = c
		}
		var h head
		if json.Unmarshal(from[rowHead], &h) == nil {
			last.Last = max(last.Last, h.Last)
		}
	}
	e := &edit{}
	if name == Control {
		e.put(rowState, newest)
		return e.change.Put
	}
	keepRuns(rows, copies)
	memo, d := &rowMemo{}, newState(name)
	for row, text := range rows {
		if row == rowHead || memo.decodeRow(newState(name), row, text) != nil {
			delete(rows, row)
			continue
		}
		_ = memo.decodeRow(d, row, text) // as it just did
	}
	for number := range d.snapshots {
		last.Last = max(last.Last, number)
	}
	if last.Newest = d.newest(); last.Newest > 0 {
		r := d.snapshots[last.Newest]
		last.Row = &r
	}
	for tag, r := range d.tags {
		if found, ok := d.snapshots[r.Number]; !ok || !found.Dropped.IsZero() {
			delete(rows, rowTag+tag)
		}
	}
	e.put(rowHead, last)
	maps.Copy(rows, e.change.Put)
	return rows
}

// keepRuns replaces each run by that of the copy that went furthest. If a step was
// settled once, its weights must not change any more, because streams may have served it.
func keepRuns(rows map[string][]byte, copies []map[string][]byte) {
	further := func(a, b store.Run) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(len(a.Steered), len(b.Steered)),
			cmp.Compare(a.Settled, b.Settled))
	}
	for row := range rows {
		if !strings.HasPrefix(row, rowRun) {
			continue
		}
		var best store.Run
		for _, from := range copies {
			var run store.Run
			if json.Unmarshal(from[row], &run) == nil && further(run, best) >= 0 {
				best, rows[row] = run, from[row]
			}
		}
	}
}

// Recover makes the rows of a dataset from records of its snapshots that were found in
// segments, each with its address. The records have no numbers. Recover derives numbers
// from the times of creation and the parents, and they may differ from the original ones.
// A record of a failed commit becomes a snapshot too. Recover returns the assigned
// numbers in the order of the records, 0 for a record that cannot be read.
func Recover(name string, records [][]byte, at []schema.BlobRef) (rows map[string][]byte, numbers []int64) {
	numbers = make([]int64, len(records))
	var snaps []*schema.Snapshot
	index := map[*schema.Snapshot]int{}
	for i, record := range records {
		if snap, err := decodeRecord(name, 0, record); err == nil {
			index[snap] = i
			snaps = append(snaps, snap)
		}
	}
	slices.SortStableFunc(snaps, func(a, b *schema.Snapshot) int { return a.Created.Compare(b.Created) })
	e, last := &edit{}, head{}
	for _, snap := range snaps {
		i := index[snap]
		number := max(last.Last, snap.Parent) + 1
		ref := at[i]
		r := snapshotRecord{Commit: fmt.Sprintf("recovered %s", ref.Key), Blob: &ref, Created: snap.Created, Rows: snap.Rows()}
		e.put(snapshotRow(number), r)
		numbers[i] = number
		last = head{Last: number, Newest: number, Row: &r}
	}
	e.put(rowHead, last)
	return e.change.Put, numbers
}

// Stored is a snapshot as a partition has it. If its record is stored as a blob, Snapshot
// has only its dataset and number.
type Stored struct {
	// Record is the blob with the record; nil if the row has the record.
	Record *schema.BlobRef
	*schema.Snapshot
}

// Snapshots decodes the snapshots of a partition that are not dropped. It reads no blobs.
func Snapshots(name string, rows map[string][]byte) (map[int64]Stored, error) {
	d, err := (&rowMemo{}).decode(name, Partition{Rows: rows})
	if err != nil {
		return nil, err
	}
	found := map[int64]Stored{}
	for _, number := range d.live() {
		r := d.snapshots[number]
		of := Stored{Record: r.Blob, Snapshot: &schema.Snapshot{Dataset: name, Number: number}}
		if r.Blob == nil {
			if of.Snapshot, err = decodeRecord(name, number, r.Record); err != nil {
				return nil, err
			}
		}
		found[number] = of
	}
	return found, nil
}

// DatasetOf returns the dataset of a snapshot's record; "" if the bytes are no record.
func DatasetOf(record []byte) string {
	text, err := decoder.DecodeAll(record, nil)
	var snap schema.Snapshot
	if err != nil || json.Unmarshal(text, &snap) != nil {
		return ""
	}
	return snap.Dataset
}

// snapshotRow is the name of a snapshot's row. The number has 19 digits, so that names
// sort by number.
func snapshotRow(number int64) string { return fmt.Sprintf("%s%019d", rowSnapshot, number) }

// control is the row of [Control]: the state of collections.
type control struct {
	Epoch Epoch `json:"epoch"`
	// Run is the id of the running collection, empty if none runs. Member is the id of
	// its process, and Holder describes the process in messages.
	Run    string `json:"run,omitempty"`
	Member string `json:"member,omitempty"`
	Holder string `json:"holder,omitempty"`
	// Unclean is the newest epoch of a collection whose deletions may still arrive. They
	// remove only what was stored before it. 0 if there is none.
	Unclean Epoch `json:"unclean,omitempty"`
	// Whole says that the last collection covered the whole store and succeeded.
	Whole bool      `json:"whole"`
	Ended time.Time `json:"ended,omitzero"`
	// Blobs and Bytes are what the last such collection left.
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// firstEpoch is the epoch of a store that was never collected.
const firstEpoch Epoch = 1

// decodeControl reads the state of collections. A store without the row was never
// collected.
func decodeControl(p Partition) (control, error) {
	c := control{Epoch: firstEpoch}
	row, ok := p.Rows[rowState]
	if !ok {
		return c, nil
	}
	if err := json.Unmarshal(row, &c); err != nil {
		return c, fmt.Errorf("%w: the state of collections: %w", schema.ErrDataLoss, err)
	}
	return c, nil
}

// head is the row of a dataset as a whole.
type head struct {
	Last   int64 `json:"last"`   // the greatest number that was assigned
	Newest int64 `json:"newest"` // number of the newest snapshot that is not dropped; 0 if there is none
	// Row is a copy of the newest snapshot's row, so that opening it reads one row.
	// Programs of older versions leave it out.
	Row *snapshotRecord `json:"row,omitempty"`
}

// snapshotRecord is a snapshot's row. It has the record itself, or the blob that has it.
type snapshotRecord struct {
	Commit  string          `json:"commit"` // names the call, so that a repeated attempt is recognized
	Record  []byte          `json:"record,omitempty"`
	Blob    *schema.BlobRef `json:"blob,omitempty"`
	Created time.Time       `json:"created"`
	Rows    int64           `json:"rows"`
	Dropped time.Time       `json:"dropped,omitzero"`
}

// ingestRecord is the registration of an ingest.
type ingestRecord struct {
	Member string `json:"member"`
	Epoch  Epoch  `json:"epoch"` // that its process knew when it was registered
	Commit string `json:"commit,omitempty"`
	Number int64  `json:"number,omitempty"` // of the last commit, named by Commit
}

// tagRecord is the row of a tag.
type tagRecord struct {
	Number  int64     `json:"number"`
	Created time.Time `json:"created"`
}

// datasetState is a decoded partition. One call owns it. The values that its maps point
// to may be shared through rowMemo, except selections and runs, which are shallow copies.
type datasetState struct {
	name       string
	version    int64
	head       head
	snapshots  map[int64]snapshotRecord
	ingests    map[string]ingestRecord
	selections map[string]*schema.Selection
	tags       map[string]tagRecord
	proofs     map[string]proofRecord // by the prefix of the object set
	runs       map[string]*store.Run
}

// rowMemo caches decoded rows. A partition of thousands of rows is loaded again and
// again, and few rows change between two loads. It is safe for concurrent use.
type rowMemo struct {
	most int // rows to cache; 0 means memoRows

	mu   sync.Mutex
	rows map[string]memoized // by partition and row; guarded by mu
}

// memoized is a row's text with the value that it decodes to. The value is shared and
// never changed.
type memoized struct {
	text  []byte
	value any
}

const (
	// memoRows is how many rows are cached. When the cache is full, it is emptied: that
	// is simpler than an order of use, and one load fills it again.
	memoRows = 1 << 16
	// memoRecords is how many records of snapshots are cached: they are larger than rows,
	// and a job opens one snapshot, or those of a mixture.
	memoRecords = 256
)

// remembered decodes a row, unless the cache has the value for the same text.
func remembered[T any](m *rowMemo, name string, text []byte) (T, error) {
	return rememberedBy(m, name, text, func(text []byte) (value T, err error) {
		err = json.Unmarshal(text, &value)
		return value, err
	})
}

// rememberedBy is remembered with another decoding. decode runs under the lock, so each
// text is decoded once.
func rememberedBy[T any](m *rowMemo, name string, text []byte, decode func([]byte) (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.rows[name]; ok && bytes.Equal(old.text, text) {
		if value, ok := old.value.(T); ok {
			return value, nil
		}
	}
	value, err := decode(text)
	if err != nil {
		return value, err
	}
	if m.rows == nil || len(m.rows) >= cmp.Or(m.most, memoRows) {
		m.rows = map[string]memoized{}
	}
	m.rows[name] = memoized{text, value}
	return value, nil
}

// newState returns the state of an empty partition.
func newState(name string) *datasetState {
	return &datasetState{
		name: name, snapshots: map[int64]snapshotRecord{}, ingests: map[string]ingestRecord{},
		selections: map[string]*schema.Selection{}, tags: map[string]tagRecord{}, proofs: map[string]proofRecord{},
		runs: map[string]*store.Run{},
	}
}

// decode decodes a partition. A row that cannot be decoded is a schema.ErrDataLoss.
func (m *rowMemo) decode(name string, p Partition) (*datasetState, error) {
	d := newState(name)
	d.version = p.Version
	for row, text := range p.Rows {
		if err := m.decodeRow(d, row, text); err != nil {
			return nil, fmt.Errorf("%w: row %q of dataset %q: %w", schema.ErrDataLoss, row, name, err)
		}
	}
	return d, nil
}

// decodeRow decodes one row into d. Rows of unknown kinds are ignored, so that a program
// can read a store that a later version has written to.
func (m *rowMemo) decodeRow(d *datasetState, row string, text []byte) (err error) {
	name := d.name + " " + row
	kind, of, _ := strings.Cut(row, "/")
	switch kind + "/" {
	case rowHead + "/":
		d.head, err = remembered[head](m, name, text)
	case rowSnapshot:
		var number int64
		if number, err = strconv.ParseInt(of, 10, 64); err == nil {
			d.snapshots[number], err = remembered[snapshotRecord](m, name, text)
		}
	case rowIngest:
		d.ingests[of], err = remembered[ingestRecord](m, name, text)
	case rowSelection:
		var sel schema.Selection
		sel, err = remembered[schema.Selection](m, name, text)
		d.selections[of] = &sel
	case rowTag:
		d.tags[of], err = remembered[tagRecord](m, name, text)
	case rowProof:
		d.proofs[of], err = remembered[proofRecord](m, name, text)
	case rowRun:
		var run store.Run
		run, err = remembered[store.Run](m, name, text)
		d.runs[of] = &run
	}
	return err // nil for rows of a later version
}

// live lists the numbers of the snapshots that are not dropped, ascending.
func (d *datasetState) live() []int64 {
	var list []int64
	for number, r := range d.snapshots {
		if r.Dropped.IsZero() {
			list = append(list, number)
		}
	}
	slices.Sort(list)
	return list
}

// newest is the number of the newest snapshot that is not dropped; 0 if there is none.
func (d *datasetState) newest() int64 {
	if live := d.live(); len(live) > 0 {
		return live[len(live)-1]
	}
	return 0
}

// run returns a run by name; nil if there is none, or it has expired.
func (d *datasetState) run(name string, now time.Time) *store.Run {
	if run := d.runs[name]; run != nil && !run.Expired(now) {
		return run
	}
	return nil
}

// edit collects the changes of a swap. The first error of encoding a row is kept in err.
type edit struct {
	// uncertain says that an earlier attempt may have been made.
	uncertain bool

	change Change
	err    error
}

// put sets a row to a value, as JSON.
func (e *edit) put(row string, value any) {
	text, err := json.Marshal(value)
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("encode row %q: %w", row, err)
	}
	if e.change.Put == nil {
		e.change.Put = map[string][]byte{}
	}
	e.change.Put[row] = text
}

// remove deletes a row. Deleting a missing row is no error.
func (e *edit) remove(row string) { e.change.Delete = append(e.change.Delete, row) }

// empty reports whether there is nothing to swap.
func (e *edit) empty() bool { return len(e.change.Put) == 0 && len(e.change.Delete) == 0 }

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)) // nil writers cannot fail
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
)

// encodeRecord returns the snapshot's record: its JSON, compressed, without its number,
// which is known only when it is committed.
func encodeRecord(snap schema.Snapshot) ([]byte, error) {
	snap.Number = 0
	record, err := json.Marshal(&snap)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot: %w", err)
	}
	return encoder.EncodeAll(record, nil), nil
}

// decodeRecord is the inverse of encodeRecord, with the number from the row. Another
// dataset's record is a schema.ErrDataLoss.
func decodeRecord(dataset string, number int64, record []byte) (*schema.Snapshot, error) {
	text, err := decoder.DecodeAll(record, nil)
	snap := new(schema.Snapshot)
	if err == nil {
		err = json.Unmarshal(text, snap)
	}
	if err == nil && snap.Dataset != dataset {
		err = fmt.Errorf("it is of %q", snap.Dataset)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the record of snapshot %s: %w", schema.ErrDataLoss, snapshotName(dataset, number),
			err)
	}
	snap.Number = number
	return snap, nil
}

// snapshotName is the name of a snapshot in a member's row.
func snapshotName(dataset string, number int64) string { return fmt.Sprintf("%s@%d", dataset, number) }
