package manifest

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"sync"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// lookup finds samples by id: an open-addressing table of positions plus one, with
// linear probing, built when it is first used; 0 is a free slot. Ids themselves stay
// in the pages. A byte of each id's hash spares reading pages for ids that share a slot.
// The hash is seeded, so that no choice of ids can make it slow.
type lookup struct {
	seed   maphash.Seed
	small  []uint32
	large  []uint64
	tags   []uint8
	memory *admission.Hold

	turn chan struct{} // held by who builds it
	once sync.Once
}

// Find returns the positions of the samples with some ids, -1 where there is none. The
// first call goes through all ids, and takes 6.25 bytes a row (11.25 beyond 2^32 rows) of what
// the ledger has for admission.Evaluation until the manifest is closed: ErrLimit where they
// do not fit.
func (m *Manifest) Find(ctx context.Context, ids []schema.ID) ([]int64, error) {
	if err := m.buildIndex(ctx); err != nil {
		return nil, err
	}
	x := &m.ids
	found, at := make([]int64, len(ids)), make([]int, len(ids))
	left := make([]int, 0, len(ids))
	tags := make([]uint8, len(ids))
	for i, id := range ids {
		found[i], left = -1, append(left, i)
		at[i], tags[i] = x.slot(id)
	}
	for len(left) > 0 {
		var asked []int
		var positions []int64
		for _, i := range left {
			if pos, ok := x.next(&at[i], tags[i]); ok {
				asked, positions = append(asked, i), append(positions, pos)
			}
		}
		left = left[:0]
		for from := 0; from < len(asked); from += findAtOnce {
			to := min(from+findAtOnce, len(asked))
			rows, err := m.At(ctx, positions[from:to])
			if err != nil {
				return nil, err
			}
			err = schema.Guard(func() error {
				for k, i := range asked[from:to] {
					if rows[k].ID() == ids[i] {
						found[i] = positions[from+k]
					} else {
						left = append(left, i)
					}
				}
				return nil
			})
			if err != nil {
				return nil, m.named(err)
			}
		}
	}
	return found, nil
}

// findAtOnce is how many rows are copied at the same time to compare their ids.
const findAtOnce = 1024

func (m *Manifest) buildIndex(ctx context.Context) error {
	x := &m.ids
	x.once.Do(func() { x.turn = make(chan struct{}, 1) })
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if x.tags != nil {
		return nil
	}
	n := m.Rows()
	slots, width := n+n/4+1, int64(4)
	if n >= math.MaxUint32 {
		width = 8
	}
	memory, ok := m.cache.ledger.Try(admission.Evaluation, slots*(width+1))
	if !ok {
		return fmt.Errorf("%w: to find samples of %s@%d by id, %d bytes would be needed for an index, more than what "+
			"is left for %s; ask by position",
			schema.ErrLimit, m.Snapshot().Dataset, m.Snapshot().Number, slots*(width+1), admission.Evaluation)
	}
	x.seed, x.small, x.large = maphash.MakeSeed(), nil, nil
	if width == 4 {
		x.small = make([]uint32, slots)
	} else {
		x.large = make([]uint64, slots)
	}
	tags := make([]uint8, slots)
	var mu sync.Mutex
	err := m.Walk(ctx, 0, n, nil, func(_ context.Context, start int64, p *schema.Page) error {
		mu.Lock()
		defer mu.Unlock()
		return schema.Guard(func() error {
			for row := range p.Rows() {
				x.add(tags, p.ID(row), start+int64(row))
			}
			return nil
		})
	})
	if err != nil {
		memory.Release()
		x.small, x.large = nil, nil
		return m.named(err)
	}
	x.tags, x.memory = tags, memory
	return nil
}

func (x *lookup) slots() int { return max(len(x.small), len(x.large)) }

func (x *lookup) slot(id schema.ID) (int, uint8) {
	hash := maphash.Bytes(x.seed, id[:])
	hi, _ := bits.Mul64(hash, uint64(x.slots()))
	return int(hi), uint8(hash)
}

func (x *lookup) add(tags []uint8, id schema.ID, pos int64) {
	at, tag := x.slot(id)
	for x.has(at) {
		if at++; at == x.slots() {
			at = 0
		}
	}
	tags[at] = tag
	if x.small != nil {
		x.small[at] = uint32(pos + 1)
	} else {
		x.large[at] = uint64(pos + 1)
	}
}

func (x *lookup) has(at int) bool {
	if x.small != nil {
		return x.small[at] != 0
	}
	return x.large[at] != 0
}

// next returns the position of the next candidate from a slot on, and goes on.
func (x *lookup) next(at *int, tag uint8) (pos int64, ok bool) {
	for x.has(*at) {
		slot := *at
		if *at++; *at == x.slots() {
			*at = 0
		}
		switch {
		case x.tags[slot] != tag:
		case x.small != nil:
			return int64(x.small[slot]) - 1, true
		default:
			return int64(x.large[slot]) - 1, true
		}
	}
	return 0, false
}

// close gives the memory back.
func (x *lookup) close() {
	x.memory.Release()
	x.small, x.large, x.tags = nil, nil, nil
}
