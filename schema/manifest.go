package schema

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
)

// Manifest is an opened snapshot: its rows, read in place from the chunks. It
// takes no heap per row. It is immutable and safe for concurrent use.
//
// Positions given to its methods must be in [0, Rows()).
type Manifest struct {
	snap    *Snapshot
	starts  []int64  // first position of each chunk, then the number of rows
	uniform uint64   // rows of every chunk but the last, 0 if they differ
	columns [][]view // [column of the schema][chunk]
	ids     [][]ID
	refs    [][]refs // [blob column][chunk]
	splits  []splitRange
	chunks  []Blob

	index func() *idIndex
}

// refs are the references of one blob column in one chunk.
type refs struct {
	view *view // for the nulls
	key  []Key
	size []uint64
	sum  []uint64
}

type splitRange struct {
	Range
	name string
}

// OpenManifest opens the rows of snap. chunks are the blobs that snap.Chunks
// name, in order; the manifest owns them from now on, also when it fails.
// Bytes that are not what the snapshot says are an ErrDataLoss.
func OpenManifest(snap *Snapshot, chunks []Blob) (*Manifest, error) {
	m := &Manifest{snap: snap, chunks: chunks}
	if err := Guard(m.open); err != nil {
		m.Close()
		return nil, fmt.Errorf("manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	return m, nil
}

func (m *Manifest) open() error {
	if err := CheckSchema(m.snap.Schema); err != nil {
		return fmt.Errorf("%w: %s", ErrDataLoss, err.Error()) // the snapshot is broken, not a request
	}
	if len(m.chunks) != len(m.snap.Chunks) {
		return fmt.Errorf("%w: %d chunks, the snapshot names %d", ErrDataLoss, len(m.chunks), len(m.snap.Chunks))
	}
	physical := ChunkSchema(m.snap.Schema)
	message, err := encodeSchema(physical)
	if err != nil {
		return err
	}
	blobFields := BlobFields(m.snap.Schema)
	first := physical.NumFields() - len(blobFields)
	m.columns = make([][]view, physical.NumFields())
	for i := range m.columns {
		m.columns[i] = make([]view, len(m.chunks))
	}
	m.ids = make([][]ID, len(m.chunks))
	m.refs = make([][]refs, len(blobFields))
	for i := range m.refs {
		m.refs[i] = make([]refs, len(m.chunks))
	}
	m.starts = make([]int64, 1, len(m.chunks)+1)
	for c, want := range m.snap.Chunks {
		data := m.chunks[c].Bytes()
		if err := want.Check(data); err != nil {
			return fmt.Errorf("chunk %d: %w", c, err)
		}
		if !aligned(data) { // the store could not place it better
			data = slices.Concat(alignedBytes(len(data))[:0], data)
		}
		cols, rows, err := decodeStream(data, physical, message)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", c, err)
		}
		if int64(rows) != want.Rows || rows == 0 {
			return fmt.Errorf("%w: chunk %d has %d rows, the snapshot says %d", ErrDataLoss, c, rows, want.Rows)
		}
		if len(want.BlobBytes) != len(blobFields) {
			return fmt.Errorf("%w: chunk %d counts bytes of %d blob columns, the schema has %d", ErrDataLoss, c, len(want.BlobBytes), len(blobFields))
		}
		for i := range cols {
			m.columns[i][c] = cols[i]
		}
		m.ids[c] = cast[ID](cols[0].values)
		for i := range blobFields {
			v := &m.columns[first+i][c]
			r := refs{
				view: v,
				key:  cast[Key](v.children[0].values),
				size: cast[uint64](v.children[1].values),
				sum:  cast[uint64](v.children[2].values),
			}
			if err := r.check(want.BlobBytes[i]); err != nil {
				return fmt.Errorf("chunk %d, column %q: %w", c, blobFields[i].Name, err)
			}
			m.refs[i][c] = r
		}
		m.starts = append(m.starts, m.starts[c]+want.Rows)
	}
	if n := len(m.snap.Chunks); n > 0 {
		rows := m.snap.Chunks[0].Rows
		m.uniform = uint64(rows)
		for c, want := range m.snap.Chunks {
			if want.Rows != rows && (c < n-1 || want.Rows > rows) {
				m.uniform = 0
			}
		}
	}
	if err := m.openSplits(); err != nil {
		return err
	}
	m.index = sync.OnceValue(m.buildIndex)
	return nil
}

// check compares the sizes with their sum as the snapshot has it.
func (r *refs) check(total int64) error {
	var sum, all uint64
	for i, s := range r.size {
		all |= s
		if !r.view.null(i) {
			sum += s
		}
	}
	// Sizes below 2^40 cannot overflow the sum of 2^23 of them.
	if all >= 1<<40 {
		return fmt.Errorf("%w: blob of more than 2^40 bytes", ErrDataLoss)
	}
	if sum != uint64(total) {
		return fmt.Errorf("%w: blobs of %d bytes in all, the snapshot says %d", ErrDataLoss, sum, total)
	}
	return nil
}

func (m *Manifest) openSplits() error {
	rows := m.Rows()
	for _, s := range m.snap.Splits {
		for _, r := range s.Ranges {
			if r.Start < 0 || r.End < r.Start || r.End > rows {
				return fmt.Errorf("%w: split %q has positions %d to %d of %d", ErrDataLoss, s.Name, r.Start, r.End, rows)
			}
			if r.End > r.Start {
				m.splits = append(m.splits, splitRange{r, s.Name})
			}
		}
	}
	slices.SortFunc(m.splits, func(a, b splitRange) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	for i := 1; i < len(m.splits); i++ {
		if a, b := m.splits[i-1], m.splits[i]; b.Start < a.End {
			return fmt.Errorf("%w: position %d is in split %q and in split %q", ErrDataLoss, b.Start, a.name, b.name)
		}
	}
	return nil
}

// Close releases the chunks. The caller guarantees that nothing obtained from
// the manifest, batches included, is used afterwards.
func (m *Manifest) Close() {
	for i := range m.chunks {
		m.chunks[i].Release()
	}
	m.chunks, m.columns, m.ids, m.refs = nil, nil, nil, nil
}

// Snapshot is the snapshot whose rows these are.
func (m *Manifest) Snapshot() *Snapshot { return m.snap }

// Rows is the number of samples.
func (m *Manifest) Rows() int64 { return m.starts[len(m.starts)-1] }

// Chunks is the number of chunks. ChunkStart(c) to ChunkStart(c+1) are the
// positions in chunk c.
func (m *Manifest) Chunks() int { return len(m.starts) - 1 }

// ChunkStart is the first position in chunk c; ChunkStart(Chunks()) is Rows().
func (m *Manifest) ChunkStart(c int) int64 { return m.starts[c] }

// locate returns the chunk that holds a position, and the row in it.
func (m *Manifest) locate(pos int64) (chunk, row int) {
	if m.uniform != 0 {
		return int(uint64(pos) / m.uniform), int(uint64(pos) % m.uniform)
	}
	lo, hi := 0, len(m.starts)-1 // starts[lo] <= pos < starts[hi]
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) / 2); m.starts[mid] <= pos {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, int(pos - m.starts[lo])
}

// ID returns the id of the sample at a position. It does not allocate.
func (m *Manifest) ID(pos int64) ID {
	c, i := m.locate(pos)
	return m.ids[c][i]
}

// Blob returns the reference in blob column col, counted among the blob
// columns, at a position; ok is false if the cell is null. It does not
// allocate.
func (m *Manifest) Blob(col int, pos int64) (ref BlobRef, ok bool) {
	c, i := m.locate(pos)
	r := &m.refs[col][c]
	if r.view.null(i) {
		return BlobRef{}, false
	}
	return BlobRef{Key: r.key[i], Size: int64(r.size[i]), Sum: Sum(r.sum[i])}, true
}

// TryBlob is Blob, and an ErrDataLoss where the manifest's file cannot be read any more.
func (m *Manifest) TryBlob(col int, pos int64) (ref BlobRef, ok bool, err error) {
	err = Guard(func() error {
		ref, ok = m.Blob(col, pos)
		return nil
	})
	return ref, ok, err
}

// Touch reads a byte of each page of a chunk, so that who goes on to read the chunk, where
// an error cannot be told from others, finds it in memory.
func (m *Manifest) Touch(c int) error {
	return Guard(func() error {
		touch(m.chunks[c].Bytes())
		return nil
	})
}

// Column returns a stored column as one array a chunk. A blob column is a
// struct of key, size and sum. The arrays need no Release, and live as long as
// the manifest.
func (m *Manifest) Column(name string) ([]arrow.Array, error) {
	for i, f := range m.snap.Schema.Fields() {
		if f.Name != name {
			continue
		}
		out := make([]arrow.Array, len(m.columns[i]))
		for c := range out {
			out[c] = m.columns[i][c].array()
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: %s@%d has no stored column %s", ErrNotFound, m.snap.Dataset, m.snap.Number, Quote(name))
}

// SplitOf names the split that a position is in, "" if it is in none.
func (m *Manifest) SplitOf(pos int64) string {
	if s := m.splitAt(pos); s != nil {
		return s.name
	}
	return ""
}

func (m *Manifest) splitAt(pos int64) *splitRange {
	i, found := slices.BinarySearchFunc(m.splits, pos, func(s splitRange, pos int64) int {
		switch {
		case s.End <= pos:
			return -1
		case s.Start > pos:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &m.splits[i]
}

// Lookup finds the position of the sample with an id. The first call builds an
// index of 5 bytes a row (10 beyond 2^32 rows).
func (m *Manifest) Lookup(id ID) (pos int64, ok bool) { return m.index().find(m, id) }

// idIndex is an open-addressing table of positions plus one, with linear
// probing; 0 is a free slot. Ids themselves stay in the chunks. The hash is
// seeded, so that no choice of ids can make it slow.
type idIndex struct {
	seed  maphash.Seed
	small []uint32
	large []uint64
}

func (m *Manifest) buildIndex() *idIndex {
	n := uint64(m.Rows())
	x := &idIndex{seed: maphash.MakeSeed()}
	slots := n + n/4 + 1
	if n < math.MaxUint32 {
		x.small = make([]uint32, slots)
		fillIndex(m, x.seed, x.small)
	} else {
		x.large = make([]uint64, slots)
		fillIndex(m, x.seed, x.large)
	}
	return x
}

func slotOf(seed maphash.Seed, id ID, slots int) int {
	hi, _ := bits.Mul64(maphash.Bytes(seed, id[:]), uint64(slots))
	return int(hi)
}

func fillIndex[T uint32 | uint64](m *Manifest, seed maphash.Seed, table []T) {
	pos := T(0)
	for _, ids := range m.ids {
		for _, id := range ids {
			pos++
			at := slotOf(seed, id, len(table))
			for table[at] != 0 {
				if at++; at == len(table) {
					at = 0
				}
			}
			table[at] = pos
		}
	}
}

func (x *idIndex) find(m *Manifest, id ID) (int64, bool) {
	if x.small != nil {
		return findIn(m, x.seed, x.small, id)
	}
	return findIn(m, x.seed, x.large, id)
}

func findIn[T uint32 | uint64](m *Manifest, seed maphash.Seed, table []T, id ID) (int64, bool) {
	for at := slotOf(seed, id, len(table)); table[at] != 0; {
		if pos := int64(table[at]) - 1; m.ID(pos) == id {
			return pos, true
		}
		if at++; at == len(table) {
			at = 0
		}
	}
	return 0, false
}
