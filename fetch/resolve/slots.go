package resolve

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/layout"
	"bowstring/fetch/manifest"
	"bowstring/schema"
)

const (
	// slotBlock is how many rows are looked up at once: as many as a page has, so that one that
	// is read for a row is never read again for another.
	slotBlock = 1024
	// slotBlocks is how many blocks are looked up at the same time.
	slotBlocks = 128
)

// slotTable is in which slot the blob of each row of a snapshot lies, as far as that was looked
// up. It takes 17 bits a row. Rows are looked up in whole blocks, so that all steps of
// all epochs together go through the manifest once. It is safe for concurrent use.
type slotTable struct {
	column int // ordinal of the blob column

	mu    sync.RWMutex
	slots []uint16 // by position
	known []uint64 // a bit for each position
}

// slotBytes is what the table of so many rows takes.
func slotBytes(rows int64) int64 { return 2*rows + 8*(rows/64+1) }

func newSlotTable(rows int64, column int) *slotTable {
	return &slotTable{column: column, slots: make([]uint16, rows), known: make([]uint64, rows/64+1)}
}

// slotTable returns the table of a blob column of a snapshot, with a hold for the caller.
func (rv *Resolver) slotTable(ctx context.Context, snap *openSnapshot, column int) (*result, error) {
	return rv.derive(ctx, snap.key, fmt.Sprintf("slots\x00%d", column), snap, func(context.Context) (*result, error) {
		rows := snap.manifest.Rows()
		// On nobody's account: whoever shares out batches of the snapshot uses it.
		memory, err := rv.results.reserve("", slotBytes(rows))
		if err != nil {
			return nil, fmt.Errorf("assign %q keeps two bytes for each of %d rows: %w", schema.AssignLocal, rows, err)
		}
		return &result{slots: newSlotTable(rows, column), memory: memory}, nil
	})
}

// tryGet puts the slots of the rows at some positions into to, false if not all are known.
func (t *slotTable) tryGet(positions []int64, to []uint16) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, pos := range positions {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			return false
		}
		to[i] = t.slots[pos]
	}
	return true
}

// get puts the slots of the rows at some positions into to. It reads of the manifest what is
// not known.
func (t *slotTable) get(ctx context.Context, m *manifest.Manifest, positions []int64, to []uint16) error {
	if t.tryGet(positions, to) {
		return nil
	}
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(slotBlocks)
	for _, block := range t.missing(positions) {
		from, to := block*slotBlock, min((block+1)*slotBlock, m.Rows())
		g.Go(func() error {
			if t.has(from, to) {
				return nil // it lay in the pages of other blocks
			}
			return m.Walk(all, from, to, nil, t.visit)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !t.tryGet(positions, to) {
		return fmt.Errorf("a defect of the server: the slots of %d rows were not found in the manifest", len(positions))
	}
	return nil
}

// has reports whether all rows in [from, to) are known.
func (t *slotTable) has(from, to int64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for pos := from; pos < to; pos++ {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			return false
		}
	}
	return true
}

// missing lists the blocks that have a row which is not known, each once.
func (t *slotTable) missing(positions []int64) []int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var blocks []int64
	for _, pos := range positions {
		if t.known[pos>>6]>>(pos&63)&1 == 0 {
			blocks = append(blocks, pos/slotBlock)
		}
	}
	slices.Sort(blocks)
	return slices.Compact(blocks)
}

// visit takes the slots of a whole page.
func (t *slotTable) visit(_ context.Context, start int64, p *schema.Page) error {
	found := make([]uint16, p.Rows())
	err := schema.Guard(func() error {
		for row := range found {
			if ref, ok := p.Blob(t.column, row); ok {
				found[row] = layout.SlotOf(ref.Key)
			} else {
				found[row] = slotOfNull(start + int64(row))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	copy(t.slots[start:], found)
	for pos := start; pos < start+int64(len(found)); pos++ {
		t.known[pos>>6] |= 1 << (pos & 63)
	}
	return nil
}

// slotOfNull is the slot of a row without a blob. Nothing has to be read for it, so it may
// go to any rank, and goes to each as often.
func slotOfNull(pos int64) uint16 { return uint16(uint64(pos) * 0x9e3779b97f4a7c15 >> 48) }
