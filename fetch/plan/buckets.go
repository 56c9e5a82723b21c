package plan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"sync"

	"bowstring/schema"
)

// Lengths has the length of the sample at each position, in any unit: only the order of
// lengths matters. It is only read.
type Lengths []uint32

// Costs has what the sample at a position costs: the bits of a float32 that is not below 0. It is only read.
type Costs []uint32

// of is what a sample costs.
func (c Costs) of(position int64) float64 { return float64(math.Float32frombits(c[position])) }

// Buckets has samples of like length go together. The epoch's order is cut into windows of whole
// global batches; within each, samples are put in order of their length, those of
// equal length in the order that they had, and cut into batches; and these change places as the seed, the epoch
// and the window say, where the order is shuffled. A short last batch stays the last, and gets
// what is longest in its window. So each sample comes exactly once as ever, and steps are as many and as large.
//
// With costs, the samples of a step are put in an order in which runs of the same length cost about the same, so that
// ranks do, of any world, and parts of their shares.
//
// A window is put in order when one of its samples is asked for, and those that were used last are kept, within a
// bound: ranks and streams walk through windows that are far apart. A Buckets is safe for concurrent use.
type Buckets struct {
	lengths Lengths
	costs   Costs // nil where costs do not count
	rows    int64 // of a window

	mu   sync.Mutex
	kept map[windowKey]*ordered
	uses int64
}

// ordered is a window that was put in order.
type ordered struct {
	rows []int32
	used int64 // when it last was, counted by uses
}

// windowKey names a window of an epoch.
type windowKey struct {
	epoch  uint64
	window int64
}

const (
	// MaxWindowRows bounds the samples of a window: one is put in order in some milliseconds.
	MaxWindowRows = 1 << 16
	// minKept is the least number of kept windows: a stream reads one, and prefetching
	// reads the next ones. If windows are small, as many are kept as have keptRows rows, at
	// most maxKept.
	minKept  = 8
	maxKept  = 256
	keptRows = 1 << 20
)

// keptWindows is how many windows are kept if each has that many rows.
func keptWindows(rows int64) int64 { return min(max(keptRows/rows, minKept), maxKept) }

// NewBuckets returns the buckets of a plan's samples for windows of rows rows, a whole
// number of batches. If costs is not nil, rows are ordered so that the ranks of a step
// cost about the same. The Buckets take at most BucketsBytes of memory.
func NewBuckets(lengths Lengths, costs Costs, rows int64) (*Buckets, error) {
	if rows < 1 || rows > MaxWindowRows {
		return nil, &schema.FieldError{Field: "bucket_by_length.window", Got: strconv.FormatInt(rows, 10) + " rows",
			Want: "windows of 1 to " + strconv.Itoa(MaxWindowRows) + " rows"}
	}
	return &Buckets{lengths: lengths, costs: costs, rows: rows, kept: map[windowKey]*ordered{}}, nil
}

// BucketsBytes is the memory of Buckets with windows of that many rows.
func BucketsBytes(rows int64) int64 { return 4*keptWindows(rows)*rows + 8*rows }

// at is which index of the order without buckets stands at an index of p's.
func (b *Buckets) at(p *Plan, index int64) int64 {
	window := index / b.rows
	start := window * b.rows
	return start + int64(b.window(p, window)[index-start])
}

// index is at's inverse.
func (b *Buckets) index(p *Plan, at int64) int64 {
	window := at / b.rows
	start := window * b.rows
	return start + int64(slices.Index(b.window(p, window), int32(at-start)))
}

// window says which rows of a window come one after the other.
func (b *Buckets) window(p *Plan, window int64) []int32 {
	key := windowKey{p.cfg.Epoch, window}
	if !p.cfg.Shuffle {
		key.epoch = 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uses++
	if w := b.kept[key]; w != nil {
		w.used = b.uses
		return w.rows
	}
	if int64(len(b.kept)) >= keptWindows(b.rows) {
		b.forgetLocked()
	}
	w := &ordered{b.sort(p, key), b.uses}
	b.kept[key] = w
	return w.rows
}

// forgetLocked forgets the window that was not used for longest. That takes less than putting one in order.
func (b *Buckets) forgetLocked() {
	var oldest windowKey
	least := b.uses
	for key, w := range b.kept {
		if w.used < least {
			oldest, least = key, w.used
		}
	}
	delete(b.kept, oldest)
}

// sort puts a window in order.
func (b *Buckets) sort(p *Plan, key windowKey) []int32 {
	start := key.window * b.rows
	size := min(b.rows, p.rows-start)
	byLength := make([]uint64, size) // the length, then the row
	for i := range byLength {
		byLength[i] = uint64(b.lengths[p.plain(start+int64(i))])<<32 | uint64(i)
	}
	slices.Sort(byLength)
	rows := make([]int32, size)
	whole := size / p.cfg.Batch
	var batches Perm
	if p.cfg.Shuffle && whole > 0 {
		batches = NewPerm(uint64(whole), windowSeed(p.cfg.Seed, uint64(key.window)), key.epoch)
	}
	for at := int64(0); at < size; at += p.cfg.Batch {
		from := at
		if k := at / p.cfg.Batch; p.cfg.Shuffle && k < whole {
			from = int64(batches.At(uint64(k))) * p.cfg.Batch
		}
		step := byLength[from:min(from+p.cfg.Batch, size)]
		if b.costs != nil {
			b.spread(p, start, rows[at:at+int64(len(step))], step)
			continue
		}
		for i, row := range step {
			rows[at+int64(i)] = int32(uint32(row))
		}
	}
	return rows
}

// spread puts the rows of a step, of a window that begins at start, into an order in which runs of the same length cost
// about the same. It does not go by the world: that may change.
func (b *Buckets) spread(p *Plan, start int64, to []int32, step []uint64) {
	most := 0.0
	for _, row := range step {
		most = max(most, b.costs.of(p.plain(start+int64(uint32(row)))))
	}
	if most > 0 {
		most = (1<<costBits - 1) / most
	}
	for i, row := range step { // costs are whole numbers, which add up the same on any machine
		row = uint64(uint32(row))
		step[i] = uint64(math.Round(b.costs.of(p.plain(start+int64(row)))*most))<<numberBits | row
	}
	slices.Sort(step)
	spread(to, step)
}

// windowSeed is the seed by which the batches of a window change places: another one for each
// window, and not that of the epoch's order.
func windowSeed(seed, window uint64) uint64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte("buckets\x00")))
	return s.next() ^ bits.RotateLeft64((window+1)*0x9e3779b97f4a7c15, 31)
}
