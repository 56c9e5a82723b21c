package schema

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"

	"github.com/apache/arrow/go/v17/arrow"
)

// Manifest is a snapshot with all of its rows open, read in place from the pages. It
// takes no heap memory per row. It is immutable and safe for concurrent use.
//
// Positions given to its methods must be in [0, Rows()).
type Manifest struct {
	form    *Form
	starts  []int64 // first position of each chunk, then the number of rows
	uniform uint64  // rows of every chunk except the last, 0 if they differ
	pages   []*Page

	index func() *idIndex // built at the first call
}

// refs are the references of one blob column of one page, as views into the page.
type refs struct {
	view *view // for the nulls
	key  []Key
	size []uint64
	sum  []uint64
}

// OpenManifest opens the rows of snap. chunks are the blobs that snap.Chunks name, in
// order; the manifest owns them from now on, also if OpenManifest fails. Bytes that
// contradict the snapshot are an ErrDataLoss.
func OpenManifest(snap *Snapshot, chunks []Blob) (*Manifest, error) {
	m := &Manifest{}
	if err := m.open(snap, chunks); err != nil {
		m.Close()
		for i := range chunks {
			chunks[i].Release()
		}
		return nil, fmt.Errorf("manifest of %s@%d: %w", snap.Dataset, snap.Number, err)
	}
	return m, nil
}

func (m *Manifest) open(snap *Snapshot, chunks []Blob) (err error) {
	if len(chunks) != len(snap.Chunks) {
		return fmt.Errorf("%w: %d chunks, the snapshot names %d", ErrDataLoss, len(chunks), len(snap.Chunks))
	}
	if m.form, err = NewForm(snap); err != nil {
		return err
	}
	m.starts = make([]int64, 1, len(chunks)+1)
	for c, want := range snap.Chunks {
		blob := chunks[c]
		chunks[c] = Blob{}
		p, err := m.form.OpenPage(want, blob)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", c, err)
		}
		m.pages = append(m.pages, p)
		m.starts = append(m.starts, m.starts[c]+want.Rows)
	}
	if n := len(snap.Chunks); n > 0 {
		rows := snap.Chunks[0].Rows
		m.uniform = uint64(rows)
		for c, want := range snap.Chunks {
			if want.Rows != rows && (c < n-1 || want.Rows > rows) {
				m.uniform = 0
			}
		}
	}
	m.index = sync.OnceValue(m.buildIndex)
	return nil
}

// check compares the sizes with their total in the snapshot.
func (r *refs) check(total int64) error {
	var sum, all uint64
	for i, s := range r.size {
		all |= s
		if !r.view.null(i) {
			sum += s
		}
	}
	// The sum of 2^23 sizes below 2^40 cannot overflow.
	if all >= 1<<40 {
		return fmt.Errorf("%w: blob of more than 2^40 bytes", ErrDataLoss)
	}
	if sum != uint64(total) {
		return fmt.Errorf("%w: blobs of %d bytes in all, the snapshot says %d", ErrDataLoss, sum, total)
	}
	return nil
}

// Close releases the chunks. The caller guarantees that nothing obtained from
// the manifest, batches included, is used afterwards.
func (m *Manifest) Close() {
	for _, p := range m.pages {
		p.Release()
	}
	m.pages = nil
}

// Snapshot is the manifest's snapshot.
func (m *Manifest) Snapshot() *Snapshot { return m.form.snap }

// Form is what the manifest's pages have in common.
func (m *Manifest) Form() *Form { return m.form }

// At returns the rows of the samples at positions. A position outside of the snapshot is
// an ErrInvalid.
func (m *Manifest) At(positions []int64) ([]Row, error) {
	out, rows := make([]Row, len(positions)), m.Rows()
	for i, pos := range positions {
		if pos < 0 || pos >= rows {
			return nil, fmt.Errorf("%w: position %d, want 0 to %d", ErrInvalid, pos, rows-1)
		}
		c, row := m.locate(pos)
		out[i] = Row{m.pages[c], row}
	}
	return out, nil
}

// Rows is the number of samples.
func (m *Manifest) Rows() int64 { return m.starts[len(m.starts)-1] }

// Chunks is the number of chunks. ChunkStart(c) to ChunkStart(c+1) are the
// positions in chunk c.
func (m *Manifest) Chunks() int { return len(m.starts) - 1 }

// ChunkStart is the first position in chunk c; ChunkStart(Chunks()) is Rows().
func (m *Manifest) ChunkStart(c int) int64 { return m.starts[c] }

// locate returns the chunk of a position, and the row in it. Chunks of equal size need a
// division, others a binary search.
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
	return m.pages[c].ids[i]
}

// Blob returns the reference in blob column col, counted among the blob
// columns, at a position; ok is false if the cell is null. It does not
// allocate.
func (m *Manifest) Blob(col int, pos int64) (ref BlobRef, ok bool) {
	c, i := m.locate(pos)
	return m.pages[c].Blob(col, i)
}

// Page returns a chunk's rows. The manifest keeps them open until it is closed.
func (m *Manifest) Page(c int) *Page { return m.pages[c] }

// Column returns a stored column as one array a chunk. A blob column is a
// struct of key, size and sum. The arrays need no Release, and live as long as
// the manifest.
func (m *Manifest) Column(name string) ([]arrow.Array, error) {
	i, err := m.form.ColumnIndex(name)
	if err != nil {
		return nil, err
	}
	out := make([]arrow.Array, len(m.pages))
	for c := range out {
		out[c] = m.pages[c].Column(i)
	}
	return out, nil
}

// SplitOf names the split that a position is in, "" if it is in none.
func (m *Manifest) SplitOf(pos int64) string { return m.form.SplitOf(pos) }

// Lookup finds the position of the sample with an id. The first call builds an index of 5
// bytes a row (10 beyond 2^32 rows), so it takes time in proportion to the rows.
func (m *Manifest) Lookup(id ID) (pos int64, ok bool) { return m.index().find(m, id) }

// idIndex is an open-addressing hash table of positions plus one, with linear probing; 0
// is a free slot. The ids themselves stay in the pages. The hash is seeded, so that no
// choice of ids can make it slow.
type idIndex struct {
	seed  maphash.Seed
	small []uint32
	large []uint64
}

// buildIndex builds the table, filled to 80 %.
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

// slotOf maps the hash of an id to a slot, without a division.
func slotOf(seed maphash.Seed, id ID, slots int) int {
	hi, _ := bits.Mul64(maphash.Bytes(seed, id[:]), uint64(slots))
	return int(hi)
}

func fillIndex[T uint32 | uint64](m *Manifest, seed maphash.Seed, table []T) {
	pos := T(0)
	for _, p := range m.pages {
		for _, id := range p.ids {
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
