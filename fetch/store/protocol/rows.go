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

// Names of rows, those with a slash followed by what they are of.
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

// Passing reports whether a row means nothing any more once the process that wrote it has ended. A database of
// one process may keep such rows in memory.
func Passing(row string) bool { return strings.HasPrefix(row, rowIngest) }

// Merge makes one partition of the rows of damaged copies: all rows of any of them, later
// copies before earlier ones. It gives no number out again. A dropped snapshot may be
// back.
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

// keepRuns has the rows of runs be those that went furthest, whichever copy they are of: a step that was settled once must
// not be steered any more, as streams may have served it.
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

// Recover makes the rows of a dataset of the records of its snapshots that were found in segments, each with its address.
// Their numbers are not in the records: they follow from the times of creation and the parents, and may differ from what
// they were. A record of a commit that failed is among them. It returns the numbers given, in the order of the records;
// 0 for one that cannot be read.
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

// Stored is a snapshot as a partition has it. If its record is stored as a blob, only
// Record is set.
type Stored struct {
	Record *schema.BlobRef
	*schema.Snapshot
}

// Snapshots reads the snapshots of a partition that were not dropped, as far as its rows have them.
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

// DatasetOf is the dataset of a snapshot's record; "" if it is none.
func DatasetOf(record []byte) string {
	text, err := decoder.DecodeAll(record, nil)
	var snap schema.Snapshot
	if err != nil || json.Unmarshal(text, &snap) != nil {
		return ""
	}
	return snap.Dataset
}

func snapshotRow(number int64) string { return fmt.Sprintf("%s%019d", rowSnapshot, number) }

// control is the state of collections.
type control struct {
	Epoch Epoch `json:"epoch"`
	// Run is the collection that runs, empty if none does; Member is the
	// process that it runs in, and Holder says for people which that is.
	Run    string `json:"run,omitempty"`
	Member string `json:"member,omitempty"`
	Holder string `json:"holder,omitempty"`
	// Unclean is the newest epoch of which deletions may still be on their way,
	// of what was stored before it; 0 if there is none.
	Unclean Epoch `json:"unclean,omitempty"`
	// Whole says that the last collection came to its end.
	Whole bool      `json:"whole"`
	Ended time.Time `json:"ended,omitzero"`
	// Blobs and Bytes are what it left.
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// firstEpoch is that of a store that was never collected.
const firstEpoch Epoch = 1

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

// head is what one has to know of a dataset as a whole.
type head struct {
	Last   int64 `json:"last"`   // the greatest number given out
	Newest int64 `json:"newest"` // of the snapshots that are there, 0 for none
	// Row is that of the newest once more, so that who opens it reads one row. A
	// program that does not know of it leaves it out.
	Row *snapshotRecord `json:"row,omitempty"`
}

// snapshotRecord is a snapshot's row. The record itself is in it, or a blob.
type snapshotRecord struct {
	Commit  string          `json:"commit"` // names the call
	Record  []byte          `json:"record,omitempty"`
	Blob    *schema.BlobRef `json:"blob,omitempty"`
	Created time.Time       `json:"created"`
	Rows    int64           `json:"rows"`
	Dropped time.Time       `json:"dropped,omitzero"`
}

// ingestRecord registers an ingest.
type ingestRecord struct {
	Member string `json:"member"`
	Epoch  Epoch  `json:"epoch"` // its process's when it was registered
	Commit string `json:"commit,omitempty"`
	Number int64  `json:"number,omitempty"` // of the last commit
}

type tagRecord struct {
	Number  int64     `json:"number"`
	Created time.Time `json:"created"`
}

// datasetState is a partition, decoded.
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

// rowMemo remembers what rows decode to: a partition of thousands is loaded
// again and again, with few that have changed.
type rowMemo struct {
	most int // of rows that are remembered; memoRows if it is 0

	mu   sync.Mutex
	rows map[string]memoized // by partition and row
}

type memoized struct {
	text  []byte
	value any
}

const (
	// memoRows is how many rows are remembered.
	memoRows = 1 << 16
	// memoRecords is how many records of snapshots are: they are larger, and a job opens one, or those of a mixture.
	memoRecords = 256
)

// remembered decodes a row, unless it is the one that was decoded before.
func remembered[T any](m *rowMemo, name string, text []byte) (T, error) {
	return rememberedBy(m, name, text, func(text []byte) (value T, err error) {
		err = json.Unmarshal(text, &value)
		return value, err
	})
}

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

func newState(name string) *datasetState {
	return &datasetState{
		name: name, snapshots: map[int64]snapshotRecord{}, ingests: map[string]ingestRecord{},
		selections: map[string]*schema.Selection{}, tags: map[string]tagRecord{}, proofs: map[string]proofRecord{},
		runs: map[string]*store.Run{},
	}
}

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

func (d *datasetState) newest() int64 {
	if live := d.live(); len(live) > 0 {
		return live[len(live)-1]
	}
	return 0
}

// run is a run by name; nil if there is none, or its time is over.
func (d *datasetState) run(name string, now time.Time) *store.Run {
	if run := d.runs[name]; run != nil && !run.Expired(now) {
		return run
	}
	return nil
}

// edit is a Change in the making.
type edit struct {
	// uncertain says that an attempt before may have been made.
	uncertain bool

	change Change
	err    error
}

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

func (e *edit) remove(row string) { e.change.Delete = append(e.change.Delete, row) }

func (e *edit) empty() bool { return len(e.change.Put) == 0 && len(e.change.Delete) == 0 }

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1)) // nil writers cannot fail
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
)

// encodeRecord is the snapshot's JSON, compressed, without its number, which is
// known only when it is committed.
func encodeRecord(snap schema.Snapshot) ([]byte, error) {
	snap.Number = 0
	record, err := json.Marshal(&snap)
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

// snapshotName is what a member's row calls a snapshot.
func snapshotName(dataset string, number int64) string { return fmt.Sprintf("%s@%d", dataset, number) }
